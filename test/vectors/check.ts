/**
 * Runs the vectors against the crypto core over a given binding: one function per file, from `input` to what must equal
 * `expected`. A refusal of the core is thrown.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { openBinMeta } from '../../src/crypto/bin-meta.js';
import { certifyDevice, expectCertified, type OwnDevice } from '../../src/crypto/device.js';
import {
  checkDeleteTag,
  itemTagInput,
  makeDeleteTag,
  makeItemTag,
  type SealedItem,
} from '../../src/crypto/item-tag.js';
import { itemAad, moveTag, openItem, rewrapItem, type Reader } from '../../src/crypto/item.js';
import { fingerprintOfMaster } from '../../src/crypto/fingerprint.js';
import { itemMacKey, keysOfPhrase, phraseSeed } from '../../src/crypto/master-key.js';
import {
  acceptRelease,
  attestationOf,
  judgeJoin,
  pairLink,
  readPairCode,
  requestJoin,
  transcriptBytes,
  type PairTranscript,
} from '../../src/crypto/pairing.js';
import { stretchPassword } from '../../src/crypto/password.js';
import { answerReauthChallenge } from '../../src/crypto/reauth.js';
import { signRecovery, verifyRecovery } from '../../src/crypto/recovery.js';
import { b32, stretch, type Sodium } from '../../src/crypto/sodium.js';
import { decodeWords, encodeWords } from '../../src/crypto/words.js';
import { lengthPrefixed, text } from '../../src/protocol/bytes.js';
import { isContentType } from '../../src/protocol/item.js';
import { PROJECT_ROOT } from '../../src/root.js';
import { fingerprintOfDevice } from '../../src/sdk/device-list.js';
import { openBlob } from '../support/sealed-blobs.js';
import { archiveCheck } from './check-archive.js';
import { blobCheck } from './check-blob.js';
import { wireBodies } from './check-wire.js';
import type { Vector } from './cases.js';

type Fields = Record<string, unknown>;
type Check = (sodium: Sodium, input: Fields) => Fields | Promise<Fields>;

const FOLDER = join(PROJECT_ROOT, 'test', 'vectors');

/** The vectors of a file. */
export const vectors = (name: string): Vector[] =>
  JSON.parse(readFileSync(join(FOLDER, `${name}.json`), 'utf8')) as Vector[];

/** Names of all vector files. */
export const vectorFiles = (): string[] =>
  readdirSync(FOLDER)
    .filter((name) => name.endsWith('.json'))
    .map((name) => name.slice(0, -'.json'.length))
    .sort();

const toHex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');
const fromHex = (value: string): Uint8Array => new Uint8Array(Buffer.from(value, 'hex'));

function str(input: Fields, key: string): string {
  const value = input[key];
  if (typeof value !== 'string') throw new Error(`the vector has no text ${key}`);
  return value;
}

const bytes = (input: Fields, key: string): Uint8Array => fromHex(str(input, key));
const maybeBytes = (input: Fields, key: string): Uint8Array | null =>
  input[key] === null || input[key] === undefined ? null : bytes(input, key);
const fields = (input: Fields, key: string): Fields => input[key] as Fields;
const maybeFields = (input: Fields, key: string): Fields | null => (input[key] ?? null) as Fields | null;
const outOf = (opened: Uint8Array | undefined): Fields => ({ out: opened === undefined ? null : toHex(opened) });

/** An encryption must give these bytes, and open again. */
function both(made: Uint8Array, reopened: Uint8Array | undefined, message: Uint8Array): Fields {
  return { out: reopened !== undefined && toHex(reopened) === toHex(message) ? toHex(made) : 'does not open again' };
}

/** Curve25519's generator, u = 9 (RFC 7748, 4.1). */
const BASE_POINT = Uint8Array.of(9, ...Array.from({ length: 31 }, () => 0));

