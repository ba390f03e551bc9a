/**
 * Live queries over the local copy: one index of all items, shared by all queries and updated by the dirty ids of the
 * outbox.
 *
 * The index needs no decryption: order, bin and type are in the row. An item is decrypted when it enters a result or
 * when a query searches for text, and not again while its tag is unchanged. All work is serialized, so each query gets
 * its results in the order of events; ids that become dirty meanwhile are handled together in the next round.
 */
import { asError } from '../protocol/error-code.js';
import { openItem } from '../crypto/item.js';
import type { JsonObject } from '../crypto/payload.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import type { LiveItem } from '../protocol/item.js';
import { Serial } from '../protocol/serial.js';
import { ClientError } from './errors.js';
import type { ItemView } from './events.js';
import type { Subscription } from './list-subscriptions.js';
import { damagedItem, rowSeen } from './item-reader.js';
import { yieldToEventLoop } from './platform.js';
import {
  changesBetween,
  Matches,
  planOf,
  sameHead,
  sameTag,
  type Head,
  type QueryFilter,
  type QueryUpdate,
  found,
} from './query.js';
import { viewOf } from './merge-rules.js';
import type { Core } from './core.js';

/** Most open queries of a device. */
export const QUERIES_MAX = 64;
/** Bytes of ciphertext whose plaintext is cached for the next query. */
const OPENED_MAX = 16 * 1024 * 1024;
/** Items decrypted before yielding to the event loop. */
const OPENED_AT_ONCE = 200;

interface Opened {
  readonly sig: Uint8Array | null;
  readonly bytes: number;
  readonly payload: JsonObject | null;
}

interface Change {
  readonly id: string;
  readonly before: Head | undefined;
  readonly after: Head | undefined;
}

interface Live {
  readonly plan: ReturnType<typeof planOf>;
  readonly listener: (update: QueryUpdate) => void;
  readonly matches: Matches;
  shown: readonly ItemView[];
  /** The tags of the shown items, by id. */
  tags: ReadonlyMap<string, Uint8Array | null>;
  last: { readonly total: number } | undefined;
}

/** The index of the live queries. It exists while there are queries. */
export class LiveQueryIndex {
  private readonly queries = new Set<Live>();
  private heads: Map<string, Head> | undefined;
  private readonly opened = new Map<string, Opened>();
  private openedBytes = 0;
  private openedInRow = 0;
  private readonly damaged = new Set<string>();
  private readonly work = new Serial();
  private due = false;
  /** Incremented each time the index is discarded. */
  private generation = 0;
  /** A round failed at an unknown point: the next one starts over, for all queries. */
  private stale = false;
  private unlisten: (() => void) | undefined;

  constructor(private readonly options: Pick<Core, 'outbox' | 'sodium' | 'reader' | 'onProblem'>) {}

  /**
   * Opens a query. The first result is delivered before this resolves; then each one that differs. Throws `RangeError`
   * for a bad limit, and `ClientError` `too_many` above `QUERIES_MAX`; rejects where the store cannot be read.
   */
  async query(filter: QueryFilter, listener: (update: QueryUpdate) => void): Promise<Subscription<ItemView>> {
    const plan = planOf(filter);
    if (this.queries.size >= QUERIES_MAX)
      throw new ClientError('too_many', `more than ${QUERIES_MAX} queries are open: close those that nobody looks at`);
    const matches = new Matches(plan.compare);
    const live: Live = { plan, listener, matches, shown: [], tags: new Map(), last: undefined };
    this.queries.add(live);
    this.unlisten ??= this.options.outbox.dirty.listen(() => this.wake());
    try {
      await this.work.run(() => this.begin(live));
    } catch (error) {
      this.end(live);
      throw error;
    }
    return {
      get current() {
        return live.shown;
      },
      close: () => this.end(live),
    };
  }

  /** Closes all queries. */
  close(): void {
    for (const live of [...this.queries]) this.end(live);
  }

  private end(live: Live): void {
    this.queries.delete(live);
    if (this.queries.size > 0) return;
    this.unlisten?.();
    this.unlisten = undefined;
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
      .catch((error: unknown) => {
        this.stale = true;
        this.options.onProblem(asError(error));
      });
  }

  private async begin(live: Live): Promise<void> {
    while (this.queries.has(live) && (this.stale || this.heads === undefined)) {
      await this.reload();
      if (this.stale) break;
    }
    const fitting: Head[] = [];
    for (const head of this.heads?.values() ?? []) if (await this.fits(live, head, undefined)) fitting.push(head);
    live.matches.fill(fitting);
    await this.show(live);
  }

  private async round(): Promise<void> {
    this.due = false;
    if (this.queries.size === 0) return;
    const { all, ids } = this.options.outbox.dirty.take();
    if (this.stale) {
      await this.reload();
      for (const live of [...this.queries]) await this.begin(live);
      this.stale = false;
      return;
    }
    const changes = all || this.heads === undefined ? await this.reload() : await this.reread(ids);
    for (const live of [...this.queries]) await this.advance(live, changes);
  }

