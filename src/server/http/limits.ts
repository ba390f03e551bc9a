/**
 * Fair budgets and rates. A budget bounds how much of one resource (bytes, requests under way) the process holds. A
 * tenant holds at most a quarter of it and a device or address a sixteenth, so no client can exhaust it for the others
 * (FAIR-01, FAIR-02). Where many clients together reach the bound, the largest holders are evicted first (FAIR-03).
 *
 * Requests under way, bodies and replies each have a budget, one for devices and one for unauthenticated clients. In
 * addition, each device has rates: requests, and bytes of bodies and replies, per second.
 */
import type { HttpResponse } from 'uWebSockets.js';
import type { Clock, Timer } from '../../protocol/clock.js';
import { rateLimited, type ServiceError, unavailable } from '../../protocol/errors.js';
import { addressOfPeer, limitKey, type TrustedProxies } from './client-address.js';
import { BODY_BYTES_BURST, BODY_BYTES_PER_S, REPLY_BYTES_BURST, REPLY_BYTES_PER_S } from '../../protocol/limits.js';

const GROUP_PARTS = 4;
const OWNER_PARTS = 16;
/** A holding without progress for this long may be evicted for a new one of the same owner, ms. */
export const STILL_MS = 5_000;
/** Evictions leave 1/64 of the bound free where they can: the holders are not sorted again for the next few bytes. */
const SLACK_PARTS = 64;
/** A reservation waits at most this long, ms. */
export const RESERVE_MS = 5_000;
const MIB = 1024 * 1024;

/**
 * Whether the amount is held now, or why not: the owner or its tenant has used up its share, or the bound is reached
 * and no holder that could be evicted holds more.
 */
type BudgetVerdict = 'held' | 'share' | 'bound';

/** A linked list: an eviction must not search all holders of the process for those of one group. */
interface List<T> {
  first: T | undefined;
  last: T | undefined;
}

/** An entry of at most one list. */
interface Linked<T> {
  before: T | undefined;
  after: T | undefined;
}

/** A tenant, or the address of an unauthenticated client; the list is its holders. */
class Group implements List<Holder> {
  held = 0;
  first: Holder | undefined;
  last: Holder | undefined;

  constructor(readonly name: string) {}
}

/** A device or an address. The list is its holdings, the one without progress for longest first. */
class Holder implements List<Holding>, Linked<Holder> {
  held = 0;
  first: Holding | undefined;
  last: Holding | undefined;
  before: Holder | undefined;
  after: Holder | undefined;

  constructor(
    readonly owner: string,
    readonly group: Group,
  ) {}
}

/** One use of a budget: a reply, a partial body, the unsent bytes of a socket. It is not counted while its amount is 0. */
export class Holding implements Linked<Holding> {
  // Written by the budget only.
  amount = 0;
  movedAt = 0;
  holder: Holder | undefined;
  before: Holding | undefined;
  after: Holding | undefined;

  /**
   * @param group the tenant's id, or the address of an unauthenticated client
   * @param owner the device, qualified by its tenant, or the address
   * @param giveWay called on eviction, after its amount was released: frees the resource. Undefined: not evictable
   */
  constructor(
    readonly group: string,
    readonly owner: string,
    public giveWay?: (() => void) | undefined,
  ) {}
}

interface Waiter {
  readonly holding: Holding;
  readonly amount: number;
  readonly timer: Timer;
  readonly resolve: (verdict: BudgetVerdict) => void;
}

/** The refusal for a verdict other than `held`: 429 where the client's own share is used up, 503 where the bound is. */
export function refusalOf(verdict: 'share' | 'bound', what: string): ServiceError {
  if (verdict === 'bound') return unavailable(`the server is shedding load: ${what}`);
  return rateLimited(`your share of the server is in use: ${what}`, 1);
}

/** The map is replaced once as many entries were deleted as are left, and at least this many. */
const RENEW_MIN = 64;

