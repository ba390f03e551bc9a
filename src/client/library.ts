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

/** Reading; nothing here changes anything. */
export class Library {
  constructor(private readonly options: LibraryOptions) {}

  /** An item, or undefined where there is none, where it is deleted and where it does not verify. */
  async get(id: string): Promise<ItemView | undefined> {
    return this.view(await this.options.store.get(id), id);
  }

  /** All items, or those of a bin, newest first. */
  async list(filter: { readonly binId?: string } = {}): Promise<readonly ItemView[]> {
    const known = new Map((await this.options.store.entries()).map((entry) => [entry.id, entry] as const));
    const ids = new Set([...known.keys(), ...this.options.outbox.ids()]);
    const views = [...ids].flatMap((id) => this.view(known.get(id), id, filter.binId) ?? []);
    return views.sort((one, other) => other.ts - one.ts);
  }

  /** Ids of a bin's items, those that do not verify too: whoever empties a bin must name them all. */
  async idsIn(binId: string): Promise<readonly string[]> {
    const entries = await this.options.store.entries();
    const listed = entries.filter((entry) => {
      const row = this.rowOf(entry, entry.id) ?? (entry.state === 'quarantined' ? entry.row : null);
      return row?.binId === binId;
    });
    const own = this.options.outbox.ids().filter((id) => this.rowOf(undefined, id)?.binId === binId);
    return [...new Set([...listed.map((entry) => entry.id), ...own])];
  }

  /** Bins that hold an item which is here. Nothing is decrypted for it. */
  async binIds(): Promise<ReadonlySet<string>> {
    const entries = await this.options.store.entries();
    return new Set(entries.flatMap((entry) => (entry.state === 'live' ? [entry.row.binId] : [])));
  }

  /** What is here and not shown. */
  async hidden(): Promise<readonly HiddenItem[]> {
    return (await this.options.store.entries()).flatMap((entry): HiddenItem[] => {
      if (entry.state === 'live' || (entry.state === 'deleted' && entry.tagged)) return [];
      const reason = entry.state === 'deleted' ? 'untagged_delete' : entry.reason;
      return [{ id: entry.id, version: entry.version, reason, kept: entry.kept !== null }];
    });
  }

  /** The last state of a hidden item that did verify. */
  async kept(id: string): Promise<ItemView | undefined> {
    const entry = await this.options.store.get(id);
    const row = entry === undefined || entry.state === 'live' ? null : entry.kept;
    return row === null ? undefined : this.opened(row, false);
  }

  private view(entry: Entry | undefined, id: string, binId?: string): ItemView | undefined {
    const row = this.rowOf(entry, id);
    if (row === undefined || (binId !== undefined && row.binId !== binId)) return undefined;
    return this.opened(row, this.options.outbox.newest(id, entry)?.version === null);
  }

  private rowOf(entry: Entry | undefined, id: string): LiveItem | undefined {
    const own = this.options.outbox.newest(id, entry);
    if (own !== undefined) return ownRow(own);
    return entry?.state === 'live' ? { ...entry.row, version: entry.version } : undefined;
  }

  private opened(row: LiveItem, pending: boolean): ItemView {
    return viewOf(row, openItem(this.options.sodium, row, this.options.reader), pending);
  }
}

const ownRow = (own: Pending): LiveItem | undefined =>
  own.kind === 'delete' ? undefined : { ...own.row, version: own.version ?? 0 };
