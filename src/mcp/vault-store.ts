/**
 * The companion's copy of the items, in memory only: nothing of it outlives the program.
 *
 * Tens of thousands of rows as objects, with a map of keys in each, fill a memory that their bytes would not. So a row
 * lies here as one record of the client's own format and is taken apart when somebody looks into it; what lists and
 * searches go by (bin, type, time, searched text) lies beside it. A deleted item is a number in a map.
 */
import {
  FRESH,
  type Cursor,
  type Batch,
  type Entry,
  type Held,
  type Pending,
  type QuarantineReason,
  type Store,
} from '../sdk/store/store.js';
import type { ItemView } from '../sdk/events.js';
import { newestFirst, fold, SEARCHED } from '../sdk/query.js';
import { decodeEntry, encodeEntry, entryKey } from '../sdk/store/records.js';
import { timeOfUlid } from '../sdk/ulid.js';
import type { JsonObject } from '../crypto/payload.js';
import { equalBytes } from '../protocol/bytes.js';
import type { ContentType } from '../protocol/item.js';

/** What is known of an item without opening it. Of one that does not verify it is what the server says. */
export interface Card {
  readonly id: string;
  /** The server's version; 0: its history does not name the item (any more). */
  readonly version: number;
  /** Null: the item verified. Else why it is not shown. */
  readonly reason: QuarantineReason | null;
  readonly binId: string | null;
  readonly type: ContentType | null;
  /** ms; of an item of which nothing can be read the time of its id. */
  readonly ts: number;
  readonly senderDevice: string | null;
  /** Name of the blob that the row names. */
  readonly blobRef: string | null;
  /** The bin of the last state that verified; null where none did. */
  readonly provenBin: string | null;
}

interface Slot extends Card {
  version: number;
  /** `deleted`: only where content is kept, since the delete bore no tag. */
  readonly state: Entry['state'];
  /** The entry as `encodeEntry` writes it. */
  readonly record: Uint8Array;
  /** Undefined: not read yet. */
  text: string | undefined;
}

/** The records never leave this memory, so they bear nobody's name. */
const AT = { owner: 0, generation: 0 } as const;

/** The store; see above. */
export class VaultStore implements Store {
  private readonly slots = new Map<string, Slot>();
  /** Deleted items without content: twice the version, and one more where the delete bore its tag. */
  private readonly gone = new Map<string, number>();
  private readonly outbox = new Map<number, Pending>();
  /** The same few names stand in every row: each is kept once. */
  private readonly names = new Map<string, string>();
  private at: Cursor = FRESH;
  private itemCount = 0;
  private versionSum = 0;

  /** `onApplied`: told after each batch, with the number of live items that are here. */
  constructor(private readonly onApplied: (items: number) => void = () => undefined) {}

  cursor(): Promise<Cursor> {
    return Promise.resolve(this.at);
  }

  get(id: string): Promise<Entry | undefined> {
    return Promise.resolve(this.entry(id));
  }

  async *entries(): AsyncGenerator<Entry> {
    for (const id of [...this.slots.keys(), ...this.gone.keys()]) {
      const entry = await this.get(id);
      if (entry !== undefined) yield entry;
    }
  }

  pending(): Promise<readonly Pending[]> {
    return Promise.resolve([...this.outbox.values()].sort((one, other) => one.seq - other.seq));
  }

  held(): Promise<Held> {
    return Promise.resolve({ itemCount: this.itemCount, versionSum: this.versionSum });
  }

  binIds(): Promise<ReadonlySet<string>> {
    const ids = new Set<string>();
    for (const { state, binId } of this.slots.values()) if (state === 'live' && binId !== null) ids.add(binId);
    return Promise.resolve(ids);
  }

  apply(batch: Batch): Promise<void> {
    if (batch.forgetVersions === true) this.forgetVersions();
    for (const entry of batch.entries ?? []) this.set(entry);
    for (const pending of batch.pending ?? []) this.outbox.set(pending.seq, pending);
    for (const seq of batch.done ?? []) this.outbox.delete(seq);
    if (batch.cursor !== undefined) this.at = batch.cursor;
    this.onApplied(this.itemCount);
    return Promise.resolve();
  }

  /** All items that are here and not deleted, in no order that matters. A deleted one whose content is kept is not here. */
  *cards(): Generator<Card> {
    for (const slot of this.slots.values()) if (slot.state !== 'deleted') yield slot;
  }

  /** Of one item; undefined where it is not here. */
  card(id: string): Card | undefined {
    const slot = this.slots.get(id);
    return slot?.state === 'deleted' ? undefined : slot;
  }

  /** True of an item that was deleted, with or without a tag. */
  isDeleted(id: string): boolean {
    const slot = this.slots.get(id);
    return this.gone.has(id) || slot?.state === 'deleted';
  }

