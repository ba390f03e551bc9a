/**
 * Admits sockets that need the database first (to spend a ticket or load a tenant) as fast as it answers: a window of
 * them may be under way, and each answer admits the next one. Their reads share statements (storage/tenant-loader.ts).
 * The window grows while answers are quick and others wait, and is halved when they are slow (additive increase,
 * multiplicative decrease, like TCP's). As many may wait as are answered in five seconds, a quarter of them of one
 * tenant; the others are turned away, each with a different time to come back. Sockets of tenants that are loaded here
 * need no statement and no admission.
 */
import type { Clock } from '../../protocol/clock.js';
import { CLOSE } from '../../protocol/close-codes.js';
import { Counts } from '../../protocol/counts.js';
import { ServiceError } from '../../protocol/errors.js';
import { SOCKETS_PER_DEVICE } from '../../protocol/limits.js';
import type { ChargedRequest } from '../http/limits.js';

/** Sockets in the window: initially, at least and at most. */
const WINDOW_INITIAL = 64;
const WINDOW_MIN = 16;
const WINDOW_MAX = 2_048;
/** Growth of the window with each window of quick answers. */
const WINDOW_STEP = 32;
/** An answer that takes longer indicates a database at its limit, ms. */
const SLOW_MS = 500;
/** Sockets per second that a database is assumed to admit until measured, and the minimum of the rate. */
const RATE_INITIAL = 1_000;
const RATE_MIN = 10;
/** Least weight of a new measurement in the rate, and the duration from which on it counts alone, ms. */
const RATE_WEIGHT = 0.2;
const RATE_MS = 5_000;
/** Maximum wait of a socket: well below a client's time limit for opening one, s. */
const WAIT_MAX_S = 5;
/**
 * The latest time to come back, s. A rate measured while the database hardly answers says little about the minute after:
 * a device that comes back too early costs one upgrade, one that was sent away for long is offline though there is room.
 */
const AWAY_MAX_S = 60;
/** Maximum of waiting sockets: each occupies one of the concurrent calls, of which requests need the rest. */
const WAITING_MAX = 5_000;
/** One tenant may have this share of the places in the queue, and this many in any case. */
const TENANT_SHARE = 0.25;
const TENANT_MIN = 16;
/** Devices whose time to come back is remembered; any other that comes back too early gets a new time. */
const PROMISES_MAX = 65_536;
/** Tolerance for coming back too early, ms, since the clocks of both sides differ in speed. */
const EARLY_MS = 500;

/** The result for a socket that is not admitted. */
export class TurnedAway {
  constructor(
    readonly code: typeof CLOSE.restart | typeof CLOSE.overloaded,
    /** Seconds until it may come back. */
    readonly seconds: number,
  ) {}
}

type Arrival = Pick<ChargedRequest, 'tenantId' | 'owner'>;

interface Waiter {
  readonly owner: string;
  /** Starts its work. Never throws; resolves with whether the database answered. */
  readonly start: () => Promise<boolean>;
  readonly turnAway: () => void;
}

export class Admission {
  /** By tenant; tenants are served in turn. */
  private readonly queue = new Map<string, Waiter[]>();
  private window = WINDOW_INITIAL;
  /** Sockets per second that the database admitted in the last measurements. */
  private learned = RATE_INITIAL;
  private underWay = 0;
  /** When the last answer arrived, or the first of those under way was admitted, ms. */
  private answeredAt = 0;
  /**
   * How often the window was halved: slow answers to sockets admitted before the last halving do not halve it again.
   */
  private halvings = 0;
  /** The answers counted while others wait, and how many of them did not fail; see `learn`. */
  private measured = { since: 0, answers: 0, admitted: 0, target: WINDOW_INITIAL, halved: false };
  /** The latest time promised to a socket that was turned away, ms. */
  private latestPromise = 0;
  /** When a device may come back, ms; in the order in which they were promised. */
  private readonly promises = new Map<string, number>();
  /** Tenants with more than TENANT_MIN waiting: when the queue is full their last ones are turned away. */
  private readonly evictable = new Set<string>();
  /** Number of waiting sockets by device. */
  private readonly owners = new Counts();
  waiting = 0;

