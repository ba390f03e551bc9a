/** Resolves what the user typed to one item, bin or device. */
import { isUlid } from '../protocol/ids.js';
import type { Device } from '../sdk/device.js';
import type { BinView, ItemView } from '../sdk/events.js';
import { fold } from '../sdk/query.js';
import type { DeviceEntry } from '../sdk/replies.js';
import { PROGRAM_NAME } from './context.js';
import { sanitizeText } from '../terminal/output.js';
import { titleOf } from '../sdk/payloads/shapes.js';
import { CommandError, EXIT, usageError } from '../terminal/terminal.js';

const SHOWN_MAX = 5;
/** Minimum length of a short id: one more than a list number has, so that the two cannot be confused. */
const SHORT_MIN = 5;
/** Highest number of a list; items beyond it have none. */
export const NUMBERS_MAX = 9_999;
const NUMBER = /^[1-9]\d{0,3}$/;

/** The list shown last, in its order: its numbers keep their meaning when items change. */
export interface Listed {
  /** When, ms. */
  readonly at: number;
  readonly ids: readonly string[];
}

/** Where a typed item is looked up: all items, and the list that numbers refer to. */
export interface ItemsAndList {
  readonly items: readonly ItemView[];
  /** Undefined: there is none, and numbers mean nothing. */
  readonly listed: Listed | undefined;
}

/** What the user typed, in a message. */
export const quoted = (text: string): string => `"${sanitizeText(text).slice(0, 80)}"`;

/** The commands that list what was not found. */
const LISTS = { item: 'list', bin: 'bins', device: 'devices' } as const;

/** The only match. Throws `CommandError` `notFound` or `ambiguous`, which lists the first matches by `lineOf`. */
function only<T>(found: readonly T[], what: keyof typeof LISTS, typed: string, lineOf: (one: T) => string): T {
  const [first] = found;
  const see = `See \`${PROGRAM_NAME} ${LISTS[what]}\`.`;
  if (first === undefined) throw new CommandError(EXIT.notFound, `there is no ${what} ${quoted(typed)}`, see);
  if (found.length === 1) return first;
  const some = found.slice(0, SHOWN_MAX).map((one) => `  ${lineOf(one)}`);
  const more = found.length > SHOWN_MAX ? [`  and ${found.length - SHOWN_MAX} more`] : [];
  const hint = ['Type more of it, or the id:', ...some, ...more].join('\n');
  throw usageError(`${quoted(typed)} can be any of ${found.length} ${what}s`, hint, 'ambiguous');
}

/** The id that a number of the last list stands for; undefined where `typed` is no such number. */
export function numbered(listed: Listed | undefined, typed: string): string | undefined {
  const wanted = typed.trim();
  return NUMBER.test(wanted) ? listed?.ids[Number(wanted) - 1] : undefined;
}

/**
 * An item by its number in the last list, by id, or by a suffix (of `SHORT_MIN` characters or more) or prefix of its id
 * that no other id has. Throws `CommandError` `notFound` or `ambiguous`.
 */
export function findItem(items: readonly ItemView[], typed: string, listed?: Listed): ItemView {
  const id = numbered(listed, typed);
  const wanted = id ?? typed.trim().toUpperCase();
  const fits = (one: string): boolean => one.startsWith(wanted) || (wanted.length >= SHORT_MIN && one.endsWith(wanted));
  const found = wanted === '' ? [] : items.filter((item) => fits(item.id));
  if (id !== undefined && found.length === 0)
    throw new CommandError(EXIT.notFound, `number ${typed.trim()} of the last list is not there any more`);
  const lineOf = ({ id, type, payload }: ItemView): string => `${id}  ${type}  ${sanitizeText(titleOf(type, payload))}`;
  return only(found, 'item', typed, lineOf);
}

