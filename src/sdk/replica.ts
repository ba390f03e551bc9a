/**
 * The local copy of the tenant's items: what the ordered stream brings is verified, stored and told, once.
 *
 * Invariant: after `apply`, the store's entries are what the stream said up to the cursor, and both were stored in one
 * step. That makes a repeated frame a no-op, a crash harmless, and the count at `caught_up` comparable. The methods
 * must be called one after the other; `Sync` sees to that.
 */
import type { LiveItem } from '../protocol/item.js';
import {
  caughtUp,
  type Cursor,
  passed,
  restarted,
  unversioned,
  type Entry,
  type Held,
  type Pending,
} from './store/store.js';
import { ProtocolError, type ProtocolFault } from './errors.js';
import type { Listed, Named } from './events.js';
import { MergeRules, lastGood, sameSig, type Stated } from './merge-rules.js';
import type { Change, Completeness } from './wire.js';
import type { Core } from './core.js';

/** What one call of `apply` gathers before it stores it in one step. */
interface Draft {
  /** Changed by `put` only. */
  readonly entries: Map<string, Entry>;
  /** How many more items are in quarantine after it. */
  burden: number;
  readonly done: Pending[];
  readonly tell: (() => void)[];
}

/** Entries whose versions are forgotten in one step. */
const FORGET_AT_ONCE = 256;

/** The local copy; see above. */
export class Replica {
  /** After `caught_up`: what comes now is news. */
  private live = false;
  private readonly burden = new Burden();
  private readonly judge: MergeRules;

  constructor(
    private readonly options: Pick<Core, 'store' | 'outbox' | 'sodium' | 'reader' | 'emit'> & {
      /** The first change above a version, from the server: for an `ack` of content that is not here. */
      readonly fetchNext: (since: number) => Promise<Change | undefined>;
    },
  ) {
    this.judge = new MergeRules(options);
  }

  /** A new connection begins: until the next `caught_up` everything is catching up. */
  replaying(): Promise<Cursor> {
    this.live = false;
    return this.listing();
  }

  /** A listing, or a replay, begins: what it brings to no end is bounded (`Burden`). Gives the cursor. */
  async listing(): Promise<Cursor> {
    const cursor = await this.options.store.cursor();
    this.burden.begin(cursor.since);
    return cursor;
  }

  /** A listing is over. */
  listed(): void {
    this.burden.end();
  }

  /** A row of a listing of everything came a second time. Throws `ProtocolError` `endless_replay`. */
  again(): void {
    this.burden.idled();
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
    const draft = newDraft();
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
    const draft = newDraft();
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
    const draft = newDraft();
    for (const change of changes) {
      const held = await this.options.store.get(change.id);
      if (change.kind === 'ack' || held?.version !== change.version || held.state === 'deleted') continue;
      if (held.state === 'live' && this.judge.opens(held.row)) continue;
      // What was damaged is nothing to compare with.
      put(draft, held, this.judged(change, held.state === 'live' ? undefined : held, draft.tell));
    }
    await this.store(draft, await this.options.store.cursor());
  }

  /** Another history: all versions are forgotten, what is held stays readable, and everything comes again. */
  async reset(epoch: string): Promise<void> {
    this.live = false;
    await this.options.store.apply({ forgetVersions: true, cursor: restarted(epoch) });
    this.options.outbox.dirty.markAll();
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
    this.burden.end();
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
    this.burden.end();
  }

  /** After a reset has been replayed: what the new history does not have. */
  unversioned(): Promise<readonly string[]> {
    return unversioned(this.options.store);
  }

  /**
   * Entries that a complete listing up to `head` did not name. Their version is forgotten, so that they are not
   * counted; they stay readable, since a server that lost them is no reason to lose them here. What was never good, and
   * is not claimed any more, goes.
   */
  async dropUnlisted(listed: ReadonlySet<string>, head: number): Promise<readonly Named[]> {
    const { store, outbox } = this.options;
    const named: Named[] = [];
    let unlisted: Entry[] = [];
    const forget = async (): Promise<void> => {
      await store.apply({ entries: unlisted });
      outbox.dirty.mark(unlisted.map(({ id }) => id));
      unlisted = [];
    };
    for await (const entry of store.entries()) {
      const { id, version, state } = entry;
      if (state === 'deleted' || version > head || listed.has(id) || (version === 0 && !isBurden(entry))) continue;
      if (isBurden(entry)) {
        this.burden.changed(-1);
        unlisted.push({ id, version: 0, state: 'deleted', tagged: true, kept: null });
      } else {
        named.push({ id, version });
        unlisted.push({ ...entry, version: 0 });
      }
      if (unlisted.length >= FORGET_AT_ONCE) await forget();
    }
    if (unlisted.length > 0) await forget();
    return named;
  }

  private async store(draft: Draft, cursor: Cursor): Promise<void> {
    await this.burden.expectRoom(draft.burden, () => this.quarantinedCount());
    for (const { id, version } of draft.entries.values()) draft.done.push(...this.options.outbox.covered(id, version));
    const done = draft.done.map((pending) => pending.seq);
    await this.options.store.apply({ entries: [...draft.entries.values()], cursor, done });
    this.burden.changed(draft.burden);
    // Not before: who looks meanwhile would find neither the own change nor what replaces it.
    this.options.outbox.forget(draft.done);
    this.options.outbox.dirty.mark(draft.entries.keys());
    // Told only when it is stored: who hears of an item can read it.
    for (const tell of draft.tell) tell();
  }

  private judged(change: Stated, before: Entry | undefined, tell: Draft['tell']): Entry {
    return this.judge.judged(change, before, { tell, live: this.live });
  }