/**
 * A map whose entries are added and removed with the requests. When V8 rehashes a Map, the old table keeps a reference
 * to the new one: once a table is in the old generation, each later one survives minor collections, with the requests
 * it held, until the next major one (bench S3). So the whole Map is replaced before that chain is long.
 */
class TransientMap<V> {
  /** Callers must not keep it, nor delete from it directly: `delete` replaces it. */
  map = new Map<string, V>();
  private gone = 0;

  delete(key: string): void {
    if (!this.map.delete(key) || ++this.gone < Math.max(RENEW_MIN, this.map.size)) return;
    this.gone = 0;
    this.map = new Map(this.map);
  }
}

/** The account of one resource. Holders are forgotten when they hold nothing. */
export class FairBudget {
  /** The sum of all holdings. */
  held = 0;
  private readonly groupShare: number;
  private readonly ownerShare: number;
  private readonly groups = new TransientMap<Group>();
  private readonly holders = new TransientMap<Holder>();
  /** By owner: owners are served round robin. */
  private readonly queue = new Map<string, Waiter[]>();
  private admitting = false;

  constructor(
    readonly bound: number,
    readonly clock: Clock,
  ) {
    this.groupShare = Math.floor(bound / GROUP_PARTS);
    this.ownerShare = Math.floor(bound / OWNER_PARTS);
  }

  /**
   * Sets the amount of a holding. A reduction always succeeds. For an increase, other holdings may be evicted; if that
   * frees too little, the holding is unchanged, and the caller has to drop what it wanted to hold. Evictions, also of
   * older holdings of the same owner, happen before this returns; the holding itself is never evicted by it.
   */
  set(holding: Holding, amount: number): BudgetVerdict {
    const more = amount - holding.amount;
    if (more <= 0) {
      this.shrink(holding, -more);
      return 'held';
    }
    let blocked = this.blockedBy(holding, more);
    if (blocked !== 'held') {
      if (blocked === 'share') this.replaceOwn(holding, more);
      else this.makeRoom(holding, more);
      blocked = this.blockedBy(holding, more);
    }
    if (blocked === 'held') this.grow(holding, more);
    return blocked;
  }

  /** Like `set`, but waits up to RESERVE_MS for room. Waiting owners are served round robin. */
  reserve(holding: Holding, amount: number): 'held' | Promise<BudgetVerdict> {
    // First in, first out within an owner.
    const before = this.queue.get(holding.owner);
    const verdict = before === undefined ? this.set(holding, amount) : 'share';
    if (verdict === 'held') return verdict;
    return new Promise((resolve) => {
      const timer = this.clock.setTimer(RESERVE_MS, () => this.settle(waiter, verdict));
      const waiter: Waiter = { holding, amount, timer, resolve };
      if (before === undefined) this.queue.set(holding.owner, [waiter]);
      else before.push(waiter);
    });
  }

  /** Sets the amount to 0, and ends a reservation that still waits. */
  release(holding: Holding): void {
    this.shrink(holding, holding.amount);
    if (this.queue.size === 0) return;
    const waiter = this.queue.get(holding.owner)?.find((waiting) => waiting.holding === holding);
    if (waiter !== undefined) this.settle(waiter, 'share');
  }

  /** Notes progress: among its owner's holdings it is now the last one to be evicted. */
  moved(holding: Holding): void {
    const { holder } = holding;
    holding.movedAt = this.clock.now();
    if (holder === undefined || holder.last === holding) return;
    unlink(holder, holding);
    append(holder, holding);
  }

  /** One that moved before the clock was set back counts from now on: else none would give way until it has caught up. */
  private standsStill(one: Holding): boolean {
    one.movedAt = Math.min(one.movedAt, this.clock.now());
    return this.clock.now() - one.movedAt >= STILL_MS;
  }

