/** Who may go on now: request rates per device (contract 5, Rates), and what the process can hold at once. */
import type { Clock, Timer } from '../protocol/clock.js';
import { ServiceError, unavailable } from '../protocol/errors.js';
import type { LoadBound } from './ports.js';

interface Bucket {
  reads: number;
  writes: number;
  /** When it was last filled, ms. */
  at: number;
}

/** After this long without use a bucket is full again, since it holds one second's worth. */
const FULL_MS = 1_000;
/** The timer that forgets comes later, so that busy times never wait for it. */
const FORGET_MS = 2 * FULL_MS;

/** Per second and device; 0 is off. */
export interface Rates {
  readonly read: number;
  readonly write: number;
}

/**
 * Token buckets per device. Two generations of a map: what was not used for a second is full, and a full bucket is
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

  /** Takes one read or write. Throws `rate_limited` with the seconds to wait. */
  take(device: string, kind: 'read' | 'write'): void {
    const rate = this.rates[kind];
    if (rate === 0) return;
    const now = this.clock.now();
    const bucket = this.bucket(device, now);
    const tokens = kind === 'read' ? bucket.reads : bucket.writes;
    if (tokens < 1) {
      const seconds = Math.max(1, Math.ceil((1 - tokens) / rate));
      throw new ServiceError('rate_limited', `at most ${rate} ${kind}s per second and device`, undefined, seconds);
    }
    if (kind === 'read') bucket.reads = tokens - 1;
    else bucket.writes = tokens - 1;
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
      bucket = this.previous.get(device) ?? { reads: this.rates.read, writes: this.rates.write, at: now };
      this.current.set(device, bucket);
    }
    const seconds = Math.max(0, now - bucket.at) / 1_000;
    bucket.at = now;
    bucket.reads = Math.min(this.rates.read, bucket.reads + seconds * this.rates.read);
    bucket.writes = Math.min(this.rates.write, bucket.writes + seconds * this.rates.write);
    return bucket;
  }
}

/**
 * What is under way: calls that wait for their admission or their answer, and bytes of bodies and replies held for
 * them and for slow peers.
 * Beyond the bounds the server sheds load instead of growing until it dies.
 */
export class Load {
  calls = 0;
  bytes = 0;

  constructor(private readonly bound: LoadBound) {}

  /** True when the process has as much as it can hold. */
  get full(): boolean {
    return this.calls >= this.bound.calls || this.noRoom;
  }

  /** True when no more bytes may be held. A body is judged by this: its call may be the last that was let in. */
  get noRoom(): boolean {
    return this.bytes >= this.bound.bytes;
  }

  /** Throws `unavailable` when the process has as much as it can hold. */
  check(): void {
    if (this.full) throw unavailable('the server is shedding load');
  }
}
