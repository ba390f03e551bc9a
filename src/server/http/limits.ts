/**
 * What the process holds of one thing (bytes, calls), and for whom. A budget has a bound. A tenant holds at most a
 * quarter of it and a device or address a sixteenth, so no caller can take what others need (FAIR-01, FAIR-02). Where
 * many callers together reach the bound, those who hold most give way to those who hold less (FAIR-03).
 *
 * What callers hold of the process, each from a fair budget: calls under way, bodies and replies. And how much a device may
 * ask for now: requests, and bytes of bodies and replies a second.
 */
import type { HttpResponse } from 'uWebSockets.js';
import type { Clock, Timer } from '../../protocol/clock.js';
import { ServiceError, unavailable } from '../../protocol/errors.js';
import { addressOfPeer, limitKey, type TrustedProxies } from './client-address.js';
import type { LoadBound, LoadBounds } from './ports.js';
import { BODY_BYTES_BURST, BODY_BYTES_PER_S, REPLY_BYTES_BURST, REPLY_BYTES_PER_S } from '../../protocol/limits.js';

const GROUP_PARTS = 4;
const OWNER_PARTS = 16;
/** What has not moved for so long gives way to something new of its own holder, ms. */
export const STILL_MS = 5_000;
/** Room that is made at once beyond what is asked for, as a part of the bound: sorting holders for each byte is dear. */
const SLACK_PARTS = 64;
/** A reservation waits so long at most, ms. */
export const RESERVE_MS = 5_000;

/**
 * Whether something is held now, or why not: its owner or its owner's tenant has its share, or the bound is reached
 * and nobody who could give way holds more.
 */
export type Verdict = 'held' | 'share' | 'bound';

/** A tenant, or an address that stands for itself. */
interface Group {
  readonly name: string;
  held: number;
  /** Of its holdings. */
  count: number;
}

/** A device or an address. Its holdings are a list, the one that has stood still for longest first. */
interface Holder {
  readonly owner: string;
  readonly group: Group;
  held: number;
  first: Holding | undefined;
  last: Holding | undefined;
}

/** One thing that is held: a reply, half a body, what a socket has not sent. It costs nothing while its amount is 0. */
export class Holding {
  // These five are the budget's own.
  amount = 0;
  movedAt = 0;
  holder: Holder | undefined;
  before: Holding | undefined;
  after: Holding | undefined;

  /**
   * @param group the tenant's id; of a caller without a token his address
   * @param owner the device, in a spelling that no other tenant's device has, or the address
   * @param giveWay lets go of what is held, at once. It is out of the budget already. Undefined: it cannot give way, yet
   */
  constructor(
    readonly group: string,
    readonly owner: string,
    public giveWay?: (() => void) | undefined,
  ) {}
}

/** A reservation that waits for room. */
interface Waiter {
  readonly holding: Holding;
  readonly amount: number;
  readonly timer: Timer;
  readonly resolve: (verdict: Verdict) => void;
}

/** What a budget is made of. */
export interface FairBudgetOptions {
  readonly bound: number;
  readonly clock: Clock;
}

/** The refusal that fits a verdict other than `held`: whoever has his share waits, and nobody else is to blame. */
export function refusalOf(verdict: 'share' | 'bound', what: string): ServiceError {
  if (verdict === 'bound') return unavailable(`the server is shedding load: ${what}`);
  return new ServiceError('rate_limited', `your share of the server is in use: ${what}`, undefined, 1);
}

/** Accounts for everything that is held of one thing. Forgets holders that hold nothing. */
export class FairBudget {
  /** What all hold together. */
  held = 0;
  readonly bound: number;
  private readonly clock: Clock;
  private readonly groupShare: number;
  private readonly ownerShare: number;
  private readonly groups = new Map<string, Group>();
  private readonly holders = new Map<string, Holder>();
  /** By owner, so that each has its turn. */
  private readonly queue = new Map<string, Waiter[]>();
  private admitting = false;

