/**
 * A durable store over `abstract-level`: LevelDB in Node, IndexedDB in browsers, memory in tests.
 *
 * Invariant: the changes of a batch and the store's state (cursor, sums, tallies) become durable in one write, or not
 * at all. So the state always describes exactly the stored records, and the scan at opening finds any record that was
 * lost, changed or added otherwise. A store uses its database exclusively.
 */
import { FRESH, headOfEntry, NOTHING_HELD, place } from './store.js';
import type { Cursor, Batch, Entry, Head, Held, KeptUpload, Pending, Store } from './store.js';
import { storeError, storeErrorOf } from './error.js';
import {
  CHANGES,
  changeKey,
  decodeChange,
  decodeEntry,
  decodeState,
  decodeUpload,
  encodeChange,
  encodeEntry,
  encodeState,
  encodeUpload,
  ENTRIES,
  entryKey,
  ownerSeed,
  NO_SUMS,
  STATE_KEY,
  summed,
  uploadKey,
  UPLOADS,
  type StoreOwner,
  type StoreState,
  type StoreSums,
} from './records.js';

/** New records by key; undefined: deleted. */
type Plan = Map<string, Uint8Array | undefined>;

const operationsOf = (plan: Plan): Operation[] =>
  [...plan].map(([key, value]) => (value === undefined ? { type: 'del', key } : { type: 'put', key, value }));

/** What the place of a database provides in addition to it. */
export interface LevelStoreOptions {
  /**
   * Makes the database usable after a failed write, or throws while that is impossible. LevelDB must be reopened,
   * because the end of its log may be incomplete. Absent where a failed write leaves no trace (IndexedDB).
   */
  readonly reopen?: () => Promise<void>;
  /** Called after closing the database, with the batch count of its final state; then `release`. */
  expect?(batches: number): Promise<void>;
  release?(): Promise<void>;
}

/** The durable store. Created by `LevelStore.open` after `createStore`; see `openNodeStore` and `openBrowserStore`. */
export class LevelStore implements Store {
  /** Settles when all calls of `apply` so far have taken effect or failed. */
  private applied: Promise<void> = Promise.resolve();
  /** Reads in progress: a later `apply` waits for them, because they must not see its changes. */
  private readonly reads = new Set<Promise<unknown>>();
  /** The inverse of a batch whose write failed: the batch may be in the log when the database is reopened. */
  private failed: { readonly undo: Operation[] } | undefined;
  /** How often the database was reopened. */
  private reopened = 0;
  private readonly seed: number;
  /** The heads read by the check at opening, kept up to date until `heads` returns them: nothing is read twice. */
  private known: Map<string, Head> | undefined;
  private closing: Promise<void> | undefined;

  private constructor(
    private readonly level: Level,
    private state: StoreState,
    private readonly options: LevelStoreOptions,
  ) {
    this.seed = ownerSeed(state.owner);
  }

  /**
   * Opens the store in a database; every record is read and checked. Throws `StoreError`: `damaged` also for a
   * database without a store, `newer_format`, `other_owner`.
   */
  static async open(level: Level, owner: StoreOwner, options: LevelStoreOptions = {}): Promise<LevelStore> {
    try {
      const state = await readState(level);
      if (state === undefined) throw storeError('damaged', 'there is no store in it');
      if (state.owner.tenantId !== owner.tenantId || state.owner.deviceId !== owner.deviceId)
        throw storeError('other_owner');
      const { sums: found, heads } = await counted(level, state);
      for (const key of ['itemCount', 'versionSum'] as const) {
        if (found[key] !== state[key]) throw storeError('damaged', `${key} is ${found[key]}, not ${state[key]}`);
      }
      for (const key of ['entries', 'changes', 'uploads'] as const) {
        if (found[key].count !== state[key].count || found[key].sum !== state[key].sum)
          throw storeError('damaged', `${found[key].count} of ${state[key].count} ${key} are there, or others`);
      }
      const store = new LevelStore(level, state, options);
      store.known = heads;
      return store;
    } catch (error) {
      throw storeErrorOf(error);
    }
  }

