/**
 * This device's pending changes (see `store/store.ts`): not sent, sent, or acknowledged and not yet confirmed by the
 * stream.
 */
import { equalBytes } from '../protocol/bytes.js';
import { within, type Clock } from '../protocol/clock.js';
import type { LiveItem } from '../protocol/item.js';
import { sameContent, sameSig, sameTagged } from './same-state.js';
import { isGone, type Entry, type Pending, type Store } from './store/store.js';

/** `Omit` that distributes over a union. */
type Without<T, K extends PropertyKey> = T extends unknown ? Omit<T, K> : never;

/** A change before it is added to the outbox. `base` as in `Pending`. */
export type NewChange = Without<Pending, 'seq' | 'version' | 'madeAt'>;

/** An item as this device sees it: the entry of the stream, and the newest pending change if it is on top. */
export interface Seen {
  readonly entry: Entry | undefined;
  readonly own: Pending | undefined;
}

/** The same, with the item's id. */
export interface SeenItem extends Seen {
  readonly id: string;
}

/** How often `look` restarts when the item's pending changes change during the read. More often is a fault. */
const LOOKS_MAX = 100;

/** How long an `ack` waits for the reply that names its version. Normally the reply came before it. */
const REPLY_WAIT_MS = 5_000;
/** Wait before a store that failed is asked again to remove a change that is settled. */
const REPEAT_MS = 1_000;

/** The pending changes, in memory and in the store. */
export class Outbox {
  /** Items whose view may have changed. Pending changes are marked here; code that writes entries marks theirs. */
  readonly dirty = new DirtyIds();
  private readonly byId = new Map<string, Pending[]>();
  private readonly underWay = new Map<string, Promise<void>>();
  /** `seq`s of changes that are in memory and not durable yet, which must not be sent. */
  private readonly unstored = new Set<number>();
  /** `seq`s: see `doubt`. */
  private readonly doubtful = new Set<number>();
  private lastSeq = 0;

  private constructor(
    private readonly store: Store,
    private readonly clock: Clock,
  ) {}

  /** Loads the outbox from the store. */
  static async load(store: Store, clock: Clock): Promise<Outbox> {
    const outbox = new Outbox(store, clock);
    for (const pending of await store.pending()) outbox.remember(pending);
    return outbox;
  }

  /**
   * Every item once, including those that exist as a pending change only. The pending changes are a snapshot taken at
   * the start: combined with an entry read later they are a state that existed, which later changes might not be.
   */
  async *everything(): AsyncGenerator<SeenItem, void, undefined> {
    const left = new Map(this.byId);
    for await (const entry of this.store.entries()) {
      const { id } = entry;
      yield { id, entry, own: onTop(left.get(id), entry) };
      left.delete(id);
    }
    for (const [id, changes] of left) yield { id, entry: undefined, own: onTop(changes, undefined) };
  }

  /** Entry and newest pending change of an item, as of one moment. */
  look(id: string): Promise<Seen> {
    return this.basedOn(id, (seen) => seen);
  }

  /**
   * Calls `change` with the entry and the newest pending change, read consistently: an acknowledgement during the read
   * would otherwise give a combination that never existed. What `change` adds, it adds before it returns or awaits: in the
   * next microtask the change below may have been refused and dropped.
   */
  async basedOn<T>(id: string, change: (seen: Seen) => T | Promise<T>): Promise<T> {
    for (let looks = 0; looks < LOOKS_MAX; looks++) {
      const before = this.byId.get(id);
      const entry = await this.store.get(id);
      if (this.byId.get(id) === before) return change({ entry, own: onTop(before, entry) });
    }
    throw new Error(`the changes of ${id} do not come to rest`);
  }

  /** Ids with a pending change. */
  ids(): readonly string[] {
    return [...this.byId.keys()];
  }

  /** The pending changes of an item, by rising `seq`. */
  ofItem(id: string): readonly Pending[] {
    return this.byId.get(id) ?? [];
  }

  /** All pending changes, those of one item by rising `seq`. */
  all(): readonly Pending[] {
    return [...this.byId.values()].flat();
  }

