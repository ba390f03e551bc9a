/** The Node binding of the sodium port, over sodium-native (the only importer of it). */
import { createHash, createHmac } from 'node:crypto';
import { promisify } from 'node:util';
import native from 'sodium-native';
import { text } from '../protocol/bytes.js';
import { AEAD_TAG_BYTES, KEY_BYTES, SIG_BYTES } from '../protocol/limits.js';
import { CryptoRefusal } from './refusal.js';
import {
  expectLength,
  expectWithin,
  lengthChecked,
  PUBLIC_KEY_BYTES,
  SALT_BYTES,
  SEAL_OVERHEAD,
  SIGNATURE_BYTES,
  SIGN_SECRET_BYTES,
  type KeyPair,
  type PasswordHasher,
  type Sodium,
} from './sodium.js';

/** A view of the same memory, not a copy: the library's types require Buffers. */
const view = (bytes: Uint8Array): Buffer => Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);

/** Runs a call that writes `length` bytes, and returns them. */
function filled(length: number, write: (out: Buffer) => void): Uint8Array {
  const out = new Uint8Array(length);
  write(view(out));
  return out;
}

/** `filled` for X25519. Lengths are checked before, so a failure means a low-order point. */
function onCurve(length: number, write: (out: Buffer) => void): Uint8Array {
  try {
    return filled(length, write);
  } catch (error) {
    if (error instanceof Error && error.message.startsWith('status: ')) {
      throw new CryptoRefusal('low_order', 'public key of low order');
    }
    throw error;
  }
}

/** `filled` for calls that return false if the box does not open. */
function opened(length: number, open: (out: Buffer) => boolean): Uint8Array | undefined {
  if (length < 0) return undefined;
  const out = new Uint8Array(length);
  return open(view(out)) ? out : undefined;
}

function keyPair(secretBytes: number, write: (publicKey: Buffer, secretKey: Buffer) => void): KeyPair {
  const publicKey = new Uint8Array(PUBLIC_KEY_BYTES);
  const secretKey = new Uint8Array(secretBytes);
  write(view(publicKey), view(secretKey));
  return { publicKey, secretKey };
}

type PwhashInput = [out: Buffer, password: Buffer, salt: Buffer, ops: number, memoryBytes: number, algorithm: number];
/** A cast, since the types of `promisify` end at five arguments. */
const pwhash = promisify(native.crypto_pwhash_async) as (...input: PwhashInput) => Promise<void>;
const pwhashText = promisify(native.crypto_pwhash_str_async);
const pwhashTextVerify = promisify(native.crypto_pwhash_str_verify_async);

