/** An injectable clock, so that tests control time. */

export const MINUTE_MS = 60_000;
export const HOUR_MS = 60 * MINUTE_MS;
export const DAY_MS = 24 * HOUR_MS;

export interface Timer {
  cancel(): void;
}

export interface Clock {
  /** Milliseconds since 1970. */
  now(): number;
  /** Calls `fn` once, after `ms` milliseconds. */
  setTimer(ms: number, fn: () => void): Timer;
}

export const systemClock: Clock = {
  now: Date.now,
  setTimer(ms, fn) {
    const timer = setTimeout(fn, ms);
    return { cancel: () => clearTimeout(timer) };
  },
};

/**
 * Returns a reading of the clock for waits and deadlines, ms: what a clock that is set back takes away is added, else they
 * would last that much longer. Time since the last reading is lost then, so that a wait lasts twice as long at most. A jump
 * ahead counts: after a sleep the time has passed.
 */
export function monotonic(clock: Pick<Clock, 'now'>): () => number {
  let last = clock.now();
  let setBack = 0;
  return () => {
    const now = clock.now();
    setBack += Math.max(0, last - now);
    last = now;
    return now + setBack;
  };
}

/** Calls `fn` every `ms` milliseconds until it is cancelled, which `fn` may do: the next call is set before each. */
export function every(clock: Clock, ms: number, fn: () => void): Timer {
  let timer: Timer;
  const next = (): void => {
    timer = clock.setTimer(ms, () => {
      next();
      fn();
    });
  };
  next();
  return { cancel: () => timer.cancel() };
}

/** Returns a function that is true at most once in `ms`; if the clock was set back it is not delayed by that. */
export function atMostEvery(clock: Pick<Clock, 'now'>, ms: number): () => boolean {
  let last = -Infinity;
  return () => {
    const now = clock.now();
    const isDue = Math.abs(now - last) >= ms;
    if (isDue) last = now;
    return isDue;
  };
}

/** Waits `ms`; rejects with the signal's reason if it is aborted first. */
export function delay(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted === true) return reject(abortReason(signal));
    const aborted = (): void => {
      timer.cancel();
      reject(abortReason(signal));
    };
    const timer = clock.setTimer(ms, () => {
      signal?.removeEventListener('abort', aborted);
      resolve();
    });
    signal?.addEventListener('abort', aborted, { once: true });
  });
}

/** Resolves with `late` if `work` takes longer than `ms`. The work itself is not cancelled. */
export async function within<T, L>(clock: Clock, ms: number, work: Promise<T>, late: L): Promise<T | L> {
  let timer: Timer | undefined;
  const overdue = new Promise<L>((resolve) => {
    timer = clock.setTimer(ms, () => resolve(late));
  });
  try {
    return await Promise.race([work, overdue]);
  } finally {
    timer?.cancel();
  }
}

const abortReason = (signal: AbortSignal | undefined): Error =>
  signal?.reason instanceof Error ? signal.reason : new Error('aborted');
