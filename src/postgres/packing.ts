/** Stored items as they come from the database: see `packed_item` in sql/0002_commit.sql. */
import type { Blob, ContentType, Inline, Item, MasterWrap } from '../protocol/item.js';
import { NONCE_BYTES } from '../protocol/limits.js';
import { readKeys } from '../tenant/packed.js';
import type { LogRow } from '../tenant/ports.js';

const ULID_CHARS = 26;

const masterOf = (bytes: Buffer | null): MasterWrap | null =>
  bytes === null ? null : { nonce: bytes.subarray(0, NONCE_BYTES), ct: bytes.subarray(NONCE_BYTES) };

/** Reads rows packed by `packed_item` (sql/0002_commit.sql), one after the other. Byte fields are views, not copies. */
class PackedReader {
  private at = 0;

  constructor(private readonly packed: Buffer) {}

  get ended(): boolean {
    return this.at >= this.packed.length;
  }

  /** An int8 that fits a safe integer; -1 stands for NULL. */
  number(): number {
    const { packed, at } = this;
    this.at += 8;
    return packed.readInt32BE(at) * 4_294_967_296 + packed.readUInt32BE(at + 4);
  }

  bytes(length: number): Buffer {
    const { packed, at } = this;
    this.at += length;
    return packed.subarray(at, this.at);
  }

  field(): Buffer | null {
    const length = this.packed.readInt32BE(this.at);
    this.at += 4;
    return length < 0 ? null : this.bytes(length);
  }

  text(): string | null {
    const length = this.packed.readInt32BE(this.at);
    const from = this.at + 4;
    if (length < 0) {
      this.at = from;
      return null;
    }
    this.at = from + length;
    return this.packed.toString('latin1', from, this.at);
  }
}

/** The stored rows of a page. */
export function readRows(packed: Buffer): LogRow[] {
  const reader = new PackedReader(packed);
  const rows: LogRow[] = [];
  while (!reader.ended) rows.push(readRow(reader));
  return rows;
}

function readRow(reader: PackedReader): LogRow {
  const version = reader.number();
  const ts = reader.number();
  const deletedAt = reader.number();
  const id = reader.bytes(ULID_CHARS).toString('latin1');
  const binId = reader.text() ?? '';
  const type = reader.text() as ContentType | null;
  const senderDevice = reader.text();
  const changedBy = reader.text();
  const blobRef = reader.text();
  const nonce = reader.field();
  const sig = reader.field();
  const master = masterOf(reader.field());
  const blobNonce = reader.field();
  const blobKeys = reader.field();
  const keys = reader.field();
  const ct = reader.field();
  if (deletedAt >= 0) {
    const item: Item = { id, version, binId, type, ts: ts < 0 ? null : ts, senderDevice, deletedAt, sig };
    return { item, changedBy };
  }
  if (type === null || ts < 0 || senderDevice === null) throw new Error(`item ${id} is live but emptied`);
  const inline: Inline | null =
    ct === null || nonce === null || keys === null ? null : { ct, nonce, keys: readKeys(keys) };
  const blob: Blob | null =
    blobRef === null || blobNonce === null || blobKeys === null
      ? null
      : { ref: blobRef, nonce: blobNonce, keys: readKeys(blobKeys) };
  const item: Item = { id, version, binId, type, ts, senderDevice, deletedAt: null, inline, blob, master, sig };
  return { item, changedBy };
}
