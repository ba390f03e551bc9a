/** How long a device stays away after it lost its connection (reference, Sockets). */
import { CLOSE } from '../protocol/close-codes.js';
import { backoffMs, namedWaitMs, RECONNECT, type Random } from './platform.js';

/** Backoff against an overloaded server starts as if this many attempts had failed. */
const OVERLOADED_ATTEMPTS = 3;
/** After a restart of the server without a named time, its devices spread their reconnects over this time, ms. */
const RESTART_SPREAD_MS = 3_000;

/** The waits of one device between its connections. */
export class ReconnectBackoff {
  private attempt = 0;

  constructor(private readonly random: Random) {}

  /** The connection was stable: the next wait is a first one. */
  reset(): void {
    this.attempt = 0;
  }

  /**
   * The wait before the next attempt, ms, with jitter. It is at least the backoff, so that a server that always names one
   * second does not get a request every second.
   *
   * @param code The close code; 0 if the connection was not closed by the server.
   * @param askedMs The wait that the server named; 0: it named none.
   */
  waitMs(code: number, askedMs: number): number {
    // Too many frames: this side has to slow down, as for an overloaded server.
    if ((code === CLOSE.overloaded && askedMs === 0) || code === CLOSE.tooMuch)
      this.attempt = Math.max(this.attempt, OVERLOADED_ATTEMPTS);
    const spreadMs = code === CLOSE.restart && askedMs === 0 ? Math.round(this.random() * RESTART_SPREAD_MS) : 0;
    const backoff = backoffMs(this.attempt++, RECONNECT, this.random);
    return Math.max(backoff, spreadMs, namedWaitMs(askedMs, this.random));
  }
}
