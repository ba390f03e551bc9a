/**
 * One process at a time, by a file that names its holder and is touched while it is held, so that one whose holder was
 * killed is taken over: at once where the process is gone, after a while where another process has got its number.
 * Who waits for it, and for how long, is its user's affair.
 */
import { randomBytes } from 'node:crypto';
import { closeSync, openSync, readFileSync, renameSync, rmSync, statSync, utimesSync, writeSync } from 'node:fs';
import { errorCode } from '../protocol/error-code.js';
import { FILE_MODE } from './durable.js';

const TOUCH_EVERY_MS = 2_000;
/** A holder that lives touches its lock long before. */
const ABANDONED_AFTER_MS = 20_000;
/**
 * The same for a lock with this process's own number that is not its own: in a container that was started anew every
 * program has the number that it had, so its holder is most likely gone, but it may live in another container.
 */
const OWN_NUMBER_AFTER_MS = 5_000;

/** What this process holds. */
const own = new Set<string>();

/** A lock that this process holds. */
export interface FileLock {
  /** Gives it back. A lock that another process has meanwhile stays theirs. */
  release(): void;
}

/** What became of an attempt. `pid`: of who holds it; undefined where the file does not say. */
export type Attempt = { readonly lock: FileLock } | { readonly heldBy: number | undefined };

/** How a lock is held. */
export interface LockOptions {
  /** Told once when another process has taken it over, which happens where this one was stopped for long (a machine that slept). */
  readonly onLost?: () => void;
  readonly touchEveryMs?: number;
}

/** One attempt to hold the lock `path`, whose folder exists. Throws the system's error. */
export function tryLock(path: string, { onLost, touchEveryMs = TOUCH_EVERY_MS }: LockOptions = {}): Attempt {
  const owner = `${process.pid} ${randomBytes(8).toString('hex')}`;
  if (!taken(path, owner)) return { heldBy: pidOf(holder(path)) };
  own.add(owner);
  const touching = setInterval(() => {
    const found = holder(path);
    // Taken away by hand: nobody else has it, as far as can be told.
    if (found === undefined || found === owner) return touch(path);
    clearInterval(touching);
    onLost?.();
  }, touchEveryMs);
  touching.unref();
  return {
    lock: {
      release: () => {
        clearInterval(touching);
        own.delete(owner);
        if (holder(path) === owner) rmSync(path, { force: true });
      },
    },
  };
}

/** Process id of who holds the lock `path`; undefined where nobody does, or a holder that died. */
export function lockHolder(path: string): number | undefined {
  const found = holder(path);
  return found === undefined || isAbandoned(path, found) ? undefined : pidOf(found);
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
    file = openSync(path, 'wx', FILE_MODE);
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

function pidOf(found: string | undefined): number | undefined {
  const pid = Number((found ?? '').split(' ')[0]);
  return Number.isSafeInteger(pid) && pid > 0 ? pid : undefined;
}

function isAbandoned(path: string, found: string): boolean {
  const age = ageOf(path);
  if (age === undefined) return false;
  if (age > ABANDONED_AFTER_MS) return true;
  const pid = pidOf(found);
  if (pid === process.pid) return !own.has(found) && age > OWN_NUMBER_AFTER_MS;
  // Not written yet: its owner is at it, or died between two system calls and is found by age.
  if (pid === undefined) return false;
  try {
    process.kill(pid, 0);
    return false;
  } catch (error) {
    return errorCode(error) === 'ESRCH';
  }
}

/**
 * How far its last touch is from now, ms, in either direction: after a clock was set back, too. By the file system's
 * clock and this machine's, which are one; not the device's, which tests set.
 */
function ageOf(path: string): number | undefined {
  try {
    return Math.abs(Date.now() - statSync(path).mtimeMs);
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
