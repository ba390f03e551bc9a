/** Files of a profile: private, and either wholly there or not at all. */
import { chmod, mkdir, open, readFile, rename, rm, stat } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { randomBytes } from 'node:crypto';

const PRIVATE_FILE = 0o600;
const PRIVATE_FOLDER = 0o700;

/** True where an error of the file system has this code. */
export const isSystemError = (error: unknown, code: string): boolean =>
  error instanceof Error && 'code' in error && error.code === code;

/** The folder, made where it is missing, and nobody else's business (0700). */
export async function privateFolder(path: string): Promise<void> {
  await mkdir(path, { recursive: true, mode: PRIVATE_FOLDER });
  if (process.platform !== 'win32' && ((await stat(path)).mode & 0o077) !== 0) await chmod(path, PRIVATE_FOLDER);
}

/**
 * Writes a file of mode 0600 so that a crash leaves the old one or the new one, and that the new one is on the disk when
 * this resolves.
 */
export async function writeDurably(path: string, bytes: Uint8Array): Promise<void> {
  const fresh = join(dirname(path), `.${basename(path)}.${randomBytes(6).toString('hex')}`);
  try {
    const file = await open(fresh, 'wx', PRIVATE_FILE);
    try {
      await file.writeFile(bytes);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(fresh, path);
  } catch (error) {
    await rm(fresh, { force: true });
    throw error;
  }
  await syncFolder(dirname(path));
}

/** The name of a new file is durable only with its folder. Windows has no such call, and needs none. */
async function syncFolder(path: string): Promise<void> {
  if (process.platform === 'win32') return;
  const folder = await open(path, 'r');
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

/** A file's bytes, undefined where there is none. Rejects for one over `max` bytes: nothing of ours is. */
export async function readWhole(path: string, max: number): Promise<Buffer | undefined> {
  try {
    if ((await stat(path)).size > max) throw new Error(`${basename(path)} is larger than anything this program writes`);
    return await readFile(path);
  } catch (error) {
    if (isSystemError(error, 'ENOENT')) return undefined;
    throw error;
  }
}
