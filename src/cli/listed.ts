/** The last list of a profile: numbers refer to it until the next one is shown. Ids only, since titles are secrets. */
import { join } from 'node:path';
import { removePrivate, writePrivate } from '../files/private.js';
import { isUlid } from '../protocol/ids.js';
import { array, count, nonEmpty, object } from '../sdk/reader.js';
import type { Context, OpenDevice } from './context.js';
import { failureOf } from './failure.js';
import { type ItemsAndList, type Listed, NUMBERS_MAX } from './find.js';
import { readPrivate } from './secrets.js';

const LISTED_FILE = 'listed.json';
const LISTED_MAX_BYTES = 512 * 1024;
const readShape = object({ at: count, ids: array(nonEmpty) });

/**
 * Remembers the ids of a list that is about to be shown, in its order; those beyond `NUMBERS_MAX` have no number. Where it
 * cannot be stored, numbers mean nothing from now on, rather than what an older list showed.
 */
export async function rememberListed(
  { profile, platform, terminal }: Pick<Context, 'profile' | 'platform' | 'terminal'>,
  ids: readonly string[],
): Promise<void> {
  const listed: Listed = { at: platform.clock.now(), ids: ids.slice(0, NUMBERS_MAX) };
  const path = join(profile.folder, LISTED_FILE);
  try {
    await writePrivate(path, Buffer.from(JSON.stringify(listed)));
  } catch (error) {
    await removePrivate(path).catch(() => undefined);
    terminal.note(`Warning: the numbers of this list are not kept: ${failureOf(error).message}`);
  }
}

/** The last list; undefined where there was none, or its file is damaged. */
async function readListed(folder: string): Promise<Listed | undefined> {
  try {
    const stored = await readPrivate(join(folder, LISTED_FILE), LISTED_MAX_BYTES, () => undefined);
    if (stored === undefined) return undefined;
    const { at, ids } = readShape(JSON.parse(stored.toString('utf8')), LISTED_FILE);
    // Complete ids only: `findItem` would take anything shorter as a prefix.
    return ids.every(isUlid) ? { at, ids } : undefined;
  } catch {
    // Damaged, or not ours: the next list replaces it.
    return undefined;
  }
}

/** All items, and the last list. */
export async function itemsAndList(
  { profile }: Pick<Context, 'profile'>,
  { device }: Pick<OpenDevice, 'device'>,
): Promise<ItemsAndList> {
  return { items: await device.list(), listed: await readListed(profile.folder) };
}