  private blockedBy({ group, owner }: Holding, more: number): BudgetVerdict {
    // An owner that holds nothing is admitted once, however small its share is.
    const holder = this.holders.map.get(owner);
    if (holder !== undefined && holder.held + more > this.ownerShare) return 'share';
    const held = this.groups.map.get(group)?.held ?? 0;
    if (held > 0 && held + more > this.groupShare) return 'share';
    return this.held === 0 || this.held + more <= this.bound ? 'held' : 'bound';
  }

  private grow(holding: Holding, more: number): void {
    const holder = (holding.holder ??= this.enter(holding));
    holding.amount += more;
    holder.held += more;
    holder.group.held += more;
    this.held += more;
  }

  private enter(holding: Holding): Holder {
    let holder = this.holders.map.get(holding.owner);
    if (holder === undefined) {
      let group = this.groups.map.get(holding.group);
      if (group === undefined) this.groups.map.set(holding.group, (group = new Group(holding.group)));
      holder = new Holder(holding.owner, group);
      append(group, holder);
      this.holders.map.set(holding.owner, holder);
    }
    holding.movedAt = this.clock.now();
    append(holder, holding);
    return holder;
  }

  private shrink(holding: Holding, less: number): void {
    const { holder } = holding;
    if (holder === undefined || less === 0) return;
    const { group } = holder;
    holding.amount -= less;
    holder.held -= less;
    group.held -= less;
    this.held -= less;
    if (holding.amount === 0) this.leave(holding, holder);
    if (this.queue.size > 0) this.admitSoon();
  }

  private leave(holding: Holding, holder: Holder): void {
    unlink(holder, holding);
    holding.holder = undefined;
    if (holder.first === undefined) {
      unlink(holder.group, holder);
      this.holders.delete(holder.owner);
    }
    if (holder.group.held === 0) this.groups.delete(holder.group.name);
  }

  /** Makes room within a share. Only holdings without progress are evicted, those of the owner first. */
  private replaceOwn(holding: Holding, more: number): void {
    const own = this.holders.map.get(holding.owner);
    if (own !== undefined) {
      this.cutWhile(own, (old) => old !== holding && this.standsStill(old) && own.held + more > this.ownerShare);
      if (own.held > 0 && own.held + more > this.ownerShare) return;
    }
    const group = this.groups.map.get(holding.group);
    if (group === undefined) return;
    for (const holder of holdersOf(group))
      this.cutWhile(holder, (old) => old !== holding && this.standsStill(old) && group.held + more > this.groupShare);
  }

  /**
   * Makes room under the bound by evicting from tenants and addresses that hold at least as much as this one would, the
   * largest first: holdings without progress, then, if that is not enough, any. Each group loses at most half of what
   * it holds before the next one is evicted from.
   */
  private makeRoom(holding: Holding, more: number): void {
    const enough = (): boolean => this.held + more <= this.bound - Math.floor(this.bound / SLACK_PARTS);
    const after = (this.groups.map.get(holding.group)?.held ?? 0) + more;
    for (const onlyStill of [true, false]) {
      const goes = (one: Holding): boolean => one.giveWay !== undefined && (!onlyStill || this.standsStill(one));
      const larger = [...this.groups.map.values()].filter(
        (group) => group.held >= after && group.name !== holding.group && hasAny(group, goes),
      );
      for (const group of larger.sort((one, other) => other.held - one.held)) {
        if (this.held + more <= this.bound) return;
        const half = group.held / 2;
        for (const holder of holdersOf(group))
          this.cutWhile(holder, (old) => goes(old) && group.held > half && !enough());
      }
    }
  }

  /** Evicts the holdings for which `goes` is true, starting with the one without progress for longest. */
  private cutWhile({ first }: Holder, goes: (old: Holding) => boolean): void {
    let next = first;
    // An eviction may release other holdings too: the walk ends at one that is no longer in a list.
    while (next?.holder !== undefined) {
      const old = next;
      next = old.after;
      const { giveWay } = old;
      if (giveWay === undefined || !goes(old)) continue;
      this.shrink(old, old.amount);
      giveWay();
    }
  }

