/** Harm done to the files of a store. */
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** Paths of a store's database files whose name fits. */
export const databaseFiles = async (folder: string, fits: RegExp): Promise<string[]> =>
  (await readdir(join(folder, 'current')))
    .filter((name) => fits.test(name))
    .map((name) => join(folder, 'current', name));

/** Turns one bit, at a share of the file's length. */
export async function flip(path: string, share: number): Promise<void> {
  const bytes = await readFile(path);
  const at = Math.min(bytes.length - 1, Math.floor(bytes.length * share));
  bytes[at] = (bytes[at] ?? 0) ^ 0x10;
  await writeFile(path, bytes);
}
