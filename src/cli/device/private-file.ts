/**
 * Files that only their owner may read: folders 0700, files 0600, written whole or not at all, durable when the call
 * returns. On Windows there are no such modes; the user's profile folder is closed to others by its own rules.
 */
import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { chmod, lstat, mkdir, open, rename, rm, type FileHandle } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { CommandError, EXIT } from './terminal.js';

const FILE_MODE = 0o600;
const FOLDER_MODE = 0o700;
const OTHERS = 0o077;
const POSIX = process.platform !== 'win32';

/** What is told when something was too open and was closed. */
export type Warn = (text: string) => void;

/** The code of a system error (`ENOENT`), or an empty text. */
export const errorCode = (error: unknown): string =>
  error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : '';

/** Permission bits as one types them: `644`. */
export const modeText = (mode: number): string => (mode & 0o777).toString(8).padStart(3, '0');

/** True where others than the owner may do something with a file of this mode. Always false on Windows. */
export const isOpenToOthers = (mode: number): boolean => POSIX && (mode & OTHERS) !== 0;

/** Makes the folder, and closes it to others where it was open. Throws the system's error. */
export async function privateFolder(folder: string, warn: Warn): Promise<void> {
  const made = await mkdir(folder, { recursive: true, mode: FOLDER_MODE });
  if (!POSIX) return;
  const { mode } = await lstat(folder);
  if (!isOpenToOthers(mode)) return;
  await chmod(folder, FOLDER_MODE);
  // Just made, under a loose umask: nothing was in it for others to see.
  if (made === undefined) warn(`${folder} was open to other users (mode ${modeText(mode)}). It is closed now.`);
}

/** Makes a folder's entries durable. Where a file system cannot do that, it needs no asking. */
export async function syncFolder(folder: string): Promise<void> {
  if (!POSIX) return;
  const handle = await open(folder, constants.O_RDONLY);
  try {
    await handle.sync();
  } catch (error) {
    if (errorCode(error) !== 'EINVAL') throw error;
  } finally {
    await handle.close();
  }
}

/** Puts `bytes` in the place of the file: whole, 0600, durable. A crash leaves the old file or the new one. */
export async function writePrivate(path: string, bytes: Uint8Array): Promise<void> {
  const temporary = join(dirname(path), `.${basename(path)}.${randomBytes(8).toString('hex')}.tmp`);
  const handle = await open(temporary, 'wx', FILE_MODE);
  try {
    try {
      await handle.writeFile(bytes);
      await handle.sync();
    } finally {
      await handle.close();
    }
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
  await syncFolder(dirname(path));
}

/** Removes a file, durably; one that is not there is no error. */
export async function removePrivate(path: string): Promise<void> {
  await rm(path, { force: true });
  await syncFolder(dirname(path)).catch((error: unknown) => {
    if (errorCode(error) !== 'ENOENT') throw error;
  });
}

/**
 * Reads a private file of at most `max` bytes; undefined where there is none. One that others can read is closed, with
 * a warning; one that cannot be closed, that is a link or belongs to another user is refused with `CommandError`: its
 * content may be theirs.
 */
export async function readPrivate(path: string, max: number, warn: Warn): Promise<Buffer | undefined> {
  let handle: FileHandle;
  try {
    handle = await open(path, constants.O_RDONLY | (POSIX ? constants.O_NOFOLLOW : 0));
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    if (errorCode(error) === 'ELOOP') throw refused(path, 'is a symbolic link');
    throw refused(path, `cannot be read (${errorCode(error)})`, error);
  }
  try {
    await close(handle, path, warn);
    const buffer = Buffer.alloc(max + 1);
    let length = 0;
    for (;;) {
      const { bytesRead } = await handle.read(buffer, length, buffer.length - length, null);
      if (bytesRead === 0) return buffer.subarray(0, length);
      length += bytesRead;
      if (length > max) throw refused(path, `is longer than ${max} bytes`);
    }
  } finally {
    await handle.close();
  }
}

/** Closes an open file to others. Works on the handle: the path may name another file by now. */
async function close(handle: FileHandle, path: string, warn: Warn): Promise<void> {
  const stat = await handle.stat();
  const { mode, uid } = stat;
  if (!stat.isFile()) throw refused(path, 'is not a file');
  if (!POSIX) return;
  const own = process.getuid?.();
  if (own !== undefined && own !== 0 && uid !== own) throw refused(path, 'belongs to another user');
  if (!isOpenToOthers(mode)) return;
  try {
    await handle.chmod(FILE_MODE);
  } catch (error) {
    throw refused(path, `is open to other users (mode ${modeText(mode)}) and cannot be closed`, error);
  }
  warn(
    `${path} was open to other users (mode ${modeText(mode)}). It is closed now; if others use this machine, revoke ` +
      'this device from another one and pair it again.',
  );
}

const refused = (path: string, what: string, cause?: unknown): CommandError =>
  new CommandError(EXIT.failure, `${path} ${what}.`, `Mend it with: chmod 600 ${path}`, { cause });
