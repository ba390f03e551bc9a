/** Bodies that are larger than memory: uploads and downloads of blobs, with backpressure, ranges and a minimum pace. */
import type { HttpResponse } from 'uWebSockets.js';
import { every, type Clock, type Timer } from '../../protocol/clock.js';
import { invalid } from '../../protocol/errors.js';

/** The pace of a body is measured over this window, ms. */
const PACE_WINDOW_MS = 30_000;

/** Whether a transfer at this pace, in bytes a second, is too slow to go on. */
export type TooSlow = (bytesPerS: number) => boolean;

interface PaceOptions {
  readonly clock: Clock;
  /** Bytes that were transferred so far. */
  readonly moved: () => number;
  /** False while the transfer waits for this side and not for the peer: the pace is not checked then. */
  readonly waiting: () => boolean;
  readonly tooSlow: TooSlow;
  /** Called once, when the pace was too slow. */
  readonly cut: () => void;
}

/**
 * Watches the pace of one body until the returned function is called, when the transfer is over, complete or not. A peer
 * that transfers almost nothing would keep its slot for ever otherwise.
 */
export function watchPace({ clock, moved, waiting, tooSlow, cut }: PaceOptions): () => void {
  let timer: Timer;
  const watch = (before: number): void => {
    timer = clock.setTimer(PACE_WINDOW_MS, () => {
      const now = moved();
      if (waiting() && tooSlow(((now - before) * 1_000) / PACE_WINDOW_MS)) cut();
      else watch(now);
    });
  };
  watch(moved());
  return () => timer.cancel();
}

/** The largest piece that uWebSockets.js reads from a socket at once, bytes (LIBUS_RECV_BUFFER_LENGTH). */
const UPLOAD_BUFFER_MAX = 512 * 1024;
/**
 * Data that arrives although the socket is paused, bytes: of one upload, and of all. The library's build for Node 20 has
 * a piece of it at most; the one for Node 24 reads on without looking, as long as the kernel has a whole piece for it.
 */
const SPILL_MAX = 32 * 1024 * 1024;
const SPILL_ALL_MAX = 4 * SPILL_MAX;

/** The fields of a request that reading its upload requires. */
export interface UploadRequest {
  readonly res: HttpResponse;
  /** Declared length of the body in bytes; 0 where none is declared. */
  readonly contentLength: number;
  /** Answered or aborted: the response must not be touched any more. */
  readonly over: boolean;
  /** The client has disconnected; set before `over`. */
  readonly aborted: boolean;
  /** Calls back once, when the request is over. */
  onEnd(fn: () => void): void;
}

/**
 * The bytes of one upload, in order. The socket is paused while a piece is being processed: a client sends no faster
 * than the disk writes, and the server holds one buffer for each upload. A client that is too slow is cut off; the
 * library cuts off silence after 10 s.
 */
export class UploadStream {
  private readonly buffer: Buffer;
  /** Bytes in the buffer; those before `taken` were handed out. */
  private filled = 0;
  private taken = 0;
  /** What arrived although the socket was paused, its bytes, and those of all uploads of the process. */
  private spilled: Buffer[] = [];
  private spilledBytes = 0;
  private static spilledBytesOfAll = 0;
  private received = 0;
  private complete = false;
  private paused = false;
  private fault: Error | undefined;
  private wake: (() => void) | undefined;
  private readonly endPace: () => void;

  /** Must be constructed in the turn in which the request arrived: the library drops data that precedes `onData`. */
  constructor(
    private readonly request: UploadRequest,
    clock: Clock,
    tooSlow: TooSlow,
  ) {
    this.buffer = Buffer.allocUnsafeSlow(Math.min(request.contentLength, UPLOAD_BUFFER_MAX));
    request.res.onData((chunk, isLast) => this.take(chunk, isLast));
    request.onEnd(() => this.stop());
    this.endPace = watchPace({
      clock,
      tooSlow,
      moved: () => this.received,
      // While the socket is paused, the transfer waits for the disk, not for the client.
      waiting: () => !this.paused && !this.complete,
      cut: () => this.cut(),
    });
  }