const raw: Sodium = {
  random: (length) => filled(length, (out) => native.randombytes_buf(out)),
  aeadEncrypt: ({ message, aad, nonce, key }) =>
    filled(message.length + AEAD_TAG_BYTES, (out) => {
      native.crypto_aead_xchacha20poly1305_ietf_encrypt(out, view(message), view(aad), null, view(nonce), view(key));
    }),
  aeadDecrypt: ({ message, aad, nonce, key }) =>
    opened(message.length - AEAD_TAG_BYTES, (out) => {
      try {
        native.crypto_aead_xchacha20poly1305_ietf_decrypt(out, null, view(message), view(aad), view(nonce), view(key));
        return true;
      } catch (error) {
        if (error instanceof Error && error.message === 'could not verify data') return false;
        throw error;
      }
    }),
  secretbox: (message, nonce, key) =>
    filled(message.length + AEAD_TAG_BYTES, (out) =>
      native.crypto_secretbox_easy(out, view(message), view(nonce), view(key)),
    ),
  secretboxOpen: (box, nonce, key) =>
    opened(box.length - AEAD_TAG_BYTES, (out) =>
      native.crypto_secretbox_open_easy(out, view(box), view(nonce), view(key)),
    ),
  auth: (message, key) => filled(SIG_BYTES, (out) => native.crypto_auth(out, view(message), view(key))),
  authVerify: (tag, message, key) =>
    tag.length === SIG_BYTES && native.crypto_auth_verify(view(tag), view(message), view(key)),
  seal: (message, publicKey) =>
    onCurve(message.length + SEAL_OVERHEAD, (out) => native.crypto_box_seal(out, view(message), view(publicKey))),
  sealOpen: (sealed, { publicKey, secretKey }) =>
    opened(sealed.length - SEAL_OVERHEAD, (out) =>
      native.crypto_box_seal_open(out, view(sealed), view(publicKey), view(secretKey)),
    ),
  boxKeyPair: () => keyPair(KEY_BYTES, (publicKey, secretKey) => native.crypto_box_keypair(publicKey, secretKey)),
  scalarmult: (secretKey, publicKey) =>
    onCurve(PUBLIC_KEY_BYTES, (out) => native.crypto_scalarmult(out, view(secretKey), view(publicKey))),
  signKeyPair: (seed) =>
    keyPair(SIGN_SECRET_BYTES, (publicKey, secretKey) =>
      native.crypto_sign_seed_keypair(publicKey, secretKey, view(seed)),
    ),
  sign: (message, secretKey) =>
    filled(SIGNATURE_BYTES, (out) => native.crypto_sign_detached(out, view(message), view(secretKey))),
  signVerify: (signature, message, publicKey) =>
    signature.length === SIGNATURE_BYTES &&
    native.crypto_sign_verify_detached(view(signature), view(message), view(publicKey)),
  // sodium-native has no HMAC-SHA-256.
  hmacSha256: (message, key) => new Uint8Array(createHmac('sha256', key).update(message).digest()),
  sha256: (message) => new Uint8Array(createHash('sha256').update(message).digest()),
  blake2b: (length, message, key) =>
    filled(length, (out) => {
      if (key === undefined) native.crypto_generichash(out, view(message));
      else native.crypto_generichash(out, view(message), view(key));
    }),
  async argon2id13({ length, password, salt, ops, memoryBytes }) {
    expectLength('salt', salt, SALT_BYTES);
    // The library dereferences the first byte, which an empty password does not have.
    expectWithin('password', password, [1, 0xffffffff]);
    const out = new Uint8Array(length);
    await pwhash(view(out), view(password), view(salt), ops, memoryBytes, native.crypto_pwhash_ALG_ARGON2ID13);
    return out;
  },
  equal: (a, b) => a.length === b.length && native.sodium_memcmp(view(a), view(b)),
  memzero: (bytes) => native.sodium_memzero(view(bytes)),
};

export const nodeSodium: Sodium = lengthChecked(raw);

/**
 * Argon2id with libsodium's INTERACTIVE limits (2 passes, 64 MiB), in libuv's thread pool: about 0.13 s of one core
 * per call. The caller bounds how many run at once.
 */
export const nodePasswordHasher: PasswordHasher = {
  async hash(password) {
    if (password === '') throw new CryptoRefusal('empty_password', 'the password is empty');
    const out = Buffer.alloc(native.crypto_pwhash_STRBYTES);
    const secret = text(password);
    const cost = [native.crypto_pwhash_OPSLIMIT_INTERACTIVE, native.crypto_pwhash_MEMLIMIT_INTERACTIVE] as const;
    await pwhashText(out, view(secret), ...cost);
    return out.toString('ascii').replace(/\0+$/, '');
  },
  async verify(stored, password) {
    const bytes = text(stored);
    // The last byte must stay NUL: the library reads the text up to it.
    if (password === '' || bytes.length === 0 || bytes.length >= native.crypto_pwhash_STRBYTES) return false;
    const padded = Buffer.alloc(native.crypto_pwhash_STRBYTES);
    padded.set(bytes);
    return pwhashTextVerify(padded, view(text(password)));
  },
};
