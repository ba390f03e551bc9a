/**
 * Small records of this browser outside of the device's store: the sealed identity, pending removals, waiting uploads.
 * Values are structured clones, so WebCrypto keys and files are stored unchanged.
 */
const RECORDS = 'records';

const done = <T>(request: IDBRequest<T>): Promise<T> =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error('IndexedDB failed without saying why'));
  });

/** A database of records by key. Rejects with the `DOMException` of IndexedDB (`QuotaExceededError` for a full disk). */
export class KeyValue {
  private constructor(private readonly db: IDBDatabase) {
    // An open connection would block another page that deletes or upgrades the database.
    db.onversionchange = () => db.close();
  }

  static async open(name: string): Promise<KeyValue> {
    const request = indexedDB.open(name, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(RECORDS);
    return new KeyValue(await done(request));
  }

  async get(key: string): Promise<unknown> {
    return done<unknown>(this.records('readonly').get(key));
  }

  /** The records whose keys begin with `prefix`, by key. */
  async all(prefix: string): Promise<readonly (readonly [key: string, value: unknown])[]> {
    const span = IDBKeyRange.bound(prefix, `${prefix}\uffff`);
    const records = this.records('readonly');
    const [keys, values] = await Promise.all([done(records.getAllKeys(span)), done<unknown[]>(records.getAll(span))]);
    return keys.map((key, at) => [typeof key === 'string' ? key : '', values[at]] as const);
  }

  /** Resolves when the value is on disk. */
  put(key: string, value: unknown): Promise<void> {
    return this.write((records) => records.put(value, key));
  }

  remove(key: string): Promise<void> {
    return this.write((records) => records.delete(key));
  }

  clear(): Promise<void> {
    return this.write((records) => records.clear());
  }

  close(): void {
    this.db.close();
  }

  private records(mode: IDBTransactionMode): IDBObjectStore {
    return this.db.transaction([RECORDS], mode, { durability: 'strict' }).objectStore(RECORDS);
  }

  private write(change: (records: IDBObjectStore) => IDBRequest): Promise<void> {
    const records = this.records('readwrite');
    change(records);
    return new Promise((resolve, reject) => {
      const { transaction } = records;
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error ?? new Error('IndexedDB gave up a transaction'));
    });
  }
}