  constructor({ bound, clock }: FairBudgetOptions) {
    this.bound = bound;
    this.clock = clock;
    this.groupShare = Math.floor(bound / GROUP_PARTS);
    this.ownerShare = Math.floor(bound / OWNER_PARTS);
  }

  /** Owners that hold something. */
  get size(): number {
    return this.holders.size;
  }

  /** Reservations that wait. */
  get waiting(): number {
    let sum = 0;
    for (const waiters of this.queue.values()) sum += waiters.length;
    return sum;
  }

  /**
   * Has the holding hold so much from now on. Less is always possible. For more, others may have to give way; where
   * that does not help nothing is changed, and the caller lets go of what it wanted to hold. `giveWay` of others, and
   * of older holdings of the same owner, is called before this returns; never that of the holding itself.
   */
  set(holding: Holding, amount: number): Verdict {
    const more = amount - holding.amount;
    if (more <= 0) {
      this.shrink(holding, -more);
      return 'held';
    }
    let blocked = this.blockedBy(holding, more);
    if (blocked === 'held') {
      this.grow(holding, more);
      return 'held';
    }
    if (blocked === 'share') this.replaceOwn(holding, more);
    else this.makeRoom(holding, more);
    blocked = this.blockedBy(holding, more);
    if (blocked === 'held') this.grow(holding, more);
    return blocked;
  }

  /** Like `set`, and waits for room for up to RESERVE_MS. Whoever waits is served in turn with other owners. */
  reserve(holding: Holding, amount: number): 'held' | Promise<Verdict> {
    // Nobody overtakes those of the same owner who wait already.
    const before = this.queue.get(holding.owner);
    const verdict = before === undefined ? this.set(holding, amount) : 'share';
    if (verdict === 'held') return verdict;
    return new Promise((resolve) => {
      const timer = this.clock.setTimer(RESERVE_MS, () => {
        this.forget(waiter);
        resolve(verdict);
      });
      const waiter: Waiter = { holding, amount, timer, resolve };
      if (before === undefined) this.queue.set(holding.owner, [waiter]);
      else before.push(waiter);
    });
  }

  /** It is held no longer. Where it still waits for room, it waits no longer. */
  release(holding: Holding): void {
    this.shrink(holding, holding.amount);
    if (this.queue.size === 0) return;
    const waiter = this.queue.get(holding.owner)?.find((waiting) => waiting.holding === holding);
    if (waiter === undefined) return;
    this.forget(waiter);
    waiter.timer.cancel();
    waiter.resolve('share');
  }

  /** Some of it went on its way: it is the last of its owner's to give way. */
  moved(holding: Holding): void {
    const { holder } = holding;
    if (holder === undefined) return;
    holding.movedAt = this.clock.now();
    if (holder.last === holding) return;
    unlink(holder, holding);
    append(holder, holding);
  }

  private blockedBy({ group, owner }: Holding, more: number): Verdict {
    // Whoever holds nothing may hold one thing, however small his share is.
    const holder = this.holders.get(owner);
    if (holder !== undefined && holder.held + more > this.ownerShare) return 'share';
    const held = this.groups.get(group)?.held ?? 0;
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
    let holder = this.holders.get(holding.owner);
    if (holder === undefined) {
      let group = this.groups.get(holding.group);
      if (group === undefined) this.groups.set(holding.group, (group = { name: holding.group, held: 0, count: 0 }));
      holder = { owner: holding.owner, group, held: 0, first: undefined, last: undefined };
      this.holders.set(holding.owner, holder);
    }
    holder.group.count++;
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
    if (holder.first === undefined) this.holders.delete(holder.owner);
    if (--holder.group.count === 0) this.groups.delete(holder.group.name);
  }

  private cut(holding: Holding): void {
    const { giveWay } = holding;
    this.shrink(holding, holding.amount);
    giveWay?.();
  }

