/**
 * What a device keeps between one start and the next: ciphertext rows, its own unsent changes, and its cursor.
 * A port: `MemoryStore` here, `LevelStore` over LevelDB in Node and IndexedDB in browsers.
 *
 * Two layers, and that is the point: `items` is exactly what the ordered stream said up to the cursor, nothing else, so
 * it can be compared with the server's count at any `caught_up`. What this device wrote lies in the outbox, on top,
 * until the stream confirms it. Plaintext is never stored.
 */
import type { RefusalReason } from '../../crypto/refusal.js';
import type { ItemWrite, LiveItem } from '../../protocol/item.js';

/** Why an item is not shown: a reason of the crypto core, or what a client sees in comparing versions. */
export type QuarantineReason =
  | RefusalReason
  /** The row cannot be read at all. */
  | 'bad_row'
  /** The content is older than what was here before, under a newer version: only a server could do that. */
  | 'rolled_back'
  /** The item was deleted before, and there is no restore (RETRY-02). */
  | 'resurrected';

interface Known {
  readonly id: string;
  /** The server's version of this state; 0 after a reset, until the new history names it. */
  readonly version: number;
}

/** An item whose tag holds and that opened. */
export interface LiveEntry extends Known {
  readonly state: 'live';
  readonly row: LiveItem;
}

/** An item that does not verify. It is counted, not shown. `kept` is the last state that did verify. */
export interface QuarantinedEntry extends Known {
  readonly state: 'quarantined';
  readonly reason: QuarantineReason;
  readonly row: LiveItem | null;
  readonly kept: LiveItem | null;
}

/** A deleted item. `kept`: its last content, where the delete bore no valid tag and may be the server's own idea. */
export interface DeletedEntry extends Known {
  readonly state: 'deleted';
  readonly tagged: boolean;
  readonly kept: LiveItem | null;
}

/** What the stream said of an item. */
export type Entry = LiveEntry | QuarantinedEntry | DeletedEntry;

interface PendingBase {
  /** Order of making; unique. */
  readonly seq: number;
  readonly id: string;
  /**
   * The version this change was made against; null: the change before it in the outbox must be acknowledged first.
   * Fixed once it was sent, so that sending again is the same write.
   */
  readonly base: number | null;
  /** The version the server acknowledged, or null while it has not. */
  readonly version: number | null;
  /** When it was made, ms by this device's clock; absent where the store does not say. */
  readonly madeAt?: number;
}

/** A change of this device that the stream has not confirmed. `rewrap`: of keys only, on behalf of all devices. */
export type Pending =
  | (PendingBase & { readonly kind: 'write'; readonly row: LiveItem; readonly rewrap: boolean })
  | (PendingBase & { readonly kind: 'move'; readonly row: LiveItem })
  | (PendingBase & { readonly kind: 'delete'; readonly sig: Uint8Array });

/** What `put` of a pending write sends. */
export const pendingWrite = (pending: Extract<Pending, { kind: 'write' }>): ItemWrite => {
  const { id, binId, type, ts, inline, blob, master, sig } = pending.row;
  return { id, binId, type, ts, inline, blob, master, sig, ifVersion: pending.base };
};

/** Changes that must become durable together, or not at all. */
export interface Batch {
  readonly entries?: readonly Entry[];
  readonly cursor?: Cursor;
  /** Added, or replaced where the `seq` is known. */
  readonly pending?: readonly Pending[];
  /** `seq`s that are done with. */
  readonly done?: readonly number[];
  /** Sets the version of every entry to 0 first: another history begins. */
  readonly forgetVersions?: boolean;
}

/** How many live items are held, and the sum of their versions: the client's side of the completeness check. */
export interface Held {
  readonly itemCount: number;
  readonly versionSum: number;
}

/**
 * The port. Calls may overlap. They take effect in the order in which they are made: a `get` called after an `apply`
 * sees all of it, one called before sees nothing of it.
 */
