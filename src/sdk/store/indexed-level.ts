/**
 * A database in IndexedDB, as much of one as a store uses. `browser-level` would do the same, but it needs Node's
 * `events` and `buffer` in every page, and answers a write before it is on the disk.
 */
import { storeError } from './error.js';
import type { Level, LevelRange, Operation } from './level.js';

const RECORDS = 'records';

const done = <T>(request: IDBRequest<T>): Promise<T> =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error('IndexedDB failed without saying why'));
  });

const committed = (transaction: IDBTransaction): Promise<void> =>
  new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new Error('IndexedDB gave up a transaction'));
  });

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

/** Made closed. Errors are IndexedDB's own, or `StoreError` `closed` and `damaged`. */
export class IndexedLevel implements Level {
  private db: IDBDatabase | undefined;

  constructor(private readonly name: string) {}

  async open(): Promise<void> {
    const request = indexedDB.open(this.name, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(RECORDS);
    const db = await done(request);
    // Somebody removes it: while it is held open that would wait for ever. What comes now is told that it is closed.
    db.onversionchange = () => db.close();
    this.db = db;
  }

  close(): Promise<void> {
    this.db?.close();
    this.db = undefined;
    return Promise.resolve();
  }

  async get(key: string): Promise<Uint8Array | undefined> {
    const [value] = await this.getMany([key]);
    return value;
  }

  async getMany(keys: string[]): Promise<(Uint8Array | undefined)[]> {
    const records = this.begin('readonly').objectStore(RECORDS);
    const values = await Promise.all(keys.map((key) => done<unknown>(records.get(key))));
    return values.map((value) => (value === undefined ? undefined : bytesOf(value)));
  }

  put(key: string, value: Uint8Array): Promise<void> {
    return this.batch([{ type: 'put', key, value }]);
  }

  async batch(operations: Operation[]): Promise<void> {
    const transaction = this.begin('readwrite');
    const over = committed(transaction);
    const records = transaction.objectStore(RECORDS);
    for (const operation of operations) {
      // A request that fails ends the transaction, which is what is waited for.
      if (operation.type === 'del') records.delete(operation.key);
      else records.put(operation.value, operation.key);
    }
    await over;
  }

  iterator(range: LevelRange): ReturnType<Level['iterator']> {
    let after: string | undefined;
    const nextv = async (size: number): Promise<[string, Uint8Array][]> => {
      const records = this.begin('readonly').objectStore(RECORDS);
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

  private begin(mode: IDBTransactionMode): IDBTransaction {
    if (this.db === undefined) throw storeError('closed');
    // Strict: on the disk, not only on its way there, when it is answered.
    return this.db.transaction([RECORDS], mode, { durability: 'strict' });
  }
}

/** Removes a database, if it is there. */
export const removeIndexed = async (name: string): Promise<void> => {
  await done(indexedDB.deleteDatabase(name));
};
