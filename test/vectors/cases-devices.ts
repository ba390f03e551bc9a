/** Vectors of pairing, certificates, phrase, password, re-authentication and recovery. */
import {
  boxKeys,
  CHALLENGE_ID,
  fixed,
  LAPTOP,
  LOW_ORDER_POINTS,
  MASTER_KEY,
  miscounted,
  PHONE,
  refused,
  signPublic,
  spoilt,
  TENANT_ID,
  valid,
  type Vector,
} from './cases.js';
import {
  argon2,
  auth,
  b32,
  blake2b,
  bip39Seed,
  ed25519Sign,
  hex,
  hmacSha256,
  join,
  lp,
  seal,
  utf8,
  words,
  x25519,
  type Bytes,
} from './reference.js';

/** phrase.json: master key, MAC key and recovery key of twelve words. */
export async function phrases(): Promise<Vector[]> {
  const phrase = words(fixed('phrase', 16));
  const seed = bip39Seed(phrase);
  const masterKey = await argon2(32, seed, utf8('service/v1/master-salt'));
  const recoverySeed = await argon2(32, seed, utf8('service/v1/recovery-salt'));
  const expected = {
    seed: hex(seed),
    masterKey: hex(masterKey),
    itemMacKey: hex(b32(masterKey, utf8('service-item-mac-v1'))),
    masterFingerprint: hex(b32(utf8('service-master-fingerprint-v1'), masterKey).slice(0, 16)),
    recoverySeed: hex(recoverySeed),
    recoveryPubkey: signPublic(recoverySeed),
  };
  return [
    valid(
      'the keys of a phrase, typed in upper case with hyphens',
      { phrase: phrase.toUpperCase().replaceAll(' ', '-') },
      expected,
    ),
    refused('a wrong checksum', { phrase: `${'abandon '.repeat(11)}abandon` }, 'bad_words'),
    refused('six words are no phrase', { phrase: words(fixed('code', 8)) }, 'bad_words'),
  ];
}

/** password.json: what a client sends in place of the password. */
export async function passwords(): Promise<Vector[]> {
  const sent = async (typed: string): Promise<{ sent: string }> => ({
    sent: Buffer.from(await argon2(32, utf8(typed.normalize('NFKD')), lp('service-password-v1', TENANT_ID))).toString(
      'base64url',
    ),
  });
  const composed = 'Zürich ﬁne ①';
  const expected = await sent(composed);
  return [
    valid('NFKD before stretching', { password: composed, tenantId: TENANT_ID }, expected),
    valid(
      'the same password in another Unicode form',
      { password: composed.normalize('NFD'), tenantId: TENANT_ID },
      expected,
    ),
    refused('an empty password', { password: '', tenantId: TENANT_ID }, 'empty_password'),
  ];
}

const HOST = 'sync.example.org';
const JOINER = boxKeys('new device');
const OFFER = boxKeys('session of the existing device');
export const certOf = (masterKey: Bytes, id: string, publicKey: Bytes): Bytes =>
  auth(lp('service-device-v1', id, publicKey), b32(utf8('service-device-cert-v1'), masterKey));

async function codeOf(visibleCode: string): Promise<{ prk: Bytes; wireCode: string; codeKey: Bytes }> {
  const prk = await argon2(64, utf8(visibleCode), utf8('service-pair-salt-v1'));
  return {
    prk,
    wireCode: words(b32(utf8('service-pair-lookup-v1'), prk).subarray(0, 8)),
    codeKey: b32(utf8('service-pair-code-v1'), prk),
  };
}

function digitsOf(transcript: Bytes, secret: Bytes): string {
  const hash = b32(transcript, secret);
  return String(new DataView(hash.buffer, hash.byteOffset).getUint32(0) % 1_000_000).padStart(6, '0');
}

function accepting(link: { transcript: Record<string, string>; secret: Bytes }): Vector[] {
  const { transcript, secret } = link;
  const id = transcript['deviceId'] ?? '';
  const release = (masterKey: Bytes, cert: Bytes): Record<string, string> => {
    const wrapped = seal(masterKey, JOINER.publicKey, fixed('wrap ephemeral'));
    const confirmation = hmacSha256(lp('confirm', wrapped, cert), secret);
    return { wrappedMasterKey: hex(wrapped), deviceCert: hex(cert), confirmation: hex(confirmation) };
  };
  const good = release(MASTER_KEY, certOf(MASTER_KEY, id, JOINER.publicKey));
  const base = {
    step: 'accept',
    transcript,
    secret: hex(secret),
    secretKey: hex(JOINER.secretKey),
    device: { id, publicKey: hex(JOINER.publicKey) },
  };
  const other = (change: Record<string, string>): Record<string, unknown> => ({
    ...base,
    release: { ...good, ...change },
  });
  return [
    valid('N takes the master key', { ...base, release: good }, { masterKey: hex(MASTER_KEY) }),
    refused(
      'another wrapped key than confirmed',
      other({ wrappedMasterKey: spoilt(good['wrappedMasterKey'] ?? '') }),
      'bad_confirmation',
    ),
    refused(
      'another certificate than confirmed',
      other({ deviceCert: spoilt(good['deviceCert'] ?? '') }),
      'bad_confirmation',
    ),
    refused('an altered confirmation', other({ confirmation: spoilt(good['confirmation'] ?? '') }), 'bad_confirmation'),
    refused(
      'a confirmed certificate of another master key',
      { ...base, release: release(MASTER_KEY, certOf(fixed('other master'), id, JOINER.publicKey)) },
      'bad_cert',
    ),
    refused(
      'a confirmed wrap that is no master key',
      { ...base, release: release(fixed('short', 16), certOf(MASTER_KEY, id, JOINER.publicKey)) },
      'bad_wrap',
    ),
    refused(
      'registered under another id',
      { ...base, release: good, device: { ...base.device, id: PHONE.id } },
      'wrong_device',
    ),
    refused(
      'registered with another key',
      { ...base, release: good, device: { ...base.device, publicKey: hex(PHONE.keys.publicKey) } },
      'wrong_device',
    ),
  ];
}

