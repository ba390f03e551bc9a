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
import { ServiceError } from '../../protocol/errors.js';
import { SOCKETS_PER_DEVICE } from '../../protocol/limits.js';
import { RETRY_AFTER_MAX_S } from '../../protocol/retry-after.js';

/** Sockets in the window: initially, at least and at most. */
const WINDOW_FIRST = 64;
const WINDOW_MIN = 16;
const WINDOW_MAX = 2_048;
/** Growth of the window with each window of quick answers. */
const WINDOW_MORE = 32;
/** An answer that takes longer indicates a database at its limit, ms. */
const SLOW_MS = 500;
/** Sockets per second that a database is assumed to admit until measured, and the minimum of the rate. */
const RATE_FIRST = 1_000;
const RATE_MIN = 10;
/** Weight of a new measurement in the rate. */
const RATE_PART = 0.2;
/** Maximum wait of a socket: well below a client's time limit for opening one, s. */
const WAIT_MAX_S = 5;
/** Maximum of waiting sockets: each occupies one of the concurrent calls, of which requests need the rest. */
const WAITING_MAX = 5_000;
/** One tenant may be this fraction of the waiting sockets, and this many in any case. */
const TENANT_PARTS = 4;
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

/** A socket that requests admission. */
interface Arrival {
  readonly tenantId: string;
  /** The device, qualified by its tenant. */
  readonly owner: string;
}

interface Waiter {
  readonly owner: string;
  /** Starts its work. Never throws; resolves with whether the database answered. */
  readonly go: () => Promise<boolean>;
  readonly away: () => void;
}

export class Admission {
  /** By tenant; tenants are served in turn. */
  private readonly queue = new Map<string, Waiter[]>();
  private window = WINDOW_FIRST;
  /** Sockets per second that the database is estimated to admit. */
  rate = RATE_FIRST;
  private underWay = 0;
  /** When the last answer arrived, or the first of those under way was admitted, ms. */
  private answeredAt = 0;
  /**
   * How often the window was halved: answers to sockets admitted before the last time say nothing of the current one.
   */
  private halvings = 0;
  /** The answers counted for one window, while others wait; see `learn`. */
  private measured = { since: 0, answers: 0, of: WINDOW_FIRST, halved: false };
  /** The latest time promised to a socket that was turned away, ms. */
  private horizon = 0;
  /** When a device may come back, ms; the earliest promise first. */
  private readonly promises = new Map<string, number>();
  /** Tenants with more than TENANT_MIN waiting: when the queue is full their last ones are turned away. */
  private readonly yielding = new Set<string>();
  /** Number of waiting sockets by device. */
  private readonly owners = new Map<string, number>();
  /** Number of sockets that wait for admission. */
  waiting = 0;

  constructor(
    private readonly options: {
      readonly clock: Clock;
      /** Yields a number from 0 to 1 (excluded). */
      readonly random: () => number;
    },
  ) {}

  /** Sockets that wait, and those that were admitted and are not answered. */
  get pending(): number {
    return this.waiting + this.underWay;
  }

  /** Resolves or rejects with the result of `work`, once admitted; resolves with `TurnedAway` if there is no room. */
  take<T>({ tenantId, owner }: Arrival, work: () => Promise<T>): Promise<T | TurnedAway> {
    const early = (this.promises.get(owner) ?? 0) - this.options.clock.now();
    // Later than any time that is promised: the clock was set back since.
    const isStale = early > RETRY_AFTER_MAX_S * 1_000;
    if (early > EARLY_MS && !isStale) return Promise.resolve(new TurnedAway(CLOSE.overloaded, early / 1_000));
    this.promises.delete(owner);
    return new Promise((resolve, reject) => {
      const away = (): void => resolve(this.turnedAway(owner));
      const go = (): Promise<boolean> => {
        const working = work();
        working.then(resolve, reject);
        return working.then(() => true, isAnswer);
      };
      if (!this.hasRoom({ tenantId, owner })) return away();
      this.enter(tenantId, { owner, go, away });
      this.letIn();
    });
  }

  /** Turns away all waiting sockets. */
  close(): void {
    for (const tenantId of [...this.queue.keys()])
      while (this.queue.has(tenantId)) this.leave(tenantId, 'last')?.away();
  }