const primitives: Record<string, Check> = {
  sha256: (sodium, input) => outOf(sodium.sha256(bytes(input, 'message'))),
  hmacSha256: (sodium, input) => outOf(sodium.hmacSha256(bytes(input, 'message'), bytes(input, 'key'))),
  auth: (sodium, input) => outOf(sodium.auth(bytes(input, 'message'), bytes(input, 'key'))),
  authVerify: (sodium, input) => ({
    out: sodium.authVerify(bytes(input, 'tag'), bytes(input, 'message'), bytes(input, 'key')),
  }),
  blake2b: (sodium, input) => {
    const key = maybeBytes(input, 'key');
    return outOf(
      key === null ? sodium.blake2b(16, bytes(input, 'message')) : b32(sodium, bytes(input, 'message'), key),
    );
  },
  aead: (sodium, input) => {
    const message = bytes(input, 'message');
    const rest = { aad: bytes(input, 'aad'), nonce: bytes(input, 'nonce'), key: bytes(input, 'key') };
    const ct = sodium.aeadEncrypt({ message, ...rest });
    return both(ct, sodium.aeadDecrypt({ message: ct, ...rest }), message);
  },
  aeadDecrypt: (sodium, input) =>
    outOf(
      sodium.aeadDecrypt({
        message: bytes(input, 'message'),
        aad: bytes(input, 'aad'),
        nonce: bytes(input, 'nonce'),
        key: bytes(input, 'key'),
      }),
    ),
  secretbox: (sodium, input) => {
    const [message, nonce, key] = [bytes(input, 'message'), bytes(input, 'nonce'), bytes(input, 'key')];
    const box = sodium.secretbox(message, nonce, key);
    return both(box, sodium.secretboxOpen(box, nonce, key), message);
  },
  secretboxOpen: (sodium, input) =>
    outOf(sodium.secretboxOpen(bytes(input, 'message'), bytes(input, 'nonce'), bytes(input, 'key'))),
  seal: (sodium, input) => outOf(sodium.seal(bytes(input, 'message'), bytes(input, 'publicKey'))),
  sealOpen: (sodium, input) => outOf(sodium.sealOpen(bytes(input, 'sealed'), keyPair(input))),
  scalarmult: (sodium, input) => outOf(sodium.scalarmult(bytes(input, 'secretKey'), bytes(input, 'publicKey'))),
  scalarmultBase: (sodium, input) => outOf(sodium.scalarmult(bytes(input, 'secretKey'), BASE_POINT)),
  sign: (sodium, input) => {
    const pair = sodium.signKeyPair(bytes(input, 'seed'));
    return { ...outOf(sodium.sign(bytes(input, 'message'), pair.secretKey)), publicKey: toHex(pair.publicKey) };
  },
  signVerify: (sodium, input) => ({
    out: sodium.signVerify(bytes(input, 'signature'), bytes(input, 'message'), bytes(input, 'publicKey')),
  }),
};

const keyPair = (input: Fields) => ({ publicKey: bytes(input, 'publicKey'), secretKey: bytes(input, 'secretKey') });

function transcriptOf(input: Fields): PairTranscript {
  return {
    wireCode: str(input, 'wireCode'),
    host: str(input, 'host'),
    epk: bytes(input, 'epk'),
    npk: bytes(input, 'npk'),
    deviceId: str(input, 'deviceId'),
    name: str(input, 'name'),
    glyph: str(input, 'glyph'),
  };
}

/** A pairing code without its visible words, which no step needs. */
const codeOf = (input: Fields) => ({
  visibleCode: '',
  wireCode: str(input, 'wireCode'),
  codeKey: bytes(input, 'codeKey'),
});

