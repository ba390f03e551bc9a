/**
 * The frames of the last changes of all tenants of a process, as bytes in a few large pieces of memory. As texts they would
 * be most of what the garbage collector carries: each outlives a collection or two, and then goes (bench S1).
 */

/** Names a frame in the ring: the number of its segment times the size of one, and where it begins. Never given twice. */
export type Place = number;

const SEGMENT_BYTES = 1024 * 1024;
/** Of a frame that is not there. */
const NOWHERE: Place = -1;

/** Frames in the order in which they came; where there is no room the oldest go, a segment at a time. */
export class FrameRing {
  /** The newest last. */
  private readonly segments: Buffer[] = [];
  /** The number of the oldest segment. */
  private first = 0;
  private used = SEGMENT_BYTES;

  /** Holds at most so many bytes, and a segment of 1 MiB in any case. */
  constructor(private readonly bytesMax: number) {}

  /** Bytes of memory that it takes. */
  get bytes(): number {
    return this.segments.length * SEGMENT_BYTES;
  }

  /** Keeps a frame. One that fits no segment is not there at once. */
  add(frame: Uint8Array): Place {
    if (frame.length > SEGMENT_BYTES) return NOWHERE;
    if (this.used + frame.length > SEGMENT_BYTES) this.begin();
    const at = this.used;
    this.used += frame.length;
    this.segments.at(-1)?.set(frame, at);
    return (this.first + this.segments.length - 1) * SEGMENT_BYTES + at;
  }

  /** Whether the frame is still there. They go in the order in which they came. */
  has(place: Place): boolean {
    return Math.floor(place / SEGMENT_BYTES) >= this.first;
  }

  /** The bytes of a frame that is there: a view, good until the next one is added. */
  view(place: Place, length: number): Buffer {
    const segment = this.segments[Math.floor(place / SEGMENT_BYTES) - this.first];
    if (segment === undefined) throw new Error('the frame is not in the ring any more');
    const at = place % SEGMENT_BYTES;
    return segment.subarray(at, at + length);
  }

  private begin(): void {
    let again: Buffer | undefined;
    while (this.segments.length > 0 && (this.segments.length + 1) * SEGMENT_BYTES > this.bytesMax) {
      again = this.segments.shift();
      this.first++;
    }
    this.segments.push(again ?? Buffer.allocUnsafeSlow(SEGMENT_BYTES));
    this.used = 0;
  }
}
