/**
 * The browser binding of the sodium port, over libsodium's own WASM build (the only importer of it). It also runs in
 * Node, where the tests check it against the same vectors.
 */
import library from 'libsodium-wrappers-sumo';
import { AEAD_TAG_BYTES, SIG_BYTES } from '../protocol/limits.js';
import { CryptoRefusal } from './refusal.js';
import {
  expectLength,
  expectWithin,
  lengthChecked,
  SALT_BYTES,
  SEAL_OVERHEAD,
  SIGNATURE_BYTES,
  type Argon2Input,
  type KeyPair,
  type Sodium,
} from './sodium.js';

/** The wrappers' errors for a box that does not open. Any other error (out of memory) must not count as a forgery. */
const DOES_NOT_OPEN: ReadonlySet<string> = new Set([
  'ciphertext cannot be decrypted using that key',
  'incorrect key pair for the given ciphertext',
  'wrong secret key for the given ciphertext',
]);

/** Their errors for a low-order point, once lengths are checked: of scalar multiplication and of a sealed box. */
const LOW_ORDER: ReadonlySet<string> = new Set(['weak public key', 'invalid usage']);

/** `length`: of the plaintext; negative if the box is too short. */
function opened(length: number, open: () => Uint8Array): Uint8Array | undefined {
  if (length < 0) return undefined;
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

const pairOf = ({ publicKey, privateKey }: { publicKey: Uint8Array; privateKey: Uint8Array }): KeyPair => ({
  publicKey,
  secretKey: privateKey,
});

function argon2({ length, password, salt, ops, memoryBytes }: Argon2Input): Uint8Array {
  expectLength('salt', salt, SALT_BYTES);
  expectWithin('password', password, [1, 0xffffffff]);
  return library.crypto_pwhash(length, password, salt, ops, memoryBytes, library.crypto_pwhash_ALG_ARGON2ID13);
}

const raw: Sodium = {
  random: (length) => library.randombytes_buf(length),
  aeadEncrypt: ({ message, aad, nonce, key }) =>
    library.crypto_aead_xchacha20poly1305_ietf_encrypt(message, aad, null, nonce, key),
  aeadDecrypt: ({ message, aad, nonce, key }) =>
    opened(message.length - AEAD_TAG_BYTES, () =>
      library.crypto_aead_xchacha20poly1305_ietf_decrypt(null, message, aad, nonce, key),
    ),
  secretbox: (message, nonce, key) => library.crypto_secretbox_easy(message, nonce, key),
  secretboxOpen: (box, nonce, key) =>
    opened(box.length - AEAD_TAG_BYTES, () => library.crypto_secretbox_open_easy(box, nonce, key)),
  auth: (message, key) => library.crypto_auth(message, key),
  authVerify: (tag, message, key) => tag.length === SIG_BYTES && library.crypto_auth_verify(tag, message, key),
  seal: (message, publicKey) => onCurve(() => library.crypto_box_seal(message, publicKey)),
  sealOpen: (sealed, { publicKey, secretKey }) =>
    opened(sealed.length - SEAL_OVERHEAD, () => library.crypto_box_seal_open(sealed, publicKey, secretKey)),
  boxKeyPair: () => pairOf(library.crypto_box_keypair()),
  scalarmult: (secretKey, publicKey) => onCurve(() => library.crypto_scalarmult(secretKey, publicKey)),
  signKeyPair: (seed) => pairOf(library.crypto_sign_seed_keypair(seed)),
  sign: (message, secretKey) => library.crypto_sign_detached(message, secretKey),
  signVerify: (signature, message, publicKey) =>
    signature.length === SIGNATURE_BYTES && library.crypto_sign_verify_detached(signature, message, publicKey),
  hmacSha256: (message, key) => library.crypto_auth_hmacsha256(message, key),
  sha256: (message) => library.crypto_hash_sha256(message),
  blake2b: (length, message, key) => library.crypto_generichash(length, message, key ?? null),
  // WASM has no thread pool: this blocks for some tenths of a second, so a page should call it in a worker.
  argon2id13: (input) => Promise.resolve(input).then(argon2),
  equal: (a, b) => a.length === b.length && library.memcmp(a, b),
  memzero: (bytes) => library.memzero(bytes),
};

const browserSodium = lengthChecked(raw);

/** The port over WASM; resolves when the module is compiled. A page needs `script-src 'wasm-unsafe-eval'`. */
export async function loadBrowserSodium(): Promise<Sodium> {
  await library.ready;
  return browserSodium;
}
