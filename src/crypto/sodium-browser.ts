/**
 * The browser binding of the sodium port, over libsodium's own WASM build (the only importer of it). It uses nothing
 * of Node, and runs there as well, so that the tests hold it to the same vectors.
 */
import library from 'libsodium-wrappers-sumo';
import { AEAD_TAG_BYTES, KEY_BYTES, NONCE_BYTES, SIG_BYTES } from '../protocol/limits.js';
import { CryptoRefusal } from './refusal.js';
import {
  expectLength,
  expectWithin,
  PUBLIC_KEY_BYTES,
  SALT_BYTES,
  SEAL_OVERHEAD,
  SIGNATURE_BYTES,
  SIGN_SECRET_BYTES,
  type Argon2Input,
  type Sodium,
} from './sodium.js';

/** What the wrappers throw where a box does not open. Anything else (out of memory) must not pass for a forgery. */
const DOES_NOT_OPEN: ReadonlySet<string> = new Set([
  'ciphertext cannot be decrypted using that key',
  'incorrect key pair for the given ciphertext',
  'wrong secret key for the given ciphertext',
]);

/** What they throw for a low-order point, once lengths are known to be right: scalar multiplication and sealed box. */
const LOW_ORDER: ReadonlySet<string> = new Set(['weak public key', 'invalid usage']);

function opened(open: () => Uint8Array): Uint8Array | undefined {
  try {
    return open();
  } catch (error) {
    if (error instanceof Error && DOES_NOT_OPEN.has(error.message)) return undefined;
    throw error;
  }
}

function onCurve(compute: () => Uint8Array): Uint8Array {
  try {
    return compute();
  } catch (error) {
    if (error instanceof Error && LOW_ORDER.has(error.message)) {
      throw new CryptoRefusal('low_order', 'public key of low order');
    }
    throw error;
  }
}

const expectKey = (key: Uint8Array): void => expectLength('key', key, KEY_BYTES);
const expectNonce = (nonce: Uint8Array): void => expectLength('nonce', nonce, NONCE_BYTES);

const secretKeyPart: Pick<
  Sodium,
  'aeadEncrypt' | 'aeadDecrypt' | 'secretbox' | 'secretboxOpen' | 'auth' | 'authVerify'
> = {
  aeadEncrypt({ message, aad, nonce, key }) {
    expectKey(key);
    expectNonce(nonce);
    return library.crypto_aead_xchacha20poly1305_ietf_encrypt(message, aad, null, nonce, key);
  },
  aeadDecrypt({ message, aad, nonce, key }) {
    expectKey(key);
    expectNonce(nonce);
    if (message.length < AEAD_TAG_BYTES) return undefined;
    return opened(() => library.crypto_aead_xchacha20poly1305_ietf_decrypt(null, message, aad, nonce, key));
  },
  secretbox(message, nonce, key) {
    expectKey(key);
    expectNonce(nonce);
    return library.crypto_secretbox_easy(message, nonce, key);
  },
  secretboxOpen(box, nonce, key) {
    expectKey(key);
    expectNonce(nonce);
    if (box.length < AEAD_TAG_BYTES) return undefined;
    return opened(() => library.crypto_secretbox_open_easy(box, nonce, key));
  },
  auth(message, key) {
    expectKey(key);
    return library.crypto_auth(message, key);
  },
  authVerify(tag, message, key) {
    expectKey(key);
    return tag.length === SIG_BYTES && library.crypto_auth_verify(tag, message, key);
  },
};

const publicKeyPart: Pick<
  Sodium,
  'seal' | 'sealOpen' | 'boxKeyPair' | 'scalarmult' | 'scalarmultBase' | 'signKeyPair' | 'sign' | 'signVerify'
> = {
  seal(message, publicKey) {
    expectLength('public key', publicKey, PUBLIC_KEY_BYTES);
    return onCurve(() => library.crypto_box_seal(message, publicKey));
  },
  sealOpen(sealed, { publicKey, secretKey }) {
    expectLength('public key', publicKey, PUBLIC_KEY_BYTES);
    expectKey(secretKey);
    if (sealed.length < SEAL_OVERHEAD) return undefined;
    return opened(() => library.crypto_box_seal_open(sealed, publicKey, secretKey));
  },
  boxKeyPair() {
    const { publicKey, privateKey } = library.crypto_box_keypair();
    return { publicKey, secretKey: privateKey };
  },
  scalarmult(secretKey, publicKey) {
    expectKey(secretKey);
    expectLength('public key', publicKey, PUBLIC_KEY_BYTES);
    return onCurve(() => library.crypto_scalarmult(secretKey, publicKey));
  },
  scalarmultBase(secretKey) {
    expectKey(secretKey);
    return library.crypto_scalarmult_base(secretKey);
  },
  signKeyPair(seed) {
    expectLength('seed', seed, KEY_BYTES);
    const { publicKey, privateKey } = library.crypto_sign_seed_keypair(seed);
    return { publicKey, secretKey: privateKey };
  },
  sign(message, secretKey) {
    expectLength('signing key', secretKey, SIGN_SECRET_BYTES);
    return library.crypto_sign_detached(message, secretKey);
  },
  signVerify(signature, message, publicKey) {
    expectLength('public key', publicKey, PUBLIC_KEY_BYTES);
    return signature.length === SIGNATURE_BYTES && library.crypto_sign_verify_detached(signature, message, publicKey);
  },
};

function argon2({ length, password, salt, ops, memoryBytes }: Argon2Input): Uint8Array {
  expectLength('salt', salt, SALT_BYTES);
  expectWithin('password', password, [1, 0xffffffff]);
  return library.crypto_pwhash(length, password, salt, ops, memoryBytes, library.crypto_pwhash_ALG_ARGON2ID13);
}

const browserSodium: Sodium = {
  ...secretKeyPart,
  ...publicKeyPart,
  random: (length) => library.randombytes_buf(length),
  hmacSha256(message, key) {
    expectKey(key);
    return library.crypto_auth_hmacsha256(message, key);
  },
  sha256: (message) => library.crypto_hash_sha256(message),
  blake2b(length, message, key) {
    if (key !== undefined) expectWithin('BLAKE2b key', key, [16, 64]);
    return library.crypto_generichash(length, message, key ?? null);
  },
  // WASM has no thread pool: this blocks for some tenths of a second, so a page should call it from a worker.
  argon2id13: (input) => Promise.resolve(input).then(argon2),
  equal: (a, b) => a.length === b.length && library.memcmp(a, b),
  memzero: (bytes) => library.memzero(bytes),
};

/** The port over WASM, once the module is compiled. A page needs `script-src 'wasm-unsafe-eval'`. */
export async function loadBrowserSodium(): Promise<Sodium> {
  await library.ready;
  return browserSodium;
}
