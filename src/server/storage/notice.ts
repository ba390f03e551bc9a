/** What instances tell each other in a notification as JSON: all but the changes themselves (notification.ts). */
import { MAC_CHARS } from './notice-mac.js';

/** PostgreSQL takes payloads under 8,000 bytes, their MAC included. */
const NOTICE_BYTES = 7_999 - MAC_CHARS;
/** Of these, for subscriptions; the rest is for the names of the fields. */
const PARTS_CHARS = 7_000;

/** A tenant, and what its head and generation are at least. */
export type Hint = readonly [tenantId: string, head: number, generation: number];
/** A notification in JSON. */
export interface Notice {
  readonly from: string;
  /** The number of a heartbeat. */
  readonly beat?: number;
  /** It may have failed to announce something: heads have to be compared. */
  readonly untold?: boolean;
  /** Tenants that have changed. */
  readonly changes?: readonly Hint[];
  /** Its subscriptions, as parts of a `TenantSet`. */
  readonly parts?: readonly (readonly [n: number, bits: string])[];
  /** With parts: the number of this set, which is later than those with lower ones. */
  readonly set?: number;
  /** Buckets that were added to them. */
  readonly added?: readonly number[];
  /** With either: for how long, ms, these tenants may have had sockets there before this was sent. */
  readonly late?: number;
  /** It does not know the subscriptions of the receiver. */
  readonly asks?: boolean;
}

/** The entries in as few lists as they fit into, each of `most` characters at most; a longer entry is alone in its own. */
function listsOf<T>(entries: readonly T[], charsOf: (entry: T) => number, most: number): T[][] {
  const lists: T[][] = [];
  let chars = Infinity;
  for (const entry of entries) {
    chars += charsOf(entry);
    if (chars > most) {
      lists.push([]);
      chars = charsOf(entry);
    }
    lists.at(-1)?.push(entry);
  }
  return lists;
}

/** The parts of a set of subscriptions in as few notices as they fit into; `rest` is said with each. */
export const partsNotices = (parts: readonly string[], rest: Pick<Notice, 'set' | 'late'>): Omit<Notice, 'from'>[] =>
  listsOf([...parts.entries()], ([, bits]) => bits.length, PARTS_CHARS).map((taken) => ({ ...rest, parts: taken }));

/** Notices with as many hints in each as fit. */
export function hintPayloads(from: string, hints: readonly Hint[]): string[] {
  const notice = (changes: readonly string[]): string =>
    `{"from":${JSON.stringify(from)},"changes":[${changes.join(',')}]}`;
  // Of n entries n-1 have a comma.
  const room = NOTICE_BYTES - notice([]).length + 1;
  const texts = hints.map((hint) => JSON.stringify(hint));
  return listsOf(texts, (text) => text.length + 1, room).map(notice);
}

/** The notice; undefined where it is malformed. */
export function noticeOf(payload: unknown): Notice | undefined {
  if (typeof payload !== 'string') return undefined;
  try {
    const notice: unknown = JSON.parse(payload);
    return isNotice(notice) ? notice : undefined;
  } catch {
    return undefined;
  }
}

function isNotice(value: unknown): value is Notice {
  if (typeof value !== 'object' || value === null) return false;
  const { from, beat, changes, parts, set, added, late } = value as Partial<Record<keyof Notice, unknown>>;
  const lists = isListOf(changes, isHint) && isListOf(parts, isPart) && isListOf(added, Number.isInteger);
  const isCount = (count: unknown): boolean => count === undefined || Number.isInteger(count);
  return typeof from === 'string' && lists && [beat, set, late].every(isCount);
}

/** A list of such entries, or absent. */
const isListOf = (value: unknown, fits: (entry: unknown) => boolean): boolean =>
  value === undefined || (Array.isArray(value) && value.every(fits));

const isPart = (part: unknown): boolean =>
  Array.isArray(part) && Number.isInteger(part[0]) && typeof part[1] === 'string';

const isHint = (hint: unknown): boolean =>
  Array.isArray(hint) && typeof hint[0] === 'string' && Number.isInteger(hint[1]) && Number.isInteger(hint[2]);
