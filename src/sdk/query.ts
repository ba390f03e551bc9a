/** A live query's own part: which items it wants, in which order, and how one result becomes the next. Pure. */
import { equalBytes } from '../protocol/bytes.js';
import { CONTENT_TYPES, type ContentType } from '../protocol/item.js';
import { fieldsOf, isSecretField, kindOf } from './payloads/shapes.js';
import type { ItemView } from './events.js';
import type { JsonObject } from '../crypto/payload.js';

/** What a live query asks for. Everything that is absent does not restrict. */
export interface QueryFilter {
  readonly binId?: string;
  readonly types?: readonly ContentType[];
  /** Each word must stand in one of the searched fields (`search.ts`), whatever its case and accents. */
  readonly text?: string;
  /** By the writer's clock, and by id where that is the same. Default: `newest`, the newest first. */
  readonly order?: 'newest' | 'oldest';
  /** The longest result, from its beginning: 1 to 5,000, by default 500. */
  readonly limit?: number;
}

/**
 * One step from the last result to this one. Carried out one after the other they make the last `items` this one's:
 * `removed` takes out what is at `at`; `added` puts the item in at `at`; `changed` takes out what is at `from` and puts
 * the item in at `at`, which is the same place where it has not moved.
 */
export type QueryChange =
  | { readonly kind: 'removed'; readonly id: string; readonly at: number }
  | { readonly kind: 'added'; readonly id: string; readonly at: number }
  | { readonly kind: 'changed'; readonly id: string; readonly from: number; readonly at: number };

/** A result, and what became of the one before. */
export interface QueryUpdate {
  readonly items: readonly ItemView[];
  /** How many items fit, those beyond the limit too. */
  readonly total: number;
  /** From the result before; of the first one, from an empty list. */
  readonly changes: readonly QueryChange[];
}

/** What is known of an item without decrypting it. `sig` covers all content: the same tag is the same content. */
export interface Head extends Pick<ItemView, 'id' | 'binId' | 'type' | 'ts' | 'version' | 'pending'> {
  readonly sig: Uint8Array | null;
}

/** Longest results, and the usual ones. */
export const QUERY_LIMIT_MAX = 5_000;
const QUERY_LIMIT = 500;

/** True where both have the same content under the same tag. */
export const sameSeal = (one: Pick<Head, 'sig'>, other: Pick<Head, 'sig'> | undefined): boolean =>
  other !== undefined && one.sig !== null && other.sig !== null && equalBytes(one.sig, other.sig);

/** True where a user sees no difference either. */
export const sameHead = (one: Head, other: Head): boolean =>
  sameSeal(one, other) && one.version === other.version && one.pending === other.pending;

/** Newest first; two of the same millisecond by id. */
export const newestFirst = (one: Pick<Head, 'id' | 'ts'>, other: Pick<Head, 'id' | 'ts'>): number =>
  other.ts - one.ts || (one.id < other.id ? 1 : one.id > other.id ? -1 : 0);

/** A filter, checked and with its defaults. Throws `RangeError` for a limit that is none. */
export function planOf(filter: QueryFilter) {
  const { binId, types, text = '', order = 'newest', limit = QUERY_LIMIT } = filter;
  if (!Number.isInteger(limit) || limit < 1 || limit > QUERY_LIMIT_MAX)
    throw new RangeError(`limit must be an integer from 1 to ${QUERY_LIMIT_MAX}, got ${limit}`);
  const wanted = types === undefined ? undefined : new Set(types);
  return {
    limit,
    words: wordsOf(text),
    compare: order === 'newest' ? newestFirst : (one: Head, other: Head): number => newestFirst(other, one),
    /** Judges by what is known without decrypting. */
    wants: (head: Head): boolean =>
      (binId === undefined || head.binId === binId) && (wanted === undefined || wanted.has(head.type)),
  };
}

/** All items that fit one query, in its order: changed item by item, never sorted anew for one of them. */
export class Matches {
  private readonly byId = new Map<string, Head>();
  private sorted: Head[] = [];

  constructor(private readonly compare: (one: Head, other: Head) => number) {}

  /** How many fit. */
  get size(): number {
    return this.sorted.length;
  }

  has(id: string): boolean {
    return this.byId.has(id);
  }

