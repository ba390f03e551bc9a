/** The items as the user sees them: the state of the stream, overlaid with this device's pending changes, decrypted. */
import { openItem } from '../crypto/item.js';
import { CryptoRefusal, orRefusal } from '../crypto/refusal.js';
import type { LiveItem } from '../protocol/item.js';
import { ClientError } from './errors.js';
import type { ItemView } from './events.js';
import { keeping, type Seen } from './outbox.js';
import { newestFirst } from './query.js';
import { viewOf } from './merge-rules.js';
import type { HiddenReason } from './reasons.js';
import { unversioned, type Entry, type QuarantinedEntry } from './store/store.js';
import type { Core } from './core.js';

/** An item that is not shown, the reason, and whether its last valid state is kept (see `ItemReader.kept`). */
export interface HiddenItem {
  readonly id: string;
  readonly version: number;
  readonly reason: HiddenReason;
  readonly kept: boolean;
}

/** Reads items from the store and the outbox. */
export class ItemReader {
  constructor(private readonly options: Pick<Core, 'store' | 'outbox' | 'sodium' | 'reader' | 'onProblem'>) {}

  /**
   * An item; undefined where it does not exist, is deleted or does not verify. Throws `ClientError` `damaged_item`
   * where the stored item no longer decrypts.
   */
  async get(id: string): Promise<ItemView | undefined> {
    const row = await this.current(id);
    return row === undefined ? undefined : this.decrypted(row, row.pending);
  }

  /** The current row of an item, still encrypted. Throws `ClientError` `unknown_item`. */
  async row(id: string): Promise<LiveItem> {
    const row = await this.current(id);
    if (row === undefined) throw new ClientError('unknown_item', `there is no item ${id}`);
    return row;
  }

  /** All items, or those of a bin, newest first. A damaged item is reported and left out. */
  async list({ binId }: { readonly binId?: string } = {}): Promise<readonly ItemView[]> {
    const views: ItemView[] = [];
    for await (const seen of this.options.outbox.everything()) {
      const row = rowSeen(seen);
      if (row === undefined || (binId !== undefined && row.binId !== binId)) continue;
      try {
        views.push(this.decrypted(row, row.pending));
      } catch (error) {
        if (!(error instanceof ClientError)) throw error;
        this.options.onProblem(error);
      }
    }
    return views.sort(newestFirst);
  }

  /** Items with an unacknowledged delete, as before it, the last deleted first: see `Writer.withdraw`. */
  async deleted(): Promise<readonly ItemView[]> {
    const { outbox, store } = this.options;
    const found: { readonly seq: number; readonly view: ItemView }[] = [];
    for (const id of outbox.ids()) {
      const changes = outbox.ofItem(id);
      const [before, own] = [changes.at(-2), changes.at(-1)];
      if (own?.kind !== 'delete' || own.version !== null) continue;
      const row = rowSeen({ entry: await store.get(id), own: before });
      if (row !== undefined) found.push({ seq: own.seq, view: this.decrypted(row, row.pending) });
    }
    return found.sort((one, other) => other.seq - one.seq).map(({ view }) => view);
  }

  /**
   * Ids of a bin's items, for their delete. Those that do not decrypt are among them, and hidden ones whose last good state
   * is in the bin, but none that only the server puts there: its delete would bear the user's tag, on every device.
   */
  async idsIn(binId: string): Promise<readonly string[]> {
    const ids: string[] = [];
    for await (const { id, entry, own } of this.options.outbox.everything()) {
      const row = rowSeen({ entry, own }) ?? (entry?.state === 'quarantined' ? taggedRow(entry) : null);
      if (row?.binId === binId) ids.push(id);
    }
    return ids;
  }

  /** Bins of stored items. Decrypts nothing. */
  async binIds(): Promise<ReadonlySet<string>> {
    const { store } = this.options;
    if (store.binIds !== undefined) return store.binIds();
    const ids = new Set<string>();
    for await (const entry of store.entries()) if (entry.state === 'live') ids.add(entry.row.binId);
    return ids;
  }

  /** Items that are stored and not shown. */
  async hidden(): Promise<readonly HiddenItem[]> {
    const found: HiddenItem[] = [];
    for await (const entry of this.options.store.entries()) {
      if (entry.state === 'live' || (entry.state === 'deleted' && entry.tagged)) continue;
      const reason = entry.state === 'deleted' ? 'untagged_delete' : entry.reason;
      found.push({ id: entry.id, version: entry.version, reason, kept: this.keeping(entry).kept !== null });
    }
    return found;
  }

  /** Items stored here that the server's history lacks after a completed replay: see `republish`. */
  orphaned(): Promise<readonly string[]> {
    return unversioned(this.options.store);
  }

  /** Decrypts a row of this device, for example of a change that was refused. Throws `CryptoRefusal`. */
  opened(row: LiveItem): ItemView {
    return viewOf(row, openItem(this.options.sodium, row, this.options.reader));
  }

  /** The last valid state of a hidden item. */
  async kept(id: string): Promise<ItemView | undefined> {
    const entry = await this.options.store.get(id);
    const row = entry === undefined || entry.state === 'live' ? null : this.keeping(entry).kept;
    return row === null ? undefined : this.decrypted(row, false);
  }

  /** The entry with what it keeps once the stream has caught up: until then such a change is in the outbox. */
  private keeping<E extends Entry>(entry: E): E {
    return keeping(entry, this.options.outbox.covered(entry));
  }

  private async current(id: string): Promise<ReturnType<typeof rowSeen>> {
    return rowSeen(await this.options.outbox.look(id));
  }

  private decrypted(row: LiveItem, pending: boolean): ItemView {
    const payload = orRefusal(() => openItem(this.options.sodium, row, this.options.reader));
    if (payload instanceof CryptoRefusal) throw damagedItem(row.id, payload);
    return viewOf(row, payload, pending);
  }
}

/**
 * The state of an item that the user sees: the pending change, else the state of the stream; undefined where the item
 * is deleted, hidden or unknown.
 */
export function rowSeen({ entry, own }: Seen): (LiveItem & { readonly pending: boolean }) | undefined {
  if (own?.kind === 'delete') return undefined;
  if (own !== undefined) return { ...own.row, version: own.version ?? 0, pending: own.version === null };
  return entry?.state === 'live' ? { ...entry.row, version: entry.version, pending: false } : undefined;
}

/** The newest state of a hidden item whose tag holds. */
const taggedRow = ({ reason, row, kept }: QuarantinedEntry): LiveItem | null =>
  ['no_key', 'bad_ct', 'bad_payload'].includes(reason) ? row : kept;

/** The error of an item that verified when it was stored and no longer does. */
export const damagedItem = (id: string, cause: CryptoRefusal): ClientError =>
  new ClientError(
    'damaged_item',
    `item ${id} was damaged in the local store (${cause.reason}): read everything again by resync`,
  );
