/** Notifications between instances: their MAC, and all in JSON, except the changes themselves (notification.ts). */
import { timingSafeEqual } from 'node:crypto';
import type typiaLibrary from 'typia';
import type { tags } from 'typia';
import { nodeSodium } from '../../crypto/sodium-node.js';

/** Its calls are replaced at build time: an import would load the library at every start, for nothing. */
declare const typia: typeof typiaLibrary;

export const MAC_BYTES = 16;
/** Characters that the MAC adds to a notice. */
const MAC_CHARS = '"mac":"",'.length + Math.ceil((MAC_BYTES * 4) / 3);

/** PostgreSQL accepts payloads under 8,000 bytes, including the MAC; all are ASCII. */
export const NOTICE_CHARS = 7_999;
const NOTICE_BYTES = NOTICE_CHARS - MAC_CHARS;
/** The part of it for subscriptions; the rest is for the field names. */
const PARTS_CHARS = 7_000;

type Whole = number & tags.Type<'int64'>;

/** A tenant with lower bounds of its head and generation. */
export type Hint = readonly [tenantId: string, head: Whole, generation: Whole];

/** What an instance reports to others; any of the fields, independently. */
export interface Notice {
  readonly from: string;
  /** The number of a heartbeat. */
  readonly beat?: Whole;
  /** The sender may have failed to announce something: heads must be compared. */
  readonly untold?: boolean;
  /** Tenants that have changed. */
  readonly changes?: readonly Hint[];
  /** The sender's subscriptions, as parts of a `TenantSet`. */
  readonly parts?: readonly (readonly [n: Whole, bits: string])[];
  /** With `parts`: the number of this set, which is later than sets with lower numbers. */
  readonly set?: Whole;
  /** Buckets that were added to the sender's subscriptions. */
  readonly added?: readonly Whole[];
  /** With `parts` or `added`: for how long, ms, these tenants may have had sockets there before this was sent. */
  readonly late?: Whole;
  /** The sender does not know the receiver's subscriptions. */
  readonly asks?: boolean;
}

/**
 * Distributes the entries over as few lists as possible, each of at most `most` characters; a longer entry is alone.
 */
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

/** The parts of a set of subscriptions in as few notices as possible; `rest` is included in each. */
export const partsNotices = (parts: readonly string[], rest: Pick<Notice, 'set' | 'late'>): Omit<Notice, 'from'>[] =>
  listsOf([...parts.entries()], ([, bits]) => bits.length, PARTS_CHARS).map((taken) => ({ ...rest, parts: taken }));

/** Notices with as many hints as fit into each. */
export function hintPayloads(from: string, hints: readonly Hint[]): string[] {
  const notice = (changes: readonly string[]): string =>
    `{"from":${JSON.stringify(from)},"changes":[${changes.join(',')}]}`;
  // n entries are separated by n-1 commas.
  const room = NOTICE_BYTES - notice([]).length + 1;
  const texts = hints.map((hint) => JSON.stringify(hint));
  return listsOf(texts, (text) => text.length + 1, room).map(notice);
}

/** The notice; undefined if it is malformed. */
export function noticeOf(payload: unknown): Notice | undefined {
  if (typeof payload !== 'string') return undefined;
  try {
    const notice: unknown = JSON.parse(payload);
    return isNotice(notice) ? notice : undefined;
  } catch {
    return undefined;
  }
}

const isNotice = typia.createIs<Notice>();

/** Keys of channels that are kept: the channel of all instances, and one for each other instance. */
const KEYS_MAX = 1_000;

/**
 * Proves that an instance sent a notification, since any client of the database can send one on any channel: BLAKE2b
 * (RFC 7693) with 16 bytes of output over the contents, under a key of the channel, BLAKE2b-256(channel, key). One call
 * of the library for each; an HMAC of Node creates three objects, which took longer than the hashing (bench S8).
 */
export class NoticeMac {
  private readonly keys = new Map<string, Uint8Array>();

  /** `key`: 32 bytes, the same for all instances (`notice_key`). */
  constructor(private readonly key: Uint8Array) {}

  /**
   * The payload of a notice, given as the JSON of an object with at least one field. It is `MAC_CHARS` longer: the MAC
   * is inserted as the first field.
   */
  sign(channel: string, notice: string): string {
    const rest = notice.slice(1);
    return this.head(channel, rest) + rest;
  }

  /** Whether an instance sent this payload on this channel. Another client may have replayed it. */
  verify(channel: string, payload: string): boolean {
    const head = Buffer.from(payload.slice(0, MAC_CHARS + 1));
    const expected = Buffer.from(this.head(channel, payload.slice(MAC_CHARS + 1)));
    return head.length === expected.length && timingSafeEqual(head, expected);
  }

  private head(channel: string, rest: string): string {
    return `{"mac":"${Buffer.from(this.macOf(channel, Buffer.from(rest))).toString('base64url')}",`;
  }

  /** Writes the MAC of the bytes from `MAC_BYTES` up to `end` into the first `MAC_BYTES`. */
  signBytes(channel: string, bytes: Buffer, end: number): void {
    bytes.set(this.macOf(channel, bytes.subarray(MAC_BYTES, end)));
  }

  /** Like `verify`, for bytes that begin with their MAC. */
  verifyBytes(channel: string, bytes: Buffer): boolean {
    if (bytes.length < MAC_BYTES) return false;
    return timingSafeEqual(bytes.subarray(0, MAC_BYTES), this.macOf(channel, bytes.subarray(MAC_BYTES)));
  }

  // One key for both kinds: a signed text begins with a quote, signed bytes with their format number, so that neither
  // is accepted as the other.
  private macOf(channel: string, content: Buffer): Uint8Array {
    return nodeSodium.blake2b(MAC_BYTES, content, this.keyOf(channel));
  }

  private keyOf(channel: string): Uint8Array {
    const known = this.keys.get(channel);
    if (known !== undefined) return known;
    const key = nodeSodium.blake2b(32, Buffer.from(channel), this.key);
    if (this.keys.size >= KEYS_MAX) this.keys.clear();
    this.keys.set(channel, key);
    return key;
  }
}