  /** Once for all releases of this turn of the event loop. */
  private admitSoon(): void {
    if (this.admitting) return;
    this.admitting = true;
    setImmediate(() => {
      this.admitting = false;
      this.admit();
    });
  }

  /** Grants waiting reservations, one of each owner in turn, until no owner's next one fits. */
  private admit(): void {
    for (let served = true; served;) {
      served = false;
      for (const [owner, waiters] of [...this.queue]) {
        const [waiter] = waiters;
        if (waiter === undefined) continue;
        const blocked = this.blockedBy(waiter.holding, waiter.amount);
        if (blocked === 'bound') return;
        if (blocked === 'share') continue;
        served = true;
        this.grow(waiter.holding, waiter.amount);
        this.settle(waiter, 'held');
        // To the end of the queue: every other owner is served before this one's next.
        if (this.queue.delete(owner)) this.queue.set(owner, waiters);
      }
    }
  }

  /** Ends a reservation that still waits. */
  private settle(waiter: Waiter, verdict: BudgetVerdict): void {
    const { owner } = waiter.holding;
    const waiters = this.queue.get(owner) ?? [];
    const at = waiters.indexOf(waiter);
    if (at >= 0) waiters.splice(at, 1);
    if (waiters.length === 0) this.queue.delete(owner);
    waiter.timer.cancel();
    waiter.resolve(verdict);
  }
}

/** Whether one of its holdings is such. Most groups have a few: asking each is cheaper than sorting them. */
function hasAny(group: Group, such: (holding: Holding) => boolean): boolean {
  for (let { first: holder } = group; holder !== undefined; holder = holder.after)
    for (let { first: one } = holder; one !== undefined; one = one.after) if (such(one)) return true;
  return false;
}

/** The largest first; a copy, which evictions do not change. */
function holdersOf(group: Group): Holder[] {
  const found: Holder[] = [];
  for (let next = group.first; next !== undefined; next = next.after) found.push(next);
  return found.sort((one, other) => other.held - one.held);
}

function append<T extends Linked<T>>(list: List<T>, entry: T): void {
  entry.before = list.last;
  entry.after = undefined;
  if (list.last === undefined) list.first = entry;
  else list.last.after = entry;
  list.last = entry;
}

function unlink<T extends Linked<T>>(list: List<T>, entry: T): void {
  const { before, after } = entry;
  if (before === undefined) list.first = after;
  else before.after = after;
  if (after === undefined) list.last = before;
  else after.before = before;
  entry.before = undefined;
  entry.after = undefined;
}

/** Bounds of one kind of clients: requests under way at once, and bytes of bodies and of unread replies. */
export type LoadBound = Readonly<Record<'calls' | 'bodies' | 'replies', number>>;

/** The bounds of both kinds. They are separate, so that clients without a token cannot exhaust what devices need. */
export type LoadBounds = Readonly<Record<'devices' | 'unauthenticated', LoadBound>>;

const BOUNDS: LoadBounds = {
  devices: { calls: 10_000, bodies: 64 * MIB, replies: 192 * MIB },
  unauthenticated: { calls: 2_000, bodies: 32 * MIB, replies: 64 * MIB },
};

type BudgetSet = Readonly<Record<keyof LoadBound, FairBudget>>;

/** The fields of a request that decide which budget it is charged to, and what it holds there. */
export class ChargedRequest {
  aborted = false;
  forwardedFor = '';
  tenantId = '';
  /** The device whose share it uses, qualified by its tenant; '' for an unauthenticated client. */
  owner = '';
  /** The client's `limitKey`; '' until `RequestBudgets.addressOf` was called. */
  address = '';
  /** Its slot among the requests under way. */
  place: Holding | undefined;
  /** Room that is reserved for its reply. */
  room: Holding | undefined;

  constructor(readonly res: Pick<HttpResponse, 'getRemoteAddress'>) {}
}