  /** Batches applied since the store was created; never decreases, not even by a rebuild. */
  get batches(): number {
    return this.state.batches;
  }

  cursor(): Promise<Cursor> {
    return this.reading(() => this.state.cursor);
  }

  held(): Promise<Held> {
    return this.reading(() => ({ itemCount: this.state.itemCount, versionSum: this.state.versionSum }));
  }

  get(id: string): Promise<Entry | undefined> {
    const key = entryKey(id);
    return this.reading(async () => {
      const record = await this.level.get(key);
      return record === undefined ? undefined : this.entry(key, record);
    });
  }

  entries(): AsyncIterable<Entry> {
    const ready = this.closing === undefined ? this.applied : Promise.reject(storeError('closed'));
    ready.catch(() => undefined);
    return this.entriesAfter(ready);
  }

  private async *entriesAfter(ready: Promise<void>): AsyncGenerator<Entry> {
    await ready;
    let gte: string = ENTRIES.gte;
    for (;;) {
      const { reopened } = this;
      try {
        for await (const [key, record] of scanned(this.level, { ...ENTRIES, gte })) {
          yield this.entry(key, record);
          gte = `${key}\0`;
        }
        return;
      } catch (error) {
        await this.applied;
        // Reopening ends the iterators of the database.
        if (storeErrorOf(error).code !== 'closed' || this.reopened === reopened) throw error;
      }
    }
  }

  heads(): Promise<Map<string, Head>> {
    return this.reading(async () => {
      const { known } = this;
      this.known = undefined;
      return known ?? (await counted(this.level, this.state)).heads;
    });
  }

  pending(): Promise<readonly Pending[]> {
    return this.decoded(CHANGES, decodeChange);
  }

  uploads(): Promise<readonly KeptUpload[]> {
    return this.decoded(UPLOADS, decodeUpload);
  }

  apply(batch: Batch): Promise<void> {
    if (this.closing !== undefined) return Promise.reject(storeError('closed'));
    const before = [...this.reads];
    const turn = this.applied.then(() => Promise.allSettled(before)).then(() => this.write(batch));
    this.applied = turn.catch(() => undefined);
    return turn;
  }

  /** Closes the store after all calls so far; later ones reject with `StoreError` `closed`. May be called again. */
  close(): Promise<void> {
    this.closing ??= this.applied
      .then(() => Promise.allSettled(this.reads))
      .then(() => this.takeBack())
      .then(() => this.level.close())
      .finally(() => this.options.expect?.(this.state.batches))
      .finally(() => this.options.release?.());
    return this.closing;
  }

  /** Undoes a failed batch. If there is still no space, that batch may take effect when the store is opened again. */
  private async takeBack(): Promise<void> {
    try {
      if (this.failed !== undefined) await this.recover(this.failed.undo);
    } catch (error) {
      if (!['full', 'read_only', 'io'].includes(storeErrorOf(error).code)) throw error;
    }
  }

  private entry(key: string, record: Uint8Array): Entry {
    return decodeEntry(key, record, { owner: this.seed, generation: this.state.generation });
  }

  private decoded<T>(range: LevelRange, decode: (key: string, record: Uint8Array, owner: number) => T): Promise<T[]> {
    return this.reading(async () => {
      const found: T[] = [];
      for await (const [key, record] of scanned(this.level, range)) found.push(decode(key, record, this.seed));
      return found;
    });
  }

  private reading<T>(work: () => T | Promise<T>): Promise<T> {
    if (this.closing !== undefined) return Promise.reject(storeError('closed'));
    const read = this.applied.then(work).catch((error: unknown) => {
      throw storeErrorOf(error);
    });
    const over = read.catch(() => undefined).finally(() => this.reads.delete(over));
    this.reads.add(over);
    return read;
  }