  private async quarantinedCount(): Promise<number> {
    let count = 0;
    for await (const entry of this.options.store.entries()) if (isBurden(entry)) count++;
    return count;
  }

  /** True where it changed something. `listed`: a row of now, so a higher version that is held was a lie. */
  private async merge(change: Change, draft: Draft, listed = false): Promise<boolean> {
    const before = draft.entries.get(change.id) ?? (await this.options.store.get(change.id));
    if (before !== undefined && before.version >= change.version)
      return (listed || before.version === change.version) && this.mergeKnown(change, before, draft);
    if (this.burden.cameAlready(before)) this.burden.idled();
    if (change.kind === 'ack') {
      await this.mergeAck(change, draft);
      return true;
    }
    // Of an item that is not here there is nothing to keep but the user's own word that it is deleted.
    if (
      change.kind === 'delete' &&
      before === undefined &&
      this.judge.tagRefusal(change.id, change.sig) !== undefined
    ) {
      this.burden.idled();
      return false;
    }
    const entry = this.judged(change, before, draft.tell);
    if (isBurden(entry)) this.burden.idled();
    put(draft, before, entry);
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
      if (before.state !== 'deleted' && this.judge.tagRefusal(id, change.sig) === undefined) {
        put(draft, before, this.judged(change, before, draft.tell));
        return true;
      }
      if (before.state === 'live') this.tellReused(change, draft);
      return false;
    }
    if (before.state === 'quarantined' || (before.state === 'deleted' && !before.tagged)) {
      const tell: Draft['tell'] = [];
      const mended = this.judged(change, lastGood(before), tell);
      if (mended.state !== 'live') return false;
      put(draft, before, mended);
      draft.tell.push(...tell);
      return true;
    }
    if (before.state === 'deleted' || !sameSig(before.row, change.item)) this.tellReused(change, draft);
    else if (before.version !== version) put(draft, before, { ...before, version });
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
    const before = draft.entries.get(id) ?? (await this.options.store.get(id));
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
      put(draft, before, { id, version, state: 'deleted', tagged: true, kept: null });
    } else {
      put(draft, before, { id, version, state: 'live', row: { ...own.row, version } });
    }
  }

  /** This very state has its version from the stream. A reply that named a later one would keep it on top until then. */
  private correct(row: LiveItem, draft: Draft): void {
    const misnumbered = this.options.outbox.misnumbered(row);
    if (misnumbered.length === 0) return;
    draft.done.push(...misnumbered);
    this.tellFault(draft, 'wrong_reply', `the reply to a change of ${row.id} named a version that it does not have`);
  }
}

const newDraft = (): Draft => ({ entries: new Map(), burden: 0, done: [], tell: [] });

/** Puts an entry in the place of the one that is held. */
function put(draft: Draft, before: Entry | undefined, entry: Entry): void {
  draft.entries.set(entry.id, entry);
  draft.burden += Number(isBurden(entry)) - Number(isBurden(before));
}

/** Items in quarantine of which no state was ever good. Each takes some hundred bytes (`headOnly`). */
export const QUARANTINED_MAX = 20_000;
/** Changes of one catching-up that bring nothing: not verified, or of an item that came already. */
export const IDLE_MAX = 100_000;

/** True for an entry that only the server's word stands for. */
export const isBurden = (entry: Entry | undefined): boolean => entry?.state === 'quarantined' && entry.kept === null;

/**
 * What a server can make a device take that nothing of its user vouches for: rows without a tag that holds, the same
 * items again and again. A lying server makes any amount of it, so it is bounded, and at the bound reading stops.
 * What bears the user's tag needs no bound: a server cannot make it. The counts are of one device, in one program.
 */
export class Burden {
  /** Undefined: nothing was quarantined yet, so nobody has counted. */
  private quarantined: number | undefined;
  private idle = 0;
  /** The cursor when catching up began; undefined: what comes now is live, and as much as there is. */
  private begunAt: number | undefined;

  /** Catching up begins, at this cursor. */
  begin(since: number): void {
    this.begunAt = since;
    this.idle = 0;
  }

  /** Everything is here. */
  end(): void {
    this.begunAt = undefined;
  }

  /** True where an item has come in this catching-up already: an honest replay brings each once. */
  cameAlready(before: Entry | undefined): boolean {
    return this.begunAt !== undefined && before !== undefined && before.version > this.begunAt;
  }

  /** A change brought nothing. Throws `ProtocolError` `endless_replay`. */
  idled(): void {
    if (this.begunAt === undefined || ++this.idle <= IDLE_MAX) return;
    throw new ProtocolError(
      `the server sent more than ${IDLE_MAX} changes that bring nothing: reading was stopped, what is here stays`,
      { code: 'endless_replay' },
    );
  }

  /** Before `more` items go into quarantine. `count`: how many are in it. Throws `ProtocolError` `quarantine_full`. */
  async expectRoom(more: number, count: () => Promise<number>): Promise<void> {
    if (more <= 0) return;
    this.quarantined ??= await count();
    if (this.quarantined + more <= QUARANTINED_MAX) return;
    throw new ProtocolError(
      `more than ${QUARANTINED_MAX} items of the server do not verify: reading was stopped, what is here stays`,
      { code: 'quarantine_full' },
    );
  }

  /** So many more are in quarantine now; fewer where it is negative. */
  changed(by: number): void {
    if (this.quarantined !== undefined) this.quarantined += by;
  }
}

/** True for what ends reading: to go on would be to be filled up. */
export const stopsReading = (error: unknown): error is ProtocolError =>
  error instanceof ProtocolError && (error.code === 'quarantine_full' || error.code === 'endless_replay');