  /** Rebuilds the index, including changes that were not reported. */
  private async reload(): Promise<readonly Change[]> {
    const before = this.heads ?? new Map<string, Head>();
    const { generation } = this;
    const after = new Map<string, Head>();
    // Items that change during the scan are dirty, and are handled in the next round.
    for await (const seen of this.options.outbox.everything()) {
      const head = headOf(rowSeen(seen));
      if (head !== undefined) after.set(seen.id, head);
    }
    // If all queries were closed meanwhile, dirty ids were not collected for a while and this index may be stale.
    if (this.generation === generation) this.heads = after;
    return [...new Set([...before.keys(), ...after.keys()])].flatMap((id) =>
      changed(id, before.get(id), after.get(id)),
    );
  }

  private async reread(ids: readonly string[]): Promise<readonly Change[]> {
    const changes: Change[] = [];
    for (const id of ids) {
      const head = headOf(rowSeen(await this.options.outbox.look(id)));
      // All queries were closed meanwhile.
      if (this.heads === undefined) return [];
      changes.push(...changed(id, this.heads.get(id), head));
      if (head === undefined) this.heads.delete(id);
      else this.heads.set(id, head);
    }
    return changes;
  }

  private async advance(live: Live, changes: readonly Change[]): Promise<void> {
    let moved = live.last === undefined;
    for (const { id, before, after } of changes) {
      const fits = after !== undefined && (await this.fits(live, after, before));
      if (live.matches.place(id, fits ? after : undefined)) moved = true;
    }
    if (moved) await this.show(live);
  }

  private async fits(live: Live, head: Head, before: Head | undefined): Promise<boolean> {
    if (!live.plan.wants(head)) return false;
    if (live.plan.words.length === 0) return true;
    // The text is unchanged, so the earlier result holds.
    if (sameTag(head, before) && before !== undefined && live.plan.wants(before)) return live.matches.has(head.id);
    const opened = await this.open(head);
    return opened !== undefined && found(live.plan.words, opened.row.type, opened.payload);
  }

  private async show(live: Live): Promise<void> {
    const known = new Map(live.shown.map((view) => [view.id, view] as const));
    const shown: ItemView[] = [];
    const tags = new Map<string, Uint8Array | null>();
    for (const head of live.matches.first(live.plan.limit)) {
      const last = known.get(head.id);
      const same = last !== undefined && sameTag(head, { sig: live.tags.get(head.id) ?? null });
      const view = same ? refreshed(last, head) : await this.view(head);
      if (view === undefined) continue;
      shown.push(view);
      tags.set(head.id, head.sig);
    }
    const update = { items: shown, total: live.matches.size, changes: changesBetween(live.shown, shown) };
    const news = update.changes.length > 0 || live.last?.total !== update.total;
    live.shown = shown;
    live.tags = tags;
    live.last = update;
    if (news && this.queries.has(live)) this.deliver(live, update);
  }

  private deliver(live: Live, update: QueryUpdate): void {
    try {
      live.listener(update);
    } catch (error) {
      this.options.onProblem(asError(error));
    }
  }

  private async view(head: Head): Promise<ItemView | undefined> {
    const opened = await this.open(head);
    return opened === undefined ? undefined : refreshed(viewOf(opened.row, opened.payload, head.pending), head);
  }

  /**
   * The content of an item, decrypted at most once per tag. If the item changed since it was indexed, the newer
   * content is returned; its id is dirty already. Undefined where it is gone or does not decrypt.
   */
  private async open(head: Head): Promise<{ readonly row: LiveItem; readonly payload: JsonObject | null } | undefined> {
    const { outbox, sodium, reader, onProblem } = this.options;
    const row = rowSeen(await outbox.look(head.id));
    if (row === undefined) return undefined;
    const known = this.opened.get(head.id);
    if (known !== undefined && sameTag(row, known)) return { row, payload: known.payload };
    if (++this.openedInRow % OPENED_AT_ONCE === 0) await yieldToEventLoop();
    try {
      const payload = openItem(sodium, row, reader);
      this.keep(head.id, { sig: row.sig, bytes: row.inline?.ct.length ?? 0, payload });
      return { row, payload };
    } catch (error) {
      if (!(error instanceof CryptoRefusal)) throw error;
      // It verified when it was stored, so the store was damaged since.
      if (!this.damaged.has(head.id)) onProblem(damagedItem(head.id, error));
      this.damaged.add(head.id);
      return undefined;
    }
  }

  /** Least recently opened items are evicted first. */
  private keep(id: string, opened: Opened): void {
    this.openedBytes += opened.bytes - (this.opened.get(id)?.bytes ?? 0);
    this.opened.delete(id);
    this.opened.set(id, opened);
    for (const [oldest, { bytes }] of this.opened) {
      if (this.openedBytes <= OPENED_MAX) break;
      this.opened.delete(oldest);
      this.openedBytes -= bytes;
    }
  }
}

const headOf = (row: (LiveItem & { readonly pending: boolean }) | undefined): Head | undefined => {
  if (row === undefined) return undefined;
  const { id, binId, type, ts, version, pending, sig } = row;
  return { id, binId, type, ts, version, pending, sig };
};

const changed = (id: string, before: Head | undefined, after: Head | undefined): readonly Change[] =>
  before === after || (before !== undefined && after !== undefined && sameHead(before, after))
    ? []
    : [{ id, before, after }];

/** The view with the current version and state; the same object where nothing changed. */
const refreshed = (view: ItemView, { version, pending }: Head): ItemView =>
  view.version === version && view.pending === pending ? view : { ...view, version, pending };