/** The id of an item to delete: also of one that does not verify and is not listed. */
export async function findAnyId(device: Device, { items, listed }: ItemsAndList, typed: string): Promise<string> {
  const wanted = typed.trim().toUpperCase();
  if (isUlid(wanted) && !items.some(({ id }) => id === wanted)) {
    const hidden = (await device.hidden()).find(({ id, reason }) => id === wanted && reason !== 'untagged_delete');
    if (hidden !== undefined) return hidden.id;
  }
  return findItem(items, typed, listed).id;
}

/** The item that `typed` means, or the newest. Throws `CommandError` as `findItem`, and `usage` if both are given. */
export function chosenItem({ items, listed }: ItemsAndList, typed?: string, last?: boolean): ItemView {
  if (typed !== undefined && last === true) throw usageError('give an item, or --last, not both');
  if (typed !== undefined) return findItem(items, typed, listed);
  const [newest] = items;
  if (newest === undefined) throw new CommandError(EXIT.notFound, 'there are no items yet');
  return newest;
}

/**
 * A bin by id, else by slug or name. A name is the user's, a slug the server's, which could give one bin the name of
 * another: where they mean two bins, the user has to say which. Throws `CommandError` `notFound` or `ambiguous`.
 */
export function findBin(bins: readonly BinView[], typed: string): BinView {
  const wanted = typed.trim();
  const exact = bins.find(({ id }) => id === wanted);
  if (exact !== undefined) return exact;
  const folded = fold(wanted);
  const found = bins.filter(({ slug, label }) => slug === wanted || fold(label?.name ?? slug) === folded);
  return only(found, 'bin', typed, ({ id, slug, label }) =>
    [id, ...(slug === id ? [] : [slug]), label?.name ?? ''].map(sanitizeText).join('  '),
  );
}

/** A device by id, by a prefix of it, or by name. Throws `CommandError` `notFound` or `ambiguous`. */
export function findDevice(devices: readonly DeviceEntry[], typed: string): DeviceEntry {
  const wanted = typed.trim();
  const byId = wanted === '' ? [] : devices.filter(({ id }) => id.startsWith(wanted.toUpperCase()));
  const found = byId.length > 0 ? byId : devices.filter(({ name }) => fold(name) === fold(wanted));
  return only(found, 'device', typed, ({ id, name }) => `${id}  ${sanitizeText(name)}`);
}

export const shortIds = (items: readonly ItemView[]): ShortIds => new ShortIds(items.map(({ id }) => id));

/**
 * Short forms of ids: a suffix, since ids made at the same moment have the same prefix; long enough that no other id
 * ends or begins with it.
 */
export class ShortIds {
  /** The one id that ends so; null: several do, and are found by longer suffixes. Each id is found by one suffix only. */
  private readonly byEnd = new Map<string, string | null>();
  private readonly beginnings = new Set<string>();

  constructor(ids: Iterable<string>) {
    for (const id of ids) this.add(id);
  }

  add(id: string): void {
    this.beginnings.add(id.slice(0, SHORT_MIN));
    for (let length = SHORT_MIN; length <= id.length; length++) {
      const end = id.slice(-length);
      const other = this.byEnd.get(end);
      if (other === undefined) this.byEnd.set(end, id);
      if (other === undefined || other === id) return;
      if (other === null) continue;
      this.byEnd.set(end, null);
      this.byEnd.set(other.slice(-length - 1), other);
    }
  }

  /** Short id and title of an item, in a message. */
  named({ id, type, payload }: Pick<ItemView, 'id' | 'type' | 'payload'>): string {
    return `${this.of(id)}  ${sanitizeText(titleOf(type, payload))}`;
  }

  /** The form of an id, added or not; the id itself where no shorter form is unique. */
  of(id: string): string {
    let alike: string | undefined;
    for (let length = SHORT_MIN; length < id.length; length++) {
      const form = id.slice(-length);
      const found = this.byEnd.get(form);
      if (found !== null && found !== undefined && found !== id) alike = found;
      const taken = found === null || alike?.endsWith(form) === true || this.beginnings.has(form.slice(0, SHORT_MIN));
      if (!taken) return form;
    }
    return id;
  }
}
