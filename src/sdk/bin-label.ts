/** Name and emoji of a bin as the server keeps them: encrypted for the tenant's devices (CRYPTO-11). */
import { openBinMeta, sealBinMeta } from '../crypto/bin-meta.js';
import type { JsonObject } from '../crypto/payload.js';
import { CryptoRefusal, orRefusal } from '../crypto/refusal.js';
import type { Sodium } from '../crypto/sodium.js';
import { toBase64Url } from '../protocol/base64.js';
import type { BinLabel } from './events.js';

/** What the labels of bins are encrypted with. */
export interface BinKeys {
  readonly sodium: Sodium;
  readonly masterKey: Uint8Array;
}

/**
 * A label as base64url; `before`: the meta that it replaces, whose other fields, of other clients, stay. Throws
 * `CryptoRefusal` `too_large`.
 */
export function sealLabel(keys: BinKeys, binId: string, { name, emoji }: BinLabel, before?: Uint8Array | null): string {
  const { emoji: _, ...others } = readMeta(keys, binId, before ?? null) ?? {};
  const meta = { ...others, name, ...(emoji === undefined ? {} : { emoji }) };
  return toBase64Url(sealBinMeta(keys.sodium, { masterKey: keys.masterKey, binId }, meta));
}

/** Null where the bytes do not open under this master key and bin, or hold no name. */
export function openLabel(keys: BinKeys, binId: string, sealed: Uint8Array): BinLabel | null {
  const { name, emoji } = readMeta(keys, binId, sealed) ?? {};
  return typeof name === 'string' ? { name, ...(typeof emoji === 'string' ? { emoji } : {}) } : null;
}

/** The whole object; undefined where there is none, or it does not open. */
function readMeta({ sodium, masterKey }: BinKeys, binId: string, sealed: Uint8Array | null): JsonObject | undefined {
  if (sealed === null) return undefined;
  const meta = orRefusal(() => openBinMeta(sodium, { masterKey, binId }, sealed));
  return meta instanceof CryptoRefusal ? undefined : meta;
}
