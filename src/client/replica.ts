/**
 * The local copy of the tenant's items: what the ordered stream brings is verified, stored and told, once.
 *
 * Invariant: after `apply`, the store's entries are what the stream said up to the cursor, and both were stored in one
 * step. That makes a repeated frame a no-op, a crash harmless, and the count at `caught_up` comparable. The methods
 * must be called one after the other; `Sync` sees to that.
 */
import { checkDeleteTag } from '../crypto/item-tag.js';
import { openItem, type Reader } from '../crypto/item.js';
import type { JsonObject } from '../crypto/payload.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import type { Sodium } from '../crypto/sodium.js';
import type { LiveItem } from '../protocol/item.js';
import { caughtUp, passed, restarted, type Cursor } from './cursor.js';
import { ProtocolError, type ProtocolFault } from './errors.js';
import type { Emit, ItemView, Named } from './events.js';
import { contradiction, isNews, keptOf, lastGood, sameSig } from './judgement.js';
import type { Outbox } from './outbox.js';
import { holdsFile } from './payloads/shapes.js';
import type { Entry, Held, Pending, QuarantineReason, Store } from './store/store.js';
import type { Change, Completeness } from './wire.js';

/** What the local copy stands on. */
export interface ReplicaOptions {
  readonly store: Store;
  readonly outbox: Outbox;
  readonly sodium: Sodium;
  readonly reader: Reader;
  readonly emit: Emit;
  /** The first change above a version, from the server: for an `ack` of content that is not here. */
  readonly fetchNext: (since: number) => Promise<Change | undefined>;
}

/** A row of a listing that was newer than what is held; `held`: the version that is, null where there was nothing. */
export interface Listed {
  readonly id: string;
  readonly version: number;
  readonly held: number | null;
}

/** What one call of `apply` gathers before it stores it in one step. */
interface Draft {
  readonly entries: Map<string, Entry>;
  readonly done: Pending[];
  readonly tell: (() => void)[];
}

/** Entries whose versions are forgotten in one step. */
const FORGET_AT_ONCE = 256;

/** The local copy; see above. */
export class Replica {
  /** After `caught_up`: what comes now is news. */
  private live = false;

  constructor(private readonly options: ReplicaOptions) {}

  /** A new connection or listing begins: until the next `caught_up` everything is catching up. */
  replaying(): void {
    this.live = false;
  }

  cursor(): Promise<Cursor> {
    return this.options.store.cursor();
  }

  /**
   * Applies changes of the ordered stream. Those at or below the cursor change nothing, but for one that is news all the
   * same: only a server that sends out of order brings it, and it is told of and kept.
   */
  async apply(changes: readonly Change[]): Promise<void> {
    let cursor = await this.options.store.cursor();
    const draft: Draft = { entries: new Map(), done: [], tell: [] };
    for (const change of changes) {
      const next = passed(cursor, change.version);
      if (next === undefined) {
        await this.late(change, draft);
        continue;
      }
      await this.merge(change, draft);
      cursor = next;
    }
    await this.store(draft, cursor);
  }

  /**
   * Applies a page of a listing that started at or below the cursor: each row counts if it is newer than what is held.
   * `end`: up to where everything is here now, which is where the cursor goes; null where it stays, since the pages so
   * far began below it and are not through. Gives the rows that were newer.
   */
  async applyListed(changes: readonly Change[], end: Completeness['version'] | null): Promise<readonly Listed[]> {
    const cursor = await this.options.store.cursor();
    const draft: Draft = { entries: new Map(), done: [], tell: [] };
    const newer: Listed[] = [];
    for (const change of changes) {
      const held = draft.entries.get(change.id) ?? (await this.options.store.get(change.id));
      const mended = await this.merge(change, draft, true);
      if (mended) newer.push({ id: change.id, version: change.version, held: held?.version ?? null });
    }
    await this.store(draft, end === null ? cursor : { ...cursor, since: Math.max(cursor.since, end) });
    return newer;
  }

  /**
   * Applies rows of a listing of which none is believed to be here in order: what is held under the same version and
   * does not open, or did not verify, is judged anew.
   */
  async mend(changes: readonly Change[]): Promise<void> {
    const draft: Draft = { entries: new Map(), done: [], tell: [] };
    for (const change of changes) {
      const held = await this.options.store.get(change.id);
      if (change.kind === 'ack' || held?.version !== change.version || held.state === 'deleted') continue;
      if (held.state === 'live' && this.opens(held.row)) continue;
      // What was damaged is nothing to compare with.
      draft.entries.set(change.id, this.judged(change, held.state === 'live' ? undefined : held, draft));
    }
    await this.store(draft, await this.options.store.cursor());
  }

  /** Another history: all versions are forgotten, what is held stays readable, and everything comes again. */
  async reset(epoch: string): Promise<void> {
    this.live = false;
    await this.options.store.apply({ forgetVersions: true, cursor: restarted(epoch) });
    this.options.outbox.touched.markAll();
    this.options.emit('reset', { epoch });
  }