/** Charges requests to the budget of their kind, and there to the share of their device or address. */
export class RequestBudgets {
  private readonly devices: BudgetSet;
  private readonly unauthenticated: BudgetSet;

  constructor(
    clock: Clock,
    private readonly proxies: TrustedProxies,
    bounds = BOUNDS,
  ) {
    const budgets = ({ calls, bodies, replies }: LoadBound): BudgetSet => ({
      calls: new FairBudget(calls, clock),
      bodies: new FairBudget(bodies, clock),
      replies: new FairBudget(replies, clock),
    });
    this.devices = budgets(bounds.devices);
    this.unauthenticated = budgets(bounds.unauthenticated);
  }

  /** The amount held of each budget, by its name in the metrics. */
  held(): Record<string, number> {
    const held: Record<string, number> = {};
    for (const [whose, budgets] of Object.entries({ device: this.devices, stranger: this.unauthenticated })) {
      for (const [what, budget] of Object.entries(budgets)) held[`${whose}_${what}`] = budget.held;
    }
    return held;
  }

  /** The budgets of the request's kind: those of unauthenticated clients until its `owner` is set. */
  of(ctx: ChargedRequest): BudgetSet {
    return ctx.owner === '' ? this.unauthenticated : this.devices;
  }

  /** A new holding of the request's owner, with amount 0. Its response must still be valid: it has the address. */
  holding(ctx: ChargedRequest, giveWay?: () => void): Holding {
    if (ctx.owner !== '') return new Holding(ctx.tenantId, ctx.owner, giveWay);
    const address = this.addressOf(ctx);
    return new Holding(address, address, giveWay);
  }

  /** The client's `limitKey`; `unknown` for an aborted request, whose response no longer has a peer. */
  addressOf(ctx: ChargedRequest): string {
    if (ctx.address !== '') return ctx.address;
    const peer = ctx.aborted ? undefined : addressOfPeer(ctx.res.getRemoteAddress());
    ctx.address = peer === undefined ? 'unknown' : limitKey(this.proxies.clientOf(peer, ctx.forwardedFor));
    return ctx.address;
  }

  /** Counts the request among those under way, unless it is already. Throws `rate_limited`, `unavailable`. */
  enter(ctx: ChargedRequest): void {
    if (ctx.place !== undefined) return;
    const place = this.holding(ctx);
    const verdict = this.of(ctx).calls.set(place, 1);
    if (verdict !== 'held') throw refusalOf(verdict, 'calls under way');
    ctx.place = place;
  }

  /** Ends what `enter` began. */
  leave(ctx: ChargedRequest): void {
    if (ctx.place !== undefined) this.of(ctx).calls.release(ctx.place);
    ctx.place = undefined;
  }

  releaseRoom(ctx: ChargedRequest): void {
    if (ctx.room !== undefined) this.of(ctx).replies.release(ctx.room);
    ctx.room = undefined;
  }
}

/** The token bucket of a device. V8 stores integers in the object itself; fractions would take twice the memory. */
export interface Bucket {
  /** Thousandths of a request. */
  reads: number;
  writes: number;
  /** Bytes. Below 0 after a body whose length was not declared. */
  bodies: number;
  replies: number;
  /** When it was last filled, ms, truncated to 32 bits. */
  at: number;
}

const PARTS = 1_000;

/** A count after refilling by `more`, up to its bound; a 32-bit integer, clamped so that no debt turns into credit. */
const filled = (count: number, more: number, bound: number): number =>
  Math.max(-(2 ** 31), Math.min(bound, count + more)) | 0;

/** A bucket without a debt is full again after this long without use: it holds one second of requests and two of bytes. */
const FULL_MS = 3_000;
/** Delay of the timer that drops generations where no request does, ms. */
const FORGET_MS = 2 * FULL_MS;

/**
 * Token buckets per device, in two generations of a map: a bucket that was not used for FULL_MS is full, and a full
 * bucket is the same as none, so the older generation can be dropped, except for those in debt. Requests rotate the
 * generations; a timer does so after the last of them, so that a reconnect storm does not leave its buckets in memory.
 */
