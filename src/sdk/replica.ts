/**
 * The local copy of the tenant's items: changes of the ordered stream are verified, stored and reported, once.
 *
 * Invariant: after `apply` the store's entries are the state of the stream at the cursor, and both were stored in one
 * batch. Therefore a repeated frame is a no-op, a crash is harmless, and the count at `caught_up` is comparable. Calls
 * must not overlap; `Sync` serializes them.
 */
import type { LiveItem } from '../protocol/item.js';
import { caughtUp, heldWith, isGone, isUnverified, NOTHING_HELD, passed, restarted, sameHeld } from './store/store.js';
import type { Cursor, Entry, Held, Pending } from './store/store.js';
import { ProtocolError, type ProtocolFault } from './errors.js';
import type { Listed, Named } from './events.js';
import { MergeRules, lastGood, type Stated } from './merge-rules.js';
import { keeping, versionInStream } from './outbox.js';
import { sameContent, sameSig } from './same-state.js';
import type { Change, Completeness } from './wire.js';
import type { Core } from './core.js';

/** Collects the changes of one batch before it is stored. */
interface Draft {
  /** Changed only by `put`. */
  readonly entries: Map<string, Entry>;
  /** Change of the number of quarantined items without a valid earlier state (`isUnverified`). */
  quarantined: number;
  /** Change of what the store holds. */
  held: Held;
  readonly done: Pending[];
  readonly emits: (() => void)[];
}

/** Entries whose versions are forgotten in one batch. */
const FORGET_AT_ONCE = 256;

/** The local copy of the tenant's items. */
export class Replica {
  /** True after `caught_up`: later changes are live. */
  private live = false;
  /** The highest version that the connection brought. A listing beside it may have moved the cursor beyond. */
  private streamed = 0;
  /**
   * The bounds on useless changes of a server. A listing that `Sync` reads calls `countUseless` for each repeated row
   * (throws `ProtocolError` `endless_replay`), and `end` when it is over.
   */
  readonly bounds = new ReplayBounds();
  private readonly rules: MergeRules;

  constructor(
    private readonly options: Pick<Core, 'store' | 'outbox' | 'sodium' | 'reader' | 'emit'> & {
      /** For an `ack` whose content is not here. */
      readonly fetchNext: (since: number) => Promise<Change | undefined>;
    },
  ) {
    this.rules = new MergeRules(options);
  }

  /** Called when a connection starts, which replays until the next `caught_up`. Returns the cursor. */
  async replaying(): Promise<Cursor> {
    this.live = false;
    const cursor = await this.listing();
    this.streamed = cursor.since;
    return cursor;
  }

  /** Called when a listing or replay starts: from now on changes that bring nothing are bounded. Returns the cursor. */
  async listing(): Promise<Cursor> {
    const cursor = await this.options.store.cursor();
    this.bounds.begin(cursor.since);
    return cursor;
  }

  /**
   * Applies changes of the ordered stream. Those at or below the cursor are ignored, unless they are new nevertheless,
   * because the server sent them out of order: such a change is applied and reported.
   */
  async apply(changes: readonly Change[]): Promise<void> {
    let cursor = await this.options.store.cursor();
    const draft = newDraft();
    for (const change of changes) {
      const next = passed(cursor, change.version);
      if (next === undefined) await this.late(change, draft);
      else await this.merge(change, draft);
      cursor = next ?? cursor;
      this.streamed = Math.max(this.streamed, change.version);
    }
    await this.store(draft, cursor);
  }

  /**
   * Applies a page of a listing that started at or below the cursor; rows newer than the entry are applied. `end`:
   * everything up to this version is applied now, and the cursor moves there; null: the listing started below the
   * cursor and is not complete yet, so the cursor stays. Returns the rows that were newer.
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
   * Applies rows of a listing to entries of the same version that do not decrypt or did not verify: they are verified
   * again.
   */
  async mend(changes: readonly Change[]): Promise<void> {
    const draft = newDraft();
    for (const change of changes) {
      const held = await this.options.store.get(change.id);
      if (change.kind === 'ack' || held?.version !== change.version || held.state === 'deleted') continue;
      if (held.state === 'live' && this.rules.opens(held.row)) continue;
      // A damaged entry must not be compared with.
      put(draft, held, this.entryAfter(change, held.state === 'live' ? undefined : held, draft.emits));
    }
    await this.store(draft, await this.options.store.cursor());
  }