  /** The next bytes, valid until the next call; undefined after the last. Rejects when the body ended early. */
  async next(): Promise<Uint8Array | undefined> {
    for (;;) {
      if (this.fault !== undefined) throw this.fault;
      const piece = this.piece();
      if (piece !== undefined) return piece;
      if (this.complete) return undefined;
      this.flow();
      await new Promise<void>((resolve) => {
        this.wake = resolve;
      });
    }
  }

  /** Bytes that were declared and have not arrived yet. */
  get left(): number {
    return this.request.contentLength - this.received;
  }

  /** Closes the connection. */
  cut(): void {
    if (!this.request.over) this.request.res.close();
  }

  private piece(): Uint8Array | undefined {
    if (this.taken < this.filled) {
      const piece = this.buffer.subarray(this.taken, this.filled);
      this.taken = this.filled;
      return piece;
    }
    const piece = this.spilled.shift();
    if (piece !== undefined) this.countSpilled(-piece.length);
    return piece;
  }

  private countSpilled(bytes: number): void {
    this.spilledBytes += bytes;
    UploadStream.spilledBytesOfAll += bytes;
  }

  /** All that arrived was processed: the buffer is free, and the socket is read again. */
  private flow(): void {
    this.filled = 0;
    this.taken = 0;
    if (!this.paused) return;
    this.paused = false;
    if (!this.request.over) this.request.res.resume();
  }

  private take(chunk: ArrayBuffer, isLast: boolean): void {
    if (this.fault !== undefined) return;
    this.received += chunk.byteLength;
    // The chunk is copied: the library reuses its memory when this returns.
    const bytes = new Uint8Array(chunk);
    if (this.spilled.length === 0 && this.filled + bytes.length <= this.buffer.length) {
      this.buffer.set(bytes, this.filled);
      this.filled += bytes.length;
    } else if (bytes.length > 0) {
      this.spilled.push(Buffer.from(bytes));
      this.countSpilled(bytes.length);
    }
    this.complete = isLast;
    if (this.spilledBytes > SPILL_MAX || UploadStream.spilledBytesOfAll > SPILL_ALL_MAX) return this.cut();
    if (!isLast && !this.paused) {
      this.paused = true;
      this.request.res.pause();
    }
    this.wakeReader();
  }

  /** The request is over: its client has disconnected, or it was answered before the body was complete. */
  private stop(): void {
    this.endPace();
    this.spilled = [];
    this.countSpilled(-this.spilledBytes);
    this.fault ??= invalid('body', 'ended before it was whole');
    // The reply drops or cuts off the rest of the body; on a paused socket it would wait for ever.
    if (this.paused && !this.request.aborted) this.request.res.resume();
    this.paused = false;
    this.wakeReader();
  }

  private wakeReader(): void {
    const { wake } = this;
    this.wake = undefined;
    wake?.();
  }
}

/** Bytes from `start` up to, and not including, `end`. */
export interface Part {
  readonly start: number;
  readonly end: number;
}

/** A longer list of tags counts as none: the client gets the whole file. */
const TAGS_MAX = 4_096;

/** Whether an `If-None-Match` header lists this tag (RFC 9110, 13.1.2: weak comparison). */
export function hasTag(header: string, etag: string): boolean {
  if (header.length > TAGS_MAX) return false;
  return header.split(',').some((tag) => [etag, `W/${etag}`, '*'].includes(tag.trim()));
}

/**
 * The part that `Range` names; `whole` where all is to be sent, `outside` where it lies outside of the file. A header
 * that is malformed, of another unit, or of several ranges is ignored (RFC 9110, 14.2), as is one whose `If-Range` has
 * another tag.
 */
