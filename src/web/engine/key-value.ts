/**
 * Records of this browser outside of the device's store: the sealed identity, pending deletions, waiting uploads,
 * notices, and in a database of their own the shares (`shared.ts`).
 * Values are structured clones, so WebCrypto keys and files are stored unchanged.
 */
import { committed, done, openRecords, recordsOf } from '../../sdk/store/indexed-db.js';

/** A database of records by key. Rejects with the `DOMException` of IndexedDB (`QuotaExceededError` for a full disk). */
export class KeyValue {
  private constructor(private readonly db: IDBDatabase) {}

  static async open(name: string): Promise<KeyValue> {
    return new KeyValue(await openRecords(name));
  }

  async get(key: string): Promise<unknown> {
    return done<unknown>(recordsOf(this.db, 'readonly').get(key));
  }

  /** The records whose keys begin with `prefix`, by key. */
  async all(prefix: string): Promise<readonly (readonly [key: string, value: unknown])[]> {
    const span = IDBKeyRange.bound(prefix, `${prefix}\uffff`);
    const records = recordsOf(this.db, 'readonly');
    const [keys, values] = await Promise.all([done(records.getAllKeys(span)), done<unknown[]>(records.getAll(span))]);
    return keys.map((key, at) => [typeof key === 'string' ? key : '', values[at]] as const);
  }

  /** Resolves when the value is on disk. */
  put(key: string, value: unknown): Promise<void> {
    return this.putAll([[key, value]]);
  }

  /** Like `put`, for several records; if it rejects, none is stored. */
  putAll(entries: readonly (readonly [key: string, value: unknown])[]): Promise<void> {
    return this.write((records) => entries.forEach(([key, value]) => records.put(value, key)));
  }

  remove(...keys: readonly string[]): Promise<void> {
    return this.write((records) => keys.forEach((key) => records.delete(key)));
  }

  clear(): Promise<void> {
    return this.write((records) => records.clear());
  }

  close(): void {
    this.db.close();
  }

  private async write(change: (records: IDBObjectStore) => unknown): Promise<void> {
    const records = recordsOf(this.db, 'readwrite');
    const over = committed(records.transaction);
    try {
      change(records);
    } catch (error) {
      // A value cannot be stored: without the abort, those before it would be.
      records.transaction.abort();
      await over.catch(() => undefined);
      throw error;
    }
    await over;
  }
}
