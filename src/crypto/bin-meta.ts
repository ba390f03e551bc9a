/** A bin's name and emoji, encrypted for the user's devices (CRYPTO-11). */
import { concat, text } from '../protocol/bytes.js';
import { AEAD_TAG_BYTES, BIN_META_MAX, KEY_BYTES, NONCE_BYTES, SERVICE_NAME } from '../protocol/limits.js';
import { payloadBytes, payloadObject, type JsonObject } from './payload.js';
import { CryptoRefusal } from './refusal.js';
import { b32, erasing, expectLength, type Sodium } from './sodium.js';

const KEY_CONTEXT = text(`${SERVICE_NAME}-bin-meta-v1`);

function withMetaKey<T>(sodium: Sodium, masterKey: Uint8Array, use: (key: Uint8Array) => T): T {
  expectLength('master key', masterKey, KEY_BYTES);
  return erasing(sodium, b32(sodium, KEY_CONTEXT, masterKey), use);
}

interface BinMetaContext {
  readonly masterKey: Uint8Array;
  /** The AAD: meta copied from one bin to another does not open. */
  readonly binId: string;
}

/**
 * Seals bin meta: nonce (24 bytes) followed by XChaCha20-Poly1305 under B32("service-bin-meta-v1", key = master).
 * Throws `too_large` if the result would exceed 4 KiB.
 */
export function sealBinMeta(sodium: Sodium, context: BinMetaContext, meta: JsonObject): Uint8Array {
  const message = payloadBytes(meta);
  if (NONCE_BYTES + message.length + AEAD_TAG_BYTES > BIN_META_MAX) {
    throw new CryptoRefusal('too_large', `bin meta passes ${BIN_META_MAX} bytes`);
  }
  const nonce = sodium.random(NONCE_BYTES);
  const aad = text(context.binId);
  const ct = withMetaKey(sodium, context.masterKey, (key) => sodium.aeadEncrypt({ message, aad, nonce, key }));
  return concat([nonce, ct]);
}

/** Opens bin meta. Throws `bad_ct` or `bad_payload`. */
export function openBinMeta(sodium: Sodium, context: BinMetaContext, sealed: Uint8Array): JsonObject {
  if (sealed.length < NONCE_BYTES + AEAD_TAG_BYTES) throw new CryptoRefusal('bad_ct', 'bin meta is too short');
  const [nonce, ct] = [sealed.subarray(0, NONCE_BYTES), sealed.subarray(NONCE_BYTES)];
  const message = withMetaKey(sodium, context.masterKey, (key) =>
    sodium.aeadDecrypt({ message: ct, aad: text(context.binId), nonce, key }),
  );
  if (message === undefined) throw new CryptoRefusal('bad_ct', 'bin meta does not open under this master key and bin');
  return payloadObject(message);
}
