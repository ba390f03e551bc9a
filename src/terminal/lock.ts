/** Waiting for a lock that another process holds (see `files/lock.ts`). */
import { tryLock, type FileLock } from '../files/lock.js';
import { delay, systemClock, type Clock } from '../protocol/clock.js';
import { endInterrupted } from './terminal.js';

/** How a lock is waited for. */
export interface Patience {
  readonly clock: Clock;
  /** How long; then the attempt ends with `refusal`. */
  readonly patienceMs: number;
  /** `heldBy`: process id of who holds it; undefined where nobody can say. */
  readonly refusal: (heldBy: number | undefined) => Error;
  readonly lookEveryMs?: number;
  /** Ends the waiting with `CommandError` `interrupted`. */
  readonly signal?: AbortSignal;
  /** Told before each look but the first: how long it was waited. */
  readonly onWait?: (ms: number) => void;
  /** See `tryLock`. */
  readonly onLost?: () => void;
}

const LOOK_EVERY_MS = 50;
/** What is done under a lock that is held for so long takes milliseconds: whoever has it was stopped in the middle. */
const BRIEFLY_MS = 30_000;

/** Holds the lock `path`, in a folder that exists. */
export async function heldLock(path: string, patience: Patience): Promise<FileLock> {
  const { clock, patienceMs, refusal, lookEveryMs = LOOK_EVERY_MS, signal, onWait, onLost } = patience;
  const began = clock.now();
  for (;;) {
    const attempt = tryLock(path, onLost === undefined ? {} : { onLost });
    if ('lock' in attempt) return attempt.lock;
    const waited = clock.now() - began;
    if (waited >= patienceMs) throw refusal(attempt.heldBy);
    onWait?.(waited);
    await delay(clock, lookEveryMs, signal).catch(endInterrupted);
  }
}

/** Runs `work` of milliseconds while no other process holds the lock. The folder exists. */
export async function underLock<T>(path: string, refusal: () => Error, work: () => Promise<T>): Promise<T> {
  const lock = await heldLock(path, { clock: systemClock, patienceMs: BRIEFLY_MS, refusal });
  return work().finally(() => lock.release());
}