  /** The first `limit` of them. */
  first(limit: number): readonly Head[] {
    return this.sorted.slice(0, limit);
  }

  /** Starts anew with these. */
  fill(heads: readonly Head[]): void {
    this.byId.clear();
    for (const head of heads) this.byId.set(head.id, head);
    this.sorted = [...heads].sort(this.compare);
  }

  /** Puts an item in its place, or takes it out where it fits no more. True where something changed. */
  place(id: string, head: Head | undefined): boolean {
    const before = this.byId.get(id);
    if (before === undefined && head === undefined) return false;
    if (before !== undefined) this.sorted.splice(this.at(before), 1);
    if (head === undefined) this.byId.delete(id);
    else {
      this.sorted.splice(this.at(head), 0, head);
      this.byId.set(id, head);
    }
    return true;
  }

  /** Where a head stands, or would stand. */
  private at(head: Head): number {
    let low = 0;
    let high = this.sorted.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      const there = this.sorted[middle];
      if (there !== undefined && this.compare(there, head) < 0) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/** How to make `before` into `after`. Views are the same where they are the same object. */
export function changesBetween(before: readonly ItemView[], after: readonly ItemView[]): readonly QueryChange[] {
  const kept = new Set(after.map(({ id }) => id));
  const changes: QueryChange[] = [];
  const list = [...before];
  for (let at = list.length - 1; at >= 0; at--) {
    const item = list[at];
    if (item === undefined || kept.has(item.id)) continue;
    list.splice(at, 1);
    changes.push({ kind: 'removed', id: item.id, at });
  }
  const known = new Set(list.map(({ id }) => id));
  for (const [at, item] of after.entries()) {
    if (list[at] === item) continue;
    if (!known.has(item.id)) {
      list.splice(at, 0, item);
      changes.push({ kind: 'added', id: item.id, at });
      continue;
    }
    const from = list.findIndex(({ id }) => id === item.id);
    list.splice(from, 1);
    list.splice(at, 0, item);
    changes.push({ kind: 'changed', id: item.id, from, at });
  }
  return changes;
}

/**
 * The payload fields that a search looks at, by content type (SDK-07). What is secret (`password.secret`) is left
 * out, so that a list of hits never shows by itself what a password is.
 */
export const SEARCHED = Object.fromEntries(
  CONTENT_TYPES.map((type) => [
    type,
    fieldsOf(type).filter((field) => kindOf(type, field) === 'text' && field !== 'mime' && !isSecretField(type, field)),
  ]),
) as Readonly<Record<ContentType, readonly string[]>>;

/** Characters of a search text that count; the rest is left out. */
export const SEARCH_TEXT_MAX = 1_000;

/** Letters that are written with a stroke or joined, and that Unicode does not take apart. */
const PLAIN: Readonly<Record<string, string>> = {
  ø: 'o',
  ł: 'l',
  đ: 'd',
  ħ: 'h',
  æ: 'ae',
  œ: 'oe',
  ς: 'σ',
};

/**
 * A text as it is compared: without case, accents and differences of width; runs of white space are one space.
 * Upper case comes first because only it brings together what lower case keeps apart (ß and ss, dotless i).
 */
export const fold = (text: string): string =>
  text
    .normalize('NFKD')
    .replace(/\p{M}+/gu, '')
    .toUpperCase()
    .toLowerCase()
    .normalize('NFKD')
    .replace(/\p{M}+/gu, '')
    .replace(/[øłđħæœς]/g, (letter) => PLAIN[letter] ?? letter)
    .replace(/\s+/gu, ' ')
    .trim();

/** The words of a search, folded. None: everything is found. */
export const wordsOf = (text: string): readonly string[] => {
  const folded = fold(text.slice(0, SEARCH_TEXT_MAX));
  return folded === '' ? [] : folded.split(' ');
};

/** True where each word stands somewhere in the searched fields of the payload, in any field and any order. */
export function found(words: readonly string[], type: ContentType, payload: JsonObject | null): boolean {
  if (words.length === 0) return true;
  if (payload === null) return false;
  const texts = SEARCHED[type].flatMap((field) => {
    const value = Object.hasOwn(payload, field) ? payload[field] : undefined;
    return typeof value === 'string' ? [fold(value)] : [];
  });
  return words.every((word) => texts.some((text) => text.includes(word)));
}