  /** Makes room within a share: what stands still goes first, and nothing that moves. */
  private replaceOwn(holding: Holding, more: number): void {
    const still = this.clock.now() - STILL_MS;
    const own = this.holders.get(holding.owner);
    if (own !== undefined) {
      this.cutWhile(own, (old) => {
        return old !== holding && old.movedAt <= still && own.held + more > this.ownerShare;
      });
      if (own.held > 0 && own.held + more > this.ownerShare) return;
    }
    const group = this.groups.get(holding.group);
    if (group === undefined) return;
    for (const holder of this.holdersOf(group)) {
      this.cutWhile(holder, (old) => {
        return old !== holding && old.movedAt <= still && group.held + more > this.groupShare;
      });
    }
  }

  /**
   * Makes room in the bound: tenants and addresses that hold at least as much as the asker would, the largest first,
   * give what stands still, and, where that is not enough, what moves. Each loses at most half of what it has before
   * the next one's turn.
   */
  private makeRoom(holding: Holding, more: number): void {
    const enough = (): boolean => this.held + more <= this.bound - Math.floor(this.bound / SLACK_PARTS);
    const after = (this.groups.get(holding.group)?.held ?? 0) + more;
    const still = this.clock.now() - STILL_MS;
    for (const movedBefore of [still, Infinity]) {
      const larger = [...this.groups.values()].filter(({ name, held }) => name !== holding.group && held >= after);
      for (const group of larger.sort((one, other) => other.held - one.held)) {
        if (this.held + more <= this.bound) return;
        const half = group.held / 2;
        for (const holder of this.holdersOf(group)) {
          this.cutWhile(holder, ({ movedAt }) => movedAt <= movedBefore && group.held > half && !enough());
        }
      }
    }
  }

  /** The largest first. */
  private holdersOf(group: Group): Holder[] {
    const found: Holder[] = [];
    for (const holder of this.holders.values()) if (holder.group === group) found.push(holder);
    return found.sort((one, other) => other.held - one.held);
  }

  /** From the holding that stood still for longest on. */
  private cutWhile({ first }: Holder, goes: (old: Holding) => boolean): void {
    let next = first;
    // Whoever gives way may let go of others too: what is in no list any more ends the walk.
    while (next?.holder !== undefined) {
      const old = next;
      next = old.after;
      if (old.giveWay !== undefined && goes(old)) this.cut(old);
    }
  }

  /** Once for all that is let go of in this turn. */
  private admitSoon(): void {
    if (this.admitting) return;
    this.admitting = true;
    setImmediate(() => {
      this.admitting = false;
      this.admit();
    });
  }

  /** Gives room to those who wait, one each in turn, until nobody's next reservation fits. */
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
        this.forget(waiter);
        // Behind all others.
        if (this.queue.delete(owner) && waiters.length > 0) this.queue.set(owner, waiters);
        waiter.timer.cancel();
        waiter.resolve('held');
      }
    }
  }

  private forget(waiter: Waiter): void {
    const { owner } = waiter.holding;
    const waiters = this.queue.get(owner);
    const at = waiters?.indexOf(waiter) ?? -1;
    if (waiters === undefined || at < 0) return;
    waiters.splice(at, 1);
    if (waiters.length === 0) this.queue.delete(owner);
  }
}

function append(holder: Holder, holding: Holding): void {
  holding.before = holder.last;
  holding.after = undefined;
  if (holder.last === undefined) holder.first = holding;
  else holder.last.after = holding;
  holder.last = holding;
}

function unlink(holder: Holder, holding: Holding): void {
  const { before, after } = holding;
  if (before === undefined) holder.first = after;
  else before.after = after;
  if (after === undefined) holder.last = before;
  else after.before = before;
  holding.before = undefined;
  holding.after = undefined;
}

const MIB = 1024 * 1024;

