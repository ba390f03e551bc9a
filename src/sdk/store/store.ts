/**
 * The persistent data of a device: ciphertext rows, its own unsent changes, and its cursor. A port: `MemoryStore` here,
 * `LevelStore` over LevelDB in Node and IndexedDB in browsers.
 *
 * There are two layers. Entries are exactly the state of the ordered stream at the cursor, so that they can be compared
 * with the server's count at any `caught_up`. Changes of this device are in the outbox, on top, until the stream
 * confirms them. Plaintext is never stored.
 */
import type { RefusalReason } from '../../crypto/refusal.js';
import { byteText } from '../../protocol/bytes.js';
import type { LiveItem, Summary } from '../../protocol/item.js';

/** Why an item is not shown: a reason of the crypto core, or a contradiction between versions. */
export type QuarantineReason =
  | RefusalReason
  /** The row is unreadable. */
  | 'bad_row'
  /** Older content than before under a newer version: only a server can do that. */
  | 'rolled_back'
  /** The item was deleted before, and there is no restore (RETRY-02). */
  | 'resurrected';

/**
 * A position in a history. The epoch is needed because a number alone is ambiguous after a restore.
 *
 * `since` means "everything up to here was applied", so it moves only by the ordered stream: frames, `caught_up`, and
 * pages of `GET /items`. It must never move to a version from the reply to an own write: lower versions of other
 * devices may still be in transit, and would be skipped for ever. Hence no function here takes a reply.
 */
export interface Cursor {
  /** The highest version up to which everything was applied. */
  readonly since: number;
  /** The name of the history of `since`; null before the first answer. */
  readonly epoch: string | null;
  /**
   * True from a reset until its replay has ended and the own changes were adapted to the new history. Stored, because the
   * bases of these changes say nothing before that, also where the program ends meanwhile.
   */
  readonly reset?: boolean;
}

/** The cursor of a client that has received nothing. */
export const FRESH: Cursor = { since: 0, epoch: null };

/**
 * The cursor after an `item`, `delete` or `ack` frame of `version`; undefined where that version was applied before,
 * and the frame must be ignored.
 */
export const passed = (cursor: Cursor, version: number): Cursor | undefined =>
  version > cursor.since ? { ...cursor, since: version } : undefined;

/**
 * The cursor after `caught_up`, or after the last page of a listing: everything up to `version` was sent, including
 * own changes and items that do not concern this client. Undefined where it names another history than the cursor's:
 * the client must start again from 0.
 */
export function caughtUp(cursor: Cursor, at: { readonly version: number; readonly epoch: string }): Cursor | undefined {
  if (cursor.epoch !== null && cursor.epoch !== at.epoch) return undefined;
  return { ...cursor, since: Math.max(cursor.since, at.version), epoch: at.epoch };
}

/** The cursor after `reset`: the start of a new history. */
export const restarted = (epoch: string): Cursor => ({ since: 0, epoch, reset: true });

interface EntryBase {
  readonly id: string;
  /** The server's version of this state; 0 after a reset, until the new history names it. */
  readonly version: number;
}

/** An item whose tag verifies and that decrypts. */
interface LiveEntry extends EntryBase {
  readonly state: 'live';
  readonly row: LiveItem;
}

/** An item that does not verify. It is counted but not shown. `kept`: the last state that verified. */
export interface QuarantinedEntry extends EntryBase {
  readonly state: 'quarantined';
  readonly reason: QuarantineReason;
  readonly row: LiveItem | null;
  readonly kept: LiveItem | null;
}

/** A deleted item. `kept`: its last content, if the delete has no valid tag, so that the server may have forged it. */
interface DeletedEntry extends EntryBase {
  readonly state: 'deleted';
  readonly tagged: boolean;
  readonly kept: LiveItem | null;
}

/** The state of an item according to the stream. */
export type Entry = LiveEntry | QuarantinedEntry | DeletedEntry;

/**
 * True where the user deleted the item in this history. Nothing that the server sends later reverts it: it only leaves
 * a `resurrected` entry without kept content, which counts as deleted too.
 */
export const isGone = (entry: Entry | undefined): boolean => {
  if (entry === undefined || entry.version === 0) return false;
  if (entry.state === 'deleted') return entry.tagged;
  return entry.state === 'quarantined' && entry.reason === 'resurrected' && entry.kept === null;
};

