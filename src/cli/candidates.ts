/** Completion candidates for items, bins and devices: from local data, without the server, within `WITHIN_MS`. */
import { join } from 'node:path';
import { nodeSodium } from '../crypto/sodium-node.js';
import { systemClock, within } from '../protocol/clock.js';
import { sanitizeText } from '../protocol/sanitize.js';
import type { Identity } from '../sdk/identity.js';
import { ItemReader } from '../sdk/item-reader.js';
import { Outbox } from '../sdk/outbox.js';
import { titleOf } from '../sdk/payloads/shapes.js';
import { fold, newestFirst } from '../sdk/query.js';
import { openNodeStore } from '../sdk/store/node-store.js';
import { withFileLock } from '../terminal/lock.js';
import { fitted } from '../terminal/output.js';
import type { Terminal } from '../terminal/terminal.js';
import { completionAt, type Kind } from './completion-spec.js';
import type { Profile } from './context.js';
import { ShortIds } from './find.js';
import { readAccountCache } from './account-cache.js';
import { LOCK_FILE, profileOf, STORE_FOLDER } from './profile.js';

/** Titles are truncated to this many columns. */
const TITLE_WIDTH = 50;
/** A longer list is of no use in a shell. */
const CANDIDATES_MAX = 200;
/** Time-outs of the lock and of the whole: the user must wait neither for another command nor for a locked keychain. */
const LOCK_MS = 300;
const WITHIN_MS = 2_000;

/** A text that can be typed, and its description; both unsanitized. */
type Candidate = readonly [value: string, title: string];
/** True for a value that completes what was typed. */
type Fits = (value: string) => boolean;

/** The items of the local copy that fit, newest first. Only these are decrypted: decryption takes most of the time. */
async function items(profile: Profile, identity: Identity, fits: Fits): Promise<readonly Candidate[]> {
  const refusal = (): Error => new Error('another command is running');
  return withFileLock(join(profile.folder, LOCK_FILE), { refusal, timeoutMs: LOCK_MS }, async () => {
    const { store } = await openNodeStore(join(profile.folder, STORE_FOLDER), identity, { rebuild: false });
    try {
      const outbox = await Outbox.load(store, systemClock);
      const { masterKey, deviceId, keys } = identity;
      const reader = new ItemReader({
        ...{ store, outbox, sodium: nodeSodium, onProblem: () => undefined },
        reader: { masterKey, device: { id: deviceId, keys } },
      });
      const heads = await store.heads();
      // Items in the outbox are the newest.
      const ids = new Set([...outbox.ids(), ...[...heads.values()].sort(newestFirst).map(({ id }) => id)]);
      const short = new ShortIds(ids);
      const found: Candidate[] = [];
      for (const id of ids) {
        const form = short.of(id);
        const item = fits(form) ? await reader.get(id).catch(() => undefined) : undefined;
        if (item !== undefined) found.push([form, titleOf(item.type, item.payload)]);
        if (found.length >= CANDIDATES_MAX) break;
      }
      return found;
    } finally {
      await store.close();
    }
  });
}

async function candidates(kind: Kind, profile: Profile, fits: Fits): Promise<readonly Candidate[]> {
  if (kind === 'device') {
    const devices = (await readAccountCache(profile.folder)).devices ?? [];
    return devices.filter(({ revokedAt }) => revokedAt === null).map(({ id, name }) => [name, id]);
  }
  const identity = await profile.identity();
  if (identity === undefined) return [];
  if (kind === 'item') return items(profile, identity, fits);
  const { bins = [] } = await readAccountCache(profile.folder, { sodium: nodeSodium, masterKey: identity.masterKey });
  return bins.map(({ slug, label }) => (label === null ? [slug, ''] : [label.name, slug]));
}

/** A typed word without the shell's quotes and backslashes. */
const unquoted = (word: string): string => word.replace(/[\\'"]/g, '');

/**
 * Prints the candidates for the last of the words, one per line, each with a title after a tab. `argv`: `SPEC --
 * WORDS`. Never prompts and prints no error: the shell would show it in the middle of the command line.
 */
export async function complete([spec = '', , ...words]: readonly string[], output: Pick<Terminal, 'env' | 'print'>) {
  const { kind, profile: named } = completionAt(spec, words);
  if (kind === undefined) return;
  try {
    const platform = { sodium: nodeSodium, clock: systemClock };
    const name = named ?? (output.env['SERVICE_PROFILE'] || 'default');
    const profile = profileOf(name, platform, { env: output.env, note: () => undefined });
    const typed = fold(unquoted(words.at(-1) ?? ''));
    // A value that is shown differently from how it is typed is not offered.
    const fits: Fits = (value) => fold(value).startsWith(typed) && sanitizeText(value) === value;
    const found = await within(systemClock, WITHIN_MS, candidates(kind, profile, fits), []);
    for (const [value, title] of found.filter(([value]) => fits(value)).slice(0, CANDIDATES_MAX))
      output.print(`${value}\t${fitted(sanitizeText(title), TITLE_WIDTH)}`);
  } catch {
    // No device, a damaged profile, a lock: the command itself reports it.
  }
}