  constructor(
    private readonly clock: Clock,
    private readonly random = Math.random,
  ) {}

  /** Sockets that wait, and those that were admitted and are not answered. */
  get pending(): number {
    return this.waiting + this.underWay;
  }

  waitingOf(tenantId: string): number {
    return this.queue.get(tenantId)?.length ?? 0;
  }

  /** Resolves or rejects with the result of `work`, once admitted; resolves with `TurnedAway` if there is no room. */
  take<T>({ tenantId, owner }: Arrival, work: () => Promise<T>): Promise<T | TurnedAway> {
    const early = (this.promises.get(owner) ?? 0) - this.clock.now();
    // Further ahead than any promise can be: the clock was set back since.
    const isStale = early > AWAY_MAX_S * 1_000;
    if (early > EARLY_MS && !isStale) return Promise.resolve(new TurnedAway(CLOSE.overloaded, early / 1_000));
    this.promises.delete(owner);
    return new Promise((resolve, reject) => {
      const turnAway = (): void => resolve(this.turnedAway(owner));
      const start = (): Promise<boolean> => {
        const working = work();
        working.then(resolve, reject);
        return working.then(() => true, isAnswer);
      };
      if (!this.makeRoom({ tenantId, owner })) return turnAway();
      const isFirst = this.waiting === 0;
      this.enter(tenantId, { owner, start, turnAway });
      this.admit();
      // Not from when the window had room.
      if (isFirst && this.waiting > 0) this.measureFrom(this.clock.now());
    });
  }

  /** Turns away all waiting sockets. */
  close(): void {
    for (const tenantId of [...this.queue.keys()])
      while (this.queue.has(tenantId)) this.leave(tenantId, 'last')?.turnAway();
  }

  /**
   * Whether the socket may wait. If the queue is full, a socket of a tenant with few waiting takes the place of the
   * last one of a tenant with many, which is turned away.
   */
  private makeRoom({ tenantId, owner }: Arrival): boolean {
    if (this.underWay > 0 && this.clock.now() - this.answeredAt > WAIT_MAX_S * 1_000) return false;
    if (this.owners.of(owner) >= SOCKETS_PER_DEVICE) return false;
    const capacity = Math.min(WAITING_MAX, this.admittedWithin(this.waiting > 0 ? this.rate : this.learned));
    const own = this.waitingOf(tenantId);
    if (own >= Math.max(TENANT_MIN, capacity * TENANT_SHARE)) return false;
    if (this.waiting < capacity) return true;
    const [other] = this.evictable;
    if (other === undefined || own >= TENANT_MIN) return false;
    this.leave(other, 'last')?.turnAway();
    return true;
  }

  private enter(tenantId: string, waiter: Waiter): void {
    const waiters = this.queue.get(tenantId) ?? [];
    waiters.push(waiter);
    if (waiters.length === 1) this.queue.set(tenantId, waiters);
    if (waiters.length > TENANT_MIN) this.evictable.add(tenantId);
    this.owners.add(waiter.owner, 1);
    this.waiting++;
  }

  private leave(tenantId: string, which: 'first' | 'last'): Waiter | undefined {
    const waiters = this.queue.get(tenantId) ?? [];
    const waiter = which === 'first' ? waiters.shift() : waiters.pop();
    if (waiters.length === 0) this.queue.delete(tenantId);
    if (waiters.length <= TENANT_MIN) this.evictable.delete(tenantId);
    if (waiter === undefined) return undefined;
    this.owners.add(waiter.owner, -1);
    this.waiting--;
    return waiter;
  }

