/**
 * Closes the sockets of a process, spread over a time and in random order, each with a time to come back (reference,
 * Sockets, Close codes). A stopping server does this within seconds, a draining one within minutes.
 */
import type { Clock, Timer } from '../../protocol/clock.js';
import { CLOSE } from '../../protocol/close-codes.js';
import { retryAfterReason, TAKEN_PER_S } from '../../protocol/retry-after.js';
import type { DeviceSocket } from './device-socket.js';

/** Minimum time between two steps, ms. */
const STEP_MS = 50;
/** Sockets that one step closes at most: a close is a system call, and pushes to the others continue in between. */
const STEP_MAX = 1_000;

interface Departure {
  /** The sockets to be closed, from `at` on. */
  readonly sockets: DeviceSocket[];
  at: number;
  begunAt: number;
  readonly ms: number;
  readonly done: () => void;
}

/** One departure at a time; a second one replaces the first, and continues with the sockets that are left. */
export class Departures {
  private current: Departure | undefined;
  private timer: Timer | undefined;

  constructor(
    private readonly clock: Clock,
    private readonly sockets: () => DeviceSocket[],
    private readonly random = Math.random,
  ) {}

  /**
   * Closes all sockets that are open now with 1012 over `ms`. Resolves when the last was closed, or this was replaced.
   */
  over(ms: number): Promise<void> {
    this.end();
    return new Promise((done) => {
      const sockets = this.sockets().filter((socket) => !socket.closing);
      this.current = { sockets, at: 0, begunAt: this.clock.now(), ms, done };
      this.step(this.current);
    });
  }

  private end(): void {
    this.timer?.cancel();
    this.current?.done();
    this.current = undefined;
  }

  private step(departure: Departure): void {
    const now = this.clock.now();
    // If the clock was set back, the time begins again: nothing would be due until the clock has caught up.
    if (now < departure.begunAt) departure.begunAt = now;
    const { sockets, begunAt, ms } = departure;
    const elapsed = now - begunAt;
    const last = elapsed >= ms;
    const due = last ? sockets.length : (sockets.length * elapsed) / ms;
    for (let looks = STEP_MAX; looks > 0 && departure.at <= due; looks--) {
      const next = sockets[departure.at];
      const drawn = departure.at + Math.floor(this.random() * (sockets.length - departure.at));
      const socket = sockets[drawn];
      if (next === undefined || socket === undefined) break;
      if (!last && replays(socket)) continue;
      sockets[drawn] = next;
      socket.close(CLOSE.restart, retryAfterReason(departure.at / TAKEN_PER_S - elapsed / 1_000));
      departure.at++;
    }
    if (departure.at >= sockets.length) return this.end();
    const next = Math.ceil((departure.at * ms) / sockets.length - elapsed);
    this.timer = this.clock.setTimer(Math.max(STEP_MS, Math.min(next, ms - elapsed)), () => this.step(departure));
  }
}

/** Closed in the middle of a replay, it would have to repeat the page. */
const replays = ({ wire, session }: DeviceSocket): boolean => wire !== undefined && session?.phase.kind === 'replaying';