/**
 * The fields of an item that lists need, without its content, so that the heads of all items fit in memory.
 * `tag`: the item's tag (`byteText`), which covers all content: the same tag means the same content.
 */
export interface Head extends Pick<LiveItem, 'id' | 'binId' | 'type' | 'ts'> {
  readonly version: number;
  /** True for the head of a pending change, false for that of an entry. */
  readonly pending: boolean;
  readonly tag: string | null;
}

/** The tag of a head; null: the item has none. */
export const tagOf = ({ sig }: Pick<LiveItem, 'sig'>): string | null => (sig === null ? null : byteText(sig));

/** The head of a row. */
export function headOf(row: LiveItem, pending: boolean): Head {
  const { id, binId, type, ts, version } = row;
  return { id, binId, type, ts, version, pending, tag: tagOf(row) };
}

/** The head of an entry; undefined: it is not live. */
export const headOfEntry = (entry: Entry): Head | undefined =>
  entry.state === 'live' ? headOf({ ...entry.row, version: entry.version }, false) : undefined;

/** Replaces a head; undefined: there is none. */
export function place(heads: Map<string, Head>, id: string, head: Head | undefined): void {
  if (head === undefined) heads.delete(id);
  else heads.set(id, head);
}

interface PendingBase {
  /** Order of creation; unique. */
  readonly seq: number;
  readonly id: string;
  /**
   * The version this change is based on; null: the previous change of the item must be acknowledged first. Fixed once
   * it was sent, so that a retry sends the same write.
   */
  readonly base: number | null;
  /** The acknowledged version; null: not acknowledged. */
  readonly version: number | null;
  /** Time of creation, ms by this device's clock; absent where the store does not keep it. */
  readonly madeAt?: number;
}

/** A change of this device that the stream has not confirmed. `rewrap`: adds keys only. */
export type Pending =
  | (PendingBase & { readonly kind: 'write'; readonly row: LiveItem; readonly rewrap: boolean })
  | (PendingBase & { readonly kind: 'move'; readonly row: LiveItem })
  | (PendingBase & { readonly kind: 'delete'; readonly sig: Uint8Array });

/** A stored unfinished upload: `sealed` is encrypted under the master key (`begun-upload`). */
export interface KeptUpload {
  /** Id of the item that will name the blob: there is one upload per item. */
  readonly id: string;
  readonly sealed: Uint8Array;
}

/** Changes that become durable together, or not at all. */
export interface Batch {
  readonly entries?: readonly Entry[];
  readonly cursor?: Cursor;
  /** Added, or replaced where the `seq` is known. */
  readonly pending?: readonly Pending[];
  /** `seq`s to remove. */
  readonly done?: readonly number[];
  /** Added, or replaced where the id is known. */
  readonly uploads?: readonly KeptUpload[];
  /** Ids of uploads to remove. */
  readonly uploaded?: readonly string[];
  /** First sets the version of every entry to 0, because another history begins. */
  readonly forgetVersions?: boolean;
}

/** Number of live items and sum of their versions: the client's side of the completeness check. */
export type Held = Omit<Summary, 'version'>;

/**
 * The port of stores. Calls may overlap and take effect in the order in which they are made: a `get` called after an
 * `apply` sees all of it, one called before sees none of it.
 */
export interface Store {
  cursor(): Promise<Cursor>;
  get(id: string): Promise<Entry | undefined>;
  /**
   * All entries, deleted ones included, each once, in any order, in bounded memory. An entry that changes during the
   * iteration appears in one of its states since the call. Other calls, including `apply`, may be made and awaited
   * between two entries.
   */
  entries(): AsyncIterable<Entry>;
  /** All pending changes by rising `seq`. */
  pending(): Promise<readonly Pending[]>;
  /** All unfinished uploads, in any order. */
  uploads(): Promise<readonly KeptUpload[]>;
  /** Counts the entries that have a version and are not deleted. */
  held(): Promise<Held>;
  /** The heads of all live entries by id, if known without decoding every entry. The caller owns the map. */
  heads?(): Promise<Map<string, Head>>;
  /** The bins of live entries, if known without decoding every entry. */
  binIds?(): Promise<ReadonlySet<string>>;
  /**
   * Applies a batch, which is durable as a whole when this resolves. If it rejects, nothing took effect; the store
   * stays usable, and later calls may succeed (a full disk has space again).
   */
  apply(batch: Batch): Promise<void>;
}