  /** The first unacknowledged change of each item, in order of creation; only durable ones. */
  unsent(): readonly Pending[] {
    return this.heads().filter((pending) => pending.base !== null && !this.unstored.has(pending.seq));
  }

  /**
   * Changes whose predecessor is missing, which only a damaged store causes. They are not sent: a write without a base
   * would overwrite a state that it was not based on. A reset gives them a base.
   */
  baseless(): readonly Pending[] {
    return this.heads().filter((pending) => pending.base === null);
  }

  /**
   * The later changes of the same item that are based on this one. One with a base of its own is not: it was made after
   * this one was refused, which the store has kept (`replace`).
   */
  after(pending: Pending): readonly Pending[] {
    const later = this.ofItem(pending.id).filter((other) => other.seq > pending.seq);
    const end = later.findIndex(({ base }) => base !== null);
    return end < 0 ? later : later.slice(0, end);
  }

  /**
   * Adds a change: in memory immediately, so that the acknowledgement of its predecessor finds it, and in the store
   * when `stored` resolves. It is not sent before that, because a change that the server may have must survive a crash
   * here. If it cannot be stored it is removed, and `stored` rejects.
   */
  add(change: NewChange): { readonly pending: Pending; readonly stored: Promise<void> } {
    const pending = { ...change, seq: ++this.lastSeq, version: null, madeAt: this.clock.now() };
    this.unstored.add(pending.seq);
    this.remember(pending);
    return { pending, stored: this.keep(pending) };
  }

  /**
   * Replaces changes by new states of them, removes others and stores entries, in one batch; changes no longer in the
   * outbox are left out. If the store fails, memory is as it was: otherwise what is sent next would not be what a
   * restart finds. `kept`: called when memory is changed; the removed changes that it returns stay in the store.
   */
  async replace(
    changes: readonly Pending[],
    gone: readonly Pending[] = [],
    { entries = [], kept = () => [] }: { entries?: readonly Entry[]; kept?: () => readonly Pending[] } = {},
  ): Promise<void> {
    const pending = changes.filter((change) => this.has(change));
    if (pending.length + gone.length === 0) return;
    const known = [...pending, ...gone].flatMap(({ id, seq }) => this.ofItem(id).find((own) => own.seq === seq) ?? []);
    this.forget(gone);
    for (const change of pending) this.remember(change);
    const left = new Set(kept().map(({ seq }) => seq));
    const done = gone.map(({ seq }) => seq).filter((seq) => !left.has(seq));
    if (pending.length + done.length === 0) return;
    try {
      await this.store.apply({ entries, pending, done });
    } catch (error) {
      for (const own of known) {
        const changed = pending.find(({ seq }) => seq === own.seq);
        // Meanwhile another batch, or the stream, has changed it.
        if (changed !== undefined && !this.ofItem(own.id).includes(changed)) continue;
        this.remember(own);
        this.doubt(own.seq);
      }
      throw error;
    }
  }

  /**
   * Removes from the store what `replace` has kept there, repeatedly where the store fails, until `isOver`. A change that
   * is in memory again, because `replace` failed, stays.
   */
  removeKept(kept: readonly Pending[], isOver: () => boolean): Promise<void> {
    const remove = (): Promise<void> =>
      this.store.apply({ done: kept.filter((own) => !this.has(own)).map(({ seq }) => seq) });
    return this.repeat(remove, isOver);
  }

  private async repeat(work: () => Promise<void>, isOver: () => boolean): Promise<void> {
    if (isOver()) return;
    try {
      await work();
    } catch {
      this.clock.setTimer(REPEAT_MS, () => void this.repeat(work, isOver));
    }
  }

  /**
   * Durably removes an item's newest change if it is a delete that is neither acknowledged nor being sent; undefined
   * otherwise.
   */
  async withdraw(id: string): Promise<Pending | undefined> {
    const last = this.ofItem(id).at(-1);
    if (last?.kind !== 'delete' || last.version !== null || this.underWay.has(id)) return undefined;
    await this.replace([], [last]);
    return last;
  }

