/** The items as their owner sees them: the stream's state with this device's own changes on top, decrypted. */
import { openItem, type Reader } from '../crypto/item.js';
import type { Sodium } from '../crypto/sodium.js';
import type { LiveItem } from '../protocol/item.js';
import type { ItemView } from './events.js';
import type { Outbox } from './outbox.js';
import { viewOf } from './replica.js';
import type { Entry, Pending, QuarantineReason, Store } from './store.js';

/** What the library reads from. */
export interface LibraryOptions {
  readonly store: Store;
  readonly outbox: Outbox;
  readonly sodium: Sodium;
  readonly reader: Reader;
}

/** An item that is not shown, why, and whether a last good state of it was kept (`kept` reads it). */
export interface HiddenItem {
  readonly id: string;
  readonly version: number;
  readonly reason: QuarantineReason | 'untagged_delete';
  readonly kept: boolean;
}

type OwnChanges = Pick<Outbox, 'newest'>;

/** Reading; nothing here changes anything. */
export class Library {
  constructor(private readonly options: LibraryOptions) {}

  /** An item, or undefined where there is none, where it is deleted and where it does not verify. */
  async get(id: string): Promise<ItemView | undefined> {
    const { outbox, store } = this.options;
    return this.view(await store.get(id), id, { own: outbox });
  }

  /** All items, or those of a bin, newest first. */
  async list(filter: { readonly binId?: string } = {}): Promise<readonly ItemView[]> {
    const own = this.options.outbox.frozen();
    const views: ItemView[] = [];
    const left = new Set(own.ids());
    const add = (entry: Entry | undefined, id: string): void => {
      const view = this.view(entry, id, { own, binId: filter.binId });
      if (view !== undefined) views.push(view);
    };
    for await (const entry of this.options.store.entries()) {
      left.delete(entry.id);
      add(entry, entry.id);
    }
    for (const id of left) add(undefined, id);
    return views.sort((one, other) => other.ts - one.ts);
  }

  /** Ids of a bin's items, those that do not verify too: whoever empties a bin must name them all. */
  async idsIn(binId: string): Promise<readonly string[]> {
    const own = this.options.outbox.frozen();
    const ids = new Set(own.ids().filter((id) => rowOf(undefined, id, own)?.binId === binId));
    for await (const entry of this.options.store.entries()) {
      const row = rowOf(entry, entry.id, own) ?? (entry.state === 'quarantined' ? entry.row : null);
      if (row?.binId === binId) ids.add(entry.id);
    }
    return [...ids];
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

  /** The last state of a hidden item that did verify. */
  async kept(id: string): Promise<ItemView | undefined> {
    const entry = await this.options.store.get(id);
    const row = entry === undefined || entry.state === 'live' ? null : entry.kept;
    return row === null ? undefined : this.opened(row, false);
  }

  private view(
    entry: Entry | undefined,
    id: string,
    { own, binId }: { readonly own: OwnChanges; readonly binId?: string },
  ): ItemView | undefined {
    const row = rowOf(entry, id, own);
    if (row === undefined || (binId !== undefined && row.binId !== binId)) return undefined;
    return this.opened(row, own.newest(id, entry)?.version === null);
  }

  private opened(row: LiveItem, pending: boolean): ItemView {
    return viewOf(row, openItem(this.options.sodium, row, this.options.reader), pending);
  }
}

function rowOf(entry: Entry | undefined, id: string, changes: OwnChanges): LiveItem | undefined {
  const own = changes.newest(id, entry);
  if (own !== undefined) return ownRow(own);
  return entry?.state === 'live' ? { ...entry.row, version: entry.version } : undefined;
}

const ownRow = (own: Pending): LiveItem | undefined =>
  own.kind === 'delete' ? undefined : { ...own.row, version: own.version ?? 0 };