function judging(input: Record<string, unknown>, request: Record<string, string>): Vector[] {
  const judge = (change: Record<string, unknown>, own: Record<string, unknown> = {}): Record<string, unknown> => ({
    ...input,
    ...own,
    step: 'judge',
    request: { ...request, ...change },
  });
  const attested = { attestation: request['attestation'] };
  return [
    valid('E accepts the attestation', judge({}), attested),
    refused('an altered attestation', judge({ attestation: spoilt(request['attestation'] ?? '') }), 'bad_attestation'),
    refused('another name than attested', judge({ name: 'Phone of a stranger' }), 'bad_attestation'),
    refused('another glyph than attested', judge({ glyph: 'globe' }), 'bad_attestation'),
    refused('another device id than attested', judge({ deviceId: PHONE.id }), 'bad_attestation'),
    refused('another key than attested', judge({ npk: hex(PHONE.keys.publicKey) }), 'bad_attestation'),
    refused('another code', judge({}, { codeKey: spoilt(String(input['codeKey'])) }), 'bad_attestation'),
    refused('the new device dialled another host', judge({ host: 'evil.example.org' }), 'wrong_host'),
    refused(
      'E reaches the server by another host than N: the attestation is right, and the host is not',
      judge({}, { ownHost: 'other.example.org' }),
      'wrong_host',
    ),
    refused('the host in other case than E has it', judge({}, { ownHost: HOST.toUpperCase() }), 'wrong_host'),
    refused('an id that E knows', judge({}, { knownDevices: [request['deviceId']] }), 'known_device'),
    ...LOW_ORDER_POINTS.map(([name, npk]) => refused(`low order: ${name}`, judge({ npk }), 'low_order')),
  ];
}

/** pair-code.json and pairing.json: from the visible words to the master key. */
export async function pairings(): Promise<{ codes: Vector[]; sessions: Vector[] }> {
  const visibleCode = words(fixed('code', 8));
  const { prk, wireCode, codeKey } = await codeOf(visibleCode);
  const deviceId = '01JAB0DEV1CE00000000000003';
  const who = { deviceId, host: HOST, name: 'Käthes Phone 📱', glyph: 'phone' };
  const transcript = lp(
    'service-pair-v1',
    wireCode,
    who.host,
    OFFER.publicKey,
    JOINER.publicKey,
    who.deviceId,
    who.name,
    who.glyph,
  );
  const shared = x25519(OFFER.secretKey, JOINER.publicKey);
  const secret = b32(lp(transcript, shared), codeKey);
  const attestation = hex(hmacSha256(join(JOINER.publicKey, OFFER.publicKey), secret));
  const keys = { epk: hex(OFFER.publicKey), npk: hex(JOINER.publicKey) };
  const input = {
    wireCode,
    codeKey: hex(codeKey),
    esk: hex(OFFER.secretKey),
    epk: keys.epk,
    ownHost: HOST,
    knownDevices: [LAPTOP.id],
  };
  const derived = {
    transcript: hex(transcript),
    secret: hex(secret),
    attestation,
    digits: digitsOf(transcript, secret),
  };
  return {
    codes: [
      valid(
        'the canonical code',
        { typed: visibleCode },
        { visibleCode, prk: hex(prk), wireCode, codeKey: hex(codeKey) },
      ),
      refused('a wrong checksum', { typed: miscounted(visibleCode) }, 'bad_words'),
    ],
    sessions: [
      valid(
        'both sides of one session',
        {
          step: 'link',
          wireCode,
          codeKey: hex(codeKey),
          esk: hex(OFFER.secretKey),
          nsk: hex(JOINER.secretKey),
          ...keys,
          ...who,
        },
        derived,
      ),
      ...judging(input, { ...who, npk: keys.npk, attestation }),
      ...accepting({ transcript: { wireCode, ...keys, ...who }, secret }),
    ],
  };
}

