/**
 * Files that only their owner may read. Permissions of others are removed, with a warning; a file that may belong to
 * another user is refused.
 */
import { constants } from 'node:fs';
import { chmod, mkdir, open, rm, stat, type FileHandle } from 'node:fs/promises';
import { dirname } from 'node:path';
import { errorCode } from '../protocol/error-code.js';
import { FILE_MODE, FOLDER_MODE, isOpenToOthers, POSIX, syncFolder, writeWhole } from './durable.js';
import { readBytes } from './read.js';
import { ifThere } from './there.js';

/** The file is refused: its content may be another user's. The message names it. */
export class PrivateFileError extends Error {
  override readonly name = 'PrivateFileError';

  constructor(path: string, what: string, cause?: unknown) {
    super(`${path} ${what}.`, { cause });
  }
}

/** Receives a warning when permissions of others were removed. */
export type Warn = (text: string) => void;

/** Permission bits in octal: `644`. */
export const modeText = (mode: number): string => (mode & 0o777).toString(8).padStart(3, '0');

/** Creates the folder, or removes the permissions of others from an existing one. Throws the system's error. */
export async function privateFolder(folder: string, warn: Warn): Promise<void> {
  const made = await mkdir(folder, { recursive: true, mode: FOLDER_MODE });
  if (!POSIX) return;
  // Of what a link leads to: its own mode means nothing.
  const { mode } = await stat(folder);
  if (!isOpenToOthers(mode)) return;
  await chmod(folder, FOLDER_MODE);
  // A folder just created, under a loose umask, needs no warning: it was empty.
  if (made === undefined) warn(`${folder} was open to other users (mode ${modeText(mode)}). It is closed now.`);
}

/** Replaces the file: atomic, mode 0600, durable. */
export const writePrivate = (path: string, bytes: Uint8Array): Promise<void> => writeWhole(path, bytes, 'replace');

/** Removes a file, durably; not an error if there is none. */
export async function removePrivate(path: string): Promise<void> {
  await rm(path, { force: true });
  await ifThere(() => syncFolder(dirname(path)));
}

/**
 * Reads a private file of at most `max` bytes; undefined if there is none. Removes the permissions of others, with a
 * warning. Throws `PrivateFileError` if that fails, and for a file that is a link, too long or another user's.
 */
export async function readPrivate(path: string, max: number, warn: Warn): Promise<Buffer | undefined> {
  let handle: FileHandle;
  try {
    // Non-blocking: opening a pipe of this name would hang.
    const flags = POSIX ? constants.O_NOFOLLOW | constants.O_NONBLOCK : 0;
    handle = await open(path, constants.O_RDONLY | flags);
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    if (errorCode(error) === 'ELOOP') throw new PrivateFileError(path, 'is a symbolic link');
    throw new PrivateFileError(path, `cannot be read (${errorCode(error)})`, error);
  }
  try {
    await restrict(handle, path, warn);
    const bytes = await readBytes(handle, 0, max + 1);
    if (bytes.length > max) throw new PrivateFileError(path, `is longer than ${max} bytes`);
    return bytes;
  } finally {
    await handle.close();
  }
}

/** The value in a private JSON file, as `read` returns it; undefined where there is none, or it is damaged or unsafe. */
export async function readPrivateJson<T>(
  path: string,
  max: number,
  read: (value: unknown, path: string) => T,
): Promise<T | undefined> {
  try {
    const stored = await readPrivate(path, max, () => undefined);
    return stored === undefined ? undefined : read(JSON.parse(stored.toString('utf8')), path);
  } catch {
    return undefined;
  }
}

/** Removes the permissions of others, by the handle: the path may name another file by now. */
async function restrict(handle: FileHandle, path: string, warn: Warn): Promise<void> {
  const found = await handle.stat();
  const { mode, uid } = found;
  if (!found.isFile()) throw new PrivateFileError(path, 'is not a file');
  if (!POSIX) return;
  const own = process.getuid?.();
  if (own !== undefined && own !== 0 && uid !== own) throw new PrivateFileError(path, 'belongs to another user');
  if (!isOpenToOthers(mode)) return;
  try {
    await handle.chmod(FILE_MODE);
  } catch (error) {
    throw new PrivateFileError(path, `is open to other users (mode ${modeText(mode)}) and cannot be closed`, error);
  }
  warn(
    `${path} was open to other users (mode ${modeText(mode)}). It is closed now; if others use this machine, revoke ` +
      'this device from another one and pair it again.',
  );
}
