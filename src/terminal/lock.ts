/** Waiting for a lock that another process holds (see `files/lock.ts`). */
import { tryLock, type FileLock } from '../files/lock.js';
import { delay, monotonic, systemClock, type Clock } from '../protocol/clock.js';
import { endInterrupted } from './terminal.js';

export interface LockOptions {
  /** The error after the time-out. `heldBy`: process id of the holder, where it is known. */
  readonly refusal: (heldBy: number | undefined) => Error;
  readonly clock?: Clock;
  readonly timeoutMs?: number;
  /** Ends the wait with `CommandError` `interrupted`. */
  readonly signal?: AbortSignal;
  /** Called before each retry with the time waited so far. */
  readonly onWait?: (ms: number) => void;
  /** See `tryLock`. */
  readonly onLost?: () => void;
}

const RETRY_EVERY_MS = 50;
/** Locks are held for moments or for one command: a holder that takes longer is stopped or stuck. */
const TIMEOUT_MS = 30_000;

/** Acquires the lock `path`, whose folder exists. */
export async function waitForLock(path: string, options: LockOptions): Promise<FileLock> {
  const { refusal, clock = systemClock, timeoutMs = TIMEOUT_MS, signal, onWait, onLost } = options;
  const now = monotonic(clock);
  const began = now();
  for (;;) {
    const attempt = tryLock(path, { onLost });
    if ('lock' in attempt) return attempt.lock;
    const waited = now() - began;
    if (waited >= timeoutMs) throw refusal(attempt.heldBy);
    onWait?.(waited);
    await delay(clock, RETRY_EVERY_MS, signal).catch(endInterrupted);
  }
}

export async function withFileLock<T>(path: string, options: LockOptions, work: () => Promise<T>): Promise<T> {
  const lock = await waitForLock(path, options);
  return work().finally(() => lock.release());
}
