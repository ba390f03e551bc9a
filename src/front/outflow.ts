/** A file on its way out: read as far ahead as one buffer, sent as the client takes it. */
import type { HttpResponse } from 'uWebSockets.js';
import type { BlobFile } from '../blobs/transfers.js';
import type { Clock, Timer } from '../protocol/clock.js';
import type { Part } from './range.js';

const BUFFER_MAX = 256 * 1024;
/** Whoever takes less than SLOW_BYTES in SLOW_MS is cut: 1 KiB a second. Silence is cut by the library after 10 s. */
const SLOW_MS = 30_000;
const SLOW_BYTES = 30 * 1024;

/** What a file is sent with. */
export interface OutflowOptions {
  readonly res: HttpResponse;
  readonly file: BlobFile;
  readonly part: Part;
  readonly clock: Clock;
  /** Called once: all is sent, or no more will be; with what went wrong on this side, where something did. */
  readonly done: (error?: unknown) => void;
}

/** Sends one file. The status and headers are written before. */
export class Outflow {
  private readonly buffer: Buffer;
  private readonly total: number;
  /** What the buffer holds: so many bytes, from this place of the part on. */
  private held = 0;
  private heldAt = 0;
  private sent = 0;
  private over = false;
  private slow: Timer | undefined;

  constructor(private readonly options: OutflowOptions) {
    const { start, end } = options.part;
    this.total = end - start;
    this.buffer = Buffer.allocUnsafeSlow(Math.min(this.total, BUFFER_MAX));
  }

  /** Begins with bytes that were read already: headers and the first of them go out together. */
  begin(held: number): void {
    this.held = held;
    this.options.res.onWritable((offset) => this.goOn(offset));
    this.watch(0);
    this.push(0);
  }

  /** Reads the next of the file into the buffer. Throws when the file is shorter than it was. */
  async fill(): Promise<number> {
    const { file, part } = this.options;
    const room = Math.min(this.buffer.length, this.total - this.sent);
    const got = await file.read(this.buffer.subarray(0, room), part.start + this.sent);
    if (got === 0) throw new Error('a stored blob is shorter than its size');
    return got;
  }

  /** The client is gone. */
  abort(): void {
    this.end();
  }

  /** Hands the library what is held, from `from` on. True: it took all of that. */
  private push(from: number): boolean {
    const { res } = this.options;
    const before = this.heldAt;
    const [taken, responded] = res.tryEnd(this.buffer.subarray(from, this.held), this.total);
    if (responded) {
      this.sent = this.total;
      this.end();
      return true;
    }
    if (!taken) return false;
    this.sent = before + this.held;
    void this.more();
    return true;
  }

  private goOn(offset: number): boolean {
    if (this.over) return true;
    this.sent = Math.max(this.sent, offset);
    // Nothing is held back: the next piece is being read.
    if (offset >= this.heldAt + this.held) return true;
    return this.push(offset - this.heldAt);
  }

  private async more(): Promise<void> {
    try {
      const got = await this.fill();
      if (this.over) return;
      this.heldAt = this.sent;
      this.held = got;
      this.options.res.cork(() => void this.push(0));
    } catch (error) {
      this.fail(error);
    }
  }

  private fail(error: unknown): void {
    if (this.over) return;
    this.end(error);
    // The length is out already: a cut connection is the only way to say that this is not all.
    this.options.res.close();
  }

  private watch(before: number): void {
    this.slow = this.options.clock.setTimer(SLOW_MS, () => {
      if (this.over) return;
      if (this.sent - before < Math.min(SLOW_BYTES, this.total - before)) this.options.res.close();
      else this.watch(this.sent);
    });
  }

  private end(error?: unknown): void {
    if (this.over) return;
    this.over = true;
    this.slow?.cancel();
    this.options.done(error);
  }
}
