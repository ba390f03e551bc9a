/**
 * Lets sockets in that need the database first (a ticket is spent, a tenant loaded) as fast as it answers: a window of
 * them may be under way, and each answer lets the next one in. Their reads share statements (storage/tenant-loader.ts). The
 * window grows while answers are quick and others wait, and is halved when they are not (additive increase,
 * multiplicative decrease, as TCP's). As many may wait as are answered in five seconds, a quarter of them of one tenant;
 * the others are told when to come back, each at another time. Sockets of tenants that are known here need no
 * statement, and do not come here.
 */
import type { Clock } from '../../protocol/clock.js';
import { CLOSE } from '../../protocol/close-codes.js';
import { ServiceError } from '../../protocol/errors.js';
import { SOCKETS_PER_DEVICE } from '../../protocol/limits.js';
import { RETRY_AFTER_MAX_S } from '../../protocol/retry-after.js';

/** Sockets in the window. */
const WINDOW_FIRST = 64;
const WINDOW_MIN = 16;
const WINDOW_MAX = 2_048;
/** By so many it grows with each window of quick answers. */
const WINDOW_MORE = 32;
/** Answers that take longer are those of a database at its limit, ms. */
const SLOW_MS = 500;
/** Sockets a second that are expected of a database that was not measured yet. */
const RATE_FIRST = 1_000;
const RATE_MIN = 10;
/** The part of a new measurement in the rate. */
const RATE_PART = 0.2;
/** So long a socket may have to wait: well below the time that a client takes for opening one, s. */
const WAIT_MAX_S = 5;
/** And so many at most: each holds one of the calls that may be under way, of which requests need the others. */
const WAITING_MAX = 5_000;
/** The part of those that wait which one tenant may be, and how many it may be in any case. */
const TENANT_PARTS = 4;
const TENANT_MIN = 16;
/** Devices whose time to come back is remembered; of the others one that comes too early gets a new one. */
const PROMISES_MAX = 65_536;
/** Clocks of both sides differ in pace; who comes so little too early is on time, ms. */
const EARLY_MS = 500;

/** A socket that is not let in, and what it is told. */
export class TurnedAway {
  constructor(
    readonly code: typeof CLOSE.restart | typeof CLOSE.overloaded,
    /** Seconds until it may come back. */
    readonly seconds: number,
  ) {}
}

/** Who wants to be let in. */
interface Arrival {
  readonly tenantId: string;
  /** The device, qualified by its tenant. */
  readonly owner: string;
}

interface Waiter {
  readonly owner: string;
  /** Begins its work. Never throws; resolves with whether the database answered. */
  readonly go: () => Promise<boolean>;
  readonly away: () => void;
}

/** The window of one process. */
export class Admission {
  /** By tenant; tenants are served in turn. */
  private readonly queue = new Map<string, Waiter[]>();
  private window = WINDOW_FIRST;
  private perSecond = RATE_FIRST;
  private underWay = 0;
  /** When the last answer came, or the first of those under way was let in, ms. */
  private answeredAt = 0;
  /** How often the window was halved: what was let in before the last time says nothing of what it is now. */
  private halvings = 0;
  /** The answers of one window, while others wait; see `learn`. */
  private measured = { since: 0, answers: 0, of: WINDOW_FIRST, halved: false };
  /** The end of the time that was promised to those who were turned away, ms. */
  private horizon = 0;
  /** When a device may come back, ms; the earliest promise first. */
  private readonly promises = new Map<string, number>();
  /** Tenants of which more than TENANT_MIN wait: where the queue is full their last ones give way. */
  private readonly yielding = new Set<string>();
  /** How many of each device wait. */
  private readonly owners = new Map<string, number>();
  /** Sockets that wait to be let in. */
  waiting = 0;

  constructor(
    private readonly options: {
      readonly clock: Clock;
      /** Yields a number from 0 to 1 (excluded). */
      readonly random: () => number;
    },
  ) {}

  /** Sockets a second that the database is thought to take. */
  get rate(): number {
    return this.perSecond;
  }

  /** Those that wait and those that were let in and are not answered. */
  get pending(): number {
    return this.waiting + this.underWay;
  }

  /** The result of `work`, once it is let in, which rejects as it does; or that there is no room. */
  take<T>({ tenantId, owner }: Arrival, work: () => Promise<T>): Promise<T | TurnedAway> {
    const early = (this.promises.get(owner) ?? 0) - this.options.clock.now();
    // Later than any moment that is promised: the clock was set back since.
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

  /** Turns away all that wait. */
  close(): void {
    for (const tenantId of [...this.queue.keys()])
      while (this.queue.has(tenantId)) this.leave(tenantId, 'last')?.away();
  }

  /** As many as may wait. */
  private get capacity(): number {
    return Math.min(WAITING_MAX, Math.ceil(this.perSecond * WAIT_MAX_S));
  }

  /** Where the queue is full, a socket of a tenant of which few wait takes the place of the last one of another. */
  private hasRoom({ tenantId, owner }: Arrival): boolean {
    if (this.underWay > 0 && this.options.clock.now() - this.answeredAt > WAIT_MAX_S * 1_000) return false;
    if ((this.owners.get(owner) ?? 0) >= SOCKETS_PER_DEVICE) return false;
    const { capacity } = this;
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

  /** As many as there is room for. */
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
    // To the end, if others of it wait.
    if (this.queue.delete(tenantId)) this.queue.set(tenantId, waiters);
    return waiter;
  }

  /** What an answer says of the window and the rate. `halve`: that it is too large. */
  private learn(halve: boolean): void {
    const now = this.options.clock.now();
    const { measured } = this;
    if (halve) {
      this.window = Math.max(WINDOW_MIN, Math.floor(this.window / 2));
      this.halvings++;
      measured.halved = true;
    }
    this.answeredAt = now;
    // Where nobody waits it begins anew: a window that had room says nothing of what the database could take.
    if (this.waiting > 0) {
      if (++measured.answers < measured.of) return;
      const ms = now - measured.since;
      const rate = (measured.answers * 1_000) / ms;
      if (ms > 0) this.perSecond = Math.max(RATE_MIN, this.perSecond + RATE_PART * (rate - this.perSecond));
      if (!measured.halved) this.window = Math.min(WINDOW_MAX, this.window + WINDOW_MORE);
    }
    this.measureFrom(now);
  }

  private measureFrom(now: number): void {
    this.answeredAt = now;
    this.measured = { since: now, answers: 0, of: this.window, halved: false };
  }

  /** Each gets the next free moment after those that wait and those that were promised one. */
  private turnedAway(owner: string): TurnedAway {
    const now = this.options.clock.now();
    const most = now + RETRY_AFTER_MAX_S * 1_000;
    const after = Math.max(this.horizon, now + (this.waiting * 1_000) / this.perSecond) + 1_000 / this.perSecond;
    this.horizon = Math.min(after, most);
    // Where all moments up to the longest time are promised they are spread over it once more.
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
