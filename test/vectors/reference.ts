/**
 * The primitives of the vectors, independent of libsodium: Node's OpenSSL (SHA, HMAC, PBKDF2, X25519, Ed25519,
 * ChaCha20-Poly1305), @noble/hashes (BLAKE2b, Argon2id), and Salsa20, HChaCha20 and Poly1305 implemented here from
 * their papers. Nothing of `src/` is used, so a vector on which both sides agree proves more than stability.
 * Slow and not constant time: for known test values only.
 */
import {
  createCipheriv,
  createHash,
  createHmac,
  createPrivateKey,
  createPublicKey,
  diffieHellman,
  pbkdf2Sync,
  sign,
} from 'node:crypto';
import { argon2idAsync } from '@noble/hashes/argon2.js';
import { blake2b as nobleBlake2b } from '@noble/hashes/blake2.js';
import { wordlist } from '@scure/bip39/wordlists/english.js';

export type Bytes = Uint8Array;

export const utf8 = (value: string): Bytes => new Uint8Array(Buffer.from(value, 'utf8'));
export const hex = (bytes: Bytes): string => Buffer.from(bytes).toString('hex');
export const unhex = (value: string): Bytes => new Uint8Array(Buffer.from(value, 'hex'));
export const join = (...parts: readonly Bytes[]): Bytes => new Uint8Array(Buffer.concat(parts));

/** LP of the page Cryptography. */
export function lp(...parts: readonly (string | Bytes)[]): Bytes {
  return join(
    ...parts.flatMap((part) => {
      const bytes = typeof part === 'string' ? utf8(part) : part;
      const length = Buffer.alloc(4);
      length.writeUInt32BE(bytes.length);
      return [length, bytes];
    }),
  );
}

export const sha256 = (message: Bytes): Bytes => new Uint8Array(createHash('sha256').update(message).digest());
export const hmacSha256 = (message: Bytes, key: Bytes): Bytes =>
  new Uint8Array(createHmac('sha256', key).update(message).digest());
/** crypto_auth: HMAC-SHA-512, its first 32 bytes. */
export const auth = (message: Bytes, key: Bytes): Bytes =>
  new Uint8Array(createHmac('sha512', key).update(message).digest().subarray(0, 32));
export const blake2b = (length: number, message: Bytes, key?: Bytes): Bytes =>
  nobleBlake2b(message, key === undefined ? { dkLen: length } : { dkLen: length, key });
export const b32 = (message: Bytes, key: Bytes): Bytes => blake2b(32, message, key);

/** Argon2id13 of the page Cryptography: 3 passes, 64 MiB, one lane; the salt is BLAKE2b-16 of `saltInput`. */
export const argon2 = (length: number, password: Bytes, saltInput: Bytes): Promise<Bytes> =>
  argon2idAsync(password, blake2b(16, saltInput), { t: 3, m: 65_536, p: 1, dkLen: length, version: 0x13 });

/** The BIP39 seed of a phrase in canonical form. */
export const bip39Seed = (phrase: string): Bytes =>
  new Uint8Array(pbkdf2Sync(phrase.normalize('NFKD'), 'mnemonic', 2048, 64, 'sha512'));

/** BIP39 words by way of a string of bits: slow and simple. */
export function words(bytes: Bytes): string {
  const binary = (value: number, width: number): string => value.toString(2).padStart(width, '0');
  const entropy = [...bytes].map((byte) => binary(byte, 8)).join('');
  const checksum = binary(sha256(bytes)[0] ?? 0, 8).slice(0, bytes.length / 4);
  const groups = `${entropy}${checksum}`.match(/.{11}/g) ?? [];
  return groups.map((group) => wordlist[Number.parseInt(group, 2)]).join(' ');
}

const X25519_SECRET = unhex('302e020100300506032b656e04220420');
const X25519_PUBLIC = unhex('302a300506032b656e032100');
const ED25519_SECRET = unhex('302e020100300506032b657004220420');

