/** A bin's name and emoji, encrypted for the user's devices (CRYPTO-11). */
import { text } from '../protocol/bytes.js';
import { AEAD_TAG_BYTES, BIN_META_MAX, NONCE_BYTES, SERVICE_NAME } from '../protocol/limits.js';
import { payloadBytes, payloadObject, type JsonObject } from './payload.js';
import { CryptoRefusal } from './refusal.js';
import { openWithNonce, sealWithNonce, type Sodium } from './sodium.js';

const KEY_CONTEXT = text(`${SERVICE_NAME}-bin-meta-v1`);

interface BinMetaContext {
  readonly masterKey: Uint8Array;
  /** The AAD, so that meta copied from one bin to another does not open. */
  readonly binId: string;
}

/**
 * Seals bin meta, by `sealWithNonce` under B32("service-bin-meta-v1", key = master). Throws `too_large` if the result
 * would exceed 4 KiB.
 */
export function sealBinMeta(sodium: Sodium, { masterKey, binId }: BinMetaContext, meta: JsonObject): Uint8Array {
  const message = payloadBytes(meta);
  if (NONCE_BYTES + message.length + AEAD_TAG_BYTES > BIN_META_MAX)
    throw new CryptoRefusal('too_large', `bin meta passes ${BIN_META_MAX} bytes`);
  return sealWithNonce(sodium, message, { masterKey, context: KEY_CONTEXT, id: binId });
}

/** Opens bin meta. Throws `bad_ct` or `bad_payload`. */
export function openBinMeta(sodium: Sodium, { masterKey, binId }: BinMetaContext, sealed: Uint8Array): JsonObject {
  const message = openWithNonce(sodium, sealed, { masterKey, context: KEY_CONTEXT, id: binId });
  if (message === undefined) throw new CryptoRefusal('bad_ct', 'bin meta does not open under this master key and bin');
  return payloadObject(message);
}