  /**
   * Records that a reply acknowledged a change. The change stays on top until the stream delivers that version, or is
   * removed now if the stream already did. The entry is read after the acknowledgement was stored, so that a frame
   * handled in between is not missed; if the store fails in that, the change is acknowledged nevertheless, and removed
   * later. The next change of the item gets the version as its base.
   */
  async acknowledged(pending: Pending, version: number, isOver: () => boolean): Promise<void> {
    if (!this.has(pending)) return;
    const [next] = this.after(pending);
    const changed = [{ ...pending, version }, ...(next === undefined ? [] : [{ ...next, base: version }])];
    await this.replace(changed);
    await this.repeat(() => this.dropCovered([pending.id], false), isOver);
  }

  /**
   * False where the stream contradicts a reply that gave this version to a change: it brought another state under that
   * version, or a later one that no server puts over the change. Believing it would make the change vanish unnoticed.
   * True where the stream has not reached the version, and for a deleted item, which no write changes.
   */
  async mayBecome(pending: Pending, version: number): Promise<boolean> {
    const entry = await this.store.get(pending.id);
    return entry === undefined || entry.version < version || mayFollow(entry, pending, version);
  }

  /**
   * Removes the acknowledged changes of items that the stream has reached or passed. Called for all items when it has
   * caught up: a program that was killed within `acknowledged` leaves such changes. `inStream`: no change of the stream is
   * applied meanwhile. Otherwise one that an entry has to keep stays, because writing the entry could undo a newer one.
   */
  async dropCovered(ids = this.ids(), inStream = true): Promise<void> {
    for (const id of ids) {
      if (this.ofItem(id).every(({ version }) => version === null)) continue;
      const entry = await this.store.get(id);
      const covered = entry === undefined ? [] : this.covered(entry);
      if (entry === undefined || covered.length === 0) continue;
      const keeper = keeping(entry, covered);
      if (keeper === entry) await this.replace([], covered);
      else if (inStream) await this.replace([], covered, { entries: [keeper] });
    }
  }

  /**
   * Acknowledged changes that the stream has reached or passed with this state of the item. One that the state contradicts
   * stays, and is sent again when the stream has caught up (`resend`): a reply and a frame may come at the same moment.
   */
  covered(entry: Entry): readonly Pending[] {
    return this.ofItem(entry.id).filter(
      (own) => own.version !== null && own.version <= entry.version && mayFollow(entry, own, own.version),
    );
  }

  /** The newest acknowledged change of an item above a version, up to another. */
  acknowledgedWithin(id: string, above: number, to: number): Pending | undefined {
    return this.ofItem(id).findLast(({ version }) => version !== null && version > above && version <= to);
  }

  /** Acknowledged changes that the stream has not confirmed, by `seq`. */
  unconfirmed(): ReadonlySet<number> {
    return new Set(this.all().flatMap(({ seq, version }) => (version === null ? [] : seq)));
  }

  /** Acknowledged changes whose reply named a later version than the stream gave to the same state. */
  misnumbered({ id, version, sig }: LiveItem): readonly Pending[] {
    return this.ofItem(id).filter((own) => {
      if (own.version === null || own.version <= version || own.kind === 'delete') return false;
      return sig !== null && own.row.sig !== null && equalBytes(own.row.sig, sig);
    });
  }

  /**
   * Removes changes from memory; the caller removes them from the store, in one batch with the entries that replace
   * them.
   */
  forget(pendings: readonly Pending[]): void {
    for (const { id, seq } of pendings) {
      this.doubtful.delete(seq);
      const left = this.ofItem(id).filter((other) => other.seq !== seq);
      if (left.length === 0) this.byId.delete(id);
      else this.byId.set(id, left);
    }
    this.dirty.mark(pendings.map(({ id }) => id));
  }

  /** Marks a change of an item as being sent, until `outcome` settles. */
  sending(id: string, outcome: Promise<void>): void {
    const tracked: Promise<void> = outcome.finally(() => {
      if (this.underWay.get(id) === tracked) this.underWay.delete(id);
    });
    this.underWay.set(id, tracked);
  }

  /**
   * A change is sent again after a reply was lost. The reply to that may name a later version than the change got: of a
   * move, a re-wrap or a delete of its item since, by another program with the same identity too.
   */
  doubt(seq: number): void {
    this.doubtful.add(seq);
  }

