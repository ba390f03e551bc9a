/**
 * Live queries over the local copy: one index of all items, shared by all queries and updated by the dirty ids of the
 * outbox.
 *
 * The index needs no decryption: order, bin and type are in the row. An item is decrypted when it enters a window or
 * when a query searches for text, and not again while its tag is unchanged and the cache has room for it. All work is
 * serialized, so each query gets its results in the order of events; ids that become dirty during a round are handled
 * together in the next one.
 */
import { asError } from '../protocol/error-code.js';
import { openItem } from '../crypto/item.js';
import { CryptoRefusal, orRefusal } from '../crypto/refusal.js';
import type { Timer } from '../protocol/clock.js';
import type { LiveItem } from '../protocol/item.js';
import { Serial } from '../protocol/serial.js';
import { ClientError } from './errors.js';
import { notify, type ItemView } from './events.js';
import type { Subscription } from './list-subscriptions.js';
import { damagedItem, rowSeen } from './item-reader.js';
import type { SeenItem } from './outbox.js';
import { backoffMs, RECONNECT, yieldToEventLoop } from './platform.js';
import { changesBetween, found, Matches, planOf, sameHead, sameTag, searchedText, windowOf } from './query.js';
import type { QueryFilter, QueryUpdate, QueryWindow } from './query.js';
import { viewOf } from './merge-rules.js';
import { headOf, place, tagOf, type Head } from './store/store.js';
import type { Core } from './core.js';

/** Most open queries of a device: two for each of the 200 tabs that may show it, its list and its item, and spare ones. */
export const QUERIES_MAX = 512;
/** Approximate bytes of plaintext cached for later queries. */
const OPENED_MAX = 32 * 1024 * 1024;
/** Approximate bytes that a cached item takes in addition to its text. */
const OPENED_COST = 256;
/** Items decrypted before yielding to the event loop, and items read from the store concurrently. */
const AT_ONCE = 200;
/** To open more items than this, the whole store is scanned, which is faster than looking each one up. */
const SCAN_ABOVE = 1_000;

interface Opened {
  readonly tag: string | null;
  readonly cost: number;
  readonly view: ItemView;
  /** See `searchedText`; computed by the first search. */
  text: string | undefined;
}

/** A live query. */
export interface QuerySubscription extends Subscription<ItemView> {
  /**
   * Shows another part of the matching items; an absent field keeps its value. Only items that enter the window are
   * read. Resolves after the listener was called. Throws `RangeError`.
   */
  move(window: Partial<QueryWindow>): Promise<void>;
}

/** Items by bin; a bin without items is not in it. */
export type BinCounts = ReadonlyMap<string, number>;

interface Change {
  readonly id: string;
  readonly before: Head | undefined;
  readonly after: Head | undefined;
}

interface Live {
  readonly plan: ReturnType<typeof planOf>;
  readonly listener: (update: QueryUpdate) => void;
  readonly matches: Matches;
  window: QueryWindow;
  shown: readonly ItemView[];
  /** The tags of the shown items, by id. */
  tags: ReadonlyMap<string, string | null>;
  last: Pick<QueryUpdate, 'total' | 'offset'> | undefined;
}

/** The index of the live queries. It is in memory only while there are queries or counts. */
export class LiveQueryIndex {
  private readonly queries = new Set<Live>();
  private readonly counters = new Set<(counts: BinCounts) => void>();
  private heads: Map<string, Head> | undefined;
  private readonly opened = new Map<string, Opened>();
  private openedBytes = 0;
  private openedInRow = 0;
  private readonly damaged = new Set<string>();
  private readonly work = new Serial();
  private due = false;
  /** Incremented each time the index is discarded. */
  private generation = 0;
  /** A round failed at an unknown point: the next one rebuilds the index and all queries. */
  private stale = false;
  /** Begins a round after failed ones: no change may come that would. */
  private retry: Timer | undefined;
  private failures = 0;
  private unlisten: (() => void) | undefined;

  constructor(
    private readonly options: Pick<Core, 'outbox' | 'store' | 'sodium' | 'reader' | 'clock' | 'random' | 'onProblem'>,
  ) {}

