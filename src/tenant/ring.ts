/**
 * The last changes of all tenants of a process, as bytes in a few large pieces of memory. As objects they would be most of
 * what the garbage collector carries: each outlives a collection or two, and then goes (bench S1).
 */
import type { ContentType } from '../protocol/item.js';
import { Packed, PackedItem } from './packed.js';
import type { LogRow } from './ports.js';

/** Names a row in the ring: the number of its segment, and where it begins in it. Never given twice. */
export type Place = number;

/** Above the longest row there can be. */
const SEGMENT_BYTES = 1024 * 1024;
/** More than a row takes besides its packed bytes. */
const HEAD_MAX = 512;
/** Stands for a text that is not there; the longest text is 64 characters. */
const NO_TEXT = 255;

interface Segment {
  readonly bytes: Buffer;
  used: number;
  /** Rows in it that are still wanted. */
  rows: number;
}

/** Rows in the order in which they came. What is dropped, and what is oldest where there is no room, makes room. */
export class ChangeRing {
  /** By their numbers, which rise: the oldest comes first. */
  private readonly segments = new Map<number, Segment>();
  private newest: Segment | undefined;
  private newestNumber = -1;
  private spare: Buffer | undefined;

  /** Holds at most so many bytes, and a segment of 1 MiB in any case. */
  constructor(private readonly bytesMax: number) {}

  /** Bytes of memory that it takes. */
  get bytes(): number {
    return (this.segments.size + (this.spare === undefined ? 0 : 1)) * SEGMENT_BYTES;
  }

  /** Keeps a row. Returns its place and its bytes; undefined for one that fits no segment. */
  add(row: LogRow): { readonly place: Place; readonly bytes: number } | undefined {
    const packed = packedOf(row);
    const room = HEAD_MAX + packed.bytes.length;
    if (room > SEGMENT_BYTES) return undefined;
    let segment = this.newest;
    if (segment === undefined || segment.used + room > SEGMENT_BYTES) segment = this.begin();
    const from = segment.used;
    segment.used = new Writer(segment.bytes, from).row(row, packed);
    segment.rows++;
    return { place: this.newestNumber * SEGMENT_BYTES + from, bytes: segment.used - from };
  }

  /** Whether the row is still there. Rows go in the order in which they came. */
  has(place: Place): boolean {
    return this.segments.has(Math.floor(place / SEGMENT_BYTES));
  }

  /** The row at a place that is there. Its bytes are views: they hold until the next row is added. */
  read(place: Place): LogRow {
    const segment = this.segments.get(Math.floor(place / SEGMENT_BYTES));
    if (segment === undefined) throw new Error('the row is not in the ring any more');
    return new Reader(segment.bytes, place % SEGMENT_BYTES).row();
  }

  /** The row is not wanted any more, if it is there. To be called once. */
  drop(place: Place): void {
    const number = Math.floor(place / SEGMENT_BYTES);
    const segment = this.segments.get(number);
    if (segment === undefined || --segment.rows > 0) return;
    this.release(number, segment);
  }

  private begin(): Segment {
    for (const [number, oldest] of this.segments) {
      if ((this.segments.size + 1) * SEGMENT_BYTES <= this.bytesMax) break;
      this.release(number, oldest);
    }
    const segment = { bytes: this.spare ?? Buffer.allocUnsafeSlow(SEGMENT_BYTES), used: 0, rows: 0 };
    this.spare = undefined;
    this.newest = segment;
    this.segments.set(++this.newestNumber, segment);
    return segment;
  }

  private release(number: number, segment: Segment): void {
    this.segments.delete(number);
    this.spare = segment.bytes;
    if (segment === this.newest) this.newest = undefined;
  }
}

function packedOf({ item }: LogRow): Packed {
  if (item.deletedAt !== null) return Packed.tag(item.sig);
  return item instanceof PackedItem ? item.packed : Packed.stored(item);
}

/** Every text in a row is an id or a known word: at most 64 characters of ASCII. */
class Writer {
  constructor(
    private readonly bytes: Buffer,
    private at: number,
  ) {}

  /** Returns where the row ends. */
  row({ item, changedBy }: LogRow, packed: Packed): number {
    this.number(item.version)
      .number(item.ts ?? -1)
      .number(item.deletedAt ?? -1);
    this.text(item.id).text(item.binId).text(item.type).text(item.senderDevice).text(changedBy).text(packed.blobRef);
    this.number(packed.has).number(packed.ctBytes).number(packed.keysBytes).number(packed.blobKeysBytes);
    this.bytes.set(packed.bytes, this.at);
    return this.at + packed.bytes.length;
  }

  private number(value: number): this {
    this.at = this.bytes.writeDoubleLE(value, this.at);
    return this;
  }

  private text(value: string | null): this {
    if (value === null) {
      this.bytes[this.at++] = NO_TEXT;
      return this;
    }
    this.bytes[this.at++] = value.length;
    this.at += this.bytes.write(value, this.at, 'latin1');
    return this;
  }
}

class Reader {
  constructor(
    private readonly bytes: Buffer,
    private at: number,
  ) {}

  row(): LogRow {
    const [version, ts, deletedAt] = [this.number(), this.number(), this.number()];
    const [id, binId, type] = [this.text() ?? '', this.text() ?? '', this.text() as ContentType | null];
    const [senderDevice, changedBy, blobRef] = [this.text(), this.text(), this.text()];
    const [has, ctBytes, keysBytes, blobKeysBytes] = [this.number(), this.number(), this.number(), this.number()];
    const packed = Packed.over(this.bytes, this.at, { has, ctBytes, keysBytes, blobKeysBytes, blobRef });
    if (deletedAt >= 0) {
      const { sig } = packed;
      return { item: { id, version, binId, type, ts: ts < 0 ? null : ts, senderDevice, deletedAt, sig }, changedBy };
    }
    if (type === null || senderDevice === null) throw new Error(`item ${id} is live but emptied`);
    return { item: new PackedItem({ id, binId, type, ts }, packed, version, senderDevice), changedBy };
  }

  private number(): number {
    const value = this.bytes.readDoubleLE(this.at);
    this.at += 8;
    return value;
  }

  private text(): string | null {
    const length = this.bytes[this.at++] ?? NO_TEXT;
    if (length === NO_TEXT) return null;
    const from = this.at;
    this.at += length;
    return this.bytes.toString('latin1', from, this.at);
  }
}