const pairingSteps: Record<string, Check> = {
  link: (sodium, input) => {
    const transcript = transcriptOf(input);
    const ofE = pairLink(sodium, transcript, {
      codeKey: bytes(input, 'codeKey'),
      secretKey: bytes(input, 'esk'),
      otherPublic: transcript.npk,
    });
    const keys = { publicKey: transcript.npk, secretKey: bytes(input, 'nsk') };
    const device = { id: transcript.deviceId, keys, name: transcript.name, glyph: transcript.glyph };
    const ofN = requestJoin(sodium, { code: codeOf(input), host: transcript.host, epk: transcript.epk, device });
    if (toHex(ofE.secret) !== toHex(ofN.link.secret)) throw new Error('the two sides differ');
    return {
      transcript: toHex(transcriptBytes(ofN.link.transcript)),
      secret: toHex(ofE.secret),
      attestation: toHex(ofN.attestation),
      digits: ofE.digits,
    };
  },
  judge: (sodium, input) => {
    const request = fields(input, 'request');
    const link = judgeJoin(
      sodium,
      {
        deviceId: str(request, 'deviceId'),
        host: str(request, 'host'),
        npk: bytes(request, 'npk'),
        name: str(request, 'name'),
        glyph: str(request, 'glyph'),
        attestation: bytes(request, 'attestation'),
      },
      {
        code: codeOf(input),
        keys: { publicKey: bytes(input, 'epk'), secretKey: bytes(input, 'esk') },
        host: str(input, 'ownHost'),
        knownDevices: new Set(input['knownDevices'] as string[]),
      },
    );
    return { attestation: toHex(attestationOf(sodium, link)) };
  },
  accept: (sodium, input) => {
    const transcript = transcriptOf(fields(input, 'transcript'));
    const device = fields(input, 'device');
    const release = fields(input, 'release');
    const masterKey = acceptRelease(
      sodium,
      { transcript, secret: bytes(input, 'secret'), digits: '' },
      {
        device: { id: str(device, 'id'), publicKey: bytes(device, 'publicKey') },
        release: {
          wrappedMasterKey: bytes(release, 'wrappedMasterKey'),
          deviceCert: bytes(release, 'deviceCert'),
          confirmation: bytes(release, 'confirmation'),
        },
        keys: { publicKey: transcript.npk, secretKey: bytes(input, 'secretKey') },
      },
    );
    return { masterKey: toHex(masterKey) };
  },
};

const keyMap = (input: Fields): Map<string, Uint8Array> =>
  new Map(Object.keys(fields(input, 'keys')).map((id) => [id, bytes(fields(input, 'keys'), id)]));

/** A vector's item in the form that the core takes. */
function itemOf(row: Fields): SealedItem {
  const type = str(row, 'type');
  if (!isContentType(type)) throw new Error(`the vector has an unknown type ${type}`);
  const inline = maybeFields(row, 'inline');
  const blob = maybeFields(row, 'blob');
  const master = maybeFields(row, 'master');
  return {
    id: str(row, 'id'),
    binId: str(row, 'binId'),
    type,
    ts: Number(row['ts']),
    inline: inline && { ct: bytes(inline, 'ct'), nonce: bytes(inline, 'nonce'), keys: keyMap(inline) },
    blob: blob && { ref: str(blob, 'ref'), nonce: bytes(blob, 'nonce'), keys: keyMap(blob) },
    master: master && { nonce: bytes(master, 'nonce'), ct: bytes(master, 'ct') },
    sig: maybeBytes(row, 'sig'),
  };
}

/** The item key as a client in another language would find it: the first offered one that decrypts the inline part. */
function itemKeyOf(sodium: Sodium, item: SealedItem, { device, masterKey }: Reader): string | null {
  const own = (keys?: ReadonlyMap<string, Uint8Array>): Uint8Array | undefined => {
    const sealed = device === null ? undefined : keys?.get(device.id);
    return sealed === undefined || device === null ? undefined : sodium.sealOpen(sealed, device.keys);
  };
  const wrap = item.master && sodium.secretboxOpen(item.master.ct, item.master.nonce, masterKey);
  const offered = [own(item.blob?.keys), wrap ?? undefined, own(item.inline?.keys)].filter((key) => key !== undefined);
  const { inline } = item;
  const fits = (key: Uint8Array): boolean =>
    inline === null ||
    sodium.aeadDecrypt({ message: inline.ct, aad: itemAad(item), nonce: inline.nonce, key }) !== undefined;
  const key = offered.find(fits);
  return key === undefined ? null : toHex(key);
}