const secretOf = (prefix: Bytes, raw: Bytes) =>
  createPrivateKey({ key: Buffer.from(join(prefix, raw)), format: 'der', type: 'pkcs8' });

/** The last 32 bytes of an SPKI key are the raw public key. */
const publicOf = (prefix: Bytes, raw: Bytes): Bytes =>
  new Uint8Array(createPublicKey(secretOf(prefix, raw)).export({ format: 'der', type: 'spki' }).subarray(-32));

export const x25519Public = (secret: Bytes): Bytes => publicOf(X25519_SECRET, secret);
export const x25519 = (secret: Bytes, point: Bytes): Bytes =>
  new Uint8Array(
    diffieHellman({
      privateKey: secretOf(X25519_SECRET, secret),
      publicKey: createPublicKey({ key: Buffer.from(join(X25519_PUBLIC, point)), format: 'der', type: 'spki' }),
    }),
  );
export const ed25519Public = (seed: Bytes): Bytes => publicOf(ED25519_SECRET, seed);
export const ed25519Sign = (message: Bytes, seed: Bytes): Bytes =>
  new Uint8Array(sign(null, message, secretOf(ED25519_SECRET, seed)));

// The ARX cores. A state is sixteen 32-bit little-endian words.

const rotl = (value: number, by: number): number => (value << by) | (value >>> (32 - by));
const SIGMA = utf8('expand 32-byte k');

function load(bytes: Bytes): number[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return Array.from({ length: bytes.length / 4 }, (_, at) => view.getUint32(at * 4, true));
}

function store(state: readonly number[]): Bytes {
  const out = new Uint8Array(state.length * 4);
  const view = new DataView(out.buffer);
  state.forEach((word, at) => view.setUint32(at * 4, word >>> 0, true));
  return out;
}

const word = (state: readonly number[], at: number): number => state[at] ?? 0;

function chachaQuarter(s: number[], [a, b, c, d]: readonly [number, number, number, number]): void {
  s[a] = (word(s, a) + word(s, b)) | 0;
  s[d] = rotl(word(s, d) ^ word(s, a), 16);
  s[c] = (word(s, c) + word(s, d)) | 0;
  s[b] = rotl(word(s, b) ^ word(s, c), 12);
  s[a] = (word(s, a) + word(s, b)) | 0;
  s[d] = rotl(word(s, d) ^ word(s, a), 8);
  s[c] = (word(s, c) + word(s, d)) | 0;
  s[b] = rotl(word(s, b) ^ word(s, c), 7);
}

/** HChaCha20 (draft-irtf-cfrg-xchacha-03, 2.2). */
function hchacha20(key: Bytes, nonce16: Bytes): Bytes {
  const s = load(join(SIGMA, key, nonce16));
  for (let round = 0; round < 10; round++) {
    for (let at = 0; at < 4; at++) chachaQuarter(s, [at, at + 4, at + 8, at + 12]);
    for (let at = 0; at < 4; at++) {
      chachaQuarter(s, [at, 4 + ((at + 1) % 4), 8 + ((at + 2) % 4), 12 + ((at + 3) % 4)]);
    }
  }
  return store([...s.slice(0, 4), ...s.slice(12)]);
}

/** XChaCha20-Poly1305: HChaCha20 from this file, the rest from OpenSSL. */
export function aead(message: Bytes, input: { aad: Bytes; nonce: Bytes; key: Bytes }): Bytes {
  const subkey = hchacha20(input.key, input.nonce.subarray(0, 16));
  const nonce = join(new Uint8Array(4), input.nonce.subarray(16));
  const cipher = createCipheriv('chacha20-poly1305', subkey, nonce, { authTagLength: 16 });
  cipher.setAAD(input.aad, { plaintextLength: message.length });
  return join(cipher.update(message), cipher.final(), cipher.getAuthTag());
}