  /** False where the version of an acknowledged write may be that of a later state. */
  isCertain({ seq, kind }: Pending): boolean {
    return kind !== 'write' || !this.doubtful.has(seq);
  }

  /**
   * The pending change that the stream acknowledged as `version`. The frame may arrive before the reply that names the
   * version, so a change in flight is awaited. Undefined where another program with the same identity made the change.
   */
  async confirmed(id: string, version: number): Promise<Pending | undefined> {
    const outcome = this.underWay.get(id);
    if (outcome !== undefined) await within(this.clock, REPLY_WAIT_MS, outcome, undefined);
    return this.ofItem(id).find((pending) => pending.version === version);
  }

  /**
   * Changes that mean nothing in another history, after its replay: re-wraps, because missing keys are found again, and
   * moves of a content, or of a file with keys, that the item does not have there. Their tag covers these: with what it
   * has, no device would accept the item.
   */
  async outdated(): Promise<readonly Pending[]> {
    const gone: Pending[] = [];
    for (const id of this.ids()) {
      const entry = await this.store.get(id);
      let row = entry?.state === 'live' ? entry.row : null;
      for (const own of this.ofItem(id)) {
        const lacks = own.kind === 'move' && (row === null || !sameTagged(row, own.row));
        if (lacks || (own.kind === 'write' && own.rewrap)) gone.push(own);
        else row = own.kind === 'delete' ? null : own.row;
      }
    }
    return gone;
  }

  /**
   * Adapts all changes to another history: acknowledged ones are sent again, and every base is the item's version in
   * the new history (0 where it has none). Must be called after its replay, without the `outdated` ones.
   */
  async rebase(): Promise<void> {
    for (const id of this.ids()) await this.sendAgain(id);
  }

  /**
   * Makes the acknowledged changes unacknowledged. `store` stores them, in the batch that begins another history, whose
   * versions are others: its replay would pass such a change, which would vanish. If the program ends within that replay,
   * the base 0 makes the server refuse what another state replaced. In memory only after that: where the store fails, a
   * later change would be stored without a base, on one that the store has as acknowledged.
   */
  async unacknowledge(store: (changed: readonly Pending[]) => Promise<void>): Promise<void> {
    const changed = [...this.byId.values()].flatMap((list) =>
      list.flatMap((own, at) => (own.version === null ? [] : { ...own, version: null, base: at === 0 ? 0 : null })),
    );
    await store(changed);
    for (const change of changed) this.remember(change);
  }

  /**
   * Sends those of these changes again that are still unconfirmed, and returns the ids of their items. For changes that
   * were acknowledged before a replay that is complete without them: the server does not have them.
   */
  async resend(acknowledged: ReadonlySet<number>): Promise<readonly string[]> {
    const lost = this.all().filter(({ id, seq, version }) => {
      return version !== null && acknowledged.has(seq) && !this.underWay.has(id);
    });
    const ids = [...new Set(lost.map(({ id }) => id))];
    for (const id of ids) await this.sendAgain(id);
    return ids;
  }

  /** Makes all changes of an item unacknowledged, on the version that it has in the stream (0: none). */
  private async sendAgain(id: string): Promise<void> {
    const base = (await this.store.get(id))?.version ?? 0;
    const changed = this.ofItem(id).map((pending, at) => ({ ...pending, version: null, base: at === 0 ? base : null }));
    await this.replace(changed);
  }

  private async keep(pending: Pending): Promise<void> {
    try {
      await this.store.apply({ pending: [pending] });
    } catch (error) {
      this.forget([pending]);
      throw error;
    } finally {
      this.unstored.delete(pending.seq);
    }
  }

  private heads(): readonly Pending[] {
    const heads = [...this.byId.values()].flatMap((list) => list.find((pending) => pending.version === null) ?? []);
    return heads.sort((one, other) => one.seq - other.seq);
  }

  private has(pending: Pending): boolean {
    return this.ofItem(pending.id).some((other) => other.seq === pending.seq);
  }

  private remember(pending: Pending): void {
    const others = this.ofItem(pending.id).filter((other) => other.seq !== pending.seq);
    const changes = [...others, pending].sort((one, other) => one.seq - other.seq);
    this.byId.set(pending.id, changes);
    this.lastSeq = Math.max(this.lastSeq, pending.seq);
    this.dirty.mark([pending.id]);
  }
}