  private async write(batch: Batch): Promise<void> {
    try {
      if (this.failed !== undefined) await this.recover(this.failed.undo);
      const { next, operations, undo } = await this.planned(batch);
      if (operations.length === 0) return;
      if (this.options.reopen !== undefined) this.failed = { undo };
      await this.level.batch(operations, DURABLE);
      this.failed = undefined;
      this.state = next;
      const { forgetVersions, entries = [] } = batch;
      if (forgetVersions === true) this.known = undefined;
      if (this.known !== undefined) for (const entry of entries) place(this.known, entry.id, headOfEntry(entry));
    } catch (error) {
      throw storeErrorOf(error);
    }
  }

  /** After a failed write: if the batch count shows that the batch is in the log nevertheless, it is undone. */
  private async recover(undo: Operation[]): Promise<void> {
    await this.options.reopen?.();
    this.reopened++;
    const found = await readState(this.level);
    if (found === undefined || found.batches < this.state.batches) throw storeError('damaged', 'an older state');
    if (found.batches > this.state.batches) {
      const state = { ...this.state, batches: found.batches + 1 };
      await this.level.batch([...undo, { type: 'put', key: STATE_KEY, value: encodeState(state) }], DURABLE);
      this.state = state;
    }
    this.failed = undefined;
  }

  /** The state after a batch, the operations that lead there, and their inverse (without the state's record). */
  private async planned(batch: Batch): Promise<{ next: StoreState; operations: Operation[]; undo: Operation[] }> {
    const generation = this.state.generation + Number(batch.forgetVersions === true);
    const plan = this.records(batch, generation);
    const keys = [...plan.keys()];
    const records = keys.length === 0 ? [] : await this.level.getMany(keys);
    const old: Plan = new Map(keys.map((key, at) => [key, records[at]]));
    const cursor = batch.cursor ?? this.state.cursor;
    const was = this.state.cursor;
    const same = cursor.since === was.since && cursor.epoch === was.epoch && cursor.reset === was.reset;
    if (keys.length === 0 && same && generation === this.state.generation)
      return { next: this.state, operations: [], undo: [] };
    let sums: StoreSums = batch.forgetVersions === true ? { ...this.state, ...NOTHING_HELD } : this.state;
    const at = { owner: this.seed, generation };
    for (const [key, after] of plan) sums = summed(sums, { key, before: old.get(key), after }, at);
    const batches = this.state.batches + 1;
    const next = { ...this.state, ...sums, batches, generation, cursor };
    const operations = operationsOf(plan.set(STATE_KEY, encodeState(next)));
    return { next, operations, undo: operationsOf(old) };
  }

  private records(batch: Batch, generation: number): Plan {
    const plan: Plan = new Map();
    for (const entry of batch.entries ?? []) plan.set(entryKey(entry.id), encodeEntry(entry, generation, this.seed));
    for (const change of batch.pending ?? []) plan.set(changeKey(change.seq), encodeChange(change, this.seed));
    for (const seq of batch.done ?? []) plan.set(changeKey(seq), undefined);
    for (const upload of batch.uploads ?? []) plan.set(uploadKey(upload.id), encodeUpload(upload, this.seed));
    for (const id of batch.uploaded ?? []) plan.set(uploadKey(id), undefined);
    return plan;
  }
}

/** Reads the state of a database; undefined where there is none. Throws `StoreError` `damaged`, `newer_format`. */
export async function readState(level: Level): Promise<StoreState | undefined> {
  const record = await level.get(STATE_KEY);
  return record === undefined ? undefined : decodeState(record);
}

