/**
 * The computations of pairing on both sides (reference, Pairing). E is the existing device, N the new one. The server
 * between them may lie: it never learns the visible words, and neither side trusts a key that it delivers.
 *
 * E: `drawPairCode`, `judgeJoin`, the user compares name and digits, `releaseMasterKey`.
 * N: `readPairCode`, `requestJoin`, the user compares digits, `acceptRelease`.
 * Both erase `codeKey` and the link's `secret` with `memzero` when the session ends.
 */
import { concat, lengthPrefixed, text } from '../protocol/bytes.js';
import { PAIR_WORDS, SERVICE_NAME } from '../protocol/limits.js';
import { certifyDevice, isCertified, type OwnDevice } from './device.js';
import { unwrapMasterKey, wrapMasterKey } from './master-key.js';
import { CryptoRefusal } from './refusal.js';
import { b32, erasing, stretch, type KeyPair, type Sodium } from './sodium.js';
import { decodeWords, drawWords, encodeWords } from './words.js';

const CODE_BYTES = 8;
const PRK_BYTES = 64;
const PRK_SALT = text(`${SERVICE_NAME}-pair-salt-v1`);
const LOOKUP_CONTEXT = text(`${SERVICE_NAME}-pair-lookup-v1`);
const CODE_KEY_CONTEXT = text(`${SERVICE_NAME}-pair-code-v1`);
const TRANSCRIPT_CONTEXT = `${SERVICE_NAME}-pair-v1`;

/** The code on the screen and what is derived from it. Only `wireCode` goes to the server. */
export interface PairCode {
  readonly visibleCode: string;
  readonly wireCode: string;
  readonly codeKey: Uint8Array;
}

/** T, the transcript that both sides must agree on (reference, Pairing). */
export interface PairTranscript {
  readonly wireCode: string;
  /** The host that the new device dialled, in the form of `hostOf`. */
  readonly host: string;
  /** E's X25519 public key of this session. */
  readonly epk: Uint8Array;
  /** N's X25519 public key, which stays its device key. */
  readonly npk: Uint8Array;
  readonly deviceId: string;
  readonly name: string;
  readonly glyph: string;
}

/** A session with its shared secret. */
export interface PairLink {
  readonly transcript: PairTranscript;
  readonly secret: Uint8Array;
  /** Six decimal digits; the user compares them on both devices. */
  readonly digits: string;
}

/** The server's report to E about a new device. */
export interface JoinRequest extends Omit<PairTranscript, 'wireCode' | 'epk'> {
  readonly attestation: Uint8Array;
}

/** E's release to N. */
interface Release {
  readonly wrappedMasterKey: Uint8Array;
  readonly deviceCert: Uint8Array;
  readonly confirmation: Uint8Array;
}

/** A URL's host as in T and the recovery signature: lower case, without port; IPv6 with brackets. */
export const hostOf = (url: string): string => new URL(url).hostname;

/** Wire code and code key of a visible code in canonical form. */
async function codeOf(sodium: Sodium, visibleCode: string): Promise<PairCode> {
  const prk = await stretch(sodium, { length: PRK_BYTES, password: text(visibleCode), saltInput: PRK_SALT });
  return erasing(sodium, prk, (key) => {
    const wireCode = encodeWords(sodium, b32(sodium, LOOKUP_CONTEXT, key).subarray(0, CODE_BYTES));
    return { visibleCode, wireCode, codeKey: b32(sodium, CODE_KEY_CONTEXT, key) };
  });
}

/** E: a new code of 8 random bytes. */
export const drawPairCode = (sodium: Sodium): Promise<PairCode> => codeOf(sodium, drawWords(sodium, CODE_BYTES));

/** N: the code as typed. Rejects with `bad_words` before anything is stretched or sent. */
export async function readPairCode(sodium: Sodium, typed: string): Promise<PairCode> {
  return codeOf(sodium, decodeWords(sodium, typed, PAIR_WORDS).text);
}

/** T: LP("service-pair-v1", wire code, host, epk, npk, deviceId, name, glyph). */
export const transcriptBytes = (t: PairTranscript): Uint8Array =>
  lengthPrefixed(TRANSCRIPT_CONTEXT, t.wireCode, t.host, t.epk, t.npk, t.deviceId, t.name, t.glyph);

/** Six decimal digits of B32(T, key = secret): its first four bytes, big-endian, modulo 10^6. */
function digitsOf(sodium: Sodium, transcript: Uint8Array, secret: Uint8Array): string {
  const hash = b32(sodium, transcript, secret);
  const number = new DataView(hash.buffer, hash.byteOffset).getUint32(0) % 1_000_000;
  return String(number).padStart(6, '0');
}

/** The secret and digits of a session, computed from either side's secret key. Throws `low_order` and `bad_length`. */
export function pairLink(
  sodium: Sodium,
  transcript: PairTranscript,
  own: { readonly codeKey: Uint8Array; readonly secretKey: Uint8Array; readonly otherPublic: Uint8Array },
): PairLink {
  const bytes = transcriptBytes(transcript);
  const shared = sodium.scalarmult(own.secretKey, own.otherPublic);
  const input = lengthPrefixed(bytes, shared);
  const secret = b32(sodium, input, own.codeKey);
  sodium.memzero(shared);
  sodium.memzero(input);
  return { transcript, secret, digits: digitsOf(sodium, bytes, secret) };
}

