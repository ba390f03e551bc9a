/**
 * Databases of IndexedDB with one object store; requests and transactions as promises, which reject with its
 * `DOMException`.
 */

/** Resolves with the result of a request. The transaction can still abort: a write is durable only once `committed`. */
export const done = <T>(request: IDBRequest<T>): Promise<T> =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error('IndexedDB failed without an error'));
  });

/** Resolves when all changes of a transaction are stored. */
export const committed = (transaction: IDBTransaction): Promise<void> =>
  new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () =>
      reject(transaction.error ?? new Error('IndexedDB aborted a transaction without an error'));
  });

const RECORDS = 'records';

/** Opens a database of records by key, and creates it if needed. */
export async function openRecords(name: string): Promise<IDBDatabase> {
  const request = indexedDB.open(name, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(RECORDS);
  const db = await done(request);
  // An open connection would block another page that removes or upgrades the database. Later calls fail.
  db.onversionchange = () => db.close();
  return db;
}

/** The records in a new transaction. Strict: a write is on disk before it is acknowledged. */
export const recordsOf = (db: IDBDatabase, mode: IDBTransactionMode): IDBObjectStore =>
  db.transaction([RECORDS], mode, { durability: 'strict' }).objectStore(RECORDS);
