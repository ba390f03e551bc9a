/** What a change makes of an item: whether its tag holds, what is told of it, and what is kept. Stores nothing. */
import { checkDeleteTag } from '../crypto/item-tag.js';
import { openItem } from '../crypto/item.js';
import type { JsonObject } from '../crypto/payload.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import { equalBytes } from '../protocol/bytes.js';
import type { LiveItem } from '../protocol/item.js';
import type { ItemView } from './events.js';
import { holdsFile } from './payloads/shapes.js';
import type { Entry, QuarantinedEntry, QuarantineReason } from './store/store.js';
import type { Change } from './wire.js';
import type { Core } from './core.js';

/** A change that says itself what the item is now. */
export type Stated = Exclude<Change, { kind: 'ack' }>;

/** Where what is to be told is gathered, and whether it is news (after `caught_up`). */
export interface Telling {
  readonly tell: (() => void)[];
  readonly live: boolean;
}

/** See above. */
export class MergeRules {
  constructor(private readonly options: Pick<Core, 'sodium' | 'reader' | 'emit'>) {}

  /** True where a row's tag holds and it opens. */
  opens(row: LiveItem): boolean {
    try {
      openItem(this.options.sodium, row, this.options.reader);
      return true;
    } catch (error) {
      if (error instanceof CryptoRefusal) return false;
      throw error;
    }
  }

  /** What an item's entry is after this change. */
  judged(change: Stated, before: Entry | undefined, telling: Telling): Entry {
    if (change.kind === 'delete') return this.deleted(change, before, telling);
    if (change.kind === 'item') return this.arrived(change.item, before, telling);
    return this.quarantined({ ...change, reason: 'bad_row', row: null }, before, telling);
  }

  private arrived(row: LiveItem, before: Entry | undefined, telling: Telling): Entry {
    const { id, version } = row;
    const forbidden = contradiction(row, before);
    if (forbidden !== undefined) return this.quarantined({ id, version, reason: forbidden, row }, before, telling);
    try {
      const payload = openItem(this.options.sodium, row, this.options.reader);
      const view = { ...viewOf(row, payload), live: telling.live };
      if (isNews(row, before)) telling.tell.push(() => this.options.emit('item', view));
      return { id, version, state: 'live', row };
    } catch (error) {
      if (!(error instanceof CryptoRefusal)) throw error;
      return this.quarantined({ id, version, reason: error.reason, row }, before, telling);
    }
  }

  private quarantined(
    found: Omit<QuarantinedEntry, 'state' | 'kept'>,
    before: Entry | undefined,
    telling: Telling,
  ): Entry {
    const { id, version, reason } = found;
    const row = found.row !== null && isForeign(reason) ? headOnly(found.row) : found.row;
    telling.tell.push(() => this.options.emit('quarantined', { id, version, reason }));
    return { id, version, reason, row, state: 'quarantined', kept: keptOf(before) };
  }

  private deleted(change: Change & { kind: 'delete' }, before: Entry | undefined, telling: Telling): Entry {
    const { id, version, sig } = change;
    const refused = this.tagRefusal(id, sig);
    const { emit } = this.options;
    const { live } = telling;
    // Of an item that was never here nobody misses anything: only a delete that takes something away is told.
    if (before !== undefined && before.state !== 'deleted') {
      telling.tell.push(() => emit('delete', { id, version, live }));
      if (refused !== undefined) telling.tell.push(() => emit('untagged_delete', { id, version, reason: refused }));
    }
    return {
      id,
      version,
      state: 'deleted',
      tagged: refused === undefined,
      kept: refused === undefined ? null : keptOf(before),
    };
  }

  /** Why a delete is not the user's own word; undefined: it is. */
  tagRefusal(id: string, sig: Uint8Array | null): 'no_sig' | 'bad_sig' | undefined {
    // Said without an error: a server may send any number of these.
    if (sig === null) return 'no_sig';
    try {
      checkDeleteTag(this.options.sodium, this.options.reader.masterKey, { id, sig });
      return undefined;
    } catch (error) {
      if (!(error instanceof CryptoRefusal)) throw error;
      return error.reason === 'no_sig' ? 'no_sig' : 'bad_sig';
    }
  }
}

/** Nothing of the user stands behind it. */
const isForeign = (reason: QuarantineReason): boolean => reason === 'no_sig' || reason === 'bad_sig';

/** A row without its content, of which a server can make any amount: where it lies, and from when it is. */
const headOnly = (row: LiveItem): LiveItem => ({ ...row, inline: null, blob: null, master: null });

/** An item as its user sees it. */
export const viewOf = (row: LiveItem, payload: JsonObject | null, pending = false): ItemView => ({
  id: row.id,
  binId: row.binId,
  type: row.type,
  ts: row.ts,
  senderDevice: row.senderDevice,
  version: row.version,
  pending,
  payload,
  blob: row.blob === null ? null : { ref: row.blob.ref, holds: holdsFile(row.type) ? 'file' : 'payload' },
});

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
 * same time (RETRY-02, RETRY-06). `sig` does not cover the version, so a lying server could replay an old
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
