/** Converts items, as tests state them, to rows over bytes, and back. */
import type { Blob, Inline, Item, LiveItem, SealedKeys } from '../../src/protocol/item.js';
import { MASTER_WRAP_BYTES, NONCE_BYTES } from '../../src/protocol/limits.js';
import {
  BLOB_NONCE_AT,
  ENTRY_HEAD,
  FIXED_BYTES,
  HAS,
  ItemRow,
  MASTER_AT,
  NONCE_AT,
  SIG_AT,
  ULID_CHARS,
} from '../../src/server/tenant/codec.js';

/** A list of keys as it is stored. */
export function packedKeys(keys: SealedKeys | undefined): Buffer {
  return Buffer.concat(
    [...(keys ?? [])].map(([device, key]) => {
      const head = Buffer.alloc(ENTRY_HEAD);
      head.write(device, 'latin1');
      head.writeUInt16BE(key.length, ULID_CHARS);
      return Buffer.concat([head, key]);
    }),
  );
}

/** A stored list of keys, read. */
export function unpackedKeys(packed: Buffer): SealedKeys {
  const keys = new Map<string, Uint8Array>();
  for (let at = 0; at < packed.length;) {
    const end = at + ENTRY_HEAD + packed.readUInt16BE(at + ULID_CHARS);
    keys.set(packed.toString('latin1', at, at + ULID_CHARS), Buffer.from(packed.subarray(at + ENTRY_HEAD, end)));
    at = end;
  }
  return keys;
}

/** The row as which an item is stored. */
export function rowOf(item: Item, changedBy: string | null): ItemRow {
  const live: Partial<LiveItem> = item.deletedAt === null ? item : {};
  const { inline, blob, master } = live;
  const [ct, keys, blobKeys] = [inline?.ct ?? Buffer.alloc(0), packedKeys(inline?.keys), packedKeys(blob?.keys)];
  const bytes = Buffer.concat([Buffer.alloc(FIXED_BYTES), ct, keys, blobKeys]);
  const { id, binId, type, ts, version, senderDevice, deletedAt, sig } = item;
  const row = Object.assign(new ItemRow(bytes, 0), {
    id,
    binId,
    type,
    ts,
    version,
    senderDevice,
    deletedAt,
    changedBy,
  });
  const put = (part: Uint8Array | null | undefined, at: number, bit: number): void => {
    if (part === null || part === undefined) return;
    bytes.set(part, at);
    row.has |= bit;
  };
  put(inline?.nonce, NONCE_AT, HAS.nonce);
  put(sig, SIG_AT, HAS.sig);
  put(master?.nonce, MASTER_AT, HAS.master);
  put(master?.ct, MASTER_AT + NONCE_BYTES, HAS.master);
  put(blob?.nonce, BLOB_NONCE_AT, HAS.blobNonce);
  if (inline) row.has |= HAS.inline;
  row.blobRef = blob?.ref ?? null;
  row.ctBytes = ct.length;
  row.keysBytes = keys.length;
  row.blobKeysBytes = blobKeys.length;
  return row;
}

/** The tag of a row or a change, 32 bytes; null if it has none. */
export const sigOf = ({ has, bytes, at }: ItemRow): Buffer | null =>
  (has & HAS.sig) === 0 ? null : bytes.subarray(at + SIG_AT, at + MASTER_AT);

/** The item that a row encodes. */
export function itemOf(row: ItemRow): Item {
  const { id, binId, type, ts, version, senderDevice, deletedAt, bytes, at, has } = row;
  const part = (from: number, length: number): Buffer => Buffer.from(bytes.subarray(at + from, at + from + length));
  const tag = sigOf(row);
  const sig = tag && Buffer.from(tag);
  if (deletedAt !== null) return { id, binId, type, ts, version, senderDevice, deletedAt, sig };
  if (type === null || ts === null || senderDevice === null) throw new Error(`item ${id} is live but emptied`);
  const inline: Inline | null =
    (has & HAS.inline) === 0
      ? null
      : {
          ct: part(FIXED_BYTES, row.ctBytes),
          nonce: part(NONCE_AT, NONCE_BYTES),
          keys: unpackedKeys(bytes.subarray(row.keysAt, row.blobKeysAt)),
        };
  const blob: Blob | null =
    row.blobRef === null
      ? null
      : {
          ref: row.blobRef,
          nonce: part(BLOB_NONCE_AT, NONCE_BYTES),
          keys: unpackedKeys(bytes.subarray(row.blobKeysAt, row.end)),
        };
  const master =
    (has & HAS.master) === 0
      ? null
      : { nonce: part(MASTER_AT, NONCE_BYTES), ct: part(MASTER_AT + NONCE_BYTES, MASTER_WRAP_BYTES) };
  return { id, binId, type, ts, version, senderDevice, deletedAt, inline, blob, master, sig };
}