/** The sums recomputed from the records, and the heads of live entries. */
async function counted(level: Level, { owner, generation }: StoreState) {
  const bins = new Map<string, string>();
  /** One string for equal ones, because every head has a bin. */
  const shared = (text: string): string => bins.get(text) ?? (bins.set(text, text), text);
  const at = { owner: ownerSeed(owner), generation };
  const heads = new Map<string, Head>();
  let sums = NO_SUMS;
  const keep = (entry: Entry): void => {
    const head = headOfEntry(entry);
    if (head !== undefined) heads.set(entry.id, { ...head, binId: shared(head.binId) });
  };
  for await (const records of portions(level, {})) {
    for (const [key, record] of records) {
      if (key === STATE_KEY) continue;
      if (key.startsWith(CHANGES.gte)) decodeChange(key, record, at.owner);
      if (key.startsWith(UPLOADS.gte)) decodeUpload(key, record, at.owner);
      sums = summed(sums, { key, after: record }, at, keep);
    }
  }
  return { sums, heads };
}

/** The initial content of a store: unsent changes, and the batch count of its predecessor. */
interface NewStore {
  readonly owner: StoreOwner;
  readonly batches: number;
  readonly changes: readonly Pending[];
}

/** Creates a store in an empty database, in one write. Throws `StoreError`. */
export async function createStore(level: Level, { owner, batches, changes }: NewStore): Promise<void> {
  const at = { owner: ownerSeed(owner), generation: 0 };
  const plan: Plan = new Map(changes.map((change) => [changeKey(change.seq), encodeChange(change, at.owner)]));
  let sums = NO_SUMS;
  for (const [key, after] of plan) sums = summed(sums, { key, after }, at);
  const state = { ...sums, owner, batches: batches + 1, generation: 0, cursor: FRESH };
  try {
    await level.batch(operationsOf(plan.set(STATE_KEY, encodeState(state))), DURABLE);
  } catch (error) {
    throw storeErrorOf(error);
  }
}

/** The part of an `abstract-level` database that a store uses; keys are texts, values bytes. */
export interface Level {
  close(): Promise<void>;
  get(key: string): Promise<Uint8Array | undefined>;
  getMany(keys: string[]): Promise<(Uint8Array | undefined)[]>;
  batch(operations: Operation[], options: typeof DURABLE): Promise<void>;
  iterator(options: LevelRange & typeof SCAN): {
    nextv(size: number): Promise<[string, Uint8Array][]>;
    close(): Promise<void>;
  };
}

/** Keys from `gte`, and below `lt`; absent: all. */
export interface LevelRange {
  readonly gte?: string;
  readonly lt?: string;
}

/** LevelDB syncs to disk before it acknowledges; other databases ignore the option. */
const DURABLE = { keyEncoding: 'utf8', valueEncoding: 'view', sync: true } as const;
/** Records per read, and their size in bytes where the database supports it: bounds the memory of a scan. */
const SCAN_RECORDS = 256;
const SCAN = { highWaterMarkBytes: 1024 * 1024 } as const;

/** One operation of a write. */
export type Operation =
  | { readonly type: 'put'; readonly key: string; readonly value: Uint8Array }
  | { readonly type: 'del'; readonly key: string };

/** The records of a range, in bounded memory. Throws `StoreError`. */
export async function* scanned(level: Level, range: LevelRange): AsyncGenerator<[string, Uint8Array]> {
  for await (const records of portions(level, range)) yield* records;
}

/** The same in portions. The next is read while one is used, because databases read in their own thread or process. */
async function* portions(level: Level, range: LevelRange): AsyncGenerator<[string, Uint8Array][]> {
  const iterator = level.iterator({ ...range, ...SCAN });
  let ahead: ReturnType<typeof iterator.nextv> | undefined;
  try {
    ahead = iterator.nextv(SCAN_RECORDS);
    for (;;) {
      const records = await ahead;
      if (records.length === 0) return;
      ahead = iterator.nextv(SCAN_RECORDS);
      // Not awaited where its reader stops early.
      ahead.catch(() => undefined);
      yield records;
    }
  } catch (error) {
    throw storeErrorOf(error);
  } finally {
    await ahead?.catch(() => undefined);
    await iterator.close();
  }
}