/** Strangers, who have no token, shall not be able to take the devices' share. */
const BOUNDS: LoadBounds = {
  devices: { calls: 10_000, bodies: 64 * MIB, replies: 192 * MIB },
  strangers: { calls: 2_000, bodies: 32 * MIB, replies: 64 * MIB },
};

/** The budgets of one kind of callers. */
export type Budgets = Readonly<Record<keyof LoadBound, FairBudget>>;

/** What the shares are made of. */
export interface SharesOptions {
  readonly bounds?: LoadBounds | undefined;
  readonly clock: Clock;
  readonly proxies: TrustedProxies;
}

/** Of a call, what it is charged by. */
export interface Charged {
  readonly res: Pick<HttpResponse, 'getRemoteAddress'>;
  readonly aborted: boolean;
  readonly forwardedFor: string;
  readonly tenantId: string;
  /** Whose shares it uses: its device, in a spelling that no other tenant's device has; '' for a stranger. */
  readonly owner: string;
  /** What limits per address count the client by, once somebody asked (`Shares.addressOf`). */
  address: string;
  /** Its place among the calls under way. */
  place: Holding | undefined;
  /** Room that is reserved for its reply. */
  room: Holding | undefined;
}

/** Finds the budget that a call is charged to, and whose share of it. */
export class Shares {
  private readonly devices: Budgets;
  private readonly strangers: Budgets;
  private readonly proxies: TrustedProxies;

  constructor({ bounds = BOUNDS, clock, proxies }: SharesOptions) {
    const budgets = ({ calls, bodies, replies }: LoadBound): Budgets => ({
      calls: new FairBudget({ bound: calls, clock }),
      bodies: new FairBudget({ bound: bodies, clock }),
      replies: new FairBudget({ bound: replies, clock }),
    });
    this.devices = budgets(bounds.devices);
    this.strangers = budgets(bounds.strangers);
    this.proxies = proxies;
  }

  /** Every budget by its name. */
  named(): [name: string, budget: FairBudget][] {
    return Object.entries({ device: this.devices, stranger: this.strangers }).flatMap(([whose, budgets]) =>
      Object.entries(budgets).map(([what, budget]): [string, FairBudget] => [`${whose}_${what}`, budget]),
    );
  }

  /** A call without a proven token is a stranger's. */
  of(ctx: Charged): Budgets {
    return ctx.owner === '' ? this.strangers : this.devices;
  }

  /** Something that the call's owner holds; the response has to live still. It costs nothing before it is set. */
  holding(ctx: Charged, giveWay?: () => void): Holding {
    if (ctx.owner !== '') return new Holding(ctx.tenantId, ctx.owner, giveWay);
    const address = this.addressOf(ctx);
    return new Holding(address, address, giveWay);
  }

  /** What limits per address count this client by. A dead response has no peer any more. */
  addressOf(ctx: Charged): string {
    if (ctx.address !== '') return ctx.address;
    const peer = ctx.aborted ? undefined : addressOfPeer(new Uint8Array(ctx.res.getRemoteAddress()));
    ctx.address = peer === undefined ? 'unknown' : limitKey(this.proxies.clientOf(peer, ctx.forwardedFor));
    return ctx.address;
  }

  /** Takes the call's place among those under way, if it has none yet. Throws `rate_limited`, `unavailable`. */
  enter(ctx: Charged): void {
    if (ctx.place !== undefined) return;
    const place = this.holding(ctx);
    const verdict = this.of(ctx).calls.set(place, 1);
    if (verdict !== 'held') throw refusalOf(verdict, 'calls under way');
    ctx.place = place;
  }

  /** Gives the place back. */
  leave(ctx: Charged): void {
    const { place } = ctx;
    if (place === undefined) return;
    ctx.place = undefined;
    this.of(ctx).calls.release(place);
  }

  /** Gives back the room that was reserved for the call's reply. */
  freeRoom(ctx: Charged): void {
    const { room } = ctx;
    if (room === undefined) return;
    ctx.room = undefined;
    this.of(ctx).replies.release(room);
  }
}

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
