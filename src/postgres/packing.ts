/** Stored items as they come from the database: see `packed_item` in sql/0002_commit.sql. */
import type { ContentType } from '../protocol/item.js';
import { HASH_BYTES, ItemRow, ULID_CHARS } from '../tenant/change.js';

/** An int8 that fits a safe integer; -1 stands for NULL. */
export const int8 = (bytes: Buffer, at: number): number =>
  bytes.readInt32BE(at) * 4_294_967_296 + bytes.readUInt32BE(at + 4);

/** Where a row's id begins, behind its numbers. */
export const ID_AT = 40;

/** The stored rows of a page, over its bytes. Throws for a live item that has lost what makes it one. */
export function readRows(page: Buffer): ItemRow[] {
  const rows: ItemRow[] = [];
  for (let at = 0; at < page.length;) {
    const row = readRow(page, at);
    rows.push(row);
    at = row.end;
  }
  return rows;
}

function readRow(page: Buffer, from: number): ItemRow {
  const row = new ItemRow(page, from);
  row.version = int8(page, from);
  const ts = int8(page, from + 8);
  const deletedAt = int8(page, from + 16);
  row.has = page.readInt32BE(from + 24);
  row.ctBytes = page.readInt32BE(from + 28);
  row.keysBytes = page.readInt32BE(from + 32);
  row.blobKeysBytes = page.readInt32BE(from + 36);
  let at = from + ID_AT + ULID_CHARS;
  row.id = page.toString('latin1', from + ID_AT, at);
  const text = (): string | null => {
    const length = page.readInt32BE(at);
    at += 4;
    if (length < 0) return null;
    at += length;
    return page.toString('latin1', at - length, at);
  };
  row.binId = text() ?? '';
  row.type = text() as ContentType | null;
  row.senderDevice = text();
  row.changedBy = text();
  row.blobRef = text();
  // A change's bytes begin with a hash, which is not read: the row begins where it would stand.
  row.at = at - HASH_BYTES;
  row.ts = ts < 0 ? null : ts;
  row.deletedAt = deletedAt < 0 ? null : deletedAt;
  if (row.deletedAt === null && (row.type === null || row.ts === null || row.senderDevice === null)) {
    throw new Error(`item ${row.id} is live but emptied`);
  }
  const { ctBytes, keysBytes, blobKeysBytes } = row;
  if (ctBytes < 0 || keysBytes < 0 || blobKeysBytes < 0 || row.end > page.length)
    throw new Error(`the page ends within item ${row.id}`);
  return row;
}