export function partOf(
  { range, ifRange }: { readonly range: string; readonly ifRange: string },
  { size, etag }: { readonly size: number; readonly etag: string },
): Part | 'whole' | 'outside' {
  if (range === '' || (ifRange !== '' && ifRange.trim() !== etag)) return 'whole';
  const found = /^bytes\s*=\s*(\d{0,16})\s*-\s*(\d{0,16})$/i.exec(range.trim());
  if (found === null) return 'whole';
  const [, first = '', last = ''] = found;
  if (first === '' && last === '') return 'whole';
  if (first === '') {
    const suffix = Number(last);
    return suffix === 0 || size === 0 ? 'outside' : { start: Math.max(0, size - suffix), end: size };
  }
  const start = Number(first);
  if (last !== '' && Number(last) < start) return 'whole';
  if (start >= size) return 'outside';
  return { start, end: last === '' ? size : Math.min(size, Number(last) + 1) };
}

export interface BlobFile {
  readonly size: number;
  /** Fills `into` from `position` on; returns the number of bytes. Throws `storage_unavailable`. */
  read(into: Uint8Array, position: number): Promise<number>;
  close(): Promise<void>;
}

const DOWNLOAD_BUFFER_MAX = 256 * 1024;
/**
 * The library closes a connection on which it could write nothing for ten seconds, and it tries only when the kernel
 * reports the socket writable, which is when a third of a buffer of possibly megabytes is free. A slow reader takes
 * longer than that, so the write is retried at this interval, ms; `watchPace` decides how slow a reader may be.
 */
const RETRY_MS = 4_000;

interface DownloadOptions {
  readonly res: HttpResponse;
  readonly file: BlobFile;
  readonly part: Part;
  readonly clock: Clock;
  readonly tooSlow: TooSlow;
  /** Called once, when all is sent or no more will be, with the error where this side failed. */
  readonly done: (error?: unknown) => void;
}

/** Sends one file at the client's pace, read ahead by one buffer. The caller writes status and headers before. */
export class DownloadStream {
  private readonly buffer: Buffer;
  private readonly total: number;
  /** The buffer has `held` bytes, which begin at `heldAt` of the part. */
  private held = 0;
  private heldAt = 0;
  private sent = 0;
  private over = false;
  private endPace: (() => void) | undefined;
  private retry: Timer | undefined;

  constructor(private readonly options: DownloadOptions) {
    const { start, end } = options.part;
    this.total = end - start;
    this.buffer = Buffer.allocUnsafeSlow(Math.min(this.total, DOWNLOAD_BUFFER_MAX));
  }

  /** Begins with `held` bytes that `fill` has read: headers and the first bytes are sent together. */
  begin(held: number): void {
    this.held = held;
    this.options.res.onWritable((offset) => this.resume(offset));
    const { clock, tooSlow, res } = this.options;
    this.endPace = watchPace({
      clock,
      tooSlow,
      moved: () => this.sent,
      waiting: () => this.sent < this.heldAt + this.held,
      cut: () => res.close(),
    });
    this.push(0);
    if (!this.over) this.retry = every(clock, RETRY_MS, () => res.cork(() => void this.resume(res.getWriteOffset())));
  }

  /** Reads the next bytes of the file into the buffer. Throws when the file is shorter than its size. */
  async fill(): Promise<number> {
    const { file, part } = this.options;
    const room = Math.min(this.buffer.length, this.total - this.sent);
    const got = await file.read(this.buffer.subarray(0, room), part.start + this.sent);
    if (got === 0) throw new Error('a stored blob is shorter than its size');
    return got;
  }

  /** Stops: all is sent, the client has disconnected, or reading failed with `error`. */
  end(error?: unknown): void {
    if (this.over) return;
    this.over = true;
    this.endPace?.();
    this.retry?.cancel();
    this.options.done(error);
  }

  /** Hands the library the buffer from `from` on. True: it took all of that. */
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

  private resume(offset: number): boolean {
    if (this.over) return true;
    this.sent = Math.max(this.sent, offset);
    // The buffer is sent, and the next piece is being read.
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
      if (this.over) return;
      this.end(error);
      // The length is already sent: only a closed connection shows that the body is incomplete.
      this.options.res.close();
    }
  }
}
