/**
 * The companion's copy of the items, in memory only.
 *
 * A row as an object, with its maps of keys, takes several times the memory of its bytes, which matters with tens of
 * thousands of rows. So a row is kept as one record in the SDK's storage format and decoded on access; what lists and
 * searches need (bin, type, time, searched text) is kept beside it. A deleted item is a number in a map.
 */
import type { ItemView } from '../sdk/events.js';
import { sameSig } from '../sdk/same-state.js';
import { searchedText } from '../sdk/query.js';
import { decodeEntry, encodeEntry, entryKey } from '../sdk/store/records.js';
import { MemoryStore, type Batch, type Entry, type QuarantineReason, type Tallied } from '../sdk/store/store.js';
import { timeOfUlid } from '../sdk/ulid.js';
import type { ContentType } from '../protocol/item.js';

/** What is known of an item without opening it. If the item does not verify, these are only claims of the server. */
export interface Card {
  readonly id: string;
  /** The server's version; 0: its history does not, or no longer, contain the item. */
  readonly version: number;
  /** Why the item is not shown; null: it verified. */
  readonly reason: QuarantineReason | null;
  readonly binId: string | null;
  readonly type: ContentType | null;
  /** ms; the time in the id if nothing of the item can be read. */
  readonly ts: number;
  /** The bin of the last state that verified; null if none did. */
  readonly provenBin: string | null;
}

interface Slot extends Card {
  version: number;
  /** `deleted`: a delete without a valid tag, whose content is kept. */
  readonly state: Entry['state'];
  /** The entry as `encodeEntry` writes it. */
  readonly record: Uint8Array;
  /** The searched text; undefined: the item was not opened yet. */
  text: string | undefined;
}

/** A record names the owner and the generation of its store; these records never leave this store, so any will do. */
const AT = { owner: 0, generation: 0 } as const;

/** A `MemoryStore` whose entries are kept here. */
export class VaultStore extends MemoryStore {
  private readonly slots = new Map<string, Slot>();
  /** Deleted items without content: twice the version, plus one if the delete had a valid tag. */
  private readonly gone = new Map<string, number>();
  /** Bin ids, interned: thousands of items are in a few bins, and one string for each id saves memory. */
  private readonly interned = new Map<string, string>();

  /** `onApplied` is called after each batch with the number of items in the server's history. */
  constructor(private readonly onApplied: (items: number) => void = () => undefined) {
    super();
  }

  binIds(): Promise<ReadonlySet<string>> {
    const ids = new Set<string>();
    for (const { state, binId } of this.slots.values()) if (state === 'live' && binId !== null) ids.add(binId);
    return Promise.resolve(ids);
  }

  override async apply(batch: Batch): Promise<void> {
    await super.apply(batch);
    this.onApplied((await this.held()).itemCount);
  }

  /** All items that are not deleted, in no particular order. */
  *cards(): Generator<Card> {
    for (const slot of this.slots.values()) if (slot.state !== 'deleted') yield slot;
  }

  /** Undefined for an item that is deleted or unknown. */
  card(id: string): Card | undefined {
    const slot = this.slots.get(id);
    return slot?.state === 'deleted' ? undefined : slot;
  }

  /** True for a deleted item, with or without a valid tag. */
  isDeleted(id: string): boolean {
    const slot = this.slots.get(id);
    return this.gone.has(id) || slot?.state === 'deleted';
  }

  /** Number of items whose delete no device of the user has signed. */
  get unproven(): number {
    let count = 0;
    for (const slot of this.slots.values()) if (slot.state === 'deleted') count++;
    return count;
  }

  /** Keeps the searched text of an item that was just opened. */
  keepText(view: ItemView): void {
    const slot = this.slots.get(view.id);
    if (slot?.state === 'live') slot.text = searchedText(view.type, view.payload);
  }

  /** The searched text of an item; undefined if it was not opened yet. */
  textOf(id: string): string | undefined {
    return this.slots.get(id)?.text;
  }

  protected override ids(): readonly string[] {
    return [...this.slots.keys(), ...this.gone.keys()];
  }

  protected override entry(id: string): Entry | undefined {
    const slot = this.slots.get(id);
    if (slot !== undefined) return { ...decoded(slot), version: slot.version };
    const gone = this.gone.get(id);
    if (gone === undefined) return undefined;
    return { id, version: Math.floor(gone / 2), state: 'deleted', tagged: gone % 2 === 1, kept: null };
  }

  protected override replace(entry: Entry): Tallied | undefined {
    const { id, version } = entry;
    const before = this.slots.get(id);
    if (entry.state === 'deleted' && entry.kept === null) {
      this.slots.delete(id);
      this.gone.set(id, version * 2 + Number(entry.tagged));
      return before;
    }
    this.gone.delete(id);
    const record = encodeEntry(entry, AT.generation, AT.owner);
    const slot: Slot = { ...this.cardOf(entry), state: entry.state, record, text: undefined };
    if (before !== undefined && sameContent(before, entry)) slot.text = before.text;
    this.slots.set(id, slot);
    return before;
  }

  protected override forgetVersions(): void {
    for (const slot of this.slots.values()) slot.version = 0;
    for (const [id, gone] of this.gone) this.gone.set(id, gone % 2);
  }

  private cardOf(entry: Entry): Card {
    const { id, version } = entry;
    const kept = entry.state === 'live' ? entry.row : entry.kept;
    const row = entry.state === 'deleted' ? entry.kept : entry.row;
    return {
      ...{ id, version },
      reason: entry.state === 'quarantined' ? entry.reason : null,
      binId: row === null ? null : this.intern(row.binId),
      type: row === null ? null : row.type,
      ts: row === null ? timeOfUlid(id) : row.ts,
      provenBin: kept === null ? null : this.intern(kept.binId),
    };
  }

  private intern(id: string): string {
    const known = this.interned.get(id);
    if (known !== undefined) return known;
    // Bounded: a hostile server could invent new ids without end.
    if (this.interned.size >= INTERNED_MAX) this.interned.clear();
    this.interned.set(id, id);
    return id;
  }
}

const INTERNED_MAX = 10_000;

const decoded = (slot: Slot): Entry => decodeEntry(entryKey(slot.id), slot.record, AT);

/** Compares tags: they cover all content. */
function sameContent(before: Slot, entry: Entry): boolean {
  if (before.state !== 'live' || entry.state !== 'live' || entry.row.sig === null) return false;
  const known = decoded(before);
  return known.state === 'live' && sameSig(known.row, entry.row);
}
