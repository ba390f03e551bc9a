/** Requests and transactions of IndexedDB as promises. They reject with its `DOMException`. */

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
