/**
 * A lock between processes: a folder of numbered files. The process that created the highest file holds the lock. The
 * file contains its process id and is touched while the lock is held, so that a killed holder is detected: at once if
 * its process is gone, after a while if another process has its id. Waiting for the lock is up to the caller.
 *
 * A number is never used twice: a released or abandoned lock is taken by creating the next higher file exclusively,
 * which only one process can do. A released lock keeps its file, with an old time of last touch. After a lock was
 * removed, numbering restarts at a random number, while a process that listed the folder before may still create a
 * higher file. A process that then finds a file that it had not listed has therefore not taken the lock.
 */
import { randomBytes, randomInt } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { errorCode } from '../protocol/error-code.js';
import { FILE_MODE, FOLDER_MODE, POSIX } from './durable.js';
import { ifThereSync } from './there.js';

const TOUCH_EVERY_MS = 2_000;
/** A live holder touches its file much more often. */
const ABANDONED_AFTER_MS = 20_000;
/**
 * The same for a file with this process's id that another process wrote. In a restarted container every program gets
 * its old process id, so that the holder has probably ended; but it may run in another container.
 */
const OWN_PID_AFTER_MS = 5_000;
/**
 * How long a file of a live process must stay untouched while it is watched, ms: after a suspension of the machine each
 * file looks old until its holder has touched it, which takes `TOUCH_EVERY_MS` at most.
 */
const WATCHED_MS = 4_000;
const LONG_AGO = new Date(0);
/** Bounds the first number: rising by one per acquisition, numbers stay within the 15 digits of a file name. */
const FIRST_MAX = 2 ** 40;

/** Owner texts of the locks that this process holds. */
const ownedHere = new Set<string>();

/** The silent files that were seen, by path: their last touch, ms, and when it was seen first (monotonic, ms). */
const silent = new Map<string, { readonly touched: number; readonly since: number }>();

export interface FileLock {
  /** Releases the lock; no effect where another process has taken it over. */
  release(): void;
  /** Releases the lock and removes its folder where possible: for a lock beside a user's own files. */
  remove(): void;
}

/** The result of an attempt. `heldBy`: process id of the holder; undefined if the file does not have one. */
type Attempt = { readonly lock: FileLock } | { readonly heldBy: number | undefined };

interface LockOptions {
  /** Called once if another process took the lock over while this one was suspended for long. */
  readonly onLost?: () => void;
  readonly touchEveryMs?: number;
  /** Monotonic, ms. */
  readonly now?: () => number;
}

export type LockFiles = ReturnType<typeof filesOf>;

/** The number by which the caller now holds the lock; undefined: another process holds it, or was faster. */
export function take(files: LockFiles): number | undefined {
  const before = files.list();
  if (before.some((number) => files.isHeld(number))) return undefined;
  const mine = before.length === 0 ? files.first() : highest(before) + 1;
  if (!files.create(mine)) return undefined;
  // Between listing and creating, others may have taken the lock, released and removed it, and taken it again.
  if (files.list().some((number) => number !== mine && !before.includes(number))) {
    files.remove(mine);
    return undefined;
  }
  for (const number of before) files.remove(number);
  return mine;
}

const highest = (numbers: readonly number[]): number => Math.max(0, ...numbers);

/**
 * One attempt to take the lock `path`, in a folder that exists. Throws the system's error, and `ENOTDIR` where a link or
 * another user's folder has the name, since files in there would be removed.
 */
export function tryLock(path: string, options: LockOptions = {}): Attempt {
  const { onLost, touchEveryMs = TOUCH_EVERY_MS, now = () => performance.now() } = options;
  const owner = `${process.pid} ${randomBytes(8).toString('hex')}`;
  const number = take(filesOf(path, owner, now));
  if (number === undefined) return { heldBy: pidOf(holder(path)?.found) };
  ownedHere.add(owner);
  const file = join(path, String(number));
  const touching = setInterval(() => {
    touch(file, new Date());
    if (!isLost({ path, number, owner })) return;
    clearInterval(touching);
    onLost?.();
  }, touchEveryMs);
  touching.unref();
  const end = (): void => {
    clearInterval(touching);
    ownedHere.delete(owner);
  };
  return {
    lock: {
      release: () => {
        end();
        touch(file, LONG_AGO);
      },
      remove: () => {
        end();
        try {
          // Only this file, then the folder only if it is empty: another process may take the lock in between.
          fs.rmSync(file, { force: true });
          fs.rmdirSync(path);
        } catch {
          // Taken by another process, or not removable: what is left is no longer touched, and so becomes abandoned.
        }
      },
    },
  };
}

/** Process id of the live holder of the lock `path`; undefined if there is none. */
export function lockHolder(path: string): number | undefined {
  const top = holder(path);
  return top === undefined || stateOf(top.file, top.found) !== 'held' ? undefined : pidOf(top.found);
}

