/** Stored items as they come from the database: see `packed_item` in sql/0002_commit.sql. */
import type { Blob, ContentType, Inline, Item, LiveItem, MasterWrap } from '../protocol/item.js';
import { NONCE_BYTES } from '../protocol/limits.js';
import { readKeys } from '../tenant/packed.js';
import type { LogRow } from '../tenant/ports.js';

const ULID_CHARS = 26;

/** Reads rows packed by `packed_item` (sql/0002_commit.sql), one after the other. */
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

  latin1(length: number): string {
    const { packed, at } = this;
    this.at += length;
    return packed.toString('latin1', at, this.at);
  }

  skipFields(count: number): Fields {
    const { packed, at } = this;
    for (let i = 0; i < count; i++) this.at += 4 + Math.max(0, packed.readInt32BE(this.at));
    return new Fields(packed, at);
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
  const id = reader.latin1(ULID_CHARS);
  const binId = reader.text() ?? '';
  const type = reader.text() as ContentType | null;
  const senderDevice = reader.text();
  const changedBy = reader.text();
  const blobRef = reader.text();
  const fields = reader.skipFields(FIELDS);
  if (deletedAt >= 0) {
    const sig = fields.at(FIELD.sig);
    const item: Item = { id, version, binId, type, ts: ts < 0 ? null : ts, senderDevice, deletedAt, sig };
    return { item, changedBy };
  }
  if (type === null || ts < 0 || senderDevice === null) throw new Error(`item ${id} is live but emptied`);
  return { item: new StoredItem({ id, version, binId, type, ts, senderDevice, blobRef }, fields), changedBy };
}

/** Byte fields of a packed row, in their order. */
const FIELD = { nonce: 0, sig: 1, master: 2, blobNonce: 3, blobKeys: 4, keys: 5, ct: 6 } as const;
const FIELDS = 7;

/** The byte fields of one row: where they begin. */
class Fields {
  constructor(
    private readonly packed: Buffer,
    private readonly start: number,
  ) {}

  /** The nth field as a view, not a copy; null where the column is. */
  at(n: number): Buffer | null {
    const { packed } = this;
    let at = this.start;
    for (let i = 0; i < n; i++) at += 4 + Math.max(0, packed.readInt32BE(at));
    const length = packed.readInt32BE(at);
    return length < 0 ? null : packed.subarray(at + 4, at + 4 + length);
  }
}

/**
 * A live item whose parts are read from the packed bytes when they are asked for: a page is some thousand parts, of which
 * none is needed once its row's frame is made.
 */
class StoredItem implements LiveItem {
  readonly id: string;
  readonly version: number;
  readonly binId: string;
  readonly type: ContentType;
  readonly ts: number;
  readonly senderDevice: string;
  readonly deletedAt = null;
  private readonly blobRef: string | null;

  constructor(
    head: Pick<LiveItem, 'id' | 'version' | 'binId' | 'type' | 'ts' | 'senderDevice'> & { blobRef: string | null },
    private readonly fields: Fields,
  ) {
    this.id = head.id;
    this.version = head.version;
    this.binId = head.binId;
    this.type = head.type;
    this.ts = head.ts;
    this.senderDevice = head.senderDevice;
    this.blobRef = head.blobRef;
  }

  get inline(): Inline | null {
    const [ct, nonce, keys] = [this.fields.at(FIELD.ct), this.fields.at(FIELD.nonce), this.fields.at(FIELD.keys)];
    return ct === null || nonce === null || keys === null ? null : { ct, nonce, keys: readKeys(keys) };
  }

  get blob(): Blob | null {
    if (this.blobRef === null) return null;
    const [nonce, keys] = [this.fields.at(FIELD.blobNonce), this.fields.at(FIELD.blobKeys)];
    return nonce === null || keys === null ? null : { ref: this.blobRef, nonce, keys: readKeys(keys) };
  }

  get master(): MasterWrap | null {
    const bytes = this.fields.at(FIELD.master);
    return bytes && { nonce: bytes.subarray(0, NONCE_BYTES), ct: bytes.subarray(NONCE_BYTES) };
  }

  get sig(): Uint8Array | null {
    return this.fields.at(FIELD.sig);
  }
}
