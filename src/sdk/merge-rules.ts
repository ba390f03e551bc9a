/**
 * Derives the new entry from a change and the stored entry: verification of tags, events, and the state that is kept.
 * Pure except for decryption; stores nothing.
 */
import { checkDeleteTag } from '../crypto/item-tag.js';
import { openItem } from '../crypto/item.js';
import type { JsonObject } from '../crypto/payload.js';
import { CryptoRefusal, orRefusal } from '../crypto/refusal.js';
import type { LiveItem } from '../protocol/item.js';
import type { ItemView } from './events.js';
import { holdsFile } from './payloads/shapes.js';
import { sameContent } from './same-state.js';
import { isGone, type Entry, type QuarantinedEntry, type QuarantineReason } from './store/store.js';
import type { Change } from './wire.js';
import type { Core } from './core.js';

/** A change that carries the new state of its item. */
export type Stated = Exclude<Change, { kind: 'ack' }>;

/** Collects the events of a change. `live`: after `caught_up`. */
interface PendingEvents {
  readonly emits: (() => void)[];
  readonly live: boolean;
}

/** The rules by which changes of the stream become entries. */
export class MergeRules {
  constructor(private readonly options: Pick<Core, 'sodium' | 'reader' | 'emit'>) {}

  /** True where a row's tag verifies and it decrypts. */
  opens(row: LiveItem): boolean {
    return !(orRefusal(() => openItem(this.options.sodium, row, this.options.reader)) instanceof CryptoRefusal);
  }

  /** The entry of an item after this change. */
  entryAfter(change: Stated, before: Entry | undefined, events: PendingEvents): Entry {
    if (change.kind === 'delete') return this.deleted(change, before, events);
    if (change.kind === 'item') return this.arrived(change.item, before, events);
    const reason = isGone(before) ? 'resurrected' : 'bad_row';
    return this.quarantined({ ...change, reason, row: null }, before, events);
  }

  private arrived(row: LiveItem, before: Entry | undefined, events: PendingEvents): Entry {
    const { id, version } = row;
    const { sodium, reader, emit } = this.options;
    const forbidden = contradiction(row, before);
    if (forbidden !== undefined) return this.quarantined({ id, version, reason: forbidden, row }, before, events);
    const payload = orRefusal(() => openItem(sodium, row, reader));
    if (payload instanceof CryptoRefusal)
      return this.quarantined({ id, version, reason: payload.reason, row }, before, events);
    const view = { ...viewOf(row, payload), live: events.live };
    if (isNews(row, before)) events.emits.push(() => emit('item', view));
    return { id, version, state: 'live', row };
  }

  private quarantined(
    found: Omit<QuarantinedEntry, 'state' | 'kept'>,
    before: Entry | undefined,
    events: PendingEvents,
  ): Entry {
    const { id, version, reason } = found;
    const row = found.row !== null && isForeign(reason) ? headOnly(found.row) : found.row;
    events.emits.push(() => this.options.emit('quarantined', { id, version, reason }));
    return { id, version, reason, row, state: 'quarantined', kept: keptOf(before) };
  }

  private deleted(change: Change & { kind: 'delete' }, before: Entry | undefined, events: PendingEvents): Entry {
    const { id, version, sig } = change;
    const refused = this.tagRefusal(id, sig);
    const { emit } = this.options;
    const { live } = events;
    // A delete of an item that was never stored here, or is already deleted, emits no event.
    if (before !== undefined && before.state !== 'deleted') {
      events.emits.push(() => emit('delete', { id, version, live }));
      if (refused !== undefined) events.emits.push(() => emit('untagged_delete', { id, version, reason: refused }));
    }
    return {
      id,
      version,
      state: 'deleted',
      tagged: refused === undefined || isGone(before),
      kept: refused === undefined ? null : keptOf(before),
    };
  }

  /** Why the tag of a delete is refused; undefined: it verifies, so the user made the delete. */
  tagRefusal(id: string, sig: Uint8Array | null): 'no_sig' | 'bad_sig' | undefined {
    // Returned, not thrown, because a server may send any number of these.
    if (sig === null) return 'no_sig';
    const { sodium, reader } = this.options;
    const refusal = orRefusal(() => checkDeleteTag(sodium, reader.masterKey, { id, sig }));
    return refusal instanceof CryptoRefusal ? 'bad_sig' : undefined;
  }
}

/** True for reasons that mean that the row was not written by the user. */
const isForeign = (reason: QuarantineReason): boolean => reason === 'no_sig' || reason === 'bad_sig';

/** A row without its content, so that rows invented by a server take little space. */
const headOnly = (row: LiveItem): LiveItem => ({ ...row, inline: null, blob: null, master: null });

/** An item as the user sees it. */
export function viewOf(row: LiveItem, payload: JsonObject | null, pending = false): ItemView {
  const { id, binId, type, ts, senderDevice, version } = row;
  const blob = row.blob && ({ ref: row.blob.ref, holds: holdsFile(type) ? 'file' : 'payload' } as const);
  return { id, binId, type, ts, senderDevice, version, pending, payload, blob };
}

/** The last state of an item that verified. One from before a reset has no version: that of another history means nothing. */
function keptOf(entry: Entry | undefined): LiveItem | null {
  if (entry === undefined) return null;
  const row = entry.state === 'live' ? entry.row : entry.kept;
  return row !== null && entry.version === 0 ? { ...row, version: 0 } : row;
}

/**
 * Detects what no honest server does within one history: bring back a deleted item, or send older or other content
 * under the same time (RETRY-02, RETRY-06). The tag does not cover the version, so a malicious server could replay an
 * old state of an item. A delete without a tag proves nothing: newer content shows that it was made by the server.
 * After a reset (version 0) a deleted item may be back, but newer content that is stored here is not replaced by older
 * content: a server can claim a restore at any time.
 */
function contradiction(row: LiveItem, before: Entry | undefined): QuarantineReason | undefined {
  if (before === undefined) return undefined;
  if (isGone(before)) return 'resurrected';
  const kept = keptOf(before);
  if (before.state === 'deleted') {
    const newer = kept === null || kept.ts < row.ts;
    return before.version === 0 || newer ? undefined : 'resurrected';
  }
  if (kept === null || kept.ts < row.ts || sameContent(kept, row)) return undefined;
  return before.version === 0 && kept.ts === row.ts ? undefined : 'rolled_back';
}

/** The last entry before a state that did not verify. */
export const lastGood = (entry: Entry): Entry | undefined => {
  if (isGone(entry)) return entry;
  const row = keptOf(entry);
  return row === null ? undefined : { id: entry.id, version: row.version, state: 'live', row };
};

/** False for a re-wrap, which changes nothing that a user sees. */
const isNews = (row: LiveItem, before: Entry | undefined): boolean =>
  before?.state !== 'live' || before.row.binId !== row.binId || !sameContent(before.row, row);