/** The files of a lock, by number. Other processes may change them between any two calls. */
function filesOf(path: string, owner: string, now: () => number) {
  const fileOf = (number: number): string => join(path, String(number));
  return {
    /** All numbers at one moment: a file that exists before and after the call is listed. */
    list: (): readonly number[] => {
      makeFolder(path);
      return numbersIn(path);
    },
    /** Whether the file's holder is alive and has not released it; true also for a file that was removed meanwhile. */
    isHeld: (number: number): boolean => {
      const file = fileOf(number);
      const found = contentOf(file);
      if (found === undefined) return true;
      const state = stateOf(file, found);
      return state === 'held' || (typeof state === 'number' && !staysSilent(file, state, now()));
    },
    /** A number for a folder without files, never used there before. */
    first: (): number => randomInt(1, FIRST_MAX),
    /** Creates a file exclusively; false if it exists. */
    create: (number: number): boolean =>
      // ENOENT: its holder has just removed it, with its folder.
      isDone(() => writeNew(fileOf(number), owner), 'EEXIST', 'ENOENT'),
    remove: (number: number): void => fs.rmSync(fileOf(number), { force: true }),
  };
}

/** Creates a file with this text. Where there is no room for it none is left: an empty one would count as held. */
function writeNew(file: string, owner: string): void {
  const handle = fs.openSync(file, 'wx', FILE_MODE);
  try {
    fs.writeSync(handle, owner);
  } catch (error) {
    fs.rmSync(file, { force: true });
    throw error;
  } finally {
    fs.closeSync(handle);
  }
}

function makeFolder(path: string): void {
  if (made(path)) return;
  const found = ifThereSync(() => fs.lstatSync(path));
  // Earlier versions used a file of this name.
  if (found?.isFile() === true) {
    fs.rmSync(path, { force: true });
    return void made(path);
  }
  const user = process.getuid?.();
  const own = !POSIX || user === 0 || found?.uid === user;
  if (found !== undefined && !(found.isDirectory() && own))
    throw Object.assign(new Error(`ENOTDIR: ${path} is not a folder of this user`), { code: 'ENOTDIR' });
}

/** Creates the folder; false where the path exists. */
const made = (path: string): boolean => isDone(() => fs.mkdirSync(path, { mode: FOLDER_MODE }), 'EEXIST');

/** False where `work` fails with one of these codes. */
function isDone(work: () => void, ...codes: readonly string[]): boolean {
  try {
    work();
    return true;
  } catch (error) {
    if (codes.includes(errorCode(error))) return false;
    throw error;
  }
}

/** A folder this small is read by one system call, and so at one moment. */
function numbersIn(path: string): number[] {
  const names = ifThereSync(() => fs.readdirSync(path)) ?? [];
  return names.flatMap((name) => (/^[1-9]\d{0,14}$/.test(name) ? [Number(name)] : []));
}

/** The highest file and its content; undefined if there is none. */
function holder(path: string): { readonly file: string; readonly found: string } | undefined {
  const file = join(path, String(highest(numbersIn(path))));
  const found = contentOf(file);
  return found === undefined ? undefined : { file, found };
}

const contentOf = (file: string): string | undefined => ifThereSync(() => fs.readFileSync(file, 'utf8'));

function pidOf(found: string | undefined): number | undefined {
  const pid = Number((found ?? '').split(' ')[0]);
  return Number.isSafeInteger(pid) && pid > 0 ? pid : undefined;
}

/** The number: the time of the last touch, ms, of a file that is silent although its process may be alive. */
function stateOf(file: string, found: string): 'held' | 'abandoned' | number {
  // By the machine's clock, which the file system uses, not by an injected one.
  const touched = ifThereSync(() => fs.statSync(file).mtimeMs);
  if (touched === undefined) return 'held';
  if (touched === LONG_AGO.getTime()) return 'abandoned';
  // The absolute value, since a clock may be set back.
  const age = Math.abs(Date.now() - touched);
  const pid = pidOf(found);
  if (pid === process.pid && !ownedHere.has(found) && age > OWN_PID_AFTER_MS) return 'abandoned';
  if (pid !== undefined && !isAlive(pid)) return 'abandoned';
  // Without an id: its creator is about to write it, or died between two system calls.
  return age > ABANDONED_AFTER_MS ? touched : 'held';
}

/** Whether an earlier look, `WATCHED_MS` ago or more, saw the same last touch. */
function staysSilent(file: string, touched: number, now: number): boolean {
  const seen = silent.get(file);
  if (seen?.touched !== touched) silent.set(file, { touched, since: now });
  return seen?.touched === touched && now - seen.since >= WATCHED_MS;
}

/** Whether this machine has a process with that id; also one of another user. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return errorCode(error) !== 'ESRCH';
  }
}

/** Whether another process has created a higher file, or has removed this one (and perhaps the whole lock since). */
function isLost({ path, number, owner }: { readonly path: string; readonly number: number; readonly owner: string }) {
  try {
    return highest(numbersIn(path)) > number || contentOf(join(path, String(number))) !== owner;
  } catch {
    // Unknown; the next check decides.
    return false;
  }
}

function touch(file: string, at: Date): void {
  try {
    fs.utimesSync(file, at, at);
  } catch {
    // Removed by hand, or a full or read-only disk: the work continues; another process may take the lock.
  }
}
