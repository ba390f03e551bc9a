/** The items as their owner sees them: the stream's state with this device's own changes on top, decrypted. */
import { openItem } from '../crypto/item.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import type { LiveItem } from '../protocol/item.js';
import { ClientError } from './errors.js';
import type { ItemView } from './events.js';
import type { Seen } from './outbox.js';
import { newestFirst } from './query.js';
import { viewOf } from './merge-rules.js';
import type { HiddenReason } from './reasons.js';
import { unversioned } from './store/store.js';
import type { Core } from './core.js';

/** An item that is not shown, why, and whether a last good state of it was kept (`kept` reads it). */
export interface HiddenItem {
  readonly id: string;
  readonly version: number;
  readonly reason: HiddenReason;
  readonly kept: boolean;
}

/** Reading; nothing here changes anything. */
export class ItemReader {
  constructor(private readonly options: Pick<Core, 'store' | 'outbox' | 'sodium' | 'reader' | 'onProblem'>) {}

  /**
   * An item, or undefined where there is none, where it is deleted and where it does not verify. Throws `ClientError`
   * `damaged_item` where the store gives back something else than it was given.
   */
  async get(id: string): Promise<ItemView | undefined> {
    const row = await this.seen(id);
    return row === undefined ? undefined : this.shown(row, row.pending);
  }

  /** An item as it stands, still sealed. Throws `ClientError` `unknown_item`. */
  async row(id: string): Promise<LiveItem> {
    const row = await this.seen(id);
    if (row === undefined) throw new ClientError('unknown_item', `there is no item ${id}`);
    return row;
  }

  /** All items, or those of a bin, newest first. A damaged one is told of and left out: the others are none the worse. */
  async list({ binId }: { readonly binId?: string } = {}): Promise<readonly ItemView[]> {
    const views: ItemView[] = [];
    for await (const seen of this.options.outbox.everything()) {
      const row = rowSeen(seen);
      if (row === undefined || (binId !== undefined && row.binId !== binId)) continue;
      try {
        views.push(this.shown(row, row.pending));
      } catch (error) {
        if (!(error instanceof ClientError)) throw error;
        this.options.onProblem(error);
      }
    }
    return views.sort(newestFirst);
  }

  /** Ids of a bin's items, those that do not verify too: whoever empties a bin must name them all. */
  async idsIn(binId: string): Promise<readonly string[]> {
    const ids: string[] = [];
    for await (const { id, entry, own } of this.options.outbox.everything()) {
      const row = rowSeen({ entry, own }) ?? (entry?.state === 'quarantined' ? entry.row : null);
      if (row?.binId === binId) ids.push(id);
    }
    return ids;
  }

  /** Bins that hold an item which is here. Nothing is decrypted for it. */
  async binIds(): Promise<ReadonlySet<string>> {
    const { store } = this.options;
    if (store.binIds !== undefined) return store.binIds();
    const ids = new Set<string>();
    for await (const entry of store.entries()) if (entry.state === 'live') ids.add(entry.row.binId);
    return ids;
  }

  /** What is here and not shown. */
  async hidden(): Promise<readonly HiddenItem[]> {
    const found: HiddenItem[] = [];
    for await (const entry of this.options.store.entries()) {
      if (entry.state === 'live' || (entry.state === 'deleted' && entry.tagged)) continue;
      const reason = entry.state === 'deleted' ? 'untagged_delete' : entry.reason;
      found.push({ id: entry.id, version: entry.version, reason, kept: entry.kept !== null });
    }
    return found;
  }

  /** Items held here that the server's history does not know, while no replay may still bring them: see `republish`. */
  orphaned(): Promise<readonly string[]> {
    return unversioned(this.options.store);
  }

  /** A row of this device, opened: of a change that was refused, for one. Throws `CryptoRefusal`. */
  opened(row: LiveItem): ItemView {
    return viewOf(row, openItem(this.options.sodium, row, this.options.reader));
  }

  /** The last state of a hidden item that did verify. */
  async kept(id: string): Promise<ItemView | undefined> {
    const entry = await this.options.store.get(id);
    const row = entry === undefined || entry.state === 'live' ? null : entry.kept;
    return row === null ? undefined : this.shown(row, false);
  }

  private async seen(id: string): Promise<ReturnType<typeof rowSeen>> {
    const { outbox, store } = this.options;
    const entry = await store.get(id);
    return rowSeen({ entry, own: outbox.newest(id, entry) });
  }

  private shown(row: LiveItem, pending: boolean): ItemView {
    try {
      return viewOf(row, openItem(this.options.sodium, row, this.options.reader), pending);
    } catch (error) {
      if (error instanceof CryptoRefusal) throw damagedItem(row.id, error);
      throw error;
    }
  }
}

/** An item as its owner sees it: the own change on top, else the stream's state; undefined where neither shows one. */
export function rowSeen({ entry, own }: Seen): (LiveItem & { readonly pending: boolean }) | undefined {
  if (own?.kind === 'delete') return undefined;
  if (own !== undefined) return { ...own.row, version: own.version ?? 0, pending: own.version === null };
  return entry?.state === 'live' ? { ...entry.row, version: entry.version, pending: false } : undefined;
}

/** What is told of an item that verified when it was stored and does not open any more. */
export const damagedItem = (id: string, cause: CryptoRefusal): ClientError =>
  new ClientError(
    'damaged_item',
    `item ${id} was damaged in the local store (${cause.reason}): read everything again by resync`,
  );
