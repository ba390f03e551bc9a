/** A time-out for work that cannot be cancelled. */
import type { Clock } from '../protocol/clock.js';

/** Resolves with `late` where `work` takes longer than `ms`. The work itself is not cancelled. */
export function within<T, L>(clock: Clock, ms: number, work: Promise<T>, late: L): Promise<T | L> {
  return new Promise((resolve, reject) => {
    const timer = clock.setTimer(ms, () => resolve(late));
    work.then(resolve, reject).finally(() => timer.cancel());
  });
}