  /**
   * Starts another history: all versions are forgotten, those of acknowledged changes too, entries stay readable, and the
   * server replays everything.
   */
  async reset(epoch: string): Promise<void> {
    this.live = false;
    this.streamed = 0;
    const { store, outbox } = this.options;
    const cursor = restarted(epoch);
    await outbox.unacknowledge((pending) => store.apply({ forgetVersions: true, cursor, pending }));
    outbox.dirty.markAll();
    this.options.emit('reset', { epoch });
  }

  /**
   * Handles the end of a replay: compares the store with the server's count; `complete`: they are equal. Undefined where
   * the server names another history without a `reset`: the replay must start from 0.
   */
  async settle(at: Completeness) {
    const before = await this.options.store.cursor();
    if (caughtUp(before, at) === undefined) return undefined;
    // The cursor stays at the last change. The head is always the version of some item, so it was sent; moving the
    // cursor to another number could skip changes below that number.
    await this.options.store.apply({ cursor: { ...before, epoch: at.epoch } });
    await this.options.outbox.dropCovered();
    this.live = true;
    this.bounds.end();
    const held = await this.options.store.held();
    return { complete: sameHeld(held, at) && before.since === at.version, held };
  }

  /** Handles the end of a listing that started at the cursor: its head and epoch become the cursor. */
  async settlePulled(at: Pick<Completeness, 'version' | 'epoch'>): Promise<void> {
    const cursor = caughtUp(await this.options.store.cursor(), at);
    if (cursor === undefined) throw new ProtocolError('the epoch changed during a listing');
    await this.options.store.apply({ cursor });
    await this.options.outbox.dropCovered();
    this.live = true;
    this.bounds.end();
  }

  /**
   * Handles entries that a complete listing up to `head` did not contain. Their version is set to 0, so that they are
   * not counted; they stay readable, because data that the server lost must not be lost here. Entries that never
   * verified are removed. Returns the unlisted items with their former versions.
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
      if (state === 'deleted' || version > head || listed.has(id) || (version === 0 && !isUnverified(entry))) continue;
      if (isUnverified(entry)) {
        this.bounds.changed(-1);
        unlisted.push({ id, version: isGone(entry) ? version : 0, state: 'deleted', tagged: true, kept: null });
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
    await this.bounds.expectRoom(draft.quarantined, () => this.quarantinedCount());
    const { versionSum } = await this.options.store.held();
    if (versionSum + draft.held.versionSum > Number.MAX_SAFE_INTEGER)
      throw new ProtocolError(
        'the versions of the items have a sum that no history reaches: reading was stopped, what is here stays',
        { code: 'bad_sum' },
      );
    for (const [id, entry] of draft.entries) {
      const covered = this.options.outbox.covered(entry);
      draft.done.push(...covered);
      draft.entries.set(id, keeping(entry, covered));
    }
    const done = draft.done.map((pending) => pending.seq);
    await this.options.store.apply({ entries: [...draft.entries.values()], cursor, done });
    this.bounds.changed(draft.quarantined);
    // Only after the batch: in between, neither the pending change nor the entry that replaces it would be visible.
    this.options.outbox.forget(draft.done);
    this.options.outbox.dirty.mark(draft.entries.keys());
    // Events are emitted after the batch, so that a listener can read the item.
    for (const emit of draft.emits) emit();
  }

  private entryAfter(change: Stated, before: Entry | undefined, emits: Draft['emits']): Entry {
    return this.rules.entryAfter(change, before, { emits, live: this.live });
  }

  private async quarantinedCount(): Promise<number> {
    let count = 0;
    for await (const entry of this.options.store.entries()) if (isUnverified(entry)) count++;
    return count;
  }

  /** True where it changed something. `listed`: the row is current, so a higher stored version is wrong. */
  private async merge(change: Change, draft: Draft, listed = false): Promise<boolean> {
    const before = draft.entries.get(change.id) ?? (await this.options.store.get(change.id));
    if (before !== undefined && before.version >= change.version)
      return (listed || before.version === change.version) && this.mergeKnown(change, before, draft);
    if (this.bounds.isRepeated(before)) this.bounds.countUseless();
    if (change.kind === 'ack') {
      await this.mergeAck(change, before, draft);
      return true;
    }
    // A delete of an unknown item is stored only with a valid tag.
    const standing = this.standing(change, before, draft);
    const unknown = change.kind === 'delete' && standing === undefined;
    if (unknown && this.rules.tagRefusal(change.id, change.sig) !== undefined) {
      this.bounds.countUseless();
      return false;
    }
    const entry = this.entryAfter(change, standing, draft.emits);
    if (isUnverified(entry)) this.bounds.countUseless();
    put(draft, before, entry);
    return true;
  }

