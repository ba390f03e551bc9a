/** What callers hold of the process: calls under way, bodies and replies. Devices have budgets of their own. */
import type { Clock } from '../protocol/clock.js';
import { addressOfPeer, limitKey, type TrustedProxies } from './client-address.js';
import { FairBudget, Holding, refusalOf } from './fair-budget.js';
import type { LoadBound, LoadBounds } from './ports.js';
import type { Call } from './request.js';

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
  of(call: Call): Budgets {
    return call.owner === '' ? this.strangers : this.devices;
  }

  /** Something that the call's owner holds; the response has to live still. It costs nothing before it is set. */
  holding(call: Call, giveWay?: () => void): Holding {
    if (call.owner !== '') return new Holding(call.tenantId, call.owner, giveWay);
    const address = this.addressOf(call);
    return new Holding(address, address, giveWay);
  }

  /** What limits per address count this client by. A dead response has no peer any more. */
  addressOf(call: Call): string {
    if (call.address !== '') return call.address;
    const peer = call.aborted ? undefined : addressOfPeer(new Uint8Array(call.res.getRemoteAddress()));
    call.address = peer === undefined ? 'unknown' : limitKey(this.proxies.clientOf(peer, call.forwardedFor));
    return call.address;
  }

  /** Takes the call's place among those under way, if it has none yet. Throws `rate_limited`, `unavailable`. */
  enter(call: Call): void {
    if (call.place !== undefined) return;
    const place = this.holding(call);
    const verdict = this.of(call).calls.set(place, 1);
    if (verdict !== 'held') throw refusalOf(verdict, 'calls under way');
    call.place = place;
  }

  /** Gives the place back. */
  leave(call: Call): void {
    const { place } = call;
    if (place === undefined) return;
    call.place = undefined;
    this.of(call).calls.release(place);
  }

  /** Gives back the room that was reserved for the call's reply. */
  freeRoom(call: Call): void {
    const { room } = call;
    if (room === undefined) return;
    call.room = undefined;
    this.of(call).replies.release(room);
  }
}
