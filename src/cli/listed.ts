/** The last list of a profile: numbers refer to it until the next one is shown. Ids only, since titles are secrets. */
import { join } from 'node:path';
import { readPrivateJson, removePrivate, writePrivate } from '../files/private.js';
import { array, count, object, ulidText } from '../sdk/reader.js';
import type { Context, OpenDevice } from './context.js';
import { failureOf } from './failure.js';
import { type ItemsAndList, type Listed, NUMBERS_MAX } from './find.js';

const LISTED_FILE = 'listed.json';
const LISTED_MAX_BYTES = 512 * 1024;
/** Complete ids only: `findItem` would take anything shorter as a prefix. */
const readListed = object({ at: count, ids: array(ulidText) });

/**
 * Remembers the ids of a list that is about to be shown, in its order; those beyond `NUMBERS_MAX` have no number. Where it
 * cannot be stored, numbers mean nothing from now on, rather than what an older list showed.
 */
export async function rememberListed({ profile, platform, terminal }: Context, ids: readonly string[]): Promise<void> {
  const listed: Listed = { at: platform.clock.now(), ids: ids.slice(0, NUMBERS_MAX) };
  const path = join(profile.folder, LISTED_FILE);
  try {
    await writePrivate(path, Buffer.from(JSON.stringify(listed)));
  } catch (error) {
    await removePrivate(path).catch(() => undefined);
    terminal.note(`Warning: the numbers of this list are not kept: ${failureOf(error).message}`);
  }
}

/** All items, and the last list; a damaged one is ignored, and the next list replaces it. */
export async function itemsAndList({ profile }: Context, { device }: OpenDevice): Promise<ItemsAndList> {
  const items = await device.list();
  return { items, listed: await readPrivateJson(join(profile.folder, LISTED_FILE), LISTED_MAX_BYTES, readListed) };
}
