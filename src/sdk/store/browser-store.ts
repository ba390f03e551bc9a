/**
 * Durable stores of browsers: IndexedDB. `browser-level` would be an alternative, but it needs Node's `events` and
 * `buffer` in every page, and acknowledges a write before it is on disk.
 */
import { text } from '../../protocol/bytes.js';
import { asError } from '../../protocol/error-code.js';
import { storeError, storeErrorOf } from './error.js';
import { committed, done, openRecords, recordsOf } from './indexed-db.js';
import type { Level, LevelRange, Operation } from './level-store.js';
import { openStore, SET_ASIDE_MAX, type OpenedStore, type StorePlace } from './open.js';
import type { StoreOwner } from './records.js';

const PREFIX = 'service-device-';

/** The store of a browser. */
export interface OpenedBrowserStore extends OpenedStore {
  /** False: the browser may evict the store when it needs space, including unsent changes. */
  readonly persistent: boolean;
}

/**
 * Opens the store of a device in this origin's IndexedDB under `name` (one per device), and creates it if needed. All
 * content is read and checked first. Throws `StoreError`: `locked` if another page has it open, or with `giveUp`, if one
 * still has it open when that signal is aborted; `unsupported` if the page is not a secure context (https, or
 * localhost), where browsers offer no locks.
 *
 * A small database `<name>` records which of `<name>.<number>` is in use, so that a damaged one is replaced in one
 * step.
 */
export async function openBrowserStore(
  name: string,
  owner: StoreOwner,
  giveUp?: AbortSignal,
): Promise<OpenedBrowserStore> {
  try {
    const persistent = await persisted();
    const release = await locked(`${PREFIX}${name}`, giveUp);
    try {
      const index = await opened(`${PREFIX}${name}`);
      return { ...(await openStore(new Origin(`${PREFIX}${name}`, index, release), owner)), persistent };
    } catch (error) {
      release();
      throw error;
    }
  } catch (error) {
    throw storeErrorOf(error);
  }
}

/** Requests persistent storage; a worker, which cannot request it, only checks whether it was granted. */
async function persisted(): Promise<boolean> {
  const storage = (navigator as Partial<Navigator>).storage as Partial<StorageManager> | undefined;
  return (await (storage?.persist ?? storage?.persisted)?.call(storage)) ?? false;
}

/** Two pages with one store would overwrite each other's state. The lock ends with the page. */
function locked(name: string, giveUp: AbortSignal | undefined): Promise<() => void> {
  const { locks } = navigator as Partial<Navigator>;
  if (locks === undefined) throw storeError('unsupported', 'the page is not a secure context');
  return new Promise((resolve, reject) => {
    const held = locks.request(name, giveUp === undefined ? { ifAvailable: true } : { signal: giveUp }, (lock) => {
      if (lock === null) throw storeError('locked');
      return new Promise<void>((release) => resolve(release));
    });
    held.catch((error: unknown) => reject(giveUp?.aborted === true ? storeError('locked') : asError(error)));
  });
}

const opened = async (name: string): Promise<IndexedLevel> => new IndexedLevel(await openRecords(name));

const IN_USE = 'in use';

/**
 * The databases of one store. The lock is held, so nothing else changes them. IndexedDB does not lose its latest writes
 * as a log file may, so no expected count is stored.
 */
class Origin implements StorePlace {
  constructor(
    private readonly name: string,
    private readonly index: IndexedLevel,
    private readonly unlock: () => void,
  ) {}

  async current(): Promise<Level> {
    return opened(this.at(await this.inUse()));
  }

  async next(): Promise<Level> {
    const name = this.at((await this.inUse()) + 1);
    // A remnant of a page that ended during a rebuild.
    await removeIndexed(name);
    return opened(name);
  }

  async promote(): Promise<string> {
    const old = await this.inUse();
    await this.index.batch([{ type: 'put', key: IN_USE, value: text(String(old + 1)) }]);
    const gone = old - SET_ASIDE_MAX;
    if (gone > 0) await removeIndexed(this.at(gone));
    return this.at(old);
  }

  async release(): Promise<void> {
    await this.index.close();
    this.unlock();
  }

  private async inUse(): Promise<number> {
    const kept = await this.index.get(IN_USE);
    const number = kept === undefined ? 1 : Number(new TextDecoder().decode(kept));
    return Number.isSafeInteger(number) && number > 0 ? number : 1;
  }

  private at(number: number): string {
    return `${this.name}.${number}`;
  }
}

const bytesOf = (value: unknown): Uint8Array => {
  if (!(value instanceof Uint8Array)) throw storeError('damaged', 'a record is not bytes');
  return value;
};

const keyOf = (key: IDBValidKey): string => {
  if (typeof key !== 'string') throw storeError('damaged', 'a key is not text');
  return key;
};

function rangeOf({ gte, lt }: LevelRange, after: string | undefined): IDBKeyRange | undefined {
  const from = after ?? gte;
  if (from === undefined) return lt === undefined ? undefined : IDBKeyRange.upperBound(lt, true);
  const open = after !== undefined;
  return lt === undefined ? IDBKeyRange.lowerBound(from, open) : IDBKeyRange.bound(from, lt, open, true);
}

/** A database in IndexedDB. Throws errors of IndexedDB, and `StoreError` `damaged`. */
class IndexedLevel implements Level {
  constructor(private readonly db: IDBDatabase) {}

  close(): Promise<void> {
    this.db.close();
    return Promise.resolve();
  }

  async get(key: string): Promise<Uint8Array | undefined> {
    const [value] = await this.getMany([key]);
    return value;
  }

  async getMany(keys: string[]): Promise<(Uint8Array | undefined)[]> {
    const records = recordsOf(this.db, 'readonly');
    const values = await Promise.all(keys.map((key) => done<unknown>(records.get(key))));
    return values.map((value) => (value === undefined ? undefined : bytesOf(value)));
  }

  async batch(operations: Operation[]): Promise<void> {
    const records = recordsOf(this.db, 'readwrite');
    const over = committed(records.transaction);
    for (const operation of operations) {
      // A failed request aborts the transaction, which is awaited below.
      if (operation.type === 'del') records.delete(operation.key);
      else records.put(operation.value, operation.key);
    }
    await over;
  }

  iterator(range: LevelRange): ReturnType<Level['iterator']> {
    let after: string | undefined;
    const nextv = async (size: number): Promise<[string, Uint8Array][]> => {
      const records = recordsOf(this.db, 'readonly');
      const span = rangeOf(range, after);
      const [keys, values] = await Promise.all([
        done(records.getAllKeys(span, size)),
        done<unknown[]>(records.getAll(span, size)),
      ]);
      const found = keys.map((key, at): [string, Uint8Array] => [keyOf(key), bytesOf(values[at])]);
      after = found.at(-1)?.[0] ?? after;
      return found;
    };
    return { nextv, close: () => Promise.resolve() };
  }
}

/** Removes a database, if it is there. */
export const removeIndexed = async (name: string): Promise<void> => {
  await done(indexedDB.deleteDatabase(name));
};