function salsaQuarter(s: number[], [a, b, c, d]: readonly [number, number, number, number]): void {
  s[b] = word(s, b) ^ rotl((word(s, a) + word(s, d)) | 0, 7);
  s[c] = word(s, c) ^ rotl((word(s, b) + word(s, a)) | 0, 9);
  s[d] = word(s, d) ^ rotl((word(s, c) + word(s, b)) | 0, 13);
  s[a] = word(s, a) ^ rotl((word(s, d) + word(s, c)) | 0, 18);
}

/** The Salsa20 state: sigma on the diagonal, the key around it, 16 bytes of nonce and counter in the middle. */
function salsaState(key: Bytes, middle: Bytes): number[] {
  const sigma = load(SIGMA);
  const k = load(key);
  const n = load(middle);
  return [sigma[0], ...k.slice(0, 4), sigma[1], ...n, sigma[2], ...k.slice(4), sigma[3]].map((value) => value ?? 0);
}

function salsaRounds(state: readonly number[]): number[] {
  const s = [...state];
  for (let round = 0; round < 10; round++) {
    for (let at = 0; at < 4; at++) {
      salsaQuarter(s, [at * 5, (at * 5 + 4) % 16, (at * 5 + 8) % 16, (at * 5 + 12) % 16]);
    }
    for (let at = 0; at < 4; at++) {
      const row = at * 4;
      salsaQuarter(s, [at * 5, row + ((at + 1) % 4), row + ((at + 2) % 4), row + ((at + 3) % 4)]);
    }
  }
  return s;
}

function hsalsa20(key: Bytes, nonce16: Bytes): Bytes {
  const s = salsaRounds(salsaState(key, nonce16));
  return store([0, 5, 10, 15, 6, 7, 8, 9].map((at) => word(s, at)));
}

function salsa20Stream(key: Bytes, nonce8: Bytes, length: number): Bytes {
  const blocks = Array.from({ length: Math.ceil(length / 64) }, (_, counter) => {
    const state = salsaState(key, join(nonce8, store([counter, 0])));
    const mixed = salsaRounds(state);
    return store(state.map((value, at) => (value + word(mixed, at)) | 0));
  });
  return join(...blocks).subarray(0, length);
}

const littleEndian = (bytes: Bytes): bigint => BigInt(`0x${hex(new Uint8Array(bytes).reverse()) || '0'}`);

/** Poly1305 (RFC 8439, 2.5) in big integers. */
function poly1305(message: Bytes, key: Bytes): Bytes {
  const p = (1n << 130n) - 5n;
  const r = littleEndian(key.subarray(0, 16)) & 0x0ffffffc0ffffffc0ffffffc0fffffffn;
  let sum = 0n;
  for (let at = 0; at < message.length; at += 16) {
    sum = ((sum + littleEndian(join(message.subarray(at, at + 16), Uint8Array.of(1)))) * r) % p;
  }
  const tag = (sum + littleEndian(key.subarray(16, 32))) & ((1n << 128n) - 1n);
  return unhex(tag.toString(16).padStart(32, '0')).reverse();
}

/** secretbox: XSalsa20-Poly1305, tag first. The first 32 bytes of the stream are the Poly1305 key. */
export function secretbox(message: Bytes, nonce: Bytes, key: Bytes): Bytes {
  const subkey = hsalsa20(key, nonce.subarray(0, 16));
  const stream = salsa20Stream(subkey, nonce.subarray(16), 32 + message.length);
  const ct = message.map((byte, at) => byte ^ (stream[32 + at] ?? 0));
  return join(poly1305(ct, stream.subarray(0, 32)), ct);
}

/** A sealed box with a given ephemeral secret, so that the result is the same each time. */
export function seal(message: Bytes, publicKey: Bytes, ephemeralSecret: Bytes): Bytes {
  const ephemeral = x25519Public(ephemeralSecret);
  const nonce = blake2b(24, join(ephemeral, publicKey));
  const key = hsalsa20(x25519(ephemeralSecret, publicKey), new Uint8Array(16));
  return join(ephemeral, secretbox(message, nonce, key));
}
