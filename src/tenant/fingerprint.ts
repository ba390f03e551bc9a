import { createHash } from 'node:crypto';
import type { ItemWrite, SealedKeys } from '../protocol/item.js';

/**
 * The hash by which the same write sent again is recognised (contract 5, decision 1): 32 bytes of SHA-256 over
 * the decoded write as received, so shape and encoding do not matter. `ifVersion` is a condition, not content.
 */
export function fingerprint(write: ItemWrite): Uint8Array {
  const { inline, blob, master, sig } = write;
  const parts: Uint8Array[] = [];
  // One line of text with every length, then the bytes: no two writes give the same input.
  const lengths =
    `${write.id}\n${write.binId}\n${write.type}\n${write.ts}\n${inline?.ct.length ?? '-'}\n` +
    `${takeKeys(inline?.keys, parts)}\n${master === null ? '-' : '+'}\n${sig === null ? '-' : '+'}\n` +
    `${blob?.ref ?? '-'}\n${takeKeys(blob?.keys, parts)}\n`;
  if (inline !== null) parts.push(inline.ct, inline.nonce);
  if (master !== null) parts.push(master.nonce, master.ct);
  if (sig !== null) parts.push(sig);
  if (blob !== null) parts.push(blob.nonce);
  // Gathered first: a call into the hash costs more than copying these few bytes.
  return createHash('sha256')
    .update(Buffer.concat([Buffer.from(lengths), ...parts]))
    .digest();
}

/** Adds the keys' bytes to `parts` and gives their names. Sorted: the same write may come in another order. */
function takeKeys(keys: SealedKeys | undefined, parts: Uint8Array[]): string {
  if (keys === undefined) return '-';
  let names = '';
  for (const device of [...keys.keys()].sort()) {
    const key = keys.get(device);
    if (key === undefined) continue;
    parts.push(key);
    names += `${device}:${key.length},`;
  }
  return names;
}