  /** If the queue is full, a socket of a tenant with few waiting takes the place of the last one of another tenant. */
  private hasRoom({ tenantId, owner }: Arrival): boolean {
    if (this.underWay > 0 && this.options.clock.now() - this.answeredAt > WAIT_MAX_S * 1_000) return false;
    if ((this.owners.get(owner) ?? 0) >= SOCKETS_PER_DEVICE) return false;
    const capacity = Math.min(WAITING_MAX, Math.ceil(this.rate * WAIT_MAX_S));
    const own = this.queue.get(tenantId)?.length ?? 0;
    if (own >= Math.max(TENANT_MIN, capacity / TENANT_PARTS)) return false;
    if (this.waiting < capacity) return true;
    const [other] = this.yielding;
    if (other === undefined || own >= TENANT_MIN) return false;
    this.leave(other, 'last')?.away();
    return true;
  }

  private enter(tenantId: string, waiter: Waiter): void {
    const waiters = this.queue.get(tenantId) ?? [];
    waiters.push(waiter);
    if (waiters.length === 1) this.queue.set(tenantId, waiters);
    if (waiters.length > TENANT_MIN) this.yielding.add(tenantId);
    this.owners.set(waiter.owner, (this.owners.get(waiter.owner) ?? 0) + 1);
    this.waiting++;
  }

  private leave(tenantId: string, which: 'first' | 'last'): Waiter | undefined {
    const waiters = this.queue.get(tenantId) ?? [];
    const waiter = which === 'first' ? waiters.shift() : waiters.pop();
    if (waiters.length === 0) this.queue.delete(tenantId);
    if (waiters.length <= TENANT_MIN) this.yielding.delete(tenantId);
    if (waiter === undefined) return undefined;
    const others = (this.owners.get(waiter.owner) ?? 1) - 1;
    if (others === 0) this.owners.delete(waiter.owner);
    else this.owners.set(waiter.owner, others);
    this.waiting--;
    return waiter;
  }

  /** Admits as many as the window has room for. */
  private letIn(): void {
    while (this.underWay < this.window) {
      const waiter = this.next();
      if (waiter === undefined) return;
      const begunAt = this.options.clock.now();
      const { halvings } = this;
      if (this.underWay++ === 0) this.measureFrom(begunAt);
      void waiter.go().then((ok) => {
        this.underWay--;
        const slow = !ok || this.options.clock.now() - begunAt > SLOW_MS;
        this.learn(slow && halvings === this.halvings);
        this.letIn();
      });
    }
  }

  /** Tenants are served in turn. */
  private next(): Waiter | undefined {
    const [first] = this.queue;
    if (first === undefined) return undefined;
    const [tenantId, waiters] = first;
    const waiter = this.leave(tenantId, 'first');
    // To the end, if it has more waiting.
    if (this.queue.delete(tenantId)) this.queue.set(tenantId, waiters);
    return waiter;
  }

  /** Updates window and rate after an answer. `halve`: the window is too large. */
  private learn(halve: boolean): void {
    const now = this.options.clock.now();
    const { measured } = this;
    if (halve) {
      this.window = Math.max(WINDOW_MIN, Math.floor(this.window / 2));
      this.halvings++;
      measured.halved = true;
    }
    this.answeredAt = now;
    // If none wait, the count restarts: a window with free places says nothing about the database's capacity.
    if (this.waiting > 0) {
      if (++measured.answers < measured.of) return;
      const ms = now - measured.since;
      const found = (measured.answers * 1_000) / ms;
      if (ms > 0) this.rate = Math.max(RATE_MIN, this.rate + RATE_PART * (found - this.rate));
      if (!measured.halved) this.window = Math.min(WINDOW_MAX, this.window + WINDOW_MORE);
    }
    this.measureFrom(now);
  }

  private measureFrom(now: number): void {
    this.answeredAt = now;
    this.measured = { since: now, answers: 0, of: this.window, halved: false };
  }

  /** Each gets the next free time after those waiting and those that were promised one. */
  private turnedAway(owner: string): TurnedAway {
    const now = this.options.clock.now();
    const most = now + RETRY_AFTER_MAX_S * 1_000;
    const after = Math.max(this.horizon, now + (this.waiting * 1_000) / this.rate) + 1_000 / this.rate;
    this.horizon = Math.min(after, most);
    // If all times up to the maximum are promised, they are spread over it once more.
    const at = after > most ? now + this.options.random() * (most - now) : after;
    const seconds = Math.max(1, Math.ceil((at - now) / 1_000));
    this.remember(owner, now + seconds * 1_000, now);
    return new TurnedAway(CLOSE.overloaded, seconds);
  }

  private remember(owner: string, at: number, now: number): void {
    for (const [each, until] of this.promises) {
      if (until > now && this.promises.size < PROMISES_MAX) break;
      this.promises.delete(each);
    }
    this.promises.set(owner, at);
  }
}

/** The database answered, even if with a refusal. */
const isAnswer = (error: unknown): boolean => error instanceof ServiceError && error.error !== 'unavailable';