  /**
   * The state that a change replaces: an acknowledged one of this device, which the stream passes now, or the entry. The
   * acknowledged one counts as the last good state, else an older one could replace it and it would vanish unnoticed.
   */
  private standing(change: Stated, before: Entry | undefined, draft: Draft): Entry | undefined {
    const own = this.options.outbox.acknowledgedWithin(change.id, before?.version ?? 0, change.version);
    if (own === undefined) return before;
    if (own.version !== change.version) return entryOf(own, own.version ?? 0);
    if (confirms(change, own)) return before;
    // The retry of a write that was deleted since is answered with the version of the delete (RETRY-01).
    const deleted = change.kind === 'delete' && this.rules.tagRefusal(change.id, change.sig) === undefined;
    if (!deleted) this.reportReused(change, draft);
    return entryOf(own, own.version);
  }

  /**
   * A change at or below the cursor. Above what the connection brought it is in order: a listing that was cut off leaves out
   * an item that changed again, whose former state is still on its way.
   */
  private async late(change: Change, draft: Draft): Promise<void> {
    if (change.kind === 'ack' || !(await this.merge(change, draft))) return;
    const { id, version } = change;
    if (version > this.streamed) return;
    this.reportFault(draft, 'bad_order', `version ${version} of ${id} came after the stream had passed it`);
  }

  /**
   * Merges a state that is not newer than the entry; normally the two are equal. Otherwise the stored one stays, unless
   * it did not verify and the new one does. A delete with a valid tag always wins.
   */
  private mergeKnown(change: Change, before: Entry, draft: Draft): boolean {
    const { id, version } = change;
    if (version === 0 || change.kind === 'ack' || change.kind === 'unreadable') return false;
    if (change.kind === 'delete') {
      if (before.state !== 'deleted' && this.rules.tagRefusal(id, change.sig) === undefined) {
        put(draft, before, this.entryAfter(change, before, draft.emits));
        return true;
      }
      if (before.state === 'live') this.reportReused(change, draft);
      return false;
    }
    if (before.state === 'quarantined' || (before.state === 'deleted' && !before.tagged)) {
      const emits: Draft['emits'] = [];
      const mended = this.entryAfter(change, lastGood(before), emits);
      if (mended.state !== 'live') return false;
      put(draft, before, mended);
      draft.emits.push(...emits);
      return true;
    }
    if (before.state === 'deleted' || !sameSig(before.row, change.item)) this.reportReused(change, draft);
    else if (before.version !== version) put(draft, before, { ...before, version });
    return false;
  }

  private reportReused({ id, version }: Change, draft: Draft): void {
    this.reportFault(draft, 'version_reused', `another state of ${id} came under version ${version} than was known`);
  }

  private reportFault({ emits }: Draft, code: ProtocolFault, message: string): void {
    emits.push(() => this.options.emit('problem', { error: new ProtocolError(message, { code }) }));
  }

  /**
   * Applies the `ack` of this device's change, whose content is in the outbox. If it is not, another program with the
   * same identity made the change, and its content is fetched. Throws `ProtocolError` `bad_ack`.
   */
  private async mergeAck(
    { id, version }: Change & { kind: 'ack' },
    before: Entry | undefined,
    draft: Draft,
  ): Promise<void> {
    const { outbox } = this.options;
    const found = await outbox.confirmed(id, version);
    // The item may have the change already: of another program is then what this version did to it.
    const own = found !== undefined && versionInStream(before, found) === undefined ? found : undefined;
    if (own !== undefined && outbox.isCertain(own)) return put(draft, before, entryOf(own, version));
    const next = await this.options.fetchNext(version - 1);
    // The version is above the head (no row, or the listing starts over), or belongs to another item.
    if (next === undefined || next.version < version || (next.version === version && next.id !== id))
      throw new ProtocolError(`an ack of version ${version} of ${id}, which it never had`, { code: 'bad_ack' });
    // The item has changed again: the newer state arrives in its own frame.
    if (next.version !== version) return;
    // No event for this device's own change.
    const isOwn = own?.kind === 'write' && next.kind === 'item' && sameSig(own.row, next.item);
    if (isOwn) return put(draft, before, entryOf(own, version));
    await this.merge(next, draft);
    if (next.kind === 'item') this.correct(next.item, draft);
  }

