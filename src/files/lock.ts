/**
 * One process at a time, by a folder of numbered files. Whoever made the highest one holds the lock; it names him and is
 * touched while he does, so that one whose holder was killed is taken over: at once where the process is gone, after a
 * while where another process has got its number. Who waits for it, and for how long, is its user's affair.
 *
 * A number is never given twice: to take the lock over, or one that was given back, is to make the next higher file, which
 * the system lets one alone do. A lock that is given back keeps its file, as one that was last touched long ago: without it
 * the numbers would begin anew, and who had looked before would take a number that is not the next any more.
 */
import { randomBytes } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { errorCode } from '../protocol/error-code.js';
import { FILE_MODE, FOLDER_MODE } from './durable.js';
import { ifThereSync } from './there.js';

const TOUCH_EVERY_MS = 2_000;
/** A holder that lives touches its lock long before. */
const ABANDONED_AFTER_MS = 20_000;
/**
 * The same for a lock with this process's own number that is not its own: in a container that was started anew every
 * program has the number that it had, so its holder is most likely gone, but it may live in another container.
 */
const OWN_NUMBER_AFTER_MS = 5_000;
const LONG_AGO = new Date(0);

/** What this process holds. */
const own = new Set<string>();

/** A lock that this process holds. */
export interface FileLock {
  /** Gives it back. A lock that another process has meanwhile stays theirs. */
  release(): void;
}

/** What became of an attempt. `heldBy`: process id of who holds it; undefined where the file does not say. */
export type Attempt = { readonly lock: FileLock } | { readonly heldBy: number | undefined };

/** How a lock is held. */
export interface LockOptions {
  /** Told once when another process has taken it over, which happens where this one was stopped for long (a machine that slept). */
  readonly onLost?: () => void;
  readonly touchEveryMs?: number;
}

/** The files of a lock, by number, as `take` goes about them. Other processes do the same between any two calls. */
export interface LockFiles {
  /** All numbers as of one moment: a file that is there before and after is listed. */
  list(): readonly number[];
  /** Whether the holder named by a file lives and has not given it back; true also of one that is gone meanwhile. */
  isHeld(number: number): boolean;
  /** Makes a file; false where there is one. */
  create(number: number): boolean;
  remove(number: number): void;
}

/** The number by which the caller holds the lock from now on; undefined: somebody else has it, or was faster. */
export function take(files: LockFiles): number | undefined {
  const top = highest(files.list());
  if (top > 0 && files.isHeld(top)) return undefined;
  const mine = top + 1;
  if (!files.create(mine)) return undefined;
  // Others may have had this number and gone on, and its file with them, between the look and now. Of the highest file
  // that cannot be: only who made a higher one removes it.
  const now = files.list();
  if (highest(now) > mine) {
    files.remove(mine);
    return undefined;
  }
  for (const number of now) if (number < mine) files.remove(number);
  return mine;
}

const highest = (numbers: readonly number[]): number => Math.max(0, ...numbers);

/** One attempt to hold the lock `path`, in a folder that exists. Throws the system's error. */
export function tryLock(path: string, { onLost, touchEveryMs = TOUCH_EVERY_MS }: LockOptions = {}): Attempt {
  const owner = `${process.pid} ${randomBytes(8).toString('hex')}`;
  const number = take(filesOf(path, owner));
  if (number === undefined) return { heldBy: pidOf(holder(path)?.found) };
  own.add(owner);
  const file = join(path, String(number));
  const touching = setInterval(() => {
    touch(file, new Date());
    if (!isLost(path, number)) return;
    clearInterval(touching);
    onLost?.();
  }, touchEveryMs);
  touching.unref();
  return {
    lock: {
      release: () => {
        clearInterval(touching);
        own.delete(owner);
        touch(file, LONG_AGO);
      },
    },
  };
}

/** Process id of who holds the lock `path`; undefined where nobody does, or a holder that died. */
export function lockHolder(path: string): number | undefined {
  const top = holder(path);
  return top === undefined || isAbandoned(top.file, top.found) ? undefined : pidOf(top.found);
}

function filesOf(path: string, owner: string): LockFiles {
  const fileOf = (number: number): string => join(path, String(number));
  return {
    list: () => {
      makeFolder(path);
      return numbersIn(path);
    },
    isHeld: (number) => {
      const found = contentOf(fileOf(number));
      return found === undefined || !isAbandoned(fileOf(number), found);
    },
    create: (number) => {
      try {
        writeFileSync(fileOf(number), owner, { flag: 'wx', mode: FILE_MODE });
        return true;
      } catch (error) {
        if (errorCode(error) === 'EEXIST') return false;
        throw error;
      }
    },
    remove: (number) => rmSync(fileOf(number), { force: true }),
  };
}

function makeFolder(path: string): void {
  const make = (): unknown => mkdirSync(path, { recursive: true, mode: FOLDER_MODE });
  try {
    make();
  } catch (error) {
    if (errorCode(error) !== 'EEXIST') throw error;
    // The lock of an earlier version was a file.
    rmSync(path, { force: true });
    make();
  }
}

/** The list of so small a folder is read in one call of the system, which looks at it as of one moment. */
function numbersIn(path: string): number[] {
  const names = ifThereSync(() => readdirSync(path)) ?? [];
  return names.flatMap((name) => (/^[1-9]\d{0,14}$/.test(name) ? [Number(name)] : []));
}

/** The highest file, and what is in it; undefined where there is none. */
function holder(path: string): { readonly file: string; readonly found: string } | undefined {
  const file = join(path, String(highest(numbersIn(path))));
  const found = contentOf(file);
  return found === undefined ? undefined : { file, found };
}

const contentOf = (file: string): string | undefined => ifThereSync(() => readFileSync(file, 'utf8'));

function pidOf(found: string | undefined): number | undefined {
  const pid = Number((found ?? '').split(' ')[0]);
  return Number.isSafeInteger(pid) && pid > 0 ? pid : undefined;
}

function isAbandoned(file: string, found: string): boolean {
  const age = ageOf(file);
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
const ageOf = (file: string): number | undefined => ifThereSync(() => Math.abs(Date.now() - statSync(file).mtimeMs));

function isLost(path: string, number: number): boolean {
  try {
    return highest(numbersIn(path)) > number;
  } catch {
    // Nobody can say; the next look will.
    return false;
  }
}

function touch(file: string, at: Date): void {
  try {
    utimesSync(file, at, at);
  } catch {
    // Taken away by hand, or a full or read-only disk: the work goes on, and another command may then begin its own.
  }
}
