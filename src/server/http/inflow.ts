/**
 * The body of an upload, as a stream. It is taken piece by piece, and the socket is read no further while a piece is
 * being worked on. So whoever sends fast is as fast as the disk, and the server holds one buffer for each upload.
 */
import type { HttpResponse } from 'uWebSockets.js';
import type { Clock } from '../../protocol/clock.js';
import { invalid } from '../../protocol/errors.js';
import { Pace, type TooSlow } from './pace.js';

/** The largest piece that uWebSockets.js reads from a socket at once, bytes (LIBUS_RECV_BUFFER_LENGTH). */
const BUFFER_MAX = 512 * 1024;
/** `pause` does not stop what was read already; more than this can never have been. */
const SPILL_MAX = 2 * BUFFER_MAX;

/** Of a call, what the body it brings is read by. */
export interface Incoming {
  readonly res: HttpResponse;
  /** Declared length of the body in bytes; 0 where none is declared. */
  readonly contentLength: number;
  /** Answered or aborted: the response may not be touched any more. */
  readonly over: boolean;
  /** The client is gone; set before `over`. */
  readonly aborted: boolean;
  /** Calls back once, when the call is over. */
  onEnd(fn: () => void): void;
}

/** The bytes of one body, in order. Whoever is too slow is cut; silence is cut by the library, after 10 s. */
export class Inflow {
  private readonly buffer: Buffer;
  /** Bytes in the buffer; those before `taken` were handed out. */
  private filled = 0;
  private taken = 0;
  /** What came although the socket was paused. */
  private spilled: Buffer[] = [];
  private spilledBytes = 0;
  private received = 0;
  private whole = false;
  private paused = false;
  private fault: Error | undefined;
  private wake: (() => void) | undefined;
  private readonly pace: Pace;

  /** Begins to listen at once: what came before is lost otherwise. */
  constructor(
    private readonly ctx: Incoming,
    clock: Clock,
    tooSlow: TooSlow,
  ) {
    this.buffer = Buffer.allocUnsafeSlow(Math.min(ctx.contentLength, BUFFER_MAX));
    ctx.res.onData((chunk, isLast) => this.take(chunk, isLast));
    ctx.onEnd(() => this.stop());
    this.pace = new Pace({
      clock,
      tooSlow,
      moved: () => this.received,
      // While the disk is what is waited for, nobody is slow but we.
      waiting: () => !this.paused && !this.whole,
      cut: () => this.cut(),
    });
  }

  /** The next bytes, valid until the next call; undefined after the last. Rejects when no more will come. */
  async next(): Promise<Uint8Array | undefined> {
    for (;;) {
      if (this.fault !== undefined) throw this.fault;
      const piece = this.piece();
      if (piece !== undefined) return piece;
      if (this.whole) return undefined;
      this.flow();
      await new Promise<void>((resolve) => {
        this.wake = resolve;
      });
    }
  }

  /** Bytes that were declared and have not come yet. */
  get left(): number {
    return this.ctx.contentLength - this.received;
  }

  /** Ends it from this side. */
  cut(): void {
    if (!this.ctx.over) this.ctx.res.close();
  }

  private piece(): Uint8Array | undefined {
    if (this.taken < this.filled) {
      const piece = this.buffer.subarray(this.taken, this.filled);
      this.taken = this.filled;
      return piece;
    }
    const spilled = this.spilled.shift();
    this.spilledBytes -= spilled?.length ?? 0;
    return spilled;
  }

  /** All that came was worked on: the buffer is free, and the socket is read again. */
  private flow(): void {
    this.filled = 0;
    this.taken = 0;
    if (!this.paused) return;
    this.paused = false;
    if (!this.ctx.over) this.ctx.res.resume();
  }

  private take(chunk: ArrayBuffer, isLast: boolean): void {
    if (this.fault !== undefined) return;
    this.received += chunk.byteLength;
    // The library takes its memory back when this returns.
    const bytes = new Uint8Array(chunk);
    if (this.spilled.length === 0 && this.filled + bytes.length <= this.buffer.length) {
      this.buffer.set(bytes, this.filled);
      this.filled += bytes.length;
    } else if (bytes.length > 0) {
      this.spilled.push(Buffer.from(bytes));
      this.spilledBytes += bytes.length;
    }
    this.whole = isLast;
    if (this.spilledBytes > SPILL_MAX) return this.cut();
    if (!isLast && !this.paused) {
      this.paused = true;
      this.ctx.res.pause();
    }
    this.tell();
  }

  /** The call is over: its client is gone, or it was answered before all had come. */
  private stop(): void {
    this.pace.end();
    this.fault ??= invalid('body', 'ended before it was whole');
    // What is still on its way is swallowed or cut by the reply; a paused socket would keep it waiting.
    if (this.paused && !this.ctx.aborted) this.ctx.res.resume();
    this.paused = false;
    this.tell();
  }

  private tell(): void {
    const { wake } = this;
    this.wake = undefined;
    wake?.();
  }
}