/**
 * Whether the stream may have this state of an item at or after the version that a change got: the same content, a later
 * `ts`, or a delete. `kept`: of a state that does not verify, what counts as the item's last good state.
 */
function mayFollow(entry: Entry, own: Pending, version: number): boolean {
  if (entry.state === 'deleted' || (own.kind === 'write' && own.rewrap)) return true;
  if (own.kind === 'delete') return false;
  const states = entry.state === 'live' ? [entry.row] : [entry.row, entry.kept];
  const same = states.find((row) => row !== null && sameContent(row, own.row));
  const passed = entry.version > version;
  if (own.kind === 'move') return passed || same?.binId === own.row.binId;
  if (same !== undefined) return true;
  if (!passed) return false;
  // A state that does not verify may have any `ts`. The good one before it contradicts only from the change's version on.
  const last = entry.state === 'live' ? { ts: entry.row.ts, version: entry.version } : entry.kept;
  if (last === null || last.version < version) return true;
  return last.version > version && last.ts > own.row.ts;
}

/** The version that the stream gave to this very change, while the item has it; undefined: none. */
export function versionInStream(entry: Entry | undefined, own: Pending): number | undefined {
  // A re-wrap keeps the tag: at its base the item is the one before it.
  if (entry === undefined || entry.version <= (own.base ?? 0)) return undefined;
  if (own.kind === 'delete') return entry.state === 'deleted' && entry.tagged ? entry.version : undefined;
  return entry.state === 'live' && sameSig(entry.row, own.row) ? entry.version : undefined;
}

/**
 * The entry above these acknowledged changes: a state that does not verify keeps the newest of them as the item's last
 * good one. It has an older one where it arrived before the reply.
 */
export function keeping<E extends Entry>(entry: E, covered: readonly Pending[]): E {
  const own = covered.at(-1);
  if (own === undefined || own.kind === 'delete' || (own.kind === 'write' && own.rewrap)) return entry;
  if (entry.state === 'live' || isGone(entry) || (entry.state === 'deleted' && entry.tagged)) return entry;
  const { kept } = entry;
  if (kept !== null && (kept.ts > own.row.ts || sameSig(kept, own.row))) return entry;
  return { ...entry, kept: { ...own.row, version: own.version ?? 0 } };
}

/** The pending change that the user sees; undefined where the stream is newer. */
function onTop(changes: readonly Pending[] | undefined, entry: Entry | undefined): Pending | undefined {
  const last = changes?.at(-1);
  if (last === undefined) return undefined;
  return last.version !== null && entry !== undefined && entry.version >= last.version ? undefined : last;
}

/** Above this many ids all items are marked. */
const IDS_MAX = 10_000;

/**
 * Items whose view may have changed. Every change of an entry or a pending change must be marked here, after it became
 * readable, else live queries become stale. Collects ids for one listener, and nothing without one.
 */
class DirtyIds {
  private ids = new Set<string>();
  private everything = false;
  private wake: (() => void) | undefined;

  /** Calls `wake` at each mark; the result ends that. There is one listener at a time. */
  listen(wake: () => void): () => void {
    this.wake = wake;
    return () => {
      this.wake = undefined;
      this.take();
    };
  }

  /** Marks items that changed in one step. */
  mark(ids: Iterable<string>): void {
    if (this.wake === undefined) return;
    for (const id of ids) this.ids.add(id);
    if (this.ids.size > IDS_MAX) return this.markAll();
    if (this.ids.size > 0) this.wake();
  }

  /** Marks all items, for example after a reset. */
  markAll(): void {
    if (this.wake === undefined) return;
    this.everything = true;
    this.ids = new Set();
    this.wake();
  }

  /** Returns the ids marked since the last call and clears them. `all`: any item may have changed. */
  take(): { readonly all: boolean; readonly ids: readonly string[] } {
    const taken = { all: this.everything, ids: this.everything ? [] : [...this.ids] };
    this.ids = new Set();
    this.everything = false;
    return taken;
  }
}