/** What each listed device finds in a re-wrapped item. */
const checkRewrap: Check = (sodium, input) => {
  const item = itemOf(fields(input, 'item'));
  const masterKey = bytes(input, 'masterKey');
  const own = fields(input, 'device');
  const listed = (input['devices'] as Fields[]).map((row) => ({
    id: str(row, 'id'),
    publicKey: bytes(row, 'publicKey'),
    cert: maybeBytes(row, 'cert'),
    keys: keyPair(row),
  }));
  const by = { masterKey, device: { id: str(own, 'id'), keys: keyPair(own) }, devices: listed };
  const payload = rewrapItem(sodium, item, by);
  if (payload === null) throw new Error('nothing was missing');
  const found = (keys?: ReadonlyMap<string, Uint8Array>): Fields | null =>
    keys === undefined
      ? null
      : Object.fromEntries(
          [...keys].map(([id, sealed]) => {
            const device = listed.find((one) => one.id === id);
            const key = device && sodium.sealOpen(sealed, device.keys);
            return [id, key === undefined ? null : toHex(key)];
          }),
        );
  const { inline, blob, master, sig } = payload;
  const wrap = master && sodium.secretboxOpen(master.ct, master.nonce, masterKey);
  const tagged = makeItemTag(sodium, masterKey, { ...item, ...payload });
  return {
    keys: found(inline?.keys),
    blobKeys: found(blob?.keys),
    master: wrap ? toHex(wrap) : null,
    tagHolds: sig !== null && toHex(sig) === toHex(tagged),
  };
};

const checkItem: Check = (sodium, input) => {
  const item = itemOf(fields(input, 'item'));
  const masterKey = bytes(input, 'masterKey');
  const own = maybeFields(input, 'device');
  const device: OwnDevice | null = own && { id: str(own, 'id'), keys: keyPair(own) };
  const reader: Reader = { masterKey, device };
  const blobCt = maybeBytes(input, 'blobCt');
  const payload = openItem(sodium, item, reader);
  const blob = blobCt === null ? null : toHex(openBlob(sodium, { item, ct: blobCt }, reader));
  const moveTo = input['moveTo'];
  return {
    aad: toHex(itemAad(item)),
    itemKey: itemKeyOf(sodium, item, reader),
    sigInput: toHex(itemTagInput(item)),
    sig: toHex(makeItemTag(sodium, masterKey, item)),
    payload,
    blob,
    ...(typeof moveTo === 'string' ? { movedSig: toHex(moveTag(sodium, item, { binId: moveTo, masterKey })) } : {}),
  };
};

const checkRecovery: Check = (sodium, input) => {
  const claim = {
    host: str(input, 'host'),
    tenantId: str(input, 'tenantId'),
    challengeId: str(input, 'challengeId'),
    challenge: bytes(input, 'challenge'),
    deviceId: str(input, 'deviceId'),
    publicKey: bytes(input, 'publicKey'),
    deviceCert: bytes(input, 'deviceCert'),
  };
  const proof = { signature: bytes(input, 'signature'), recoveryPubkey: bytes(input, 'recoveryPubkey') };
  if (!verifyRecovery(sodium, claim, proof)) return { reason: 'bad_signature' };
  return { signature: toHex(signRecovery(sodium, sodium.signKeyPair(bytes(input, 'recoverySeed')), claim)) };
};

