/**
 * One process at a time works on a profile. A lock is a file that names its holder and is touched while it is held, so
 * that one whose holder was killed is taken over: at once where the process is gone, after a while where another
 * process has got its number. The store beneath has a lock of its own, which the system releases; this one is what lets
 * the next command wait instead of fail.
 */
import { randomBytes } from 'node:crypto';
import { closeSync, openSync, readFileSync, renameSync, rmSync, statSync, utimesSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { delay } from '../../client/platform.js';
import type { Clock } from '../../protocol/clock.js';
import { errorCode } from '../../protocol/error-code.js';
import { privateFolder } from './private-file.js';
import { CommandError, EXIT } from './terminal.js';

/** Its name in a profile's folder. */
export const LOCK_FILE = 'lock';
const LOOK_EVERY_MS = 100;
const TOUCH_EVERY_MS = 2_000;
/** A holder that lives touches its lock long before. */
const ABANDONED_AFTER_MS = 20_000;
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
  const path = join(folder, LOCK_FILE);
  const owner = `${process.pid} ${randomBytes(8).toString('hex')}`;
  await acquired(path, owner, options);
  const touching = setInterval(() => touch(path), TOUCH_EVERY_MS);
  touching.unref();
  try {
    return await work();
  } finally {
    clearInterval(touching);
    if (holder(path) === owner) rmSync(path, { force: true });
  }
}

async function acquired(path: string, owner: string, options: LockOptions): Promise<void> {
  const { clock, signal, progress, patienceMs = PATIENCE_MS } = options;
  const began = clock.now();
  let told = false;
  while (!taken(path, owner)) {
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
  if (told) progress('');
}

/** One attempt, without a pause in it: what is decided here on a lock's content holds until it is acted on. */
function taken(path: string, owner: string): boolean {
  if (created(path, owner)) return true;
  const found = holder(path);
  if (found === undefined || !isAbandoned(path, found)) return false;
  // Whoever moves it away owns what was moved: if that is another lock than the abandoned one, it goes back.
  const aside = `${path}.${owner.replace(' ', '.')}`;
  try {
    renameSync(path, aside);
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return false;
    throw error;
  }
  if (holder(aside) !== found) renameSync(aside, path);
  else rmSync(aside, { force: true });
  return created(path, owner);
}

function created(path: string, owner: string): boolean {
  let file: number;
  try {
    file = openSync(path, 'wx', 0o600);
  } catch (error) {
    if (errorCode(error) === 'EEXIST') return false;
    throw error;
  }
  try {
    writeSync(file, owner);
  } finally {
    closeSync(file);
  }
  return true;
}

function holder(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw error;
  }
}

function isAbandoned(path: string, found: string): boolean {
  const age = ageOf(path);
  if (age === undefined) return false;
  if (age > ABANDONED_AFTER_MS) return true;
  const pid = Number(found.split(' ')[0]);
  // Not written yet: its owner is at it, or died between two system calls and is found by age.
  if (!Number.isSafeInteger(pid) || pid <= 0) return false;
  try {
    process.kill(pid, 0);
    return false;
  } catch (error) {
    return errorCode(error) === 'ESRCH';
  }
}

/** By the file system's clock and this machine's, which are one; not the device's, which tests set. */
function ageOf(path: string): number | undefined {
  try {
    return Date.now() - statSync(path).mtimeMs;
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw error;
  }
}

function touch(path: string): void {
  try {
    const now = new Date();
    utimesSync(path, now, now);
  } catch {
    // Taken away by hand, or a full or read-only disk: the work goes on, and another command may then begin its own.
  }
}
