/**
 * The port to libsodium, with two bindings: `sodium-node` (sodium-native) and `sodium-browser` (libsodium's own WASM
 * build). Everything else in this folder is pure computation over it and runs in either.
 *
 * Both bindings: a key, nonce or salt of the wrong length throws `CryptoRefusal` `bad_length` (`lengthChecked`);
 * opening a box that does not open, however malformed, returns undefined; every result is a fresh Uint8Array.
 */
import { concat, text } from '../protocol/bytes.js';
import { KEY_BYTES, NONCE_BYTES } from '../protocol/limits.js';
import { CryptoRefusal } from './refusal.js';

/** X25519 and Ed25519. */
export const PUBLIC_KEY_BYTES = 32;
/** Argon2id. */
export const SALT_BYTES = 16;
/** Ed25519. */
export const SIGNATURE_BYTES = 64;
/** Ed25519 in libsodium's form: the seed and the public key. */
export const SIGN_SECRET_BYTES = 64;
/** Overhead of a sealed box: an ephemeral public key and a Poly1305 tag. */
export const SEAL_OVERHEAD = 48;

/** Argon2id cost of every stretched secret: 3 passes over 64 MiB. */
export const ARGON2_OPS = 3;
export const ARGON2_MEMORY_BYTES = 64 * 1024 * 1024;

/** X25519: 32 bytes each. Ed25519: the secret key has 64. */
export interface KeyPair {
  readonly publicKey: Uint8Array;
  readonly secretKey: Uint8Array;
}

/** Input of XChaCha20-Poly1305, in either direction. */
interface AeadInput {
  /** Plaintext to encrypt, or ciphertext with its tag to decrypt. */
  readonly message: Uint8Array;
  readonly aad: Uint8Array;
  /** 24 bytes. */
  readonly nonce: Uint8Array;
  /** 32 bytes. */
  readonly key: Uint8Array;
}

export interface Argon2Input {
  /** Bytes of output, at least 16. */
  readonly length: number;
  /** At least one byte. */
  readonly password: Uint8Array;
  /** 16 bytes. */
  readonly salt: Uint8Array;
  readonly ops: number;
  readonly memoryBytes: number;
}

/** Lengths are in bytes. */
export interface Sodium {
  random(length: number): Uint8Array;
  /** XChaCha20-Poly1305 (IETF): ciphertext followed by a 16-byte tag. */
  aeadEncrypt(input: AeadInput): Uint8Array;
  aeadDecrypt(input: AeadInput): Uint8Array | undefined;
  /** A sealed box to an X25519 public key. Throws `low_order` for a key of low order. */
  seal(message: Uint8Array, publicKey: Uint8Array): Uint8Array;
  sealOpen(sealed: Uint8Array, keys: KeyPair): Uint8Array | undefined;
  /** A fresh X25519 key pair. */
  boxKeyPair(): KeyPair;
  /** XSalsa20-Poly1305: a 16-byte tag followed by the ciphertext. */
  secretbox(message: Uint8Array, nonce: Uint8Array, key: Uint8Array): Uint8Array;
  secretboxOpen(box: Uint8Array, nonce: Uint8Array, key: Uint8Array): Uint8Array | undefined;
  /** crypto_auth: the first 32 bytes of HMAC-SHA-512, key 32 bytes. */
  auth(message: Uint8Array, key: Uint8Array): Uint8Array;
  /** Constant time; a tag of another length is false. */
  authVerify(tag: Uint8Array, message: Uint8Array, key: Uint8Array): boolean;
  /** HMAC-SHA-256, key 32 bytes. */
  hmacSha256(message: Uint8Array, key: Uint8Array): Uint8Array;
  sha256(message: Uint8Array): Uint8Array;
  /** BLAKE2b of 16 to 64 bytes, unkeyed or with a key of 16 to 64 bytes. */
  blake2b(length: number, message: Uint8Array, key?: Uint8Array): Uint8Array;
  /** Argon2id version 1.3, one lane. In Node it runs off the event loop; in a browser it blocks its thread. */
  argon2id13(input: Argon2Input): Promise<Uint8Array>;
  /** X25519. Throws `low_order` if the result would be zero. */
  scalarmult(secretKey: Uint8Array, publicKey: Uint8Array): Uint8Array;
  /** An Ed25519 pair from its 32-byte seed; the secret key is libsodium's 64 bytes. */
  signKeyPair(seed: Uint8Array): KeyPair;
  sign(message: Uint8Array, secretKey: Uint8Array): Uint8Array;
  /** A signature of another length is false. */
  signVerify(signature: Uint8Array, message: Uint8Array, publicKey: Uint8Array): boolean;
  /** Constant time for equal lengths. */
  equal(a: Uint8Array, b: Uint8Array): boolean;
  /** Overwrites bytes that are no longer needed. */
  memzero(bytes: Uint8Array): void;
}

/** Slow hashing of the account password as clients send it. Server only. */
export interface PasswordHasher {
  /** An Argon2id string that carries its own salt and cost. The password must not be empty. */
  hash(password: string): Promise<string>;
  /** False for a wrong or empty password, and for a stored text that is not such a string. */
  verify(stored: string, password: string): Promise<boolean>;
}

/** Throws `bad_length` unless `bytes` has exactly `length` bytes. */
export function expectLength(what: string, bytes: Uint8Array, length: number): void {
  if (bytes.length !== length)
    throw new CryptoRefusal('bad_length', `${what} must be ${length} bytes, got ${bytes.length}`);
}