export class DeviceRates {
  private current = new Map<string, Bucket>();
  private previous = new Map<string, Bucket>();
  private turnedAt: number;
  private timer: Timer | undefined;

  constructor(
    /** Per second and device; 0 is off. */
    private readonly rates: { readonly read: number; readonly write: number },
    private readonly clock: Clock,
  ) {
    this.turnedAt = clock.now();
  }

  /**
   * Takes one read or write, and a body's declared length. Throws `rate_limited` with the seconds to wait. Returns the
   * bucket that undeclared lengths are charged to later; undefined where the rate is off: bytes are not counted then.
   */
  take(device: string, kind: 'read' | 'write', bodyBytes = 0): Bucket | undefined {
    const rate = this.rates[kind];
    if (rate === 0) return undefined;
    const bucket = this.bucket(device, this.clock.now());
    const parts = kind === 'read' ? bucket.reads : bucket.writes;
    if (parts < PARTS)
      throw rateLimited(`at most ${rate} ${kind}s per second and device`, (PARTS - parts) / PARTS / rate);
    // A body larger than the bucket is refused by its size, not here.
    const body = Math.min(bodyBytes, BODY_BYTES_BURST);
    if (body > 0 && bucket.bodies < body) {
      const seconds = (body - bucket.bodies) / BODY_BYTES_PER_S;
      throw rateLimited(`at most ${BODY_BYTES_PER_S} bytes of bodies per second and device`, seconds);
    }
    if (kind === 'read' && bucket.replies <= 0) {
      const seconds = (1 - bucket.replies) / REPLY_BYTES_PER_S;
      throw rateLimited(`at most ${REPLY_BYTES_PER_S} bytes of replies per second and device`, seconds);
    }
    if (kind === 'read') bucket.reads = parts - PARTS;
    else bucket.writes = parts - PARTS;
    bucket.bodies -= body;
    return bucket;
  }

  stop(): void {
    this.timer?.cancel();
    this.timer = undefined;
  }

  private turn(now: number): void {
    const dropped = this.previous;
    this.previous = this.current;
    this.current = new Map();
    this.turnedAt = now;
    // Bytes requested at once may take many seconds to refill: a bucket that still lacks some is kept.
    for (const [device, bucket] of dropped) {
      if (this.previous.has(device)) continue;
      const { bodies, replies } = this.refilled(bucket, now);
      if (bodies < BODY_BYTES_BURST || replies < REPLY_BYTES_BURST) this.previous.set(device, bucket);
    }
    if (this.previous.size === 0) return this.stop();
    this.timer ??= this.clock.setTimer(FORGET_MS, () => {
      this.timer = undefined;
      this.turn(this.clock.now());
    });
  }

  private bucket(device: string, now: number): Bucket {
    if (now - this.turnedAt >= FULL_MS || now < this.turnedAt) this.turn(now);
    const known = this.current.get(device);
    // A new one was last filled so long ago that it is full.
    const bucket = known ??
      this.previous.get(device) ?? { reads: 0, writes: 0, bodies: 0, replies: 0, at: (now - FULL_MS) | 0 };
    if (known === undefined) this.current.set(device, bucket);
    return this.refilled(bucket, now);
  }

  private refilled(bucket: Bucket, now: number): Bucket {
    const passed = Math.max(0, ((now | 0) - bucket.at) | 0);
    const { read, write } = this.rates;
    bucket.at = now | 0;
    bucket.reads = filled(bucket.reads, passed * read, PARTS * read);
    bucket.writes = filled(bucket.writes, passed * write, PARTS * write);
    bucket.bodies = filled(bucket.bodies, (passed * BODY_BYTES_PER_S) / 1_000, BODY_BYTES_BURST);
    bucket.replies = filled(bucket.replies, (passed * REPLY_BYTES_PER_S) / 1_000, REPLY_BYTES_BURST);
    return bucket;
  }
}
