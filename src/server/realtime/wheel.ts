/**
 * Time for very many sockets with one timer. The interval is cut into slots; a socket sits in one of them and is
 * visited once per interval, so that heartbeats are spread and never come all at once (reference, Sockets).
 * What falls due between two visits is looked at in the tick it falls due in.
 */
import type { Clock, Timer } from '../../protocol/clock.js';

/** What can sit in a wheel. The fields belong to the wheel. An item that left does not come back. */
export interface TimerEntry {
  slot: number;
  index: number;
  /** True while a tick is noted in which to look at the item again: one at a time, or the notes would pile up. */
  noted: boolean;
}

/** The slot of an item that sits nowhere. */
export const NO_SLOT = -1;

/** How a wheel turns, and what it asks and tells. */

export interface TimerWheelOptions<T> {
  readonly clock: Clock;
  readonly intervalMs: number;
  /** When something falls due for the item, ms since 1970; Infinity for never. It may move later, never earlier. */
  readonly dueAt: (item: T) => number;
  /** Something is due. */
  readonly due: (item: T, now: number) => void;
  /** The item's regular visit. */
  readonly beat: (item: T) => void;
  /** The process did not run for a while: what peers sent meanwhile has not been read yet. */
  readonly stalled: (now: number) => void;
}

const SLOTS_MAX = 300;
const TICK_MIN_MS = 10;
/** A tick that comes this late, ms, is a stall: peers may have answered long ago. */
const STALL_MS = 1_000;

const lists = <T>(count: number): T[][] => Array.from({ length: count }, () => []);

/** The wheel: items come and go at any time, and each is visited once an interval. */
export class TimerWheel<T extends TimerEntry> {
  private readonly seats: T[][];
  /** Items to look at again in the tick of the slot: at most one entry for each, besides those that have left. */
  private readonly dues: T[][];
  private readonly tickMs: number;
  private at = 0;
  private nextSlot = 0;
  private nextAt = 0;
  private timer: Timer | undefined;
  private stopped = false;
  /** Items that sit in it. */
  size = 0;

  constructor(private readonly options: TimerWheelOptions<T>) {
    const slots = Math.max(1, Math.min(SLOTS_MAX, Math.floor(options.intervalMs / TICK_MIN_MS)));
    this.seats = lists(slots);
    this.dues = lists(slots);
    this.tickMs = options.intervalMs / slots;
  }

  /** Seats an item; its first visit comes within one interval. */
  add(item: T): void {
    const now = this.options.clock.now();
    this.nextSlot = (this.nextSlot + 1) % this.seats.length;
    const seat = this.seats[this.nextSlot] ?? [];
    item.slot = this.nextSlot;
    item.index = seat.push(item) - 1;
    this.size++;
    this.lookAgain(item, now);
    if (this.timer !== undefined || this.stopped) return;
    this.nextAt = now + this.tickMs;
    this.arm(now);
  }

  /** Takes an item out; one that sits nowhere is left alone. */
  remove(item: T): void {
    const seat = this.seats[item.slot];
    const last = seat?.pop();
    if (seat === undefined || last === undefined) return;
    if (last !== item) {
      seat[item.index] = last;
      last.index = item.index;
    }
    item.slot = NO_SLOT;
    this.size--;
  }

  /** All items, in no order. */
  items(): T[] {
    return this.seats.flat();
  }

  /** Ends all visits for good. */
  stop(): void {
    this.stopped = true;
    this.timer?.cancel();
    this.timer = undefined;
  }

  private arm(now: number): void {
    this.timer = this.options.clock.setTimer(Math.max(0, this.nextAt - now), () => this.tick());
  }

  private tick(): void {
    this.timer = undefined;
    const now = this.options.clock.now();
    if (now - this.nextAt > STALL_MS) this.options.stalled(now);
    // After a stall the slots that were missed are made up for, but no slot twice.
    for (let turn = 0; turn < this.seats.length && this.nextAt <= now; turn++) {
      this.nextAt += this.tickMs;
      this.at = (this.at + 1) % this.seats.length;
      this.visit(now);
    }
    if (this.nextAt <= now) this.nextAt = now + this.tickMs;
    if (this.size > 0 && !this.stopped) this.arm(now);
  }

  private visit(now: number): void {
    const dues = this.dues[this.at] ?? [];
    this.dues[this.at] = [];
    for (const item of dues) {
      item.noted = false;
      if (item.slot !== NO_SLOT) this.lookAgain(item, now);
    }
    const seat = this.seats[this.at] ?? [];
    // From the end: an item that leaves is replaced by the last one, which had its turn.
    for (let index = seat.length - 1; index >= 0; index--) {
      const item = seat[index];
      if (item !== undefined && this.lookAgain(item, now)) this.options.beat(item);
    }
  }

  /** Acts on what is due, or notes the tick in which to look again. False when the item is gone after that. */
  private lookAgain(item: T, now: number): boolean {
    const wait = this.options.dueAt(item) - now;
    if (wait <= 0) {
      this.options.due(item, now);
      return item.slot !== NO_SLOT;
    }
    const slots = this.seats.length;
    // Later than one round: the regular visits come first. A note that stands is early enough.
    if (wait <= this.options.intervalMs && !item.noted) {
      const ticks = Math.min(slots, Math.max(1, Math.ceil(wait / this.tickMs)));
      this.dues[(this.at + ticks) % slots]?.push(item);
      item.noted = true;
    }
    return true;
  }
}
