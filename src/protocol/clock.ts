/** Time as a thing that is handed in, so that tests can turn it. */

/** Something that is waited for. */
export interface Timer {
  cancel(): void;
}

/** The time, and waiting for it. */
export interface Clock {
  /** Milliseconds since 1970. */
  now(): number;
  /** Calls `fn` once, after `ms` milliseconds. */
  setTimer(ms: number, fn: () => void): Timer;
}

/** The machine's own clock. */
export const systemClock: Clock = {
  now: Date.now,
  setTimer(ms, fn) {
    const timer = setTimeout(fn, ms);
    return { cancel: () => clearTimeout(timer) };
  },
};
