/** What sockets were sent and their readers have not taken: bytes in the library's buffers, for whom, and who gives way. */
import type { Clock, Timer } from '../../protocol/clock.js';
import { FairBudget, Holding } from '../http/limits.js';

/** What the library holds for one socket. There is one only while that is something. */
export class Unsent extends Holding {
  /** What the socket is closed with once its reader has taken what is held; undefined: it stays open. */
  closing: { readonly code: number; readonly reason: string; readonly timer: Timer } | undefined;
}

/** Shared by all sockets of the process. */
export class SocketRoom {
  readonly budget: FairBudget;

  constructor(
    readonly clock: Clock,
    bound: number,
  ) {
    this.budget = new FairBudget({ bound, clock });
  }
}