  /**
   * Opens a query. The first result is delivered before this resolves; then each one that differs. Throws `RangeError`
   * for a bad limit or offset, and `ClientError` `too_many` above `QUERIES_MAX`; rejects if the store cannot be read.
   */
  async query(filter: QueryFilter, listener: (update: QueryUpdate) => void): Promise<QuerySubscription> {
    const plan = planOf(filter);
    const window = windowOf(filter);
    const matches = new Matches(plan.compare);
    const live: Live = { plan, listener, matches, window, shown: [], tags: new Map(), last: undefined };
    const close = await this.added(this.queries, live, 'queries', () => this.begin(live));
    return {
      get current() {
        return live.shown;
      },
      move: async (to) => {
        live.window = windowOf({ ...live.window, ...to });
        await this.work.run(() => this.show(live));
      },
      close,
    };
  }

  /** The number of items in each bin, delivered now and after each change. Throws as `query`. */
  async counts(listener: (counts: BinCounts) => void): Promise<{ close(): void }> {
    // A wrapper, because the same listener may be passed twice.
    const counter = (counts: BinCounts): void => listener(counts);
    const close = await this.added(this.counters, counter, 'counts', async () => {
      if (this.heads === undefined) await this.reload();
      if (this.counters.has(counter)) notify(this.options.onProblem, () => counter(this.counted()));
    });
    return { close };
  }

  /** Registers a query or counter and runs `begin`; the result closes it. Throws `too_many`, and as `begin`. */
  private async added<T>(kind: Set<T>, one: T, name: string, begin: () => Promise<void>): Promise<() => void> {
    if (kind.size >= QUERIES_MAX)
      throw new ClientError('too_many', `more than ${QUERIES_MAX} ${name} are open: close those that nobody looks at`);
    kind.add(one);
    this.unlisten ??= this.options.outbox.dirty.listen(() => this.wake());
    const close = (): void => {
      kind.delete(one);
      this.rest();
    };
    try {
      await this.work.run(begin);
    } catch (error) {
      close();
      throw error;
    }
    return close;
  }

  private counted(): BinCounts {
    const counts = new Map<string, number>();
    for (const { binId } of this.heads?.values() ?? []) counts.set(binId, (counts.get(binId) ?? 0) + 1);
    return counts;
  }

  /** Closes all queries and counts. */
  close(): void {
    this.counters.clear();
    this.queries.clear();
    this.rest();
  }

  /** Drops the index when the last query or counter is closed. */
  private rest(): void {
    if (this.queries.size + this.counters.size > 0) return;
    this.unlisten?.();
    this.unlisten = undefined;
    this.retry?.cancel();
    this.retry = undefined;
    this.heads = undefined;
    this.generation++;
    this.opened.clear();
    this.openedBytes = 0;
    this.damaged.clear();
  }

  /** Schedules a round unless one is scheduled; it handles all ids that are dirty when it starts. */
  private wake(): void {
    if (this.due) return;
    this.due = true;
    this.work
      .run(() => this.round())
      .then(() => (this.failures = 0))
      .catch((error: unknown) => {
        this.stale = true;
        this.options.onProblem(asError(error));
        this.wakeLater();
      });
  }

  private wakeLater(): void {
    if (this.unlisten === undefined) return;
    const { clock, random } = this.options;
    this.retry ??= clock.setTimer(backoffMs(this.failures++, RECONNECT, random), () => {
      this.retry = undefined;
      this.wake();
    });
  }

  private async begin(live: Live): Promise<void> {
    if (this.stale && this.queries.has(live)) await this.reload();
    while (this.heads === undefined && this.queries.has(live)) await this.reload();
    await this.fill(live);
  }

  /** Takes everything from the index. */
  private async fill(live: Live): Promise<void> {
    const heads = [...(this.heads?.values() ?? [])].filter(live.plan.wants);
    live.matches.fill(await this.searched(live, heads));
    await this.show(live);
  }

