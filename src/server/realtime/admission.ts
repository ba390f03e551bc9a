/**
 * Lets sockets in that need the database first (a ticket is spent, a tenant loaded) as fast as it answers. They go in
 * rounds: a round begins when the answers of the one before are in, so that its statements are shared, and a slow
 * database makes the rounds slow. How many a round takes grows while the answers are quick, and is halved when they are
 * not (additive increase, multiplicative decrease). As many may wait as it takes in five seconds, a quarter of them of one
 * tenant; the others are told when to come back, each at another time. Sockets of tenants that are known here need no
 * statement, and do not come here.
 */
import { nextTurn } from '../../protocol/batcher.js';
import type { Clock, Timer } from '../../protocol/clock.js';
import { CLOSE } from '../../protocol/close-codes.js';
import { ServiceError } from '../../protocol/errors.js';
import { SOCKETS_PER_DEVICE } from '../../protocol/limits.js';
import { RETRY_AFTER_MAX_S } from '../../protocol/retry-after.js';

/** Sockets of a round. */
const ROUND_FIRST = 64;
const ROUND_MIN = 16;
const ROUND_MAX = 2_048;
const ROUND_MORE = 32;
/**
 * After a round of so many the next one waits, ms, unless it is full: most clients open few sockets before the first is
 * caught up, and those that follow share its statements (bench S6). A little less than a read waits for more
 * (storage/tenant-loader.ts): what a round asks for goes with that.
 */
const STORM = 16;
const STORM_PAUSE_MS = 90;
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
export interface Arrival {
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

/** The rounds of one process. */
export class Admission {
  /** By tenant; tenants are served in turn. */
  private readonly queue = new Map<string, Waiter[]>();
  private size = ROUND_FIRST;
  private perSecond = RATE_FIRST;
  private underWay = 0;
  private begunAt = 0;
  private pause: Timer | undefined;
  /** The end of the time that was promised to those who were turned away, ms. */
  private horizon = 0;
  /** When a device may come back, ms; the earliest promise first. */
  private readonly promises = new Map<string, number>();
  /** Tenants of which more than TENANT_MIN wait: where the queue is full they give way. */
  private readonly crowds = new Set<string>();
  /** How many of each device wait. */
  private readonly owners = new Map<string, number>();
  /** Sockets that wait for their round. */
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

  /** The result of `work` in its round, which rejects as it does; or that there is no room. */
  take<T>({ tenantId, owner }: Arrival, work: () => Promise<T>): Promise<T | TurnedAway> {
    const early = (this.promises.get(owner) ?? 0) - this.options.clock.now();
    if (early > EARLY_MS) return Promise.resolve(new TurnedAway(CLOSE.overloaded, early / 1_000));
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
      if (this.underWay === 0 && this.pause === undefined) this.round();
    });
  }

  /** Turns away all that wait. */
  close(): void {
    this.pause?.cancel();
    for (const tenantId of [...this.queue.keys()])
      while (this.queue.has(tenantId)) this.leave(tenantId, 'last')?.away();
  }

  /** As many as may wait. */
  private get capacity(): number {
    return Math.min(WAITING_MAX, Math.ceil(this.perSecond * WAIT_MAX_S));
  }

  /** Where the queue is full, a tenant of which few wait takes the place of the last one of a crowd. */
  private hasRoom({ tenantId, owner }: Arrival): boolean {
    if (this.underWay > 0 && this.options.clock.now() - this.begunAt > WAIT_MAX_S * 1_000) return false;
    if ((this.owners.get(owner) ?? 0) >= SOCKETS_PER_DEVICE) return false;
    const { capacity } = this;
    const own = this.queue.get(tenantId)?.length ?? 0;
    if (own >= Math.max(TENANT_MIN, capacity / TENANT_PARTS)) return false;
    if (this.waiting < capacity) return true;
    const [crowd] = this.crowds;
    if (crowd === undefined || own >= TENANT_MIN) return false;
    this.leave(crowd, 'last')?.away();
    return true;
  }

  private enter(tenantId: string, waiter: Waiter): void {
    const waiters = this.queue.get(tenantId) ?? [];
    waiters.push(waiter);
    if (waiters.length === 1) this.queue.set(tenantId, waiters);
    if (waiters.length > TENANT_MIN) this.crowds.add(tenantId);
    this.owners.set(waiter.owner, (this.owners.get(waiter.owner) ?? 0) + 1);
    this.waiting++;
  }

  private leave(tenantId: string, which: 'first' | 'last'): Waiter | undefined {
    const waiters = this.queue.get(tenantId) ?? [];
    const waiter = which === 'first' ? waiters.shift() : waiters.pop();
    if (waiters.length === 0) this.queue.delete(tenantId);
    if (waiters.length <= TENANT_MIN) this.crowds.delete(tenantId);
    if (waiter === undefined) return undefined;
    const others = (this.owners.get(waiter.owner) ?? 1) - 1;
    if (others === 0) this.owners.delete(waiter.owner);
    else this.owners.set(waiter.owner, others);
    this.waiting--;
    return waiter;
  }

  private round(): void {
    const taken = this.next();
    if (taken.length === 0) return;
    this.underWay = taken.length;
    this.begunAt = this.options.clock.now();
    let answered = true;
    for (const { go } of taken) {
      void go().then((ok) => {
        answered &&= ok;
        if (--this.underWay > 0) return;
        this.learn(taken.length, answered);
        if (taken.length < STORM || this.waiting >= this.size) this.round();
        else this.pause = this.options.clock.setTimer(STORM_PAUSE_MS, () => this.afterPause());
      });
    }
  }

  /** On a busy machine timers fire before pending input is read. */
  private afterPause(): void {
    void nextTurn().then(() => {
      this.pause = undefined;
      this.round();
    });
  }

  /** One of each tenant in turn, until the round is full. */
  private next(): Waiter[] {
    const taken: Waiter[] = [];
    while (taken.length < this.size && this.queue.size > 0) {
      for (const [tenantId, waiters] of [...this.queue]) {
        if (taken.length >= this.size) break;
        const waiter = this.leave(tenantId, 'first');
        // To the end: the next round begins with who was not served in this one.
        if (this.queue.delete(tenantId)) this.queue.set(tenantId, waiters);
        if (waiter !== undefined) taken.push(waiter);
      }
    }
    return taken;
  }

  private learn(taken: number, answered: boolean): void {
    const ms = Math.max(0, this.options.clock.now() - this.begunAt);
    const slow = !answered || ms > SLOW_MS;
    const full = taken >= this.size;
    if (slow) this.size = Math.max(ROUND_MIN, Math.floor(this.size / 2));
    else if (full) this.size = Math.min(ROUND_MAX, this.size + ROUND_MORE);
    // A round that had room says nothing of what the database could take.
    if (ms === 0 || !full) return;
    const measured = (taken * 1_000) / ms;
    this.perSecond = Math.max(RATE_MIN, this.perSecond + RATE_PART * (measured - this.perSecond));
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
