/** This device's own changes on their way (see `store/store.ts`): what is not sent, what is under way, what is acknowledged. */
import { equalBytes } from '../protocol/bytes.js';
import { delay, type Clock } from '../protocol/clock.js';
import type { LiveItem } from '../protocol/item.js';
import type { Entry, Pending, Store } from './store/store.js';

/** `Omit` that keeps a union a union. */
type Without<T, K extends PropertyKey> = T extends unknown ? Omit<T, K> : never;

/** A change that is not in the outbox yet. `base` as in `Pending`. */
export type NewChange = Without<Pending, 'seq' | 'version' | 'madeAt'>;

/** An item as this device sees it: what the stream says, and the newest own change where that is on top of it. */
export interface Seen {
  readonly entry: Entry | undefined;
  readonly own: Pending | undefined;
}

/** How often `look` starts anew when the item's own changes move meanwhile. More often than that is a fault. */
const LOOKS_MAX = 100;

/** How long an `ack` waits for the reply that says what it acknowledges. The reply is normally there already. */
const REPLY_WAIT_MS = 5_000;

/** The pending changes, in memory and in the store. */
export class Outbox {
  /** Items that may look different now: by own changes, which are noted here, or by what the others write. */
  readonly dirty = new DirtyIds();
  private readonly byId = new Map<string, Pending[]>();
  private readonly underWay = new Map<string, Promise<void>>();
  /** Remembered, and not durable yet: not to be sent. */
  private readonly unstored = new Set<number>();
  private lastSeq = 0;

  private constructor(
    private readonly store: Store,
    private readonly clock: Clock,
  ) {}

  /** The outbox as the store kept it. */
  static async load(store: Store, clock: Clock): Promise<Outbox> {
    const outbox = new Outbox(store, clock);
    for (const pending of await store.pending()) outbox.remember(pending);
    return outbox;
  }

  /** The newest change of an item, which is what its owner sees; undefined where the stream has the last word. */
  newest(id: string, entry: Entry | undefined): Pending | undefined {
    return onTop(this.byId.get(id), entry);
  }

  /**
   * Every item once, those that only an own change made too. The own changes are those of the beginning: an entry read
   * from then on makes with them a state that was or is; with a change that was forgotten meanwhile it might not.
   */
  async *everything(): AsyncGenerator<Seen & { readonly id: string }, void, undefined> {
    const left = new Map(this.byId);
    for await (const entry of this.store.entries()) {
      const { id } = entry;
      yield { id, entry, own: onTop(left.get(id), entry) };
      left.delete(id);
    }
    for (const [id, changes] of left) yield { id, entry: undefined, own: onTop(changes, undefined) };
  }

  /**
   * Entry and newest own change as they stand together: an acknowledgement that comes while the store is asked would
   * make a pair that never was. Nothing may be awaited between this and `add`.
   */
  async look(id: string): Promise<Seen> {
    for (let looks = 0; looks < LOOKS_MAX; looks++) {
      const before = this.byId.get(id);
      const entry = await this.store.get(id);
      if (this.byId.get(id) === before) return { entry, own: this.newest(id, entry) };
    }
    throw new Error(`the changes of ${id} do not come to rest`);
  }

  /** Ids with a pending change. */
  ids(): readonly string[] {
    return [...this.byId.keys()];
  }

  /** All pending changes, those of one item by rising `seq`. */
  all(): readonly Pending[] {
    return [...this.byId.values()].flat();
  }

  /** Of each item the first change that no reply has acknowledged, in order of making; none that is not durable here. */
  unsent(): readonly Pending[] {
    return this.heads().filter((pending) => pending.base !== null && !this.unstored.has(pending.seq));
  }

  /**
   * Changes that wait for the acknowledgement of one that is not there, which only a damaged store brings about. They
   * are not sent: without its base a write would win over whatever it never saw. A reset gives them a base.
   */
  baseless(): readonly Pending[] {
    return this.heads().filter((pending) => pending.base === null);
  }

  /** Changes of the same item made after this one. */
  after(pending: Pending): readonly Pending[] {
    return this.byId.get(pending.id)?.filter((other) => other.seq > pending.seq) ?? [];
  }

  /**
   * Keeps a new change: here at once, so that the acknowledgement of the one below it finds it, and in the store by the
   * time `stored` resolves. It is not sent before: what the server may have must survive a crash here. Where it cannot
   * be stored it is gone, and `stored` rejects.
   */
  add(change: NewChange): { readonly pending: Pending; readonly stored: Promise<void> } {
    const pending = { ...change, seq: ++this.lastSeq, version: null, madeAt: this.clock.now() };
    this.unstored.add(pending.seq);
    this.remember(pending);
    return { pending, stored: this.keep(pending) };
  }

  /** Puts another state of a change in its place. */
  async replace(pending: Pending): Promise<void> {
    if (!this.has(pending)) return;
    this.remember(pending);
    await this.store.apply({ pending: [pending] });
  }

  /** Drops changes that were refused, or that the stream has confirmed or passed. */
  async drop(pendings: readonly Pending[]): Promise<void> {
    this.forget(pendings);
    await this.store.apply({ done: pendings.map((pending) => pending.seq) });
  }