  private async round(): Promise<void> {
    this.due = false;
    if (this.queries.size + this.counters.size === 0) return;
    const { all, ids } = this.options.outbox.dirty.take();
    if (this.stale) {
      await this.reload();
      // All of them from this one: what came between two is no change to the later one, and would be missing before it.
      for (const live of [...this.queries]) await this.fill(live);
      this.count();
      this.stale = false;
      return;
    }
    const { heads } = this;
    const changes = all || heads === undefined ? differences(heads, await this.reload()) : await this.reread(ids);
    // A query that has not begun yet takes everything from the index.
    for (const live of [...this.queries]) if (live.last !== undefined) await this.advance(live, changes);
    if (changes.some(({ before, after }) => before?.binId !== after?.binId)) this.count();
  }

  private count(): void {
    if (this.counters.size === 0) return;
    const counts = this.counted();
    for (const listener of [...this.counters]) notify(this.options.onProblem, () => listener(counts));
  }

  /** Rebuilds the index, including changes that were not reported. */
  private async reload(): Promise<ReadonlyMap<string, Head>> {
    const { generation } = this;
    // Items that change during the read are dirty, and are handled in the next round.
    const heads = await this.allHeads();
    // If all queries were closed meanwhile, dirty ids were not collected for a while and this index may be stale.
    if (this.generation === generation) this.heads = heads;
    return heads;
  }

  private async allHeads(): Promise<Map<string, Head>> {
    const { outbox, store } = this.options;
    const own = outbox.ids();
    const heads = (await store.heads?.()) ?? new Map<string, Head>();
    const unknown = store.heads === undefined ? outbox.everything() : this.looked(own);
    for await (const seen of unknown) place(heads, seen.id, headSeen(seen));
    return heads;
  }

  private async reread(ids: readonly string[]): Promise<readonly Change[]> {
    const changes: Change[] = [];
    for await (const seen of this.looked(ids)) {
      // All queries were closed meanwhile.
      if (this.heads === undefined) return [];
      const { id } = seen;
      const head = headSeen(seen);
      changes.push(...changed(id, this.heads.get(id), head));
      if (head === undefined) this.letGo(id);
      place(this.heads, id, head);
    }
    return changes;
  }

  /** The items with these ids, some of them read at once. */
  private async *looked(ids: readonly string[]): AsyncGenerator<SeenItem> {
    const look = async (id: string): Promise<SeenItem> => ({ id, ...(await this.options.outbox.look(id)) });
    for (let at = 0; at < ids.length; at += AT_ONCE) yield* await Promise.all(ids.slice(at, at + AT_ONCE).map(look));
  }

  private async advance(live: Live, changes: readonly Change[]): Promise<void> {
    const { plan, matches } = live;
    const fits = new Set<string>();
    const unsure: Head[] = [];
    for (const { before, after } of changes) {
      if (after === undefined || !plan.wants(after)) continue;
      // The text is unchanged, so the earlier result holds.
      if (before === undefined || !sameTag(after, before) || !plan.wants(before)) unsure.push(after);
      else if (matches.has(after.id)) fits.add(after.id);
    }
    for (const { id } of await this.searched(live, unsure)) fits.add(id);
    if (matches.place(changes.map(({ id, after }) => ({ id, head: fits.has(id) ? after : undefined }))))
      await this.show(live);
  }

  /** The items that contain all of the query's search words. */
  private async searched(live: Live, heads: readonly Head[]): Promise<readonly Head[]> {
    const { words } = live.plan;
    if (words.length === 0) return heads;
    const hits: Head[] = [];
    await this.read(live, heads, (head, opened) => {
      opened.text ??= searchedText(opened.view.type, opened.view.payload);
      if (found(words, opened.text)) hits.push(head);
    });
    return hits;
  }

  private async show(live: Live): Promise<void> {
    if (!this.queries.has(live)) return;
    const { window } = live;
    const heads = live.matches.within(window);
    const known = new Map(live.shown.map((view) => [view.id, view] as const));
    const views = new Map<string, ItemView>();
    const tags = new Map<string, string | null>();
    const news: Head[] = [];
    const take = (head: Head, { view, tag }: Pick<Opened, 'view' | 'tag'>): void => {
      views.set(head.id, refreshed(view, head));
      tags.set(head.id, tag);
    };
    for (const head of heads) {
      const last = known.get(head.id);
      const tag = live.tags.get(head.id) ?? null;
      if (last !== undefined && sameTag(head, { tag })) take(head, { view: last, tag });
      else news.push(head);
    }
    await this.read(live, news, take);
    const items = heads.flatMap(({ id }) => views.get(id) ?? []);
    const { offset } = window;
    const update = { items, offset, total: live.matches.size, changes: changesBetween(live.shown, items) };
    const { last } = live;
    live.shown = items;
    live.tags = tags;
    live.last = update;
    const differs = update.changes.length > 0 || last?.total !== update.total || last.offset !== offset;
    if (differs && this.queries.has(live)) notify(this.options.onProblem, () => live.listener(update));
  }

