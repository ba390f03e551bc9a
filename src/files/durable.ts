/** Durable files and folders that only their owner can access: for secrets, stores, profiles and pairings. */
import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { link, lstat, open, rename, rm, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { errorCode } from '../protocol/error-code.js';
import { ifThere } from './there.js';

/** A file that only its owner reads and writes. */
export const FILE_MODE = 0o600;
/** A folder that only its owner can enter. */
export const FOLDER_MODE = 0o700;
/** Windows has no such modes; access lists protect the user's profile folder there. */
export const POSIX = process.platform !== 'win32';

/** Permission bits of group and others. */
const OTHERS = 0o077;

/** True if users other than the owner have any permission. Always false on Windows. */
export const isOpenToOthers = (mode: number): boolean => POSIX && (mode & OTHERS) !== 0;

/**
 * Makes a folder's entries durable: what was created, linked or renamed in it survives a power cut. File systems that
 * do not support this are ignored (EINVAL).
 */
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

/** A unique temporary name in the folder of `path`: the file is renamed to `path` when it is complete. */
export const tempSibling = (path: string, ending: string): string =>
  join(dirname(path), `.${basename(path)}.${randomBytes(8).toString('hex')}${ending}`);

/** Throws `EEXIST` where the path exists, also as a dangling link. */
export async function expectFree(path: string): Promise<void> {
  if ((await ifThere(() => lstat(path))) !== undefined)
    throw Object.assign(new Error(`EEXIST: ${path} already exists`), { code: 'EEXIST' });
}

/** Errors of file systems without hard links, such as FAT. */
const NO_LINKS: ReadonlySet<string> = new Set(['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS', 'EMLINK']);

/** Gives a complete file the name `path`; its old name may stay. Throws `EEXIST` where the path exists. */
export async function nameFile(temporary: string, path: string): Promise<void> {
  try {
    // Unlike `rename`, `link` never replaces a file that another process has created meanwhile.
    await link(temporary, path);
  } catch (error) {
    if (!NO_LINKS.has(errorCode(error))) throw error;
    await expectFree(path);
    await rename(temporary, path);
  }
}

/**
 * Gives a complete file its name. `keep` throws `EEXIST` where the path exists, also where another process has created
 * it first.
 */
export async function placeFile(temporary: string, path: string, existing: 'replace' | 'keep'): Promise<void> {
  if (existing === 'replace') return rename(temporary, path);
  await nameFile(temporary, path);
  await rm(temporary, { force: true });
}

/**
 * Writes a file atomically: mode 0600, durable when the call returns. A crash leaves the old file or the new one.
 * @param existing see `placeFile`.
 */
export async function writeWhole(path: string, bytes: Uint8Array, existing: 'replace' | 'keep'): Promise<void> {
  const temporary = tempSibling(path, '.tmp');
  try {
    await writeFile(temporary, bytes, { flag: 'wx', mode: FILE_MODE, flush: true });
    await placeFile(temporary, path, existing);
  } finally {
    // After a rename there is nothing to remove.
    await rm(temporary, { force: true });
  }
  await syncFolder(dirname(path));
}
