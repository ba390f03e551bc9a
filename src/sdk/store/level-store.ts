/**
 * A durable store over `abstract-level`: LevelDB in Node, IndexedDB in browsers, memory in tests.
 *
 * Invariant: what a batch changes and the store's own state (cursor, sums, tallies) become durable in one step of the
 * database, or not at all. So the state always describes exactly the records beside it, and a scan when the store is
 * opened finds a record that was lost, changed or added by anything else. One store has a database for itself.
 */
import { FRESH, type Cursor, type Batch, type Entry, type Held, type Pending, type Store } from './store.js';
import { storeError, storeErrorOf } from './error.js';
import {
  CHANGES,
  changeKey,
  decodeChange,
  decodeEntry,
  decodeState,
  encodeChange,
  encodeEntry,
  encodeState,
  ENTRIES,
  entryKey,
  ownerSeed,
  NO_SUMS,
  STATE_KEY,
  summed,
  type StoreOwner,
  type StoreState,
  type StoreSums,
} from './records.js';

/** Records as they will be, by key; undefined: gone. */
type Plan = Map<string, Uint8Array | undefined>;

const operationsOf = (plan: Plan): Operation[] =>
  [...plan].map(([key, value]) => (value === undefined ? { type: 'del', key } : { type: 'put', key, value }));

/** What the database below may need beside the common interface. */
export interface LevelStoreOptions {
  /**
   * Makes the database usable after a write that failed, or throws while it cannot be. LevelDB must be opened anew: the
   * end of its log is not to be trusted. Absent where a failed write leaves no trace (IndexedDB).
   */
  readonly reopen?: () => Promise<void>;
  /** Ends what belongs to the store beside the database; `batches` is the state it is left in. */
  readonly onClose?: (batches: number) => Promise<void>;
}

/** See above. Made by `LevelStore.open` and `createStore`; the platforms' `openNodeStore` and `openBrowserStore` use both. */
export class LevelStore implements Store {
  /** Settles when all calls of `apply` so far have taken effect, or failed. */
  private applied: Promise<void> = Promise.resolve();
  /** Reads under way: an `apply` that is called after them waits, or they might see it. */
  private readonly reads = new Set<Promise<unknown>>();
  /** What takes back the batch whose write failed: it may be found in the log when the database is opened again. */
  private failed: { readonly undo: Operation[] } | undefined;
  private readonly seed: number;
  private closing: Promise<void> | undefined;

  private constructor(
    private readonly level: Level,
    private state: StoreState,
    private readonly options: LevelStoreOptions,
  ) {
    this.seed = ownerSeed(state.owner);
  }

  /**
   * The store that a database holds; every record is read and checked. Throws `StoreError`: `damaged` also for a
   * database without a store, `newer_format`, `other_owner`.
   */
  static async open(level: Level, owner: StoreOwner, options: LevelStoreOptions = {}): Promise<LevelStore> {
    try {
      const state = await readState(level);
      if (state === undefined) throw storeError('damaged', 'there is no store in it');
      if (state.owner.tenantId !== owner.tenantId || state.owner.deviceId !== owner.deviceId) {
        throw storeError('other_owner');
      }
      const found = await counted(level, state);
      for (const key of ['itemCount', 'versionSum'] as const) {
        if (found[key] !== state[key]) throw storeError('damaged', `${key} is ${found[key]}, not ${state[key]}`);
      }
      for (const key of ['entries', 'changes'] as const) {
        if (found[key].count !== state[key].count || found[key].sum !== state[key].sum) {
          throw storeError('damaged', `${found[key].count} of ${state[key].count} ${key} are there, or others`);
        }
      }
      return new LevelStore(level, state, options);
    } catch (error) {
      throw storeErrorOf(error);
    }
  }

  /** Batches applied since the store began; never falls, not even when it is rebuilt. */
  get batches(): number {
    return this.state.batches;
  }

  cursor(): Promise<Cursor> {
    return this.reading(() => Promise.resolve(this.state.cursor));
  }

  held(): Promise<Held> {
    return this.reading(() => {
      const { itemCount, versionSum } = this.state;
      return Promise.resolve({ itemCount, versionSum });
    });
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
    const scan = async function* (this: LevelStore): AsyncGenerator<Entry> {
      await ready;
      for await (const [key, record] of scanned(this.level, ENTRIES)) yield this.entry(key, record);
    };
    return scan.call(this);
  }

  pending(): Promise<readonly Pending[]> {
    return this.reading(async () => {
      const found: Pending[] = [];
      for await (const [key, record] of scanned(this.level, CHANGES)) found.push(decodeChange(key, record, this.seed));
      return found;
    });
  }

  apply(batch: Batch): Promise<void> {
    if (this.closing !== undefined) return Promise.reject(storeError('closed'));
    const before = [...this.reads];
    const turn = this.applied.then(() => Promise.allSettled(before)).then(() => this.write(batch));
    this.applied = turn.catch(() => undefined);
    return turn;
  }

