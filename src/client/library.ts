/** The items as their owner sees them: the stream's state with this device's own changes on top, decrypted. */
import { openItem, type Reader } from '../crypto/item.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import type { Sodium } from '../crypto/sodium.js';
import type { LiveItem } from '../protocol/item.js';
import { ClientError } from './errors.js';
import type { ItemView } from './events.js';
import type { Outbox, Seen } from './outbox.js';
import { newestFirst } from './query.js';
import { viewOf } from './replica.js';
import type { HiddenReason } from './reasons.js';
import type { Entry, Store } from './store.js';

/** What the library reads from. */
export interface LibraryOptions {
  readonly store: Store;
  readonly outbox: Outbox;
  readonly sodium: Sodium;
  readonly reader: Reader;
  /** Told of items in the store that do not open any more. */
  readonly onProblem: (error: Error) => void;
}

/** An item that is not shown, why, and whether a last good state of it was kept (`kept` reads it). */
export interface HiddenItem {
  readonly id: string;
  readonly version: number;
  readonly reason: HiddenReason;
  readonly kept: boolean;
}

/** Reading; nothing here changes anything. */
export class Library {
  constructor(private readonly options: LibraryOptions) {}

  /**
   * An item, or undefined where there is none, where it is deleted and where it does not verify. Throws `ClientError`
   * `damaged_item` where the store gives back something else than it was given.
   */
  async get(id: string): Promise<ItemView | undefined> {
    return this.view(await this.options.store.get(id), id);
  }

  /** All items, or those of a bin, newest first. */
  async list(filter: { readonly binId?: string } = {}): Promise<readonly ItemView[]> {
    const known = new Map((await this.options.store.entries()).map((entry) => [entry.id, entry] as const));
    const ids = new Set([...known.keys(), ...this.options.outbox.ids()]);
    const views = [...ids].flatMap((id) => this.listed(known.get(id), id, filter.binId) ?? []);
    return views.sort(newestFirst);
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

  /** What is here and not shown. */
  async hidden(): Promise<readonly HiddenItem[]> {
    return (await this.options.store.entries()).flatMap((entry): HiddenItem[] => {
      if (entry.state === 'live' || (entry.state === 'deleted' && entry.tagged)) return [];
      const reason = entry.state === 'deleted' ? 'untagged_delete' : entry.reason;
      return [{ id: entry.id, version: entry.version, reason, kept: entry.kept !== null }];
    });
  }

  /** Items held here that the server's history does not know, while no replay may still bring them: see `republish`. */
  async orphaned(): Promise<readonly string[]> {
    const entries = await this.options.store.entries();
    return entries.filter(({ state, version }) => state !== 'deleted' && version === 0).map(({ id }) => id);
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

  private view(entry: Entry | undefined, id: string, binId?: string): ItemView | undefined {
    const row = this.rowOf(entry, id);
    if (row === undefined || (binId !== undefined && row.binId !== binId)) return undefined;
    return this.shown(row, row.pending);
  }

  private rowOf(entry: Entry | undefined, id: string): ReturnType<typeof rowSeen> {
    return rowSeen({ entry, own: this.options.outbox.newest(id, entry) });
  }

  /** As `view`; a damaged item is told of and left out, since the others are none the worse for it. */
  private listed(entry: Entry | undefined, id: string, binId: string | undefined): ItemView | undefined {
    try {
      return this.view(entry, id, binId);
    } catch (error) {
      if (!(error instanceof ClientError)) throw error;
      this.options.onProblem(error);
      return undefined;
    }
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