/** device-cert.json: certificates. */
export function certificates(): Vector[] {
  const cert = hex(certOf(MASTER_KEY, LAPTOP.id, LAPTOP.keys.publicKey));
  const input = { masterKey: hex(MASTER_KEY), deviceId: LAPTOP.id, publicKey: hex(LAPTOP.keys.publicKey), cert };
  const fingerprint = hex(blake2b(16, lp('service-fingerprint-v1', LAPTOP.id, LAPTOP.keys.publicKey)));
  const other = (comment: string, change: Record<string, unknown>): Vector =>
    refused(comment, { ...input, ...change }, 'uncertified_device');
  return [
    valid('a certificate, and the fingerprint of the same device', input, { cert, fingerprint }),
    other('altered', { cert: spoilt(cert) }),
    other('short', { cert: cert.slice(0, 32) }),
    other('none', { cert: null }),
    other('of another device id', { deviceId: PHONE.id }),
    other('of another public key', { publicKey: hex(PHONE.keys.publicKey) }),
    other('under another master key', { masterKey: hex(fixed('other master')) }),
  ];
}

/** reauth.json: the challenge that a device answers, and forms of it that it must not answer. */
export function reauthentications(): Vector[] {
  const ids = { tenantId: TENANT_ID, deviceId: LAPTOP.id, challengeId: CHALLENGE_ID };
  const secret = fixed('reauth secret');
  const parts = ['service-reauth-v1', ids.tenantId, ids.deviceId, ids.challengeId] as const;
  const sealed = (opened: Bytes, to = LAPTOP): string =>
    hex(seal(opened, to.keys.publicKey, fixed('reauth ephemeral')));
  const input = (opened: Bytes): Record<string, unknown> => ({
    ...ids,
    publicKey: hex(LAPTOP.keys.publicKey),
    secretKey: hex(LAPTOP.keys.secretKey),
    challenge: sealed(opened),
  });
  const good = lp(...parts, secret);
  const answer = hmacSha256(lp('service-reauth-answer-v1', ids.tenantId, ids.deviceId, ids.challengeId), secret);
  const no = (comment: string, opened: Bytes): Vector => refused(comment, input(opened), 'bad_challenge');
  return [
    valid('a challenge of the one form', input(good), { answer: hex(answer) }),
    no('the master key, sealed to this device', MASTER_KEY),
    no('nothing', new Uint8Array(0)),
    no('31 bytes instead of 32', lp(...parts, secret.subarray(1))),
    no('33 bytes instead of 32', lp(...parts, join(secret, Uint8Array.of(0)))),
    no('a part more', lp(...parts, secret, utf8(''))),
    no('bytes after it', join(good, Uint8Array.of(0))),
    no('zeros after a secret of zeros', join(lp(...parts, new Uint8Array(32)), Uint8Array.of(0))),
    no('bytes before it', join(Uint8Array.of(0), good)),
    no('another context', lp('service-reauth-answer-v1', ...parts.slice(1), secret)),
    no('another tenant', lp(parts[0], '01JAB0TENANT00000000000001', parts[2], parts[3], secret)),
    no('another device', lp(parts[0], parts[1], PHONE.id, parts[3], secret)),
    no('another challenge', lp(parts[0], parts[1], parts[2], '01JAB0CHA11ENGE00000000001', secret)),
    refused('sealed to another device', { ...input(good), challenge: sealed(good, PHONE) }, 'bad_challenge'),
    refused('altered', { ...input(good), challenge: spoilt(sealed(good)) }, 'bad_challenge'),
  ];
}

/** recovery.json: the signature of a recovery. */
export function recoveries(): Vector[] {
  const seed = fixed('recovery seed');
  const claim = {
    host: HOST,
    tenantId: TENANT_ID,
    challengeId: CHALLENGE_ID,
    challenge: hex(fixed('recovery challenge')),
    deviceId: PHONE.id,
    publicKey: hex(PHONE.keys.publicKey),
    deviceCert: hex(certOf(MASTER_KEY, PHONE.id, PHONE.keys.publicKey)),
  };
  const signature = hex(
    ed25519Sign(
      lp(
        'service-recover-v1',
        HOST,
        TENANT_ID,
        CHALLENGE_ID,
        fixed('recovery challenge'),
        PHONE.id,
        PHONE.keys.publicKey,
        certOf(MASTER_KEY, PHONE.id, PHONE.keys.publicKey),
      ),
      seed,
    ),
  );
  const input = { recoverySeed: hex(seed), recoveryPubkey: signPublic(seed), ...claim, signature };
  const no = (comment: string, change: Record<string, unknown>): Vector =>
    refused(comment, { ...input, ...change }, 'bad_signature');
  return [
    valid('a recovery', input, { signature }),
    no('altered signature', { signature: spoilt(signature) }),
    no('short signature', { signature: signature.slice(2) }),
    no('another recovery key', { recoveryPubkey: signPublic(fixed('other seed')) }),
    no('a malformed recovery key', { recoveryPubkey: '00' }),
    no('another host', { host: 'evil.example.org' }),
    no('another tenant', { tenantId: '01JAB0TENANT00000000000001' }),
    no('another challenge', { challenge: spoilt(claim.challenge) }),
    no('another device key', { publicKey: hex(LAPTOP.keys.publicKey) }),
    no('another certificate', { deviceCert: spoilt(claim.deviceCert) }),
  ];
}
