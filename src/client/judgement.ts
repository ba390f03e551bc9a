/** What one state of an item says about another, without keys. Pure. */
import { equalBytes } from '../protocol/bytes.js';
import type { LiveItem } from '../protocol/item.js';
import type { Entry, QuarantineReason } from './store/store.js';

/** The last state of an item that did verify. */
export const keptOf = (entry: Entry | undefined): LiveItem | null =>
  entry === undefined ? null : entry.state === 'live' ? entry.row : entry.kept;

const sameBytes = (a: Uint8Array | undefined, b: Uint8Array | undefined): boolean =>
  a === undefined || b === undefined ? a === b : equalBytes(a, b);

const sameContent = (one: LiveItem, other: LiveItem): boolean =>
  one.ts === other.ts &&
  sameBytes(one.inline?.ct, other.inline?.ct) &&
  sameBytes(one.inline?.nonce, other.inline?.nonce) &&
  one.blob?.ref === other.blob?.ref &&
  sameBytes(one.blob?.nonce, other.blob?.nonce);

/**
 * What no honest server does within one history: bring back a deleted item, or give older or other content under the
 * same time (contract 5, order of decisions). `sig` does not cover the version, so a lying server could replay an old
 * state of an item; this finds it. A delete without a tag is no proof: newer content shows that it was the server's own.
 * After a reset (version 0) a deleted item may be back, and the newer content that is held here is not lost for an older
 * one: a server can call any lie a restore.
 */
export function contradiction(row: LiveItem, before: Entry | undefined): QuarantineReason | undefined {
  if (before === undefined) return undefined;
  const kept = keptOf(before);
  if (before.state === 'deleted') {
    const newer = !before.tagged && (kept === null || kept.ts < row.ts);
    return before.version === 0 || newer ? undefined : 'resurrected';
  }
  if (kept === null || kept.ts < row.ts || sameContent(kept, row)) return undefined;
  return before.version === 0 && kept.ts === row.ts ? undefined : 'rolled_back';
}

/** What is known of an item from before a state that did not verify. */
export const lastGood = (entry: Entry): Entry | undefined => {
  const row = keptOf(entry);
  return row === null ? undefined : { id: entry.id, version: row.version, state: 'live', row };
};

/** The tag covers everything that a user sees: two states that differ in anything else are re-wraps. */
export const sameSig = (one: LiveItem, other: LiveItem): boolean =>
  sameBytes(one.sig ?? undefined, other.sig ?? undefined);

/** A re-wrap changes nothing that a user sees. */
export const isNews = (row: LiveItem, before: Entry | undefined): boolean =>
  before?.state !== 'live' || before.row.binId !== row.binId || !sameContent(before.row, row);
