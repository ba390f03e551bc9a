/**
 * The HTTP connections of the process. An idle one costs its client nothing and the process a file descriptor. Without
 * a free one the library tries to accept again and again, and the database cannot be reached.
 */
import type { HttpResponse } from 'uWebSockets.js';
import type { Clock } from '../../protocol/clock.js';
import { addressOfPeer, limitKey, type TrustedProxies } from './client-address.js';

/** The part of the room that one address may open in a window while connections are scarce, and the least. */
const ADDRESS_PARTS = 16;
const ADDRESS_MIN = 16;
/** The library closes a connection without a request under way within this time, ms. */
const WINDOW_MS = 12_000;
/** Addresses that are counted in one window; further ones are not. */
const ADDRESSES_MAX = 10_000;

/** Counts HTTP connections, and closes those for which there is no room. */
export class Connections {
  /**
   * More than half of the room is taken. Each reply closes its connection then, so that one that is kept by a request
   * now and then makes room as well.
   */
  scarce = false;
  /** Without those that have become sockets. */
  private open = 0;
  /** How many each address has opened since `windowAt`, ms. */
  private readonly opened = new Map<string, number>();
  private windowAt = -Infinity;
  /** The window in which `onFull` was called last. */
  private fullAt: number | undefined;

  constructor(
    private readonly options: {
      readonly clock: Clock;
      readonly proxies: TrustedProxies;
      /** The number of connections for which there are descriptors; fewer, the more sockets are open. */
      readonly room: () => number;
      /** A connection was closed for want of room: called at most once a window. */
      readonly onFull: (open: number) => void;
    },
  ) {}

  /** The library's filter: a connection was opened (1) or closed (-1), which has no address then. */
  readonly changed = (res: HttpResponse, count: number): void => {
    this.count(count);
    if (count < 0 || !this.scarce || this.accepts(res)) return;
    res.close();
  };

  /** A connection has become a socket, of which the filter is not told again. */
  upgraded(): void {
    this.count(-1);
  }

  private count(change: number): void {
    this.open += change;
    this.scarce = this.open > this.options.room() / 2;
  }

  private accepts(res: HttpResponse): boolean {
    const { clock, proxies, room, onFull } = this.options;
    const now = clock.now();
    if (Math.abs(now - this.windowAt) >= WINDOW_MS) {
      this.windowAt = now;
      this.opened.clear();
    }
    const most = room();
    if (this.open <= most) {
      const peer = addressOfPeer(new Uint8Array(res.getRemoteAddress()));
      // The connections of a proxy are those of all its clients.
      if (peer === undefined || proxies.trusts(peer)) return true;
      const address = limitKey(peer);
      const count = (this.opened.get(address) ?? 0) + 1;
      if (count <= Math.max(ADDRESS_MIN, most / ADDRESS_PARTS)) {
        if (count > 1 || this.opened.size < ADDRESSES_MAX) this.opened.set(address, count);
        return true;
      }
    }
    if (this.fullAt !== this.windowAt) {
      this.fullAt = this.windowAt;
      onFull(this.open);
    }
    return false;
  }
}