  /**
   * The end of a replay. True when what is held is what the server counts, false when it is not, undefined when the
   * server speaks of another history without having said so: then it must be asked from 0.
   */
  async settle(at: Completeness): Promise<{ readonly complete: boolean; readonly held: Held } | undefined> {
    const before = await this.options.store.cursor();
    if (caughtUp(before, at) === undefined) return undefined;
    // The head is always some item's latest version, so it was sent. A cursor that took another number from here would
    // pass over what comes below it.
    await this.options.store.apply({ cursor: { since: before.since, epoch: at.epoch } });
    this.live = true;
    const held = await this.options.store.held();
    const complete =
      before.since === at.version && held.itemCount === at.itemCount && held.versionSum === at.versionSum;
    return { complete, held };
  }

  /** What is held, compared with what the server counts at `at`; undefined where that is not where the cursor stands. */
  async compare(at: Completeness): Promise<{ readonly complete: boolean; readonly held: Held } | undefined> {
    const { since, epoch } = await this.options.store.cursor();
    if (since !== at.version || epoch !== at.epoch) return undefined;
    const held = await this.options.store.held();
    return { complete: held.itemCount === at.itemCount && held.versionSum === at.versionSum, held };
  }

  /** The end of a listing that began at the cursor: its head becomes the cursor, in the history it names. */
  async settlePulled(at: Pick<Completeness, 'version' | 'epoch'>): Promise<void> {
    const cursor = caughtUp(await this.options.store.cursor(), at);
    if (cursor === undefined) throw new ProtocolError('the epoch changed during a listing');
    await this.options.store.apply({ cursor });
    this.live = true;
  }

  /** Live entries whose version is not known: after a reset has been replayed, what the new history does not have. */
  async unversioned(): Promise<readonly string[]> {
    const ids: string[] = [];
    for await (const { id, state, version } of this.options.store.entries()) {
      if (state !== 'deleted' && version === 0) ids.push(id);
    }
    return ids;
  }

  /**
   * Entries that a complete listing up to `head` did not name. Their version is forgotten, so that they are not
   * counted; they stay readable, since a server that lost them is no reason to lose them here.
   */
  async dropUnlisted(listed: ReadonlySet<string>, head: number): Promise<readonly Named[]> {
    const { store, outbox } = this.options;
    const named: Named[] = [];
    let unlisted: Entry[] = [];
    const forget = async (): Promise<void> => {
      await store.apply({ entries: unlisted });
      outbox.touched.mark(unlisted.map(({ id }) => id));
      unlisted = [];
    };
    for await (const entry of store.entries()) {
      const { id, version, state } = entry;
      if (state === 'deleted' || version === 0 || version > head || listed.has(id)) continue;
      named.push({ id, version });
      unlisted.push({ ...entry, version: 0 });
      if (unlisted.length >= FORGET_AT_ONCE) await forget();
    }
    if (unlisted.length > 0) await forget();
    return named;
  }

  private async store(draft: Draft, cursor: Cursor): Promise<void> {
    for (const { id, version } of draft.entries.values()) draft.done.push(...this.options.outbox.covered(id, version));
    const done = draft.done.map((pending) => pending.seq);
    await this.options.store.apply({ entries: [...draft.entries.values()], cursor, done });
    // Not before: who looks meanwhile would find neither the own change nor what replaces it.
    this.options.outbox.forget(draft.done);
    this.options.outbox.touched.mark(draft.entries.keys());
    // Told only when it is stored: who hears of an item can read it.
    for (const tell of draft.tell) tell();
  }

  private opens(row: LiveItem): boolean {
    try {
      openItem(this.options.sodium, row, this.options.reader);
      return true;
    } catch (error) {
      if (error instanceof CryptoRefusal) return false;
      throw error;
    }
  }

  /** True where it changed something. `listed`: a row of now, so a higher version that is held was a lie. */
  private async merge(change: Change, draft: Draft, listed = false): Promise<boolean> {
    const before = draft.entries.get(change.id) ?? (await this.options.store.get(change.id));
    if (before !== undefined && before.version >= change.version)
      return (listed || before.version === change.version) && this.mergeKnown(change, before, draft);
    if (change.kind === 'ack') await this.mergeAck(change, draft);
    else draft.entries.set(change.id, this.judged(change, before, draft));
    return true;
  }

  private async late(change: Change, draft: Draft): Promise<void> {
    if (change.kind === 'ack' || !(await this.merge(change, draft))) return;
    const { id, version } = change;
    this.tellFault(draft, 'bad_order', `version ${version} of ${id} came after the stream had passed it`);
  }

  /**
   * A state that is no newer than the one held. Normally it is the same; where it is another, the first one stays,
   * unless that one did not verify and this one does: then a lie has ended, or a fault on the way. The user's own tag
   * under a delete ends every doubt.
   */
  private mergeKnown(change: Change, before: Entry, draft: Draft): boolean {
    const { id, version } = change;
    if (version === 0 || change.kind === 'ack' || change.kind === 'unreadable') return false;
    if (change.kind === 'delete') {
      if (before.state !== 'deleted' && this.tagRefusal(id, change.sig) === undefined) {
        draft.entries.set(id, this.deleted(change, before, draft));
        return true;
      }
      if (before.state === 'live') this.tellReused(change, draft);
      return false;
    }
    if (before.state === 'quarantined' || (before.state === 'deleted' && !before.tagged)) {
      const trial: Draft = { ...draft, tell: [] };
      const mended = this.arrived(change.item, lastGood(before), trial);
      if (mended.state !== 'live') return false;
      draft.entries.set(id, mended);
      draft.tell.push(...trial.tell);
      return true;
    }
    if (before.state === 'deleted' || !sameSig(before.row, change.item)) this.tellReused(change, draft);
    else if (before.version !== version) draft.entries.set(id, { ...before, version });
    return false;
  }

