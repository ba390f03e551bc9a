/** A file on its way out: read as far ahead as one buffer, sent as the client takes it. */
import type { HttpResponse } from 'uWebSockets.js';
import type { Clock, Timer } from '../../protocol/clock.js';
import { Pace, type TooSlow } from './pace.js';
import type { Part } from './range.js';

/** A blob that is being read. */
export interface BlobFile {
  /** Bytes. */
  readonly size: number;
  /** Fills `into` from `position` on; gives the number of bytes. Throws `storage_unavailable`. */
  read(into: Uint8Array, position: number): Promise<number>;
  close(): Promise<void>;
}

const BUFFER_MAX = 256 * 1024;
/**
 * The library cuts a reply that it could write nothing of for ten seconds, and tries only when the system calls the
 * socket writable: when a third of a buffer is free that may be megabytes. To whoever reads slowly that takes longer, so
 * it is tried again this often. How slow he may be is not for the size of a buffer to say.
 */
const AGAIN_MS = 4_000;

/** What a file is sent with. */
export interface OutflowOptions {
  readonly res: HttpResponse;
  readonly file: BlobFile;
  readonly part: Part;
  readonly clock: Clock;
  readonly tooSlow: TooSlow;
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
  private pace: Pace | undefined;
  private again: Timer | undefined;

  constructor(private readonly options: OutflowOptions) {
    const { start, end } = options.part;
    this.total = end - start;
    this.buffer = Buffer.allocUnsafeSlow(Math.min(this.total, BUFFER_MAX));
  }

  /** Begins with bytes that were read already: headers and the first of them go out together. */
  begin(held: number): void {
    this.held = held;
    this.options.res.onWritable((offset) => this.goOn(offset));
    const { clock, tooSlow, res } = this.options;
    this.pace = new Pace({
      clock,
      tooSlow,
      moved: () => this.sent,
      waiting: () => this.sent < this.heldAt + this.held,
      cut: () => res.close(),
    });
    this.push(0);
    this.tryAgain();
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

  private tryAgain(): void {
    if (this.over) return;
    const { clock, res } = this.options;
    this.again = clock.setTimer(AGAIN_MS, () => {
      res.cork(() => void this.goOn(res.getWriteOffset()));
      this.tryAgain();
    });
  }

  private end(error?: unknown): void {
    if (this.over) return;
    this.over = true;
    this.pace?.end();
    this.again?.cancel();
    this.options.done(error);
  }
}
