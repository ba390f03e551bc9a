/**
 * A timer wheel: deadlines of very many sockets with one timer. The interval is divided into slots. A socket is in one
 * of them and is visited once per interval, which spreads the heartbeats (reference, Sockets). A deadline between two
 * visits is checked in its tick.
 */
import type { Clock, Timer } from '../../protocol/clock.js';

/** The slot of an entry that is in no wheel. */
export const NO_SLOT = -1;

/** An entry of a wheel. The wheel owns these fields. A removed entry must not be added again. */
export class TimerEntry {
  slot = NO_SLOT;
  index = 0;
  /** It is in `dues` of some slot; at most once, otherwise the lists would grow without bound. */
  noted = false;
}

const SLOTS_MAX = 300;
/** Visits of one interval are grouped into this many ticks: waking a process for a few costs as much as for many. */
const VISITS_MAX = 30;
const TICK_MIN_MS = 10;
/** A wake this late, ms, is a stall: answers of peers may have arrived without being read. */
const STALL_MS = 1_000;
/** Longest sleep, ms: a stall during a longer one would not be detected. */
const SLEEP_MAX_MS = 500;

const lists = <T>(count: number): T[][] => Array.from({ length: count }, () => []);

/** Entries may be added and removed at any time; each is visited once per interval. */
export class TimerWheel<T extends TimerEntry> {
  private readonly slots: T[][];
  /** Entries to check again in the tick of the slot: each is in at most one list; removed ones stay until then. */
  private readonly dues: T[][];
  private readonly tickMs: number;
  /** Distance between two slots with entries. */
  private readonly stride: number;
  private at = 0;
  private nextSlot = 0;
  /** The time of the slot after `at`. */
  private nextAt = 0;
  /** Number of slots after `at` without an entry, which are skipped; and (`wakeAt`) the time of the wake after them. */
  private asleep = 0;
  private wakeAt = 0;
  private timer: Timer | undefined;
  private stopped = false;
  size = 0;

  constructor(
    private readonly options: {
      readonly clock: Clock;
      readonly intervalMs: number;
      /**
       * The next deadline of the entry, ms since 1970; Infinity for none. It may become later at any time, and earlier only
       * in a regular visit.
       */
      readonly dueAt: (item: T) => number;
      /** The deadline has passed. */
      readonly due: (item: T, now: number) => void;
      /** The regular visit. */
      readonly beat: (item: T, now: number) => void;
      /** The process did not run for a while: data that peers sent meanwhile has not been read yet. */
      readonly stalled: (now: number) => void;
    },
  ) {
    const slots = Math.max(1, Math.min(SLOTS_MAX, Math.floor(options.intervalMs / TICK_MIN_MS)));
    this.slots = lists(slots);
    this.dues = lists(slots);
    this.tickMs = options.intervalMs / slots;
    this.stride = Math.max(1, Math.floor(slots / VISITS_MAX));
  }

  /** Adds an entry; its first visit is within one interval. */
  add(item: T): void {
    const now = this.options.clock.now();
    const slots = this.slots.length;
    this.skip(now);
    this.nextSlot = (this.nextSlot + this.stride) % slots;
    const slot = this.slots[this.nextSlot] ?? [];
    item.slot = this.nextSlot;
    item.index = slot.push(item) - 1;
    this.size++;
    this.wakeIn((this.nextSlot - this.at + slots) % slots || slots, now);
    this.check(item, now);
    if (this.timer !== undefined || this.stopped) return;
    this.nextAt = now + this.tickMs;
    this.arm(now);
  }

  /** Removes an entry; does nothing for one that is in no slot. */
  remove(item: T): void {
    const slot = this.slots[item.slot];
    const last = slot?.pop();
    if (slot === undefined || last === undefined) return;
    if (last !== item) {
      slot[item.index] = last;
      last.index = item.index;
    }
    item.slot = NO_SLOT;
    this.size--;
  }

  /** All entries, in no particular order. */
  items(): T[] {
    return this.slots.flat();
  }

  /** Stops the timer for good. */
  stop(): void {
    this.stopped = true;
    this.timer?.cancel();
    this.timer = undefined;
  }

  /** Skips slots without an entry: waking for nothing would be a twentieth of the cost of idle sockets. */
  private arm(now: number): void {
    const { slots, dues } = this;
    const isEmpty = (slot: number): boolean => slots[slot]?.length === 0 && dues[slot]?.length === 0;
    const most = Math.min(slots.length - 1, Math.floor(SLEEP_MAX_MS / this.tickMs));
    let empty = 0;
    while (empty < most && isEmpty((this.at + 1 + empty) % slots.length)) empty++;
    this.asleep = empty;
    // Bounded, since the clock may have been set back after `nextAt` was computed.
    const wait = Math.min((empty + 1) * this.tickMs, Math.max(0, this.nextAt + empty * this.tickMs - now));
    this.wakeAt = now + wait;
    this.timer?.cancel();
    this.timer = this.options.clock.setTimer(wait, () => this.tick());
  }

  private step(): void {
    this.nextAt += this.tickMs;
    this.at = (this.at + 1) % this.slots.length;
  }

  /** Advances past the empty slots whose time has passed. */
  private skip(now: number): void {
    for (; this.timer !== undefined && this.asleep > 0 && this.nextAt <= now; this.asleep--) this.step();
  }

  /** An entry is due in this many ticks: the timer must not sleep longer. */
  private wakeIn(ticks: number, now: number): void {
    if (this.timer !== undefined && ticks <= this.asleep) this.arm(now);
  }

  private tick(): void {
    this.timer = undefined;
    const now = this.options.clock.now();
    if (now - this.wakeAt > STALL_MS) this.options.stalled(now);
    // Counts by the timer, whatever the clock says; after a stall the missed slots are visited too, each once.
    for (let turn = 0; turn < this.slots.length && (turn <= this.asleep || this.nextAt <= now); turn++) {
      this.step();
      this.visit(now);
    }
    if (this.nextAt <= now || this.nextAt > now + this.tickMs) this.nextAt = now + this.tickMs;
    if (this.size > 0 && !this.stopped) this.arm(now);
  }

  private visit(now: number): void {
    const dues = this.dues[this.at] ?? [];
    this.dues[this.at] = [];
    for (const item of dues) {
      item.noted = false;
      if (item.slot !== NO_SLOT) this.check(item, now);
    }
    const slot = this.slots[this.at] ?? [];
    // Backwards: a removed entry is replaced by the last one, which was already visited.
    for (let index = slot.length - 1; index >= 0; index--) {
      const item = slot[index];
      if (item !== undefined && this.check(item, now)) this.options.beat(item, now);
    }
  }

  /** Calls `due` after the deadline, or notes the tick in which to check again. False if the entry was removed. */
  private check(item: T, now: number): boolean {
    const wait = this.options.dueAt(item) - now;
    if (wait <= 0) {
      this.options.due(item, now);
      return item.slot !== NO_SLOT;
    }
    const slots = this.slots.length;
    // Beyond one interval the regular visit comes first. An entry already noted is noted early enough.
    if (wait <= this.options.intervalMs && !item.noted) {
      const ticks = Math.min(slots, Math.max(1, Math.ceil(wait / this.tickMs)));
      this.dues[(this.at + ticks) % slots]?.push(item);
      item.noted = true;
      this.wakeIn(ticks, now);
    }
    return true;
  }
}
