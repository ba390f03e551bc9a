/**
 * The parts of a live query without state of the device: filter, order, the steps between two results, and text
 * search. Pure.
 */
import { equalBytes } from '../protocol/bytes.js';
import { CONTENT_TYPES, type ContentType } from '../protocol/item.js';
import { fieldsOf, isSecretField, kindOf } from './payloads/shapes.js';
import type { ItemView } from './events.js';
import type { JsonObject } from '../crypto/payload.js';

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
  /** Longest result: 1 to 5,000, by default 500. */
  readonly limit?: number;
}

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
  /** Number of matching items, including those beyond the limit. */
  readonly total: number;
  /** Steps from the previous result; of the first result, from an empty list. */
  readonly changes: readonly QueryChange[];
}

/** The fields of an item that need no decryption. `sig` covers all content: the same tag means the same content. */
export interface Head extends Pick<ItemView, 'id' | 'binId' | 'type' | 'ts' | 'version' | 'pending'> {
  readonly sig: Uint8Array | null;
}

/** Longest limit, and the default. */
export const QUERY_LIMIT_MAX = 5_000;
const QUERY_LIMIT = 500;

/** True where both have the same tag, and so the same content. */
export const sameTag = (one: Pick<Head, 'sig'>, other: Pick<Head, 'sig'> | undefined): boolean =>
  other !== undefined && one.sig !== null && other.sig !== null && equalBytes(one.sig, other.sig);

/** True where a user sees no difference. */
export const sameHead = (one: Head, other: Head): boolean =>
  sameTag(one, other) && one.version === other.version && one.pending === other.pending;

/** Newest first; within one millisecond by id. */
export const newestFirst = (one: Pick<Head, 'id' | 'ts'>, other: Pick<Head, 'id' | 'ts'>): number =>
  other.ts - one.ts || (one.id < other.id ? 1 : one.id > other.id ? -1 : 0);

/** Checks a filter and fills in defaults. Throws `RangeError` for a bad limit. */
export function planOf(filter: QueryFilter) {
  const { id, binId, types, text = '', order = 'newest', limit = QUERY_LIMIT } = filter;
  if (!Number.isInteger(limit) || limit < 1 || limit > QUERY_LIMIT_MAX)
    throw new RangeError(`limit must be an integer from 1 to ${QUERY_LIMIT_MAX}, got ${limit}`);
  const wanted = types === undefined ? undefined : new Set(types);
  return {
    limit,
    words: wordsOf(text),
    compare: order === 'newest' ? newestFirst : (one: Head, other: Head): number => newestFirst(other, one),
    /** Decides without decryption. */
    wants: (head: Head): boolean =>
      (id === undefined || head.id === id) &&
      (binId === undefined || head.binId === binId) &&
      (wanted === undefined || wanted.has(head.type)),
  };
}

/** All items that match one query, in its order; updated item by item, never sorted as a whole again. */
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

  /** The first `limit` of them. */
  first(limit: number): readonly Head[] {
    return this.sorted.slice(0, limit);
  }

  /** Replaces all items. */
  fill(heads: readonly Head[]): void {
    this.byId.clear();
    for (const head of heads) this.byId.set(head.id, head);
    this.sorted = [...heads].sort(this.compare);
  }

  /** Inserts or moves an item, or removes it where it no longer matches. True where something changed. */
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

/** True where each word occurs in some searched field of the payload, in any order. */
export function found(words: readonly string[], type: ContentType, payload: JsonObject | null): boolean {
  if (words.length === 0) return true;
  if (payload === null) return false;
  const texts = SEARCHED[type].flatMap((field) => {
    const value = Object.hasOwn(payload, field) ? payload[field] : undefined;
    return typeof value === 'string' ? [fold(value)] : [];
  });
  return words.every((word) => texts.some((text) => text.includes(word)));
}
