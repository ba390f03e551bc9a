/**
 * Reads stored items as the database returns them: packed (see `packed_item` in sql/0002_commit.sql), or in columns.
 */
import type { ContentType } from '../../protocol/item.js';
import {
  BLOB_NONCE,
  FIXED_BYTES,
  type FixedPart,
  HAS,
  HASH_BYTES,
  int8At,
  ItemRow,
  MASTER_AT,
  MASTER_BYTES,
  NONCE,
  SIG,
  ULID_CHARS,
} from '../tenant/codec.js';
import type { CopiedRow } from './copy.js';

/** Offset of a row's id, after its numbers. */
export const ID_AT = 40;

/** The stored rows of a page, as views of its bytes. Throws for a live item that lacks a mandatory field. */
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
  row.version = int8At(page, from);
  // Negative: NULL.
  const ts = int8At(page, from + 8);
  const deletedAt = int8At(page, from + 16);
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
  // A change's bytes begin with a hash, which is not read here: the row begins where the hash would be.
  row.at = at - HASH_BYTES;
  row.ts = ts < 0 ? null : ts;
  row.deletedAt = deletedAt < 0 ? null : deletedAt;
  requireWhole(row);
  if (row.ctBytes < 0 || row.keysBytes < 0 || row.blobKeysBytes < 0 || row.end > page.length)
    throw new Error(`the page ends within item ${row.id}`);
  return row;
}

function requireWhole(row: ItemRow): void {
  if (row.deletedAt === null && (row.type === null || row.ts === null || row.senderDevice === null))
    throw new Error(`item ${row.id} is live but emptied`);
}

/** The columns that `RowReader` reads, in order. */
export const ITEM_COLUMNS =
  'version, ts, deleted_at, id, bin_id, type, sender_device, changed_by, blob_ref, ' +
  'nonce, sig, master, blob_nonce, ct, keys, blob_keys';

const MASTER: FixedPart = { at: MASTER_AT, bytes: MASTER_BYTES, bit: HAS.master };
const FIXED_PARTS: readonly FixedPart[] = [NONCE, SIG, MASTER, BLOB_NONCE];

/**
 * Rows share pieces of memory, the first small and the others larger: a separate allocation for each row costs more
 * than its contents.
 */
const FIRST_PIECE_BYTES = 8 * 1024;
const PIECE_BYTES = 64 * 1024;

/** Reads items with the columns `ITEM_COLUMNS`, into memory of its own. */
export class RowReader {
  private piece: Buffer = Buffer.alloc(0);
  private used = 0;

  /** Throws for a live item that lacks a mandatory field. */
  read(from: CopiedRow): ItemRow {
    const row = this.begin(FIXED_BYTES + from.bytes.length - from.at);
    row.version = from.int8() ?? 0;
    row.ts = from.int8();
    row.deletedAt = from.int8();
    row.id = from.text() ?? '';
    row.binId = from.text() ?? '';
    row.type = from.text() as ContentType | null;
    row.senderDevice = from.text();
    row.changedBy = from.text();
    row.blobRef = from.text();
    for (const part of FIXED_PARTS) takeFixed(row, from, part);
    const ct = take(row, from, row.at + FIXED_BYTES);
    if (ct >= 0) row.has |= HAS.inline;
    row.ctBytes = Math.max(0, ct);
    row.keysBytes = Math.max(0, take(row, from, row.keysAt));
    row.blobKeysBytes = Math.max(0, take(row, from, row.blobKeysAt));
    this.used = row.end;
    requireWhole(row);
    return row;
  }

  private begin(room: number): ItemRow {
    if (this.piece.length - this.used < room) {
      const usual = this.used === 0 ? FIRST_PIECE_BYTES : PIECE_BYTES;
      this.piece = Buffer.allocUnsafeSlow(Math.max(usual, room)).fill(0, 0, HASH_BYTES);
      this.used = HASH_BYTES;
    }
    // As in `readRow`: room for the hash that a stored row lacks.
    return new ItemRow(this.piece, this.used - HASH_BYTES);
  }
}

/** Copies a value's bytes. Returns their number, -1 for NULL. */
function take(row: ItemRow, from: CopiedRow, to: number): number {
  const length = from.value();
  if (length > 0) {
    from.bytes.copy(row.bytes, to, from.at, from.at + length);
    from.at += length;
  }
  return length;
}

function takeFixed(row: ItemRow, from: CopiedRow, part: FixedPart): void {
  const { bytes, at } = row;
  const length = from.value();
  const to = at + part.at;
  if (length < 0) {
    bytes.fill(0, to, to + part.bytes);
    return;
  }
  if (length !== part.bytes) throw new Error(`item ${row.id} has ${length} bytes for ${part.bytes}`);
  // For so few bytes, a loop costs less than a call that creates a view of them.
  for (let i = 0; i < length; i++) bytes[to + i] = from.bytes[from.at + i] ?? 0;
  from.at += length;
  row.has |= part.bit;
}
