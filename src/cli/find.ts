/** Resolves what the user typed to one item, bin or device. */
import type { BinView, ItemView } from '../sdk/events.js';
import type { DeviceEntry } from '../sdk/replies.js';
import type { OpenDevice } from './context.js';
import { sanitizeText } from '../terminal/output.js';
import { titleOf } from '../sdk/payloads/shapes.js';
import { CommandError, EXIT } from '../terminal/terminal.js';

const SHOWN_MAX = 5;
const ULID_LENGTH = 26;
const SHORT_MIN = 8;

const quoted = (text: string): string => `"${sanitizeText(text).slice(0, 80)}"`;

function only<T>(found: readonly T[], what: string, typed: string, say: (one: T) => string): T {
  const [first] = found;
  if (first === undefined) throw new CommandError(EXIT.notFound, `there is no ${what} ${quoted(typed)}`);
  if (found.length === 1) return first;
  const some = found.slice(0, SHOWN_MAX).map((one) => `  ${say(one)}`);
  const more = found.length > SHOWN_MAX ? [`  and ${found.length - SHOWN_MAX} more`] : [];
  throw new CommandError(
    EXIT.usage,
    `${quoted(typed)} can be any of ${found.length} ${what}s`,
    ['Type more of it, or the id:', ...some, ...more].join('\n'),
    { code: 'ambiguous' },
  );
}

/** An item by id or by an unambiguous prefix. Throws `CommandError` `notFound` or `ambiguous`. */
export function findItem(items: readonly ItemView[], typed: string): ItemView {
  const wanted = typed.trim().toUpperCase();
  const found = wanted === '' ? [] : items.filter(({ id }) => id.startsWith(wanted));
  return only(
    found,
    'item',
    typed,
    ({ id, type, payload }) => `${id}  ${type}  ${sanitizeText(titleOf(type, payload))}`,
  );
}

/** The id of an item to delete: also one that does not verify and is not listed. */
export async function findAnyId({ device }: OpenDevice, items: readonly ItemView[], typed: string): Promise<string> {
  const wanted = typed.trim().toUpperCase();
  if (wanted.length === ULID_LENGTH && !items.some(({ id }) => id === wanted)) {
    const hidden = (await device.hidden()).find(({ id, reason }) => id === wanted && reason !== 'untagged_delete');
    if (hidden !== undefined) return hidden.id;
  }
  return findItem(items, typed).id;
}

/** A bin by slug, id or name, in this order. Throws `CommandError` `notFound` or `ambiguous`. */
export function findBin(bins: readonly BinView[], typed: string): BinView {
  const wanted = typed.trim();
  const exact = bins.find(({ slug }) => slug === wanted) ?? bins.find(({ id }) => id === wanted);
  if (exact !== undefined) return exact;
  const folded = folding(wanted);
  const named = bins.filter((bin) => folding(bin.label?.name ?? bin.slug) === folded);
  return only(named, 'bin', typed, ({ slug, label }) => `${slug}  ${sanitizeText(label?.name ?? '')}`);
}

/** A device by id, by a prefix of it, or by name. Throws `CommandError` `notFound` or `ambiguous`. */
export function findDevice(devices: readonly DeviceEntry[], typed: string): DeviceEntry {
  const wanted = typed.trim();
  const byId = wanted === '' ? [] : devices.filter(({ id }) => id.startsWith(wanted.toUpperCase()));
  const found = byId.length > 0 ? byId : devices.filter(({ name }) => folding(name) === folding(wanted));
  return only(found, 'device', typed, ({ id, name }) => `${id}  ${sanitizeText(name)}`);
}

/** Folds case, accents and white space: `Café` and `cafe` are equal. */
export const folding = (text: string): string =>
  text.normalize('NFKD').replace(/\p{M}/gu, '').toLowerCase().replace(/ß/g, 'ss').replace(/\s+/gu, ' ').trim();

/** Shortens ids to the length at which all of these differ. */
export function shortIds(ids: readonly string[]): (id: string) => string {
  const sorted = [...ids].sort();
  let length = SHORT_MIN;
  for (const [at, id] of sorted.entries()) {
    const next = sorted[at + 1];
    if (next === undefined || next === id) continue;
    let common = 0;
    while (common < id.length && id[common] === next[common]) common++;
    length = Math.max(length, common + 1);
  }
  return (id) => id.slice(0, length);
}