  /**
   * Calls `use` with the content of each item, in any order; cached items are not decrypted again. If an item changed
   * since it was indexed, the content may be the newer one, and its id is dirty already; as it may be back by the next
   * round, which would then find nothing changed, it is left in the index without a tag. Items that no longer exist or
   * do not decrypt are skipped.
   */
  private async read(live: Live, heads: readonly Head[], use: (head: Head, opened: Opened) => void): Promise<void> {
    const { outbox } = this.options;
    const left = new Map<string, Head>();
    for (const head of heads) {
      const known = this.opened.get(head.id);
      if (known !== undefined && sameTag(head, known)) use(head, known);
      else left.set(head.id, head);
    }
    for await (const seen of left.size > SCAN_ABOVE ? outbox.everything() : this.looked([...left.keys()])) {
      if (!this.queries.has(live)) return;
      const head = left.get(seen.id);
      const row = head === undefined ? undefined : rowSeen(seen);
      if (head === undefined || row === undefined) continue;
      if (sameTag(head, { tag: tagOf(row) })) left.delete(head.id);
      const opened = await this.open(row);
      if (opened !== undefined) use(head, opened);
    }
    for (const head of left.values()) this.heads?.set(head.id, { ...head, tag: null });
  }

  /** The content of a row; undefined where it does not decrypt. */
  private async open(row: LiveItem & { readonly pending: boolean }): Promise<Opened | undefined> {
    const { sodium, reader, onProblem } = this.options;
    const tag = tagOf(row);
    const known = this.opened.get(row.id);
    if (known !== undefined && sameTag({ tag }, known)) return known;
    if (++this.openedInRow % AT_ONCE === 0) await yieldToEventLoop();
    const payload = orRefusal(() => openItem(sodium, row, reader));
    if (payload instanceof CryptoRefusal) {
      // It verified when it was stored, so the store was damaged since.
      if (!this.damaged.has(row.id)) onProblem(damagedItem(row.id, payload));
      this.damaged.add(row.id);
      return undefined;
    }
    const view = viewOf(row, payload, row.pending);
    const opened = { tag, cost: OPENED_COST + 2 * (row.inline?.ct.length ?? 0), view, text: undefined };
    this.keep(row.id, opened);
    return opened;
  }

  /**
   * Caches an item if there is room. Nothing is evicted: a search reads all items in the same order, so with eviction
   * the next one would find none of them cached.
   */
  private keep(id: string, opened: Opened): void {
    this.letGo(id);
    if (this.openedBytes + opened.cost > OPENED_MAX) return;
    this.openedBytes += opened.cost;
    this.opened.set(id, opened);
  }

  private letGo(id: string): void {
    this.openedBytes -= this.opened.get(id)?.cost ?? 0;
    this.opened.delete(id);
  }
}

/** The changes from one index to another. */
const differences = (
  before: ReadonlyMap<string, Head> = new Map(),
  after: ReadonlyMap<string, Head>,
): readonly Change[] =>
  [...new Set([...before.keys(), ...after.keys()])].flatMap((id) => changed(id, before.get(id), after.get(id)));

const headSeen = (seen: SeenItem): Head | undefined => {
  const row = rowSeen(seen);
  return row === undefined ? undefined : headOf(row, row.pending);
};

const changed = (id: string, before: Head | undefined, after: Head | undefined): readonly Change[] =>
  before === after || (before !== undefined && after !== undefined && sameHead(before, after))
    ? []
    : [{ id, before, after }];

/** The view with the current version and state; the same object where nothing changed. */
const refreshed = (view: ItemView, { version, pending }: Head): ItemView =>
  view.version === version && view.pending === pending ? view : { ...view, version, pending };