  /** Ends the store when all calls so far are done; later ones reject with `StoreError` `closed`. May be called again. */
  close(): Promise<void> {
    this.closing ??= this.applied
      .then(() => Promise.allSettled(this.reads))
      .then(() => this.takeBack())
      .then(() => this.level.close())
      .finally(() => this.options.onClose?.(this.state.batches));
    return this.closing;
  }

  /** Where there is still no room the batch whose write failed may be there when the store is opened again. */
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

  private reading<T>(work: () => Promise<T>): Promise<T> {
    if (this.closing !== undefined) return Promise.reject(storeError('closed'));
    const read = this.applied.then(work).catch((error: unknown) => {
      throw storeErrorOf(error);
    });
    const over = read
      .catch(() => undefined)
      .finally(() => {
        this.reads.delete(over);
      });
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
    } catch (error) {
      throw storeErrorOf(error);
    }
  }

  /**
   * A write failed, and its caller was told so: where it is found in the log all the same, it is taken back. The number
   * of batches tells.
   */
  private async recover(undo: Operation[]): Promise<void> {
    await this.options.reopen?.();
    const found = await readState(this.level);
    if (found === undefined || found.batches < this.state.batches) throw storeError('damaged', 'an older state');
    if (found.batches > this.state.batches) {
      const state = { ...this.state, batches: found.batches + 1 };
      await this.level.batch([...undo, { type: 'put', key: STATE_KEY, value: encodeState(state) }], DURABLE);
      this.state = state;
    }
    this.failed = undefined;
  }

  /** The state after a batch, what brings it about, and what would take it back (the state's record aside). */
  private async planned(batch: Batch): Promise<{ next: StoreState; operations: Operation[]; undo: Operation[] }> {
    const generation = this.state.generation + Number(batch.forgetVersions === true);
    const plan = this.records(batch, generation);
    const keys = [...plan.keys()];
    const records = keys.length === 0 ? [] : await this.level.getMany(keys);
    const old: Plan = new Map(keys.map((key, at) => [key, records[at]]));
    const cursor = batch.cursor ?? this.state.cursor;
    const same = cursor.since === this.state.cursor.since && cursor.epoch === this.state.cursor.epoch;
    if (keys.length === 0 && same && generation === this.state.generation) {
      return { next: this.state, operations: [], undo: [] };
    }
    let sums: StoreSums = batch.forgetVersions === true ? { ...this.state, itemCount: 0, versionSum: 0 } : this.state;
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
    return plan;
  }
}

/** The state in a database, or undefined where there is none. Throws `StoreError` `damaged`, `newer_format`. */
export async function readState(level: Level): Promise<StoreState | undefined> {
  const record = await level.get(STATE_KEY);
  return record === undefined ? undefined : decodeState(record);
}

/** What a state should say, by the records themselves. */
async function counted(level: Level, { owner, generation }: StoreState): Promise<StoreSums> {
  const at = { owner: ownerSeed(owner), generation };
  let sums = NO_SUMS;
  for await (const [key, after] of scanned(level, {})) {
    if (key === STATE_KEY) continue;
    sums = summed(sums, { key, after }, at);
    if (key >= CHANGES.gte) decodeChange(key, after, at.owner);
  }
  return sums;
}

/** Whose changes are to be put into a new store, and how many batches the one before it had. */
export interface NewStore {
  readonly owner: StoreOwner;
  readonly batches: number;
  readonly changes: readonly Pending[];
}

/** Makes a store in an empty database, in one step. Throws `StoreError`. */
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
  open(): Promise<void>;
  close(): Promise<void>;
  get(key: string): Promise<Uint8Array | undefined>;
  getMany(keys: string[]): Promise<(Uint8Array | undefined)[]>;
  put(key: string, value: Uint8Array): Promise<void>;
  batch(operations: Operation[], options: typeof DURABLE): Promise<void>;
  iterator(options: LevelRange & typeof SCAN): {
    nextv(size: number): Promise<[string, Uint8Array][]>;
    close(): Promise<void>;
  };
}

/** Keys from `gte` on, and before `lt`; absent: all. */
export interface LevelRange {
  readonly gte?: string;
  readonly lt?: string;
}

/** LevelDB flushes to the disk before it answers; others do not know the option. */
export const DURABLE = { keyEncoding: 'utf8', valueEncoding: 'view', sync: true } as const;
/** Records read at once, and bytes of them where the database counts those: what a scan holds in memory. */
const SCAN_RECORDS = 256;
const SCAN = { highWaterMarkBytes: 1024 * 1024 } as const;

/** One change of a batch. */
export type Operation =
  | { readonly type: 'put'; readonly key: string; readonly value: Uint8Array }
  | { readonly type: 'del'; readonly key: string };

/** Records of a range, with bounded memory. Throws `StoreError`. */
export async function* scanned(level: Level, range: LevelRange): AsyncGenerator<[string, Uint8Array]> {
  const iterator = level.iterator({ ...range, ...SCAN });
  try {
    for (;;) {
      const records = await iterator.nextv(SCAN_RECORDS);
      if (records.length === 0) return;
      yield* records;
    }
  } catch (error) {
    throw storeErrorOf(error);
  } finally {
    await iterator.close();
  }
}