export interface Store {
  cursor(): Promise<Cursor>;
  get(id: string): Promise<Entry | undefined>;
  /**
   * All entries, deleted ones too, in no order that matters, without holding them all in memory. An entry that does not
   * change meanwhile comes once; one that does comes once, in one of the states that it had since the call. Other calls,
   * `apply` too, may be made and awaited between two of them.
   */
  entries(): AsyncIterable<Entry>;
  /** All pending changes by rising `seq`. */
  pending(): Promise<readonly Pending[]>;
  /** Of entries with a version, those not deleted. */
  held(): Promise<Held>;
  /** The bins of live entries, where a store knows them without taking every entry apart. */
  binIds?(): Promise<ReadonlySet<string>>;
  /**
   * Durable, all of it, when it resolves. Where it rejects nothing of it took effect; the store goes on, and later
   * calls may succeed (a full disk has room again).
   */
  apply(batch: Batch): Promise<void>;
}

/** Entries whose version is not known: what the server's history does not have, once a replay cannot bring it any more. */
export async function unversioned(store: Store): Promise<readonly string[]> {
  const ids: string[] = [];
  for await (const { id, state, version } of store.entries()) if (state !== 'deleted' && version === 0) ids.push(id);
  return ids;
}

const countsFor = (entry: Entry | undefined): boolean =>
  entry !== undefined && entry.state !== 'deleted' && entry.version > 0;

/** Keeps everything in memory: for tests, for short-lived programs, and until a durable store is bound. */
export class MemoryStore implements Store {
  private readonly items = new Map<string, Entry>();
  private readonly outbox = new Map<number, Pending>();
  private at: Cursor = FRESH;
  private itemCount = 0;
  private versionSum = 0;

  cursor(): Promise<Cursor> {
    return Promise.resolve(this.at);
  }

  get(id: string): Promise<Entry | undefined> {
    return Promise.resolve(this.items.get(id));
  }

  async *entries(): AsyncGenerator<Entry> {
    for (const id of [...this.items.keys()]) {
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

  apply(batch: Batch): Promise<void> {
    if (batch.forgetVersions === true) {
      for (const [id, entry] of this.items) this.items.set(id, { ...entry, version: 0 });
      this.itemCount = 0;
      // Set, not counted down: a sum that a false version took past 2^53 is not exact any more.
      this.versionSum = 0;
    }
    for (const entry of batch.entries ?? []) this.set(entry);
    for (const pending of batch.pending ?? []) this.outbox.set(pending.seq, pending);
    for (const seq of batch.done ?? []) this.outbox.delete(seq);
    if (batch.cursor !== undefined) this.at = batch.cursor;
    return Promise.resolve();
  }

  private set(entry: Entry): void {
    this.tally(this.items.get(entry.id), -1);
    this.items.set(entry.id, entry);
    this.tally(entry, 1);
  }

  private tally(entry: Entry | undefined, sign: 1 | -1): void {
    if (entry === undefined || !countsFor(entry)) return;
    this.itemCount += sign;
    this.versionSum += sign * entry.version;
  }
}

/** A place in a history: number and name, since a number alone lies after a restore. */
export interface Cursor {
  /** The highest version up to which everything was applied. */
  readonly since: number;
  /** The name of the history that `since` counts in; null before the first answer. */
  readonly epoch: string | null;
}

/** A client that has seen nothing. */
export const FRESH: Cursor = { since: 0, epoch: null };

/**
 * The cursor after an `item`, `delete` or `ack` frame of `version`; undefined when that version was applied before
 * and the frame must change nothing.
 */
export const passed = (cursor: Cursor, version: number): Cursor | undefined =>
  version > cursor.since ? { ...cursor, since: version } : undefined;

/**
 * The cursor after `caught_up`, or after the last page of a listing: everything up to `version` was sent, own changes
 * and items of no interest included. Undefined when it names another history than the cursor counts in: the client
 * must start again from 0.
 */
export function caughtUp(cursor: Cursor, at: { readonly version: number; readonly epoch: string }): Cursor | undefined {
  if (cursor.epoch !== null && cursor.epoch !== at.epoch) return undefined;
  return { since: Math.max(cursor.since, at.version), epoch: at.epoch };
}

/** The cursor after `reset`: another history, of which nothing is known yet. */
export const restarted = (epoch: string): Cursor => ({ since: 0, epoch });