  /** Admits as many as the window has room for. */
  private admit(): void {
    while (this.underWay < this.window) {
      const waiter = this.next();
      if (waiter === undefined) return;
      const begunAt = this.clock.now();
      const { halvings } = this;
      if (this.underWay++ === 0) {
        this.answeredAt = begunAt;
        this.measureFrom(begunAt);
      }
      void waiter.start().then((ok) => {
        this.underWay--;
        const slow = !ok || this.clock.now() - begunAt > SLOW_MS;
        this.learn(ok, slow && halvings === this.halvings);
        this.admit();
      });
    }
  }

  private next(): Waiter | undefined {
    const [first] = this.queue;
    if (first === undefined) return undefined;
    const [tenantId, waiters] = first;
    const waiter = this.leave(tenantId, 'first');
    // To the end, if it has more waiting.
    if (this.queue.delete(tenantId)) this.queue.set(tenantId, waiters);
    return waiter;
  }

  /**
   * Updates window and rate after an answer. `ok`: the database answered; quick failures must not count as admitted.
   * `halve`: the window is too large.
   */
  private learn(ok: boolean, halve: boolean): void {
    const now = this.clock.now();
    const { measured } = this;
    if (halve) {
      this.window = Math.max(WINDOW_MIN, Math.floor(this.window / 2));
      this.halvings++;
      measured.halved = true;
    }
    this.answeredAt = now;
    // If none wait, the count restarts: a window with free places says nothing about the database's capacity.
    if (this.waiting > 0) {
      if (ok) measured.admitted++;
      if (++measured.answers < measured.target) return;
      const ms = now - measured.since;
      if (ms > 0) this.learned = this.mixed((measured.admitted * 1_000) / ms, Math.max(RATE_WEIGHT, ms / RATE_MS));
      if (!measured.halved) this.window = Math.min(WINDOW_MAX, this.window + WINDOW_STEP);
    }
    this.measureFrom(now);
  }

  /** Counts from now on, to no more than can wait at a time: a queue that is shorter would never end the measurement. */
  private measureFrom(now: number): void {
    const most = Math.max(WINDOW_MIN, Math.floor(this.admittedWithin(this.learned) / 2));
    this.measured = { since: now, answers: 0, admitted: 0, target: Math.min(this.window, most), halved: false };
  }

  private admittedWithin(rate: number): number {
    return Math.ceil(rate * WAIT_MAX_S);
  }

  private mixed(measured: number, weight: number): number {
    return Math.max(RATE_MIN, this.learned + Math.min(1, weight) * (measured - this.learned));
  }

  /**
   * Sockets per second that the database is estimated to admit: as learned, lowered by the measurement under way, which
   * can only come out below its target over the time so far. A database that answers nothing ends no measurement: at the
   * rate of better times all would come back after a second.
   */
  get rate(): number {
    const { since, target } = this.measured;
    const ms = Math.max(0, this.clock.now() - since);
    const most = (target * 1_000) / ms;
    return this.underWay > 0 && most < this.learned ? this.mixed(most, ms / RATE_MS) : this.learned;
  }

  /** Promises the next free time, after the sockets that wait and those that were promised one before. */
  private turnedAway(owner: string): TurnedAway {
    const now = this.clock.now();
    const { rate } = this;
    const latest = now + AWAY_MAX_S * 1_000;
    const next = Math.max(this.latestPromise, now + (this.waiting * 1_000) / rate) + 1_000 / rate;
    this.latestPromise = Math.min(next, latest);
    // If all times up to the latest are promised, the others are spread at random over the whole period.
    const at = next > latest ? now + this.random() * (latest - now) : next;
    const seconds = Math.max(1, Math.ceil((at - now) / 1_000));
    this.remember(owner, now + seconds * 1_000, now);
    return new TurnedAway(CLOSE.overloaded, seconds);
  }

  private remember(owner: string, at: number, now: number): void {
    for (const [oldest, until] of this.promises) {
      if (until > now && this.promises.size < PROMISES_MAX) break;
      this.promises.delete(oldest);
    }
    this.promises.set(owner, at);
  }
}

/** The database answered, even if with a refusal. */
const isAnswer = (error: unknown): boolean => error instanceof ServiceError && error.error !== 'unavailable';
