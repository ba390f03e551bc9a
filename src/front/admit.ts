/** How much a device may ask for now: requests, and bytes of bodies and replies. */
import type { Clock, Timer } from '../protocol/clock.js';
import { ServiceError } from '../protocol/errors.js';
import { BODY_BYTES_BURST, BODY_BYTES_PER_S, REPLY_BYTES_BURST, REPLY_BYTES_PER_S } from '../protocol/limits.js';

/** What a device may still do now. */
export interface Bucket {
  reads: number;
  writes: number;
  /** Bytes. Below 0: of a length that nobody knew before. */
  bodies: number;
  replies: number;
  /** When it was last filled, ms. */
  at: number;
}

/**
 * After this long without use a bucket is full again: requests are one second's worth, and bytes two, with what a
 * device can owe besides (its share of unread replies).
 */
const FULL_MS = 3_000;
/** The timer that forgets comes later, so that busy times never wait for it. */
const FORGET_MS = 2 * FULL_MS;

/** Per second and device; 0 is off. */
export interface Rates {
  readonly read: number;
  readonly write: number;
}

/**
 * Token buckets per device. Two generations of a map: what was not used for FULL_MS is full, and a full bucket is
 * the same as none, so dropping the older generation forgets nothing. A crowd that comes once, to open its sockets,
 * is forgotten by a timer; requests turn the generations by themselves.
 */
export class DeviceRates {
  private current = new Map<string, Bucket>();
  private previous = new Map<string, Bucket>();
  private turnedAt: number;
  private timer: Timer | undefined;

  constructor(
    private readonly rates: Rates,
    private readonly clock: Clock,
  ) {
    this.turnedAt = clock.now();
  }

  /**
   * Takes one read or write, and a body's declared length. Throws `rate_limited` with the seconds to wait. Answers the
   * bucket that what was not declared is charged to; undefined where the rate is off, and bytes with it.
   */
  take(device: string, kind: 'read' | 'write', bodyBytes = 0): Bucket | undefined {
    const rate = this.rates[kind];
    if (rate === 0) return undefined;
    const bucket = this.bucket(device, this.clock.now());
    const tokens = kind === 'read' ? bucket.reads : bucket.writes;
    if (tokens < 1) throw limited(`at most ${rate} ${kind}s per second and device`, (1 - tokens) / rate);
    // A body that could never be saved up for is refused by its size, not here.
    const body = Math.min(bodyBytes, BODY_BYTES_BURST);
    if (body > 0 && bucket.bodies < body) {
      const missing = body - bucket.bodies;
      throw limited(`at most ${BODY_BYTES_PER_S} bytes of bodies per second and device`, missing / BODY_BYTES_PER_S);
    }
    if (kind === 'read' && bucket.replies <= 0) {
      const seconds = (1 - bucket.replies) / REPLY_BYTES_PER_S;
      throw limited(`at most ${REPLY_BYTES_PER_S} bytes of replies per second and device`, seconds);
    }
    if (kind === 'read') bucket.reads = tokens - 1;
    else bucket.writes = tokens - 1;
    bucket.bodies -= body;
    return bucket;
  }

  stop(): void {
    this.timer?.cancel();
    this.timer = undefined;
  }

  private turn(now: number): void {
    this.previous = this.current;
    this.current = new Map();
    this.turnedAt = now;
    if (this.previous.size === 0) return this.stop();
    this.timer ??= this.clock.setTimer(FORGET_MS, () => {
      this.timer = undefined;
      this.turn(this.clock.now());
    });
  }

  private bucket(device: string, now: number): Bucket {
    if (now - this.turnedAt >= FULL_MS || now < this.turnedAt) this.turn(now);
    let bucket = this.current.get(device);
    if (bucket === undefined) {
      bucket = this.previous.get(device) ?? this.full(now);
      this.current.set(device, bucket);
    }
    const seconds = Math.max(0, now - bucket.at) / 1_000;
    bucket.at = now;
    bucket.reads = Math.min(this.rates.read, bucket.reads + seconds * this.rates.read);
    bucket.writes = Math.min(this.rates.write, bucket.writes + seconds * this.rates.write);
    bucket.bodies = Math.min(BODY_BYTES_BURST, bucket.bodies + seconds * BODY_BYTES_PER_S);
    bucket.replies = Math.min(REPLY_BYTES_BURST, bucket.replies + seconds * REPLY_BYTES_PER_S);
    return bucket;
  }

  private full(now: number): Bucket {
    const { read, write } = this.rates;
    return { reads: read, writes: write, bodies: BODY_BYTES_BURST, replies: REPLY_BYTES_BURST, at: now };
  }
}

const limited = (message: string, seconds: number): ServiceError =>
  new ServiceError('rate_limited', message, undefined, Math.max(1, Math.ceil(seconds)));