  /**
   * A reply acknowledged a change. It stays on top until the stream brings that version; where the stream was faster it
   * is done. Asked after it was recorded, so that a frame handled in between is not missed. The change made on top of
   * it now has its base.
   */
  async acknowledged(pending: Pending, version: number): Promise<void> {
    if (!this.has(pending)) return;
    const [next] = this.after(pending);
    const changed = [{ ...pending, version }, ...(next?.base === null ? [{ ...next, base: version }] : [])];
    for (const change of changed) this.remember(change);
    await this.store.apply({ pending: changed });
    const entry = await this.store.get(pending.id);
    if (entry !== undefined && entry.version >= version) await this.drop(this.covered(pending.id, version));
  }

  /** Acknowledged changes of an item that the stream has reached or passed at `version`. */
  covered(id: string, version: number): readonly Pending[] {
    return this.byId.get(id)?.filter((pending) => pending.version !== null && pending.version <= version) ?? [];
  }

  /** Acknowledged changes whose reply named a later version than the one under which this very state arrived. */
  misnumbered({ id, version, sig }: LiveItem): readonly Pending[] {
    const later = this.byId.get(id)?.filter((pending) => pending.version !== null && pending.version > version) ?? [];
    return later.filter(
      (own) => own.kind !== 'delete' && sig !== null && own.row.sig !== null && equalBytes(own.row.sig, sig),
    );
  }

  /** Forgets changes whose removal the caller stores itself, together with the entries that replace them. */
  forget(pendings: readonly Pending[]): void {
    for (const { id, seq } of pendings) {
      const left = this.byId.get(id)?.filter((other) => other.seq !== seq) ?? [];
      if (left.length === 0) this.byId.delete(id);
      else this.byId.set(id, left);
    }
    this.dirty.mark(pendings.map(({ id }) => id));
  }

  /** Notes that a change of an item was sent and its outcome is not known before `outcome` settles. */
  sending(id: string, outcome: Promise<void>): void {
    const tracked: Promise<void> = outcome.finally(() => {
      if (this.underWay.get(id) === tracked) this.underWay.delete(id);
    });
    this.underWay.set(id, tracked);
  }

  /**
   * The own change that the stream acknowledged as `version`: its frame may overtake the reply that tells the version,
   * so a change under way is waited for. Undefined where it is not this program's: another one with the same identity.
   */
  async confirmed(id: string, version: number): Promise<Pending | undefined> {
    const outcome = this.underWay.get(id);
    if (outcome !== undefined) {
      const stop = new AbortController();
      await Promise.race([outcome, delay(this.clock, REPLY_WAIT_MS, stop.signal)]);
      stop.abort();
    }
    return this.byId.get(id)?.find((pending) => pending.version === version);
  }

  /**
   * Another history began: what was acknowledged in the old one is sent again, and every base is taken anew from what
   * the new history holds (0 where it holds nothing). Call once that is known. Gives the re-wraps, which are dropped:
   * what is still missing is found again.
   */
  async rebase(): Promise<readonly Pending[]> {
    const all = this.all();
    const rewraps = all.filter((pending) => pending.kind === 'write' && pending.rewrap);
    await this.drop(rewraps);
    for (const list of [...this.byId.values()]) {
      for (const [at, pending] of list.entries()) {
        const base = at === 0 ? ((await this.store.get(pending.id))?.version ?? 0) : null;
        await this.replace({ ...pending, version: null, base });
      }
    }
    return rewraps;
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
    return this.byId.get(pending.id)?.some((other) => other.seq === pending.seq) ?? false;
  }

  private remember(pending: Pending): void {
    const others = this.byId.get(pending.id)?.filter((other) => other.seq !== pending.seq) ?? [];
    this.byId.set(
      pending.id,
      [...others, pending].sort((one, other) => one.seq - other.seq),
    );
    this.lastSeq = Math.max(this.lastSeq, pending.seq);
    this.dirty.mark([pending.id]);
  }
}

function onTop(changes: readonly Pending[] | undefined, entry: Entry | undefined): Pending | undefined {
  const last = changes?.at(-1);
  if (last === undefined) return undefined;
  return last.version !== null && entry !== undefined && entry.version >= last.version ? undefined : last;
}

/** More ids than this, and everything is looked at again instead. */
const IDS_MAX = 10_000;

/** What was dirty since somebody last asked. `all`: every item may be another. */
export interface Dirty {
  readonly all: boolean;
  readonly ids: readonly string[];
}

/**
 * Which items may look different now: whoever changes the stream's entry or an own change on top of it says so here,
 * after the change can be read; live queries look again. Gathers ids for one listener; without one it keeps nothing.
 */
export class DirtyIds {
  private ids = new Set<string>();
  private everything = false;
  private wake: (() => void) | undefined;

  /** Calls `wake` at each mark; the result ends that. There is one listener at a time. */
  listen(wake: () => void): () => void {
    this.wake = wake;
    return () => {
      this.wake = undefined;
      this.ids = new Set();
      this.everything = false;
    };
  }

  /** These items were changed, all in one step. */
  mark(ids: Iterable<string>): void {
    if (this.wake === undefined) return;
    for (const id of ids) this.ids.add(id);
    if (this.ids.size > IDS_MAX) {
      this.markAll();
      return;
    }
    if (this.ids.size > 0) this.wake();
  }

  /** Any item may be another: a reset, for one. */
  markAll(): void {
    if (this.wake === undefined) return;
    this.everything = true;
    this.ids = new Set();
    this.wake();
  }

  /** What was dirty, and forgets it. */
  take(): Dirty {
    const taken = { all: this.everything, ids: this.everything ? [] : [...this.ids] };
    this.ids = new Set();
    this.everything = false;
    return taken;
  }
}