/** Throws `bad_length` unless `bytes` has `min` to `max` bytes. */
export function expectWithin(what: string, bytes: Uint8Array, range: readonly [min: number, max: number]): void {
  if (bytes.length < range[0] || bytes.length > range[1])
    throw new CryptoRefusal('bad_length', `${what} must be ${range[0]} to ${range[1]} bytes, got ${bytes.length}`);
}

const expectKey = (key: Uint8Array): void => expectLength('key', key, KEY_BYTES);
const expectPublicKey = (key: Uint8Array): void => expectLength('public key', key, PUBLIC_KEY_BYTES);

function expectKeyAndNonce(key: Uint8Array, nonce: Uint8Array): void {
  expectKey(key);
  expectLength('nonce', nonce, NONCE_BYTES);
}

/** Run before a binding is called: the two libraries report wrong lengths differently, or not at all. */
const CHECKS: { readonly [Name in keyof Sodium]?: (...args: Parameters<Sodium[Name]>) => void } = {
  aeadEncrypt: ({ key, nonce }) => expectKeyAndNonce(key, nonce),
  aeadDecrypt: ({ key, nonce }) => expectKeyAndNonce(key, nonce),
  secretbox: (_message, nonce, key) => expectKeyAndNonce(key, nonce),
  secretboxOpen: (_box, nonce, key) => expectKeyAndNonce(key, nonce),
  auth: (_message, key) => expectKey(key),
  authVerify: (_tag, _message, key) => expectKey(key),
  hmacSha256: (_message, key) => expectKey(key),
  blake2b: (_length, _message, key) => key !== undefined && expectWithin('BLAKE2b key', key, [16, 64]),
  seal: (_message, publicKey) => expectPublicKey(publicKey),
  sealOpen(_sealed, { publicKey, secretKey }) {
    expectPublicKey(publicKey);
    expectKey(secretKey);
  },
  scalarmult(secretKey, publicKey) {
    expectKey(secretKey);
    expectPublicKey(publicKey);
  },
  signKeyPair: (seed) => expectLength('seed', seed, KEY_BYTES),
  sign: (_message, secretKey) => expectLength('signing key', secretKey, SIGN_SECRET_BYTES),
  signVerify: (_signature, _message, publicKey) => expectPublicKey(publicKey),
};

/** Adds the length checks to a binding. */
export function lengthChecked(binding: Sodium): Sodium {
  const calls = binding as unknown as Readonly<Record<string, (...args: unknown[]) => unknown>>;
  const checks = CHECKS as Readonly<Record<string, (...args: unknown[]) => void>>;
  const checked = Object.entries(checks).map(([name, check]) => [
    name,
    (...args: unknown[]) => {
      check(...args);
      return calls[name]?.(...args);
    },
  ]);
  return { ...binding, ...(Object.fromEntries(checked) as Partial<Sodium>) };
}

/** B32(msg, key): keyed BLAKE2b of 32 bytes (reference, Cryptography). */
export const b32 = (sodium: Sodium, message: Uint8Array, key: Uint8Array): Uint8Array =>
  sodium.blake2b(32, message, key);

/** Argon2id with the cost of all clients; the salt is BLAKE2b-16 of `saltInput`. */
export function stretch(
  sodium: Sodium,
  input: { readonly length: number; readonly password: Uint8Array; readonly saltInput: Uint8Array },
): Promise<Uint8Array> {
  return sodium.argon2id13({
    length: input.length,
    password: input.password,
    salt: sodium.blake2b(SALT_BYTES, input.saltInput),
    ops: ARGON2_OPS,
    memoryBytes: ARGON2_MEMORY_BYTES,
  });
}

/** Runs `use` with secret bytes, and erases them when it returns or throws. Not for asynchronous work. */
export function erasing<T>(sodium: Sodium, secret: Uint8Array, use: (secret: Uint8Array) => T): T {
  try {
    return use(secret);
  } finally {
    sodium.memzero(secret);
  }
}

/** Runs `use` with B32(context, key = master), the key of one purpose, and erases that key. */
export function withDerivedKey<T>(
  sodium: Sodium,
  masterKey: Uint8Array,
  context: Uint8Array,
  use: (key: Uint8Array) => T,
): T {
  expectLength('master key', masterKey, KEY_BYTES);
  return erasing(sodium, b32(sodium, context, masterKey), use);
}

/** What is encrypted for the holders of the master key, under B32(context, key = master). */
export interface MasterSecret {
  readonly masterKey: Uint8Array;
  readonly context: Uint8Array;
  /** Names the object that the text belongs to, as additional data: the text of another does not open in its place. */
  readonly id: string;
}

/** Encrypts under a fresh nonce: the nonce (24 bytes), then XChaCha20-Poly1305. */
export function sealWithNonce(sodium: Sodium, message: Uint8Array, to: MasterSecret): Uint8Array {
  const nonce = sodium.random(NONCE_BYTES);
  return withDerivedKey(sodium, to.masterKey, to.context, (key) =>
    concat([nonce, sodium.aeadEncrypt({ message, aad: text(to.id), nonce, key })]),
  );
}

/** Decrypts the output of `sealWithNonce`; undefined if it does not open. */
export function openWithNonce(sodium: Sodium, sealed: Uint8Array, to: MasterSecret): Uint8Array | undefined {
  if (sealed.length < NONCE_BYTES) return undefined;
  const [nonce, message] = [sealed.subarray(0, NONCE_BYTES), sealed.subarray(NONCE_BYTES)];
  return withDerivedKey(sodium, to.masterKey, to.context, (key) =>
    sodium.aeadDecrypt({ message, aad: text(to.id), nonce, key }),
  );
}
