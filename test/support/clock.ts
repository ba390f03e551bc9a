/** A clock that stands still until a test turns it. */
import type { Clock, Timer } from '../../src/protocol/clock.js';

interface Pending {
  at: number;
  readonly order: number;
  readonly fn: () => void;
}

/** Time of a test. It starts at the machine's time, so that tokens and certificates of either clock fit together. */
export class TestClock implements Clock {
  private readonly pending = new Set<Pending>();
  private orders = 0;

  constructor(private time = Date.now()) {}

  now(): number {
    return this.time;
  }

  setTimer(ms: number, fn: () => void): Timer {
    const timer: Pending = { at: this.time + Math.max(0, ms), order: this.orders++, fn };
    this.pending.add(timer);
    return { cancel: () => void this.pending.delete(timer) };
  }

  /** Timers that wait. */
  get waiting(): number {
    return this.pending.size;
  }

  /** When the first timer falls due; `Infinity` where none waits. */
  get nextAt(): number {
    return Math.min(...[...this.pending].map(({ at }) => at));
  }

  /** A timer waits that falls due in so many ms. */
  hasTimer(ms: number): boolean {
    return [...this.pending].some(({ at }) => at === this.time + ms);
  }

  /** Moves time by `ms`. What falls due is called in order, each at its own time. */
  advance(ms: number): void {
    const until = this.time + ms;
    for (let next = this.due(until); next !== undefined; next = this.due(until)) {
      this.pending.delete(next);
      this.time = Math.max(this.time, next.at);
      next.fn();
    }
    this.time = until;
  }

  /** Another time is set, as people and machines do; timers wait as long as they would have. */
  setBy(ms: number): void {
    this.time += ms;
    for (const timer of this.pending) timer.at += ms;
  }

  private due(until: number): Pending | undefined {
    let first: Pending | undefined;
    for (const timer of this.pending) {
      if (timer.at > until) continue;
      if (first === undefined || timer.at < first.at || (timer.at === first.at && timer.order < first.order))
        first = timer;
    }
    return first;
  }
}

/**
 * Real time, set forward by a test: for servers that must go on living (their short timers run), while what they
 * compare with `now()` grows old. Timers are those of the machine and are not hurried.
 */
export class ShiftedClock implements Clock {
  private shift = 0;

  now(): number {
    return Date.now() + this.shift;
  }

  setTimer(ms: number, fn: () => void): Timer {
    const timer = setTimeout(fn, ms);
    return { cancel: () => clearTimeout(timer) };
  }

  /** Makes it `ms` later. */
  advance(ms: number): void {
    this.shift += ms;
  }
}