/** attestation: HMAC-SHA256(secret, npk || epk). */
export const attestationOf = (sodium: Sodium, link: PairLink): Uint8Array =>
  sodium.hmacSha256(concat([link.transcript.npk, link.transcript.epk]), link.secret);

/** confirmation: HMAC-SHA256(secret, LP("confirm", wrappedMasterKey, deviceCert)). */
const confirmationOf = (sodium: Sodium, link: PairLink, release: Omit<Release, 'confirmation'>): Uint8Array =>
  sodium.hmacSha256(lengthPrefixed('confirm', release.wrappedMasterKey, release.deviceCert), link.secret);

/**
 * E: verifies a new device's request. Throws `wrong_host`, `known_device`, `low_order`, `bad_length` or
 * `bad_attestation`; then E must reject the session, so that a code allows one guess only.
 */
export function judgeJoin(
  sodium: Sodium,
  request: JoinRequest,
  own: {
    readonly code: PairCode;
    readonly keys: KeyPair;
    /** The host under which E reaches the server. */
    readonly host: string;
    /** Ids of all devices that E knows, including revoked ones. */
    readonly knownDevices: ReadonlySet<string>;
  },
): PairLink {
  if (request.host !== own.host)
    throw new CryptoRefusal('wrong_host', `the new device dialled ${request.host}, not ${own.host}`);
  if (own.knownDevices.has(request.deviceId))
    throw new CryptoRefusal('known_device', `device ${request.deviceId} exists already`);
  const { deviceId, host, npk, name, glyph } = request;
  const link = pairLink(
    sodium,
    { wireCode: own.code.wireCode, host, epk: own.keys.publicKey, npk, deviceId, name, glyph },
    { codeKey: own.code.codeKey, secretKey: own.keys.secretKey, otherPublic: npk },
  );
  if (!sodium.equal(attestationOf(sodium, link), request.attestation)) {
    sodium.memzero(link.secret);
    throw new CryptoRefusal('bad_attestation', 'the new device does not know the code');
  }
  return link;
}

/** E: releases the master key to the new device, after the user has approved its name and digits. */
export function releaseMasterKey(sodium: Sodium, link: PairLink, masterKey: Uint8Array): Release {
  const { deviceId, npk } = link.transcript;
  const wrappedMasterKey = wrapMasterKey(sodium, masterKey, npk);
  const deviceCert = certifyDevice(sodium, masterKey, { id: deviceId, publicKey: npk });
  const release = { wrappedMasterKey, deviceCert };
  return { ...release, confirmation: confirmationOf(sodium, link, release) };
}

/** N: the session's link, and the attestation that proves knowledge of the code. Throws `low_order`, `bad_length`. */
export function requestJoin(
  sodium: Sodium,
  join: {
    readonly code: PairCode;
    readonly host: string;
    readonly epk: Uint8Array;
    readonly device: OwnDevice & { readonly name: string; readonly glyph: string };
  },
): { readonly link: PairLink; readonly attestation: Uint8Array } {
  const { code, host, epk, device } = join;
  const { id: deviceId, keys, name, glyph } = device;
  const link = pairLink(
    sodium,
    { wireCode: code.wireCode, host, epk, npk: keys.publicKey, deviceId, name, glyph },
    { codeKey: code.codeKey, secretKey: keys.secretKey, otherPublic: epk },
  );
  return { link, attestation: attestationOf(sodium, link) };
}

/**
 * N: the master key in the reply. Throws `wrong_device` if id or public key are not N's, `bad_confirmation` if the
 * sender of the reply does not know the code, `bad_wrap`, and `bad_cert`.
 */
export function acceptRelease(
  sodium: Sodium,
  link: PairLink,
  reply: {
    /** The device as the server registered it. */
    readonly device: { readonly id: string; readonly publicKey: Uint8Array };
    readonly release: Release;
    readonly keys: KeyPair;
  },
): Uint8Array {
  const { device, release, keys } = reply;
  const { deviceId, npk } = link.transcript;
  if (device.id !== deviceId || !sodium.equal(device.publicKey, npk) || !sodium.equal(keys.publicKey, npk))
    throw new CryptoRefusal('wrong_device', 'the server registered another device than this one');
  if (!sodium.equal(confirmationOf(sodium, link, release), release.confirmation))
    throw new CryptoRefusal('bad_confirmation', 'the reply does not come from the device that showed the code');
  const masterKey = unwrapMasterKey(sodium, release.wrappedMasterKey, keys);
  if (!isCertified(sodium, masterKey, { id: deviceId, publicKey: npk, cert: release.deviceCert })) {
    sodium.memzero(masterKey);
    throw new CryptoRefusal('bad_cert', 'the certificate does not hold under the master key that came with it');
  }
  return masterKey;
}