  /** Items that were here and were deleted by somebody who did not prove to be one of the user's devices. */
  get unproven(): number {
    let count = 0;
    for (const slot of this.slots.values()) if (slot.state === 'deleted') count++;
    return count;
  }

  /** Remembers what is searched in an item that was opened just now. */
  read(view: ItemView): void {
    const slot = this.slots.get(view.id);
    if (slot?.state === 'live') slot.text = searchedText(view.type, view.payload);
  }

  /** What is searched in an item; undefined: it was not opened yet. */
  textOf(id: string): string | undefined {
    return this.slots.get(id)?.text;
  }

  private entry(id: string): Entry | undefined {
    const slot = this.slots.get(id);
    if (slot !== undefined) return { ...decoded(slot), version: slot.version };
    const gone = this.gone.get(id);
    if (gone === undefined) return undefined;
    return { id, version: Math.floor(gone / 2), state: 'deleted', tagged: gone % 2 === 1, kept: null };
  }

  private set(entry: Entry): void {
    const { id, version } = entry;
    const before = this.slots.get(id);
    this.tally(before, -1);
    if (entry.state === 'deleted' && entry.kept === null) {
      this.slots.delete(id);
      this.gone.set(id, version * 2 + Number(entry.tagged));
      return;
    }
    this.gone.delete(id);
    const record = encodeEntry(entry, AT.generation, AT.owner);
    const slot: Slot = { ...this.cardOf(entry), state: entry.state, record, text: undefined };
    if (before !== undefined && sameContent(before, entry)) slot.text = before.text;
    this.slots.set(id, slot);
    this.tally(slot, 1);
  }

  private cardOf(entry: Entry): Card {
    const { id, version } = entry;
    const kept = entry.state === 'live' ? entry.row : entry.kept;
    const row = entry.state === 'deleted' ? entry.kept : entry.row;
    return {
      ...{ id, version },
      reason: entry.state === 'quarantined' ? entry.reason : null,
      binId: row === null ? null : this.shared(row.binId),
      type: row === null ? null : row.type,
      ts: row === null ? timeOfUlid(id) : row.ts,
      senderDevice: row === null ? null : this.shared(row.senderDevice),
      blobRef: row?.blob?.ref ?? null,
      provenBin: kept === null ? null : this.shared(kept.binId),
    };
  }

  private shared(name: string): string {
    const known = this.names.get(name);
    if (known !== undefined) return known;
    // A server may name ever new ones: then this is only a cache that begins anew.
    if (this.names.size >= NAMES_MAX) this.names.clear();
    this.names.set(name, name);
    return name;
  }

  private forgetVersions(): void {
    for (const slot of this.slots.values()) slot.version = 0;
    for (const [id, gone] of this.gone) this.gone.set(id, gone % 2);
    this.itemCount = 0;
    this.versionSum = 0;
  }

  private tally(slot: Slot | undefined, sign: 1 | -1): void {
    if (slot === undefined || slot.state === 'deleted' || slot.version === 0) return;
    this.itemCount += sign;
    this.versionSum += sign * slot.version;
  }
}

const NAMES_MAX = 10_000;

const decoded = (slot: Slot): Entry => decodeEntry(entryKey(slot.id), slot.record, AT);

/** The tag covers all that a user sees. */
function sameContent(before: Slot, entry: Entry): boolean {
  if (before.state !== 'live' || entry.state !== 'live' || entry.row.sig === null) return false;
  const known = decoded(before);
  return known.state === 'live' && known.row.sig !== null && equalBytes(known.row.sig, entry.row.sig);
}

/** Between two fields: folding leaves no line break in a text, so no match goes over it. */
const BREAK = '\n';

/** The searched fields of a payload, folded. Secrets are not among them. */
const searchedText = (type: ContentType, payload: JsonObject | null): string =>
  payload === null
    ? ''
    : SEARCHED[type]
        .flatMap((field) => {
          const value = Object.hasOwn(payload, field) ? payload[field] : undefined;
          return typeof value === 'string' && value !== '' ? [fold(value)] : [];
        })
        .join(BREAK);

/** The newest of many, without keeping them all. */
export class Newest {
  private found: Card[] = [];
  /** How many were offered. */
  total = 0;

  constructor(private readonly most: number) {}

  offer(card: Card): void {
    this.total++;
    this.found.push(card);
    if (this.found.length >= 2 * this.most) this.cut();
  }

  /** Newest first. */
  get all(): readonly Card[] {
    this.cut();
    return this.found;
  }

  private cut(): void {
    this.found = this.found.sort(newestFirst).slice(0, this.most);
  }
}
