/**
 * The parts of a live query that need no device state: filter, order, the steps between two results, and text search.
 * Pure.
 */
import { CONTENT_TYPES, type ContentType } from '../protocol/item.js';
import { fieldsOf, isSecretField, kindOf } from './payloads/shapes.js';
import type { ItemView } from './events.js';
import type { JsonObject } from '../crypto/payload.js';
import { place, type Head } from './store/store.js';

/** The filter of a live query. Absent fields do not restrict. */
export interface QueryFilter {
  /** One item. */
  readonly id?: string;
  readonly binId?: string;
  readonly types?: readonly ContentType[];
  /** Each word must occur in one of the searched fields (`SEARCHED`), ignoring case and accents. */
  readonly text?: string;
  /** By the writer's clock, then by id. Default: `newest` first. */
  readonly order?: 'newest' | 'oldest';
  /** How many of the first matching items the result leaves out: by default 0. */
  readonly offset?: number;
  /** Longest result: 1 to 5,000, by default 500. */
  readonly limit?: number;
}

/** The part of the matching items that a live query shows. */
export type QueryWindow = Required<Pick<QueryFilter, 'offset' | 'limit'>>;

/**
 * One step from the previous result to this one. Applied in order they turn the previous `items` into these: `removed`
 * removes the item at `at`; `added` inserts the item at `at`; `changed` removes the item at `from` and inserts the
 * item at `at`, which is the same position if it has not moved.
 */
export type QueryChange =
  | { readonly kind: 'removed'; readonly id: string; readonly at: number }
  | { readonly kind: 'added'; readonly id: string; readonly at: number }
  | { readonly kind: 'changed'; readonly id: string; readonly from: number; readonly at: number };

/** A result, and how it differs from the previous one. */
export interface QueryUpdate {
  readonly items: readonly ItemView[];
  /** Number of matching items before `items[0]`, as requested. */
  readonly offset: number;
  /** Number of matching items, including those outside the window. */
  readonly total: number;
  /** Steps from the previous result; of the first result, from an empty list. */
  readonly changes: readonly QueryChange[];
}

/** Longest limit, and the default. */
export const QUERY_LIMIT_MAX = 5_000;
const QUERY_LIMIT = 500;

/** True where both have the same tag, and so the same content. */
export const sameTag = (one: Pick<Head, 'tag'>, other: Pick<Head, 'tag'> | undefined): boolean =>
  other !== undefined && one.tag !== null && one.tag === other.tag;

/** True where a user sees no difference. */
export const sameHead = (one: Head, other: Head): boolean =>
  sameTag(one, other) && one.version === other.version && one.pending === other.pending;

/** Newest first; within one millisecond by id. */
export const newestFirst = (one: Pick<Head, 'id' | 'ts'>, other: Pick<Head, 'id' | 'ts'>): number =>
  other.ts - one.ts || (one.id < other.id ? 1 : one.id > other.id ? -1 : 0);

/** Checks a window and fills in defaults. Throws `RangeError` for a bad offset or limit. */
export function windowOf({ offset = 0, limit = QUERY_LIMIT }: Partial<QueryWindow>): QueryWindow {
  if (!Number.isInteger(limit) || limit < 1 || limit > QUERY_LIMIT_MAX)
    throw new RangeError(`limit must be an integer from 1 to ${QUERY_LIMIT_MAX}, got ${limit}`);
  if (!Number.isSafeInteger(offset) || offset < 0) throw new RangeError(`offset must be 0 or more, got ${offset}`);
  return { offset, limit };
}

/** Fills in the defaults of a filter. */
export function planOf(filter: QueryFilter) {
  const { id, binId, types, text = '', order = 'newest' } = filter;
  const wanted = types === undefined ? undefined : new Set(types);
  return {
    words: wordsOf(text),
    compare: order === 'newest' ? newestFirst : (one: Head, other: Head): number => newestFirst(other, one),
    /** Decides without decryption. */
    wants: (head: Head): boolean =>
      (id === undefined || head.id === id) &&
      (binId === undefined || head.binId === binId) &&
      (wanted === undefined || wanted.has(head.type)),
  };
}

/** Number of changes in one round above which sorting everything costs less than moving each. */
const RESORT_ABOVE = 1_000;

/** All items that match one query, in its order; updated item by item. */
export class Matches {
  private readonly byId = new Map<string, Head>();
  private sorted: Head[] = [];

  constructor(private readonly compare: (one: Head, other: Head) => number) {}

  /** Number of matching items. */
  get size(): number {
    return this.sorted.length;
  }

  has(id: string): boolean {
    return this.byId.has(id);
  }

  /** The items in a window. */
  within({ offset, limit }: QueryWindow): readonly Head[] {
    return this.sorted.slice(offset, offset + limit);
  }

  /** Replaces all items. */
  fill(heads: readonly Head[]): void {
    this.byId.clear();
    for (const head of heads) this.byId.set(head.id, head);
    this.sorted = [...heads].sort(this.compare);
  }

  /** Inserts or moves each item, or removes it where it no longer matches. True where something changed. */
  place(changes: readonly { readonly id: string; readonly head: Head | undefined }[]): boolean {
    if (changes.length > RESORT_ABOVE) {
      for (const { id, head } of changes) place(this.byId, id, head);
      this.sorted = [...this.byId.values()].sort(this.compare);
      return true;
    }
    let moved = false;
    for (const { id, head } of changes) {
      const before = this.byId.get(id);
      if (before === undefined && head === undefined) continue;
      moved = true;
      if (before !== undefined) this.sorted.splice(this.at(before), 1);
      if (head !== undefined) this.sorted.splice(this.at(head), 0, head);
      place(this.byId, id, head);
    }
    return moved;
  }

  /** The position of a head, or the position to insert it. */
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

/** The steps from `before` to `after`. Views are equal where they are the same object. */
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
 * The payload fields that a search looks at, by content type (SDK-07): texts except secrets (`password.secret`), so
 * that a list of hits never reveals a password, and except media types.
 */
export const SEARCHED = Object.fromEntries(
  CONTENT_TYPES.map((type) => [
    type,
    fieldsOf(type).filter((field) => kindOf(type, field) === 'text' && field !== 'mime' && !isSecretField(type, field)),
  ]),
) as unknown as Readonly<Record<ContentType, readonly string[]>>;

/** Characters of a search text that are used; the rest is ignored. */
export const SEARCH_TEXT_MAX = 1_000;

/** Letters with a stroke and ligatures, which Unicode does not decompose. */
const PLAIN: Readonly<Record<string, string>> = { ø: 'o', ł: 'l', đ: 'd', ħ: 'h', æ: 'ae', œ: 'oe', ς: 'σ' };

/**
 * Normalizes a text for comparison: without case, accents and width; white space becomes single spaces. Upper case
 * comes first because it unites what lower case keeps apart (ß and ss, dotless i).
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

/** The words of a search, folded. Empty: everything matches. */
export const wordsOf = (text: string): readonly string[] => {
  const folded = fold(text.slice(0, SEARCH_TEXT_MAX));
  return folded === '' ? [] : folded.split(' ');
};

/** The searched texts of a payload, folded, each on its own line, so that no word matches across two of them. */
export const searchedText = (type: ContentType, payload: JsonObject | null): string =>
  SEARCHED[type]
    .flatMap((field) => {
      const value = payload !== null && Object.hasOwn(payload, field) ? payload[field] : undefined;
      return typeof value === 'string' ? [fold(value)] : [];
    })
    .join('\n');

/** True where each word occurs in the text (`searchedText`), in any order. */
export const found = (words: readonly string[], text: string): boolean => words.every((word) => text.includes(word));