  private tellReused({ id, version }: Change, draft: Draft): void {
    this.tellFault(draft, 'version_reused', `another state of ${id} came under version ${version} than was known`);
  }

  private tellFault({ tell }: Draft, code: ProtocolFault, message: string): void {
    tell.push(() => this.options.emit('problem', { error: new ProtocolError(message, { code }) }));
  }

  /** An own change takes its place in the order. Its content is in the outbox; if not, another program of this device made it. */
  private async mergeAck(ack: Change & { kind: 'ack' }, draft: Draft): Promise<void> {
    const { id, version } = ack;
    const own = await this.options.outbox.confirmed(id, version);
    if (own === undefined) {
      const next = await this.options.fetchNext(version - 1);
      // Of a version above the head there is no change, or one from the beginning; and a version belongs to one item.
      if (next === undefined || next.version < version || (next.version === version && next.id !== id))
        throw new ProtocolError(`an ack of version ${version} of ${id}, which it never had`, { code: 'bad_ack' });
      // Where it was changed again meanwhile, the newer state comes with its own frame.
      if (next.version !== version) return;
      await this.merge(next, draft);
      if (next.kind === 'item') this.correct(next.item, draft);
    } else if (own.kind === 'delete') {
      draft.entries.set(id, { id, version, state: 'deleted', tagged: true, kept: null });
    } else {
      draft.entries.set(id, { id, version, state: 'live', row: { ...own.row, version } });
    }
  }

  /** This very state has its version from the stream. A reply that named a later one would keep it on top until then. */
  private correct(row: LiveItem, draft: Draft): void {
    const misnumbered = this.options.outbox.misnumbered(row);
    if (misnumbered.length === 0) return;
    draft.done.push(...misnumbered);
    this.tellFault(draft, 'wrong_reply', `the reply to a change of ${row.id} named a version that it does not have`);
  }

  private judged(change: Exclude<Change, { kind: 'ack' }>, before: Entry | undefined, draft: Draft): Entry {
    if (change.kind === 'delete') return this.deleted(change, before, draft);
    if (change.kind === 'item') return this.arrived(change.item, before, draft);
    return this.quarantined({ ...change, reason: 'bad_row', row: null }, before, draft);
  }

  private arrived(row: LiveItem, before: Entry | undefined, draft: Draft): Entry {
    const { id, version } = row;
    const forbidden = contradiction(row, before);
    if (forbidden !== undefined) return this.quarantined({ id, version, reason: forbidden, row }, before, draft);
    try {
      const payload = openItem(this.options.sodium, row, this.options.reader);
      const view = { ...viewOf(row, payload), live: this.live };
      if (isNews(row, before)) draft.tell.push(() => this.options.emit('item', view));
      return { id, version, state: 'live', row };
    } catch (error) {
      if (!(error instanceof CryptoRefusal)) throw error;
      return this.quarantined({ id, version, reason: error.reason, row }, before, draft);
    }
  }

  private quarantined(
    found: {
      readonly id: string;
      readonly version: number;
      readonly reason: QuarantineReason;
      readonly row: LiveItem | null;
    },
    before: Entry | undefined,
    draft: Draft,
  ): Entry {
    const { id, version, reason, row } = found;
    draft.tell.push(() => this.options.emit('quarantined', { id, version, reason }));
    return { id, version, reason, row, state: 'quarantined', kept: keptOf(before) };
  }

  private deleted(change: Change & { kind: 'delete' }, before: Entry | undefined, draft: Draft): Entry {
    const { id, version, sig } = change;
    const refused = this.tagRefusal(id, sig);
    const { emit } = this.options;
    const live = this.live;
    // Of an item that was never here nobody misses anything: only a delete that takes something away is told.
    if (before !== undefined && before.state !== 'deleted') {
      draft.tell.push(() => emit('delete', { id, version, live }));
      if (refused !== undefined) draft.tell.push(() => emit('untagged_delete', { id, version, reason: refused }));
    }
    return {
      id,
      version,
      state: 'deleted',
      tagged: refused === undefined,
      kept: refused === undefined ? null : keptOf(before),
    };
  }

  private tagRefusal(id: string, sig: Uint8Array | null): 'no_sig' | 'bad_sig' | undefined {
    try {
      checkDeleteTag(this.options.sodium, this.options.reader.masterKey, { id, sig });
      return undefined;
    } catch (error) {
      if (!(error instanceof CryptoRefusal)) throw error;
      return error.reason === 'no_sig' ? 'no_sig' : 'bad_sig';
    }
  }
}

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
