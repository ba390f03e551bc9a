/**
 * Opening a durable store, and rebuilding a damaged one: readable unsent changes go into a new store, everything else
 * is replayed from the server, and the damaged store is set aside.
 */
import { type StoreError, storeError, storeErrorOf } from './error.js';
import { createStore, LevelStore, readState, type LevelStoreOptions, scanned, type Level } from './level-store.js';
import { CHANGES, decodeChange, ownerSeed, type StoreOwner } from './records.js';
import type { Pending } from './store.js';

/** Number of damaged stores that are kept; older ones are removed. */
export const SET_ASIDE_MAX = 3;

/** The rebuild of a damaged store. The next connection replays everything from 0. */
export interface StoreRepair {
  /** The damage found. */
  readonly reason: string;
  /** Where the damaged store is: a folder, or the name of a database. The last few are kept. */
  readonly setAside: string;
  /** Unconfirmed changes that were carried over. */
  readonly carried: number;
  /** Changes that could not be read; null where the number is unknown. Those that were sent are on the server. */
  readonly lost: number | null;
}

/** An open store, for one device in one process. */
export interface OpenedStore {
  /** To be closed with the device. */
  readonly store: LevelStore;
  /** Null: it was sound, or new. */
  readonly repair: StoreRepair | null;
}

/** The databases of one store. Locking, moving and cleaning up depend on the platform. */
export interface StorePlace extends LevelStoreOptions {
  /** Checks for damage that the database itself would ignore. Throws `StoreError` `damaged`. */
  readonly inspect?: () => Promise<void>;
  /** Opens the database in use, or creates it. Throws errors of the library. */
  current(): Promise<Level>;
  /** Opens an empty database that is to replace the one in use. */
  next(): Promise<Level>;
  /** Repairs a damaged, closed database as far as possible. Absent where there is no such function. */
  readonly mend?: () => Promise<void>;
  /**
   * Replaces the database in use by the next one, both closed, and sets the old one aside. After a crash either of them
   * is in use. Resolves with the location of the old one.
   */
  promote(): Promise<string>;
  /** The lowest batch count that the store in use may have; 0, or absent: unknown. */
  expected?(): Promise<number>;
  /** Releases resources that closing the database does not, such as the lock. */
  release(): Promise<void>;
}

/** How a store is opened. */
export interface OpenStoreOptions {
  /** False: a damaged store is not rebuilt, for a program that cannot report the changes lost by it. Default: true. */
  readonly rebuild?: boolean;
}

/**
 * Opens the store of a device, creates it, or rebuilds it if it is damaged. Throws `StoreError`: `locked`, `full`,
 * `read_only`, `io`, `newer_format`, `other_owner`; then nothing was changed.
 */
export async function openStore(
  place: StorePlace,
  owner: StoreOwner,
  { rebuild = true }: OpenStoreOptions = {},
): Promise<OpenedStore> {
  try {
    const expected = (await place.expected?.()) ?? 0;
    const opened = await attempt(place, owner, expected);
    if (opened instanceof LevelStore) return { store: opened, repair: null };
    if (!rebuild) throw opened;
    return await rebuilt(place, { owner, expected, reason: opened.detail ?? 'the database cannot be read' });
  } catch (error) {
    await place.release();
    throw storeErrorOf(error);
  }
}

/** Opens the store in use, or returns its damage. */
async function attempt(place: StorePlace, owner: StoreOwner, expected: number): Promise<LevelStore | StoreError> {
  let level: Level | undefined;
  try {
    await place.inspect?.();
    level = await place.current();
    if (expected === 0 && (await isEmpty(level))) await createStore(level, { owner, batches: 0, changes: [] });
    const store = await LevelStore.open(level, owner, place);
    if (store.batches < expected) throw storeError('damaged', 'it is an older state than the last one');
    await place.expect?.(store.batches);
    return store;
  } catch (error) {
    await level?.close();
    const fault = storeErrorOf(error);
    if (fault.code !== 'damaged') throw fault;
    return fault;
  }
}

async function isEmpty(level: Level): Promise<boolean> {
  if ((await readState(level)) !== undefined) return false;
  for await (const _ of scanned(level, {})) return false;
  return true;
}

async function rebuilt(
  place: StorePlace,
  { owner, expected, reason }: { readonly owner: StoreOwner; readonly expected: number; readonly reason: string },
): Promise<OpenedStore> {
  const isTorn = (await unlessDamaged(async () => ({ sound: await place.inspect?.() }))) === undefined;
  const found = await salvaged(place, owner);
  const next = await place.next();
  try {
    await createStore(next, { owner, batches: Math.max(expected, found.batches), changes: withBases(found.changes) });
  } finally {
    await next.close();
  }
  const setAside = await place.promote();
  const store = await attempt(place, owner, expected);
  if (!(store instanceof LevelStore)) throw store;
  const carried = found.changes.length;
  // The database opens in an older state then, whose number of changes says nothing of those made after it.
  const count = isTorn || found.batches < expected ? null : found.expected;
  const lost = count === null ? null : Math.max(0, count - carried);
  return { store, repair: { reason, setAside, carried, lost } };
}

/**
 * Gives a base to changes whose unreadable predecessor they would wait for forever. Such a change is sent as the
 * creation of an item: if the item exists, the server refuses it, nothing is overwritten, and the user is informed.
 */
function withBases(changes: readonly Pending[]): readonly Pending[] {
  const seen = new Set<string>();
  return changes.map((change) => {
    const first = !seen.has(change.id);
    seen.add(change.id);
    return first && change.base === null && change.version === null ? { ...change, base: 0 } : change;
  });
}

/** The readable changes before and after a repair, because a repair may lose some and recover others. */
async function salvaged(place: StorePlace, owner: StoreOwner) {
  const first = await reading(place, owner);
  if (!first.cutShort || place.mend === undefined) return first;
  await place.mend();
  const second = await reading(place, owner);
  const bySeq = new Map([...second.changes, ...first.changes].map((change) => [change.seq, change]));
  return {
    changes: [...bySeq.values()].sort((one, other) => one.seq - other.seq),
    expected: first.expected ?? second.expected,
    batches: Math.max(first.batches, second.batches),
  };
}

/**
 * The changes whose records are sound, by rising `seq`. Each record has its own checksum, seeded with its owner, so a
 * record that matches is sound independent of the others. `expected`: the number of changes, null if unknown; `batches`:
 * that of batches, 0 if unknown.
 */
async function reading(place: StorePlace, owner: StoreOwner) {
  const changes: Pending[] = [];
  const level = await unlessDamaged(() => place.current());
  if (level === undefined) return { changes, expected: null, batches: 0, cutShort: true };
  try {
    const found = await unlessDamaged(async () => ({ state: await readState(level) }));
    const whole = await unlessDamaged(async () => {
      const seed = ownerSeed(owner);
      for await (const [key, record] of scanned(level, CHANGES)) {
        const change = await unlessDamaged(() => decodeChange(key, record, seed));
        if (change !== undefined) changes.push(change);
      }
      return true;
    });
    const { state } = found ?? {};
    const cutShort = found === undefined || whole === undefined;
    return { changes, expected: state?.changes.count ?? null, batches: state?.batches ?? 0, cutShort };
  } finally {
    await level.close();
  }
}

/** The result of `work`; undefined where it fails with `damaged`. */
async function unlessDamaged<T>(work: () => T | Promise<T>): Promise<T | undefined> {
  try {
    return await work();
  } catch (error) {
    if (storeErrorOf(error).code !== 'damaged') throw error;
    return undefined;
  }
}
