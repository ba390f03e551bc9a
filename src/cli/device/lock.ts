/**
 * One process at a time works on a profile. The store beneath has a lock of its own, which the system releases; this one
 * is what lets the next command wait instead of fail.
 */
import { join } from 'node:path';
import { delay } from '../../client/platform.js';
import { tryLock, type FileLock } from '../../files/lock.js';
import { privateFolder } from '../../files/private.js';
import type { Clock } from '../../protocol/clock.js';
import { CommandError, EXIT } from './terminal.js';

/** Its name in a profile's folder. */
export const LOCK_FILE = 'lock';
const LOOK_EVERY_MS = 100;
/** How long a command waits for another one. */
const PATIENCE_MS = 30_000;
/** Waiting this long is worth a word. */
const TELL_AFTER_MS = 1_000;

/** How a lock is waited for. */
export interface LockOptions {
  readonly clock: Clock;
  readonly signal: AbortSignal;
  /** Tells that another command is waited for; an empty text ends that. */
  readonly progress: (text: string) => void;
  readonly patienceMs?: number;
}

/**
 * Runs `work` while nobody else works on the folder, which is made where it is missing. Throws `CommandError` with code
 * `busy` where another process does not finish in time, `interrupted` where the user gives up first.
 */
export async function exclusively<T>(folder: string, options: LockOptions, work: () => Promise<T>): Promise<T> {
  await privateFolder(folder, () => undefined);
  const lock = await acquired(join(folder, LOCK_FILE), options);
  try {
    return await work();
  } finally {
    lock.release();
  }
}

async function acquired(path: string, options: LockOptions): Promise<FileLock> {
  const { clock, signal, progress, patienceMs = PATIENCE_MS } = options;
  const began = clock.now();
  let told = false;
  for (;;) {
    const attempt = tryLock(path);
    if ('lock' in attempt) {
      if (told) progress('');
      return attempt.lock;
    }
    const waited = clock.now() - began;
    if (waited >= patienceMs) {
      progress('');
      throw new CommandError(
        EXIT.unavailable,
        'another command is at work with this profile',
        'Wait for it to end, or use another profile (--profile NAME).',
        { code: 'busy' },
      );
    }
    if (waited >= TELL_AFTER_MS) {
      progress('Waiting for another command of this profile to finish ...');
      told = true;
    }
    await delay(clock, LOOK_EVERY_MS, signal).catch((cause: unknown) => {
      throw new CommandError(EXIT.interrupted, 'interrupted', undefined, { cause });
    });
  }
}
