/**
 * The memory in which the bytes of changes lie from the request that brings them until they are answered. A few large pieces
 * that are used again, instead of buffers for every write: what a buffer holds outside of the heap makes the collector
 * run, and a batch whose changes lie one behind the other goes to PostgreSQL as it lies (bench S2).
 */
import { unavailable } from '../protocol/errors.js';

/** Above the longest change there can be: 64 KiB of ciphertext, and twice 1,000 keys of 256 bytes. */
export const SEGMENT_BYTES = 1024 * 1024;
/** Segments that are kept though nothing lies in them: as many as batches under way take. */
const SPARES_MAX = 4;

/** One piece of the arena. Changes are put into it one behind the other, and it is used again as a whole. */
export class Segment {
  used = 0;
  /** Changes in it that are not answered. PostgreSQL, or the socket to it, may be reading their bytes. */
  pins = 0;

  constructor(readonly bytes: Buffer) {}
}

/** Changes in the order in which they came. One writer at a time: `reserve`, write, `pin`, without a wait in between. */
export class Arena {
  private newest = new Segment(Buffer.allocUnsafeSlow(SEGMENT_BYTES));
  private readonly spares: Segment[] = [];
  /** Segments in use, the newest among them. */
  private size = 1;

  /** Holds at most so many bytes. */
  constructor(private readonly bytesMax: number) {}

  /** Bytes of memory that it takes. */
  get bytes(): number {
    return (this.size + this.spares.length) * SEGMENT_BYTES;
  }

  /**
   * A segment with room for so many bytes behind `used`. What is written there and not pinned is overwritten by the next.
   * Throws `unavailable` where the changes under way hold all that they may.
   */
  reserve(bytes: number): Segment {
    if (bytes > SEGMENT_BYTES) throw new RangeError(`${bytes} bytes fit no segment`);
    if (this.newest.used + bytes <= SEGMENT_BYTES) return this.newest;
    if (this.newest.pins === 0) {
      this.newest.used = 0;
      return this.newest;
    }
    if ((this.size + 1) * SEGMENT_BYTES > this.bytesMax) throw unavailable('too many writes wait');
    this.size++;
    this.newest = this.spares.pop() ?? new Segment(Buffer.allocUnsafeSlow(SEGMENT_BYTES));
    return this.newest;
  }

  /** Takes what was written up to `end`. It stays until `unpin`. */
  pin(segment: Segment, end: number): void {
    segment.used = end;
    segment.pins++;
  }

  /** A change is answered. To be called once for each `pin`. */
  unpin(segment: Segment): void {
    if (--segment.pins > 0 || segment === this.newest) return;
    segment.used = 0;
    this.size--;
    if (this.spares.length < SPARES_MAX) this.spares.push(segment);
  }
}