/** True for a quarantined entry without any state that verified. */
export const isUnverified = (entry: Entry | undefined): boolean =>
  entry?.state === 'quarantined' && entry.kept === null;

/**
 * Ids of entries without a version: items that the server's history lacks after a completed replay. None that never
 * verified is among them, because it cannot be written again: one that a server made would stop the others.
 */
export async function unversioned(store: Store): Promise<readonly string[]> {
  const ids: string[] = [];
  for await (const entry of store.entries())
    if (entry.state !== 'deleted' && entry.version === 0 && !isUnverified(entry)) ids.push(entry.id);
  return ids;
}

export const NOTHING_HELD: Held = { itemCount: 0, versionSum: 0 };

/** True where both count the same. */
export const sameHeld = (one: Held, other: Held): boolean =>
  one.itemCount === other.itemCount && one.versionSum === other.versionSum;

/** The part of an entry that decides how it is counted. */
export type Tallied = Pick<Entry, 'state' | 'version'>;

/** The version that an entry adds to the sum; 0: it is not counted. */
const countedVersion = (entry: Tallied | undefined): number =>
  entry === undefined || entry.state === 'deleted' ? 0 : entry.version;

/** What is held after replacing an entry; undefined: there is none. */
export function heldWith({ itemCount, versionSum }: Held, before?: Tallied, after?: Tallied): Held {
  const [was, is] = [countedVersion(before), countedVersion(after)];
  return { itemCount: itemCount + Number(is > 0) - Number(was > 0), versionSum: versionSum + is - was };
}

/** A store in memory: for tests and short-lived programs. A subclass may keep the entries in another form. */
export class MemoryStore implements Store {
  private readonly items = new Map<string, Entry>();
  private readonly outbox = new Map<number, Pending>();
  private readonly unfinished = new Map<string, KeptUpload>();
  private position: Cursor = FRESH;
  private counts = NOTHING_HELD;

  cursor(): Promise<Cursor> {
    return Promise.resolve(this.position);
  }

  get(id: string): Promise<Entry | undefined> {
    return Promise.resolve(this.entry(id));
  }

  async *entries(): AsyncGenerator<Entry> {
    for (const id of this.ids()) {
      const entry = await this.get(id);
      if (entry !== undefined) yield entry;
    }
  }

  pending(): Promise<readonly Pending[]> {
    return Promise.resolve([...this.outbox.values()].sort((one, other) => one.seq - other.seq));
  }

  uploads(): Promise<readonly KeptUpload[]> {
    return Promise.resolve([...this.unfinished.values()]);
  }

  held(): Promise<Held> {
    return Promise.resolve(this.counts);
  }

  apply(batch: Batch): Promise<void> {
    if (batch.forgetVersions === true) {
      this.forgetVersions();
      this.counts = NOTHING_HELD;
    }
    for (const entry of batch.entries ?? []) this.counts = heldWith(this.counts, this.replace(entry), entry);
    for (const pending of batch.pending ?? []) this.outbox.set(pending.seq, pending);
    for (const seq of batch.done ?? []) this.outbox.delete(seq);
    for (const upload of batch.uploads ?? []) this.unfinished.set(upload.id, upload);
    for (const id of batch.uploaded ?? []) this.unfinished.delete(id);
    if (batch.cursor !== undefined) this.position = batch.cursor;
    return Promise.resolve();
  }

  /** The ids of all entries at this moment. */
  protected ids(): readonly string[] {
    return [...this.items.keys()];
  }

  protected entry(id: string): Entry | undefined {
    return this.items.get(id);
  }

  /** Adds or replaces an entry. Returns how the one before it was counted. */
  protected replace(entry: Entry): Tallied | undefined {
    const before = this.items.get(entry.id);
    this.items.set(entry.id, entry);
    return before;
  }

  /** Sets the version of every entry to 0. */
  protected forgetVersions(): void {
    for (const [id, entry] of this.items) this.items.set(id, { ...entry, version: 0 });
  }
}
