/** Time as a thing that is handed in, so that tests can turn it. */

export interface Timer {
  cancel(): void;
}

export interface Clock {
  /** Milliseconds since 1970. */
  now(): number;
  /** Calls `fn` once, after `ms` milliseconds. */
  setTimer(ms: number, fn: () => void): Timer;
}

/** The machine's own clock. */
export const systemClock: Clock = {
  now: () => Date.now(),
  setTimer(ms, fn) {
    const timer = setTimeout(fn, ms);
    return { cancel: () => clearTimeout(timer) };
  },
};
