/**
 * The HTTP connections of the process. An idle one costs its client nothing and the process a file descriptor. Without
 * a free one the library tries to accept again and again, and the database cannot be reached.
 */
import type { HttpResponse } from 'uWebSockets.js';
import { atMostEvery, type Clock } from '../../protocol/clock.js';
import { rateLimited, type ServiceError } from '../../protocol/errors.js';
import { networkOf } from './address-limits.js';
import { addressOfPeer, limitKey, type TrustedProxies } from './client-address.js';
import type { Log } from './ports.js';

/** The part of the room that one address may use in a window while connections are scarce, and the least. */
const ADDRESS_PARTS = 16;
const ADDRESS_MIN = 16;
/** A network (IPv4 /24, IPv6 /48) may use this many times as much. */
const NETWORK_TIMES = 4;
/** The library closes a connection without a request under way within this time, ms. */
const WINDOW_MS = 12_000;
/** Addresses and networks that are counted in one window; further ones share one count. */
const KEYS_MAX = 20_000;

/** Counts HTTP connections, and closes those for which there is no room. */
export class Connections {
  /**
   * More than half of the room is taken. Connections that are opened, and requests that keep them, count towards the
   * share of their address then: so it holds no more than its share, since one without a request ends.
   */
  scarce = false;
  /** Without those that have become sockets. */
  private open = 0;
  /** What each address and network has used in this window. */
  private readonly used = new Map<string, number>();
  private readonly beginsWindow: () => boolean;
  private readonly mayLog: () => boolean;

  constructor(
    private readonly options: {
      readonly clock: Clock;
      readonly log: Log;
      readonly proxies: TrustedProxies;
      /** The number of connections for which there are descriptors; fewer, the more sockets are open. */
      readonly room: () => number;
      /** No descriptor is left for a new connection. The requests on those that are open need none. */
      readonly isExhausted: () => boolean;
    },
  ) {
    this.beginsWindow = atMostEvery(options.clock, WINDOW_MS);
    this.mayLog = atMostEvery(options.clock, WINDOW_MS);
  }

  /** The library's filter: a connection was opened (1) or closed (-1), which has no address then. */
  readonly changed = (res: HttpResponse, count: number): void => {
    this.count(count);
    if (count < 0) return;
    const { room, isExhausted } = this.options;
    const isFull = isExhausted() || (this.scarce && this.open > room());
    if (!isFull && (!this.scarce || this.takes(res))) return;
    const why = isFull ? 'all file descriptors for them are taken' : 'they are scarce, and an address has its share';
    if (this.mayLog()) this.options.log.warn({ open: this.open }, `HTTP connections are closed: ${why}`);
    res.close();
  };

  /** A connection has become a socket; the library does not call the filter when that closes. */
  upgraded(): void {
    this.count(-1);
  }

  /** Why a request is not taken while connections are scarce; undefined: it is. */
  refusalOf(res: HttpResponse): ServiceError | undefined {
    return this.takes(res) ? undefined : rateLimited('connections are scarce', WINDOW_MS / 1_000);
  }

  private count(change: number): void {
    this.open += change;
    this.scarce = this.open > this.options.room() / 2;
  }

  /** Counts one connection or request. False: its address or network has had its share. */
  private takes(res: HttpResponse): boolean {
    const { proxies, room } = this.options;
    const peer = addressOfPeer(res.getRemoteAddress());
    // The connections of a proxy are those of all its clients.
    if (peer === undefined || proxies.trusts(peer)) return true;
    if (this.beginsWindow()) this.used.clear();
    const share = Math.max(ADDRESS_MIN, room() / ADDRESS_PARTS);
    const address = limitKey(peer);
    return this.uses(address, share) && this.uses(networkOf(address), NETWORK_TIMES * share);
  }

  private uses(name: string, most: number): boolean {
    const key = this.used.size < KEYS_MAX || this.used.has(name) ? name : '';
    const count = (this.used.get(key) ?? 0) + 1;
    this.used.set(key, count);
    return count <= most;
  }
}
