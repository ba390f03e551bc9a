import { createHash, type Hash } from 'node:crypto';
import type { ItemWrite, SealedKeys } from '../protocol/item.js';

/**
 * The hash by which the same write sent again is recognised (contract 5, decision 1): 32 bytes of SHA-256 over
 * the decoded write as received, so shape and encoding do not matter. `ifVersion` is a condition, not content.
 */
export function fingerprint(write: ItemWrite): Uint8Array {
  const { inline, blob, master, sig } = write;
  const hash = createHash('sha256');
  // One line of text with every length, then the bytes: no two writes give the same input.
  hash.update(
    [
      write.id,
      write.binId,
      write.type,
      write.ts,
      inline?.ct.length ?? '-',
      keyNames(inline?.keys),
      master === null ? '-' : '+',
      sig === null ? '-' : '+',
      blob?.ref ?? '-',
      keyNames(blob?.keys),
      '',
    ].join('\n'),
  );
  if (inline !== null) {
    hash.update(inline.ct).update(inline.nonce);
    hashKeys(hash, inline.keys);
  }
  if (master !== null) hash.update(master.nonce).update(master.ct);
  if (sig !== null) hash.update(sig);
  if (blob !== null) {
    hash.update(blob.nonce);
    hashKeys(hash, blob.keys);
  }
  return hash.digest();
}

/** Map order is the order on the wire; the same write may come in another one. */
const sorted = (keys: SealedKeys): [string, Uint8Array][] => [...keys].sort(([a], [b]) => (a < b ? -1 : 1));

function keyNames(keys: SealedKeys | undefined): string {
  if (keys === undefined) return '-';
  return sorted(keys)
    .map(([device, key]) => `${device}:${key.length}`)
    .join(',');
}

function hashKeys(hash: Hash, keys: SealedKeys): void {
  for (const [, key] of sorted(keys)) hash.update(key);
}