const checkPhrase: Check = async (sodium, input) => {
  const phrase = str(input, 'phrase');
  const seed = await phraseSeed(sodium, phrase);
  const recoverySeed = await stretch(sodium, {
    length: 32,
    password: seed,
    saltInput: text('service/v1/recovery-salt'),
  });
  const { masterKey, recovery } = await keysOfPhrase(sodium, phrase);
  return {
    seed: toHex(seed),
    masterKey: toHex(masterKey),
    itemMacKey: toHex(itemMacKey(sodium, masterKey)),
    masterFingerprint: fingerprintOfMaster(sodium, masterKey).replaceAll(' ', ''),
    recoverySeed: toHex(recoverySeed),
    recoveryPubkey: toHex(recovery.publicKey),
  };
};

const checkPairCode: Check = async (sodium, input) => {
  const { visibleCode, wireCode, codeKey } = await readPairCode(sodium, str(input, 'typed'));
  const prk = await stretch(sodium, {
    length: 64,
    password: text(visibleCode),
    saltInput: text('service-pair-salt-v1'),
  });
  return { visibleCode, prk: toHex(prk), wireCode, codeKey: toHex(codeKey) };
};

const byName =
  (table: Record<string, Check>, key: string): Check =>
  (sodium, input) => {
    const check = table[str(input, key)];
    if (check === undefined) throw new Error(`no check for ${str(input, key)}`);
    return check(sodium, input);
  };

/** One check for each vector file. */
export const checks: Readonly<Record<string, Check>> = {
  primitives: byName(primitives, 'call'),
  lp: (_, input) => {
    const parts = input['parts'] as ({ text: string } | { hex: string })[];
    return { bytes: toHex(lengthPrefixed(...parts.map((part) => ('text' in part ? part.text : fromHex(part.hex))))) };
  },
  words: (sodium, input) => {
    const read = decodeWords(sodium, str(input, 'typed'), Number(input['count']));
    return { text: encodeWords(sodium, read.bytes), bytes: toHex(read.bytes) };
  },
  phrase: checkPhrase,
  password: async (sodium, input) => ({
    sent: await stretchPassword(sodium, { password: str(input, 'password'), tenantId: str(input, 'tenantId') }),
  }),
  'pair-code': checkPairCode,
  pairing: byName(pairingSteps, 'step'),
  'device-cert': (sodium, input) => {
    const masterKey = bytes(input, 'masterKey');
    const device = { id: str(input, 'deviceId'), publicKey: bytes(input, 'publicKey') };
    expectCertified(sodium, masterKey, [{ ...device, cert: maybeBytes(input, 'cert') }]);
    const fingerprint = fingerprintOfDevice(sodium, { id: device.id, pubkey: device.publicKey }).replaceAll(' ', '');
    return { cert: toHex(certifyDevice(sodium, masterKey, device)), fingerprint };
  },
  reauth: (sodium, input) => {
    const ids = {
      tenantId: str(input, 'tenantId'),
      deviceId: str(input, 'deviceId'),
      challengeId: str(input, 'challengeId'),
    };
    const sealed = { challenge: bytes(input, 'challenge'), keys: keyPair(input) };
    return { answer: toHex(answerReauthChallenge(sodium, ids, sealed)) };
  },
  recovery: checkRecovery,
  item: checkItem,
  'item-delete': (sodium, input) => {
    const masterKey = bytes(input, 'masterKey');
    checkDeleteTag(sodium, masterKey, { id: str(input, 'id'), sig: maybeBytes(input, 'sig') });
    return { sig: toHex(makeDeleteTag(sodium, masterKey, str(input, 'id'))) };
  },
  rewrap: checkRewrap,
  wire: (_, input) => ({ ...wireBodies(itemOf(fields(input, 'item'))) }),
  blob: blobCheck,
  archive: (sodium, input) => archiveCheck(sodium, { phrase: str(input, 'phrase'), archive: bytes(input, 'archive') }),
  'bin-meta': (sodium, input) => ({
    meta: openBinMeta(
      sodium,
      { masterKey: bytes(input, 'masterKey'), binId: str(input, 'binId') },
      bytes(input, 'sealed'),
    ),
  }),
};
