/**
 * One process at a time works on a profile. The store beneath has a lock of its own, which the system releases; this one
 * is what lets the next command wait instead of fail.
 */
import { join } from 'node:path';
import { heldLock } from '../terminal/lock.js';
import { privateFolder } from '../files/private.js';
import type { Clock } from '../protocol/clock.js';
import { CommandError, EXIT } from '../terminal/terminal.js';

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
}

/**
 * Runs `work` while nobody else works on the folder, which is made where it is missing. Throws `CommandError` with code
 * `busy` where another process does not finish in time, `interrupted` where the user gives up first.
 */
export async function exclusively<T>(folder: string, options: LockOptions, work: () => Promise<T>): Promise<T> {
  const { clock, signal, progress } = options;
  await privateFolder(folder, () => undefined);
  let told = false;
  const lock = await heldLock(join(folder, LOCK_FILE), {
    ...{ clock, patienceMs: PATIENCE_MS, signal, lookEveryMs: LOOK_EVERY_MS },
    refusal: () => new CommandError(EXIT.unavailable, 'another command is at work with this profile', WAIT, BUSY),
    onWait: (ms) => {
      if (ms < TELL_AFTER_MS) return;
      progress('Waiting for another command of this profile to finish ...');
      told = true;
    },
  }).finally(() => {
    if (told) progress('');
  });
  return work().finally(() => lock.release());
}

const WAIT = 'Wait for it to end, or use another profile (--profile NAME).';
const BUSY = { code: 'busy' };