  /**
   * Drops pending changes whose reply named a later version than the stream gives to the same state: otherwise they
   * would stay on top until that version arrives.
   */
  private correct(row: LiveItem, draft: Draft): void {
    const misnumbered = this.options.outbox.misnumbered(row);
    if (misnumbered.length === 0) return;
    draft.done.push(...misnumbered);
    this.reportFault(draft, 'wrong_reply', `the reply to a change of ${row.id} named a version that it does not have`);
  }
}

/** The entry that a change of this device makes. */
const entryOf = (own: Pending, version: number): Entry =>
  own.kind === 'delete'
    ? { id: own.id, version, state: 'deleted', tagged: true, kept: null }
    : { id: own.id, version, state: 'live', row: { ...own.row, version } };

/** True where the stream brings an acknowledged change under its version. */
function confirms(change: Stated, own: Pending): boolean {
  if (own.kind === 'delete') return change.kind === 'delete';
  return change.kind === 'item' && sameContent(own.row, change.item);
}

const newDraft = (): Draft => ({ entries: new Map(), quarantined: 0, held: NOTHING_HELD, done: [], emits: [] });

/** Replaces an entry. */
function put(draft: Draft, before: Entry | undefined, entry: Entry): void {
  draft.entries.set(entry.id, entry);
  draft.quarantined += Number(isUnverified(entry)) - Number(isUnverified(before));
  draft.held = heldWith(draft.held, before, entry);
}

/** Most quarantined items without a valid earlier state. Each takes some hundred bytes (`headOnly`). */
export const QUARANTINED_MAX = 20_000;
/** Most changes of one replay that bring nothing: not verified, or of an item that was sent already. */
export const IDLE_MAX = 100_000;

/**
 * Bounds the changes without a valid tag that a server can make a device store or process: rows that do not verify, and
 * repetitions of the same items. At the bound, reading stops. Changes with a valid tag need no bound, because a server
 * cannot make them. The counts are in memory, per device and program.
 */
class ReplayBounds {
  /** Undefined: not counted yet. */
  private quarantined: number | undefined;
  private idle = 0;
  /** The cursor at the start of a replay; undefined while live, when changes are not bounded. */
  private begunAt: number | undefined;

  /** A replay or listing starts at this cursor. */
  begin(since: number): void {
    this.begunAt = since;
    this.idle = 0;
  }

  /** A replay or listing has ended. */
  end(): void {
    this.begunAt = undefined;
  }

  /** True where the item was already sent in this replay: an honest server sends each item once. */
  isRepeated(before: Entry | undefined): boolean {
    return this.begunAt !== undefined && before !== undefined && before.version > this.begunAt;
  }

  /** Counts a change that brought nothing. Throws `ProtocolError` `endless_replay`. */
  countUseless(): void {
    if (this.begunAt === undefined || ++this.idle <= IDLE_MAX) return;
    throw new ProtocolError(
      `the server sent more than ${IDLE_MAX} changes that bring nothing: reading was stopped, what is here stays`,
      { code: 'endless_replay' },
    );
  }

  /**
   * Called before `more` items are quarantined. `count`: counts the quarantined ones. Throws `ProtocolError`
   * `quarantine_full`.
   */
  async expectRoom(more: number, count: () => Promise<number>): Promise<void> {
    if (more <= 0) return;
    this.quarantined ??= await count();
    if (this.quarantined + more <= QUARANTINED_MAX) return;
    throw new ProtocolError(
      `more than ${QUARANTINED_MAX} items of the server do not verify: reading was stopped, what is here stays`,
      { code: 'quarantine_full' },
    );
  }

  /** Adds to the number of quarantined items; `by` may be negative. */
  changed(by: number): void {
    if (this.quarantined !== undefined) this.quarantined += by;
  }
}

const STOPPING: ReadonlySet<ProtocolFault> = new Set(['quarantine_full', 'endless_replay', 'bad_sum']);

/** True for errors that stop reading from the server. */
export const stopsReading = (error: unknown): error is ProtocolError =>
  error instanceof ProtocolError && STOPPING.has(error.code);
