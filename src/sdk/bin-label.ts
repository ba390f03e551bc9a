/** Name and emoji of a bin as the server keeps them: encrypted for the tenant's devices (CRYPTO-11). */
import { openBinMeta, sealBinMeta } from '../crypto/bin-meta.js';
import { CryptoRefusal, orRefusal } from '../crypto/refusal.js';
import type { Sodium } from '../crypto/sodium.js';
import { toBase64Url } from '../protocol/base64.js';
import type { BinLabel } from './events.js';

/** What the labels of bins are encrypted with. */
export interface BinKeys {
  readonly sodium: Sodium;
  readonly masterKey: Uint8Array;
}

/** A label as base64url. Throws `CryptoRefusal` `too_large`. */
export const sealLabel = ({ sodium, masterKey }: BinKeys, binId: string, { name, emoji }: BinLabel): string =>
  toBase64Url(sealBinMeta(sodium, { masterKey, binId }, { name, ...(emoji === undefined ? {} : { emoji }) }));

/** Null where the bytes do not open under this master key and bin, or hold no name. */
export function openLabel({ sodium, masterKey }: BinKeys, binId: string, sealed: Uint8Array): BinLabel | null {
  const meta = orRefusal(() => openBinMeta(sodium, { masterKey, binId }, sealed));
  if (meta instanceof CryptoRefusal) return null;
  const { name, emoji } = meta;
  return typeof name === 'string' ? { name, ...(typeof emoji === 'string' ? { emoji } : {}) } : null;
}
