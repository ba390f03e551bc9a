/** How items lie in the table: sealed keys packed into one byte string, the master wrap as nonce and ct together. */
import type { Blob, ContentType, Inline, Item, MasterWrap, SealedKeys } from '../protocol/item.js';
import { NONCE_BYTES } from '../protocol/limits.js';
import type { LogRow } from '../tenant/ports.js';

const DEVICE_ID_BYTES = 26;
const ENTRY_HEAD = DEVICE_ID_BYTES + 2;

/** Bytes that `writeKeys` needs. */
export function packedLength(keys: SealedKeys): number {
  let length = 0;
  for (const key of keys.values()) length += ENTRY_HEAD + key.length;
  return length;
}

/** Writes keys at an offset: per entry 26 bytes of device id, a 2-byte big-endian length, the sealed key. Returns the end. */
export function writeKeys(into: Buffer, offset: number, keys: SealedKeys): number {
  let at = offset;
  for (const [device, key] of keys) {
    into.write(device, at, DEVICE_ID_BYTES, 'latin1');
    into.writeUInt16BE(key.length, at + DEVICE_ID_BYTES);
    into.set(key, at + ENTRY_HEAD);
    at += ENTRY_HEAD + key.length;
  }
  return at;
}

export function readKeys(packed: Buffer): SealedKeys {
  const keys = new Map<string, Uint8Array>();
  let at = 0;
  while (at < packed.length) {
    const end = at + ENTRY_HEAD + packed.readUInt16BE(at + DEVICE_ID_BYTES);
    keys.set(packed.toString('latin1', at, at + DEVICE_ID_BYTES), packed.subarray(at + ENTRY_HEAD, end));
    at = end;
  }
  return keys;
}

/** Columns of a stored item in the order that `itemOf` reads them. */
export const ITEM_COLUMNS =
  'id, version, bin_id, type, ts, sender_device, changed_by, deleted_at, ct, nonce, sig, master, keys, ' +
  'blob_ref, blob_nonce, blob_keys';

/** One row of `ITEM_COLUMNS`. */
export type ItemColumns = readonly [
  id: string,
  version: number,
  binId: string,
  type: ContentType | null,
  ts: number | null,
  senderDevice: string | null,
  changedBy: string | null,
  deletedAt: number | null,
  ct: Buffer | null,
  nonce: Buffer | null,
  sig: Buffer | null,
  master: Buffer | null,
  keys: Buffer | null,
  blobRef: string | null,
  blobNonce: Buffer | null,
  blobKeys: Buffer | null,
];

const masterOf = (bytes: Buffer | null): MasterWrap | null =>
  bytes === null ? null : { nonce: bytes.subarray(0, NONCE_BYTES), ct: bytes.subarray(NONCE_BYTES) };

/** A stored row as the model has it. */
export function rowOf(columns: ItemColumns): LogRow {
  const [id, version, binId, type, ts, senderDevice, changedBy, deletedAt] = columns;
  const [, , , , , , , , ct, nonce, sig, master, keys, blobRef, blobNonce, blobKeys] = columns;
  if (deletedAt !== null) {
    return { item: { id, version, binId, type, ts, senderDevice, deletedAt, sig }, changedBy };
  }
  if (type === null || ts === null || senderDevice === null) throw new Error(`item ${id} is live but emptied`);
  const inline: Inline | null = ct === null || nonce === null || keys === null ? null : { ct, nonce, keys: readKeys(keys) };
  const blob: Blob | null =
    blobRef === null || blobNonce === null || blobKeys === null
      ? null
      : { ref: blobRef, nonce: blobNonce, keys: readKeys(blobKeys) };
  const item: Item = {
    id,
    version,
    binId,
    type,
    ts,
    senderDevice,
    deletedAt,
    inline,
    blob,
    master: masterOf(master),
    sig,
  };
  return { item, changedBy };
}
