/**
 * Files and folders for their owner alone that survive a power cut, on Node's file system: what the server's secrets, its
 * stores, the command line's profiles and the companion's pairing have in common.
 */
import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { link, open, rename, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { errorCode } from '../protocol/error-code.js';

/** A file that only its owner reads and writes. */
export const FILE_MODE = 0o600;
/** A folder that only its owner enters. */
export const FOLDER_MODE = 0o700;
/** Windows has no such modes; there the user's profile folder is closed to others by its own rules. */
export const POSIX = process.platform !== 'win32';

/** Bits of a mode that let others than the owner in. */
const OTHERS = 0o077;

/** True where others than the owner may do something with a file of this mode. Always false on Windows. */
export const isOpenToOthers = (mode: number): boolean => POSIX && (mode & OTHERS) !== 0;

/**
 * Makes a folder's entries durable: what was created, linked or renamed in it survives a power cut. Where a file system
 * cannot do that, it needs no asking.
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

/** A name beside `path` that nobody else draws: what is written there becomes `path` when it is whole. */
export const tempSibling = (path: string, ending: string): string =>
  join(dirname(path), `.${basename(path)}.${randomBytes(8).toString('hex')}${ending}`);

/**
 * Writes a file whole under its name or not at all: 0600, durable when the call returns. A crash leaves the old file or
 * the new one.
 * @param place `replace` takes the place of a file of this name. `keep` throws `EEXIST` where there is one: a link never
 * replaces, so of two who create it at once one wins.
 */
export async function writeWhole(path: string, bytes: Uint8Array, place: 'replace' | 'keep'): Promise<void> {
  const temporary = tempSibling(path, '.tmp');
  const handle = await open(temporary, 'wx', FILE_MODE);
  try {
    try {
      await handle.writeFile(bytes);
      await handle.sync();
    } finally {
      await handle.close();
    }
    if (place === 'replace') await rename(temporary, path);
    else await link(temporary, path);
  } finally {
    // After a rename nothing is left to remove.
    await rm(temporary, { force: true });
  }
  await syncFolder(dirname(path));
}
