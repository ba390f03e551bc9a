/** Concurrent calls to the object store for many names, a few at a time. */
import { ulid } from 'ulid';
import { ServiceError } from '../../protocol/errors.js';
import type { ObjectName, ObjectStore } from './ports.js';

/** Concurrent calls. */
const LIMIT = 8;

/**
 * Calls `work` for every name. Names for which it rejects with `storage_unavailable` are skipped: `faults` has these
 * errors, `done` the other names, both in the order of `names`. Rejects with such an error if a whole batch failed and
 * the store does not answer at all, and with any other error of `work`, each after the batch has ended.
 */
export async function mapLimit<N extends ObjectName>(
  store: Pick<ObjectStore, 'head'>,
  names: readonly N[],
  work: (name: N) => Promise<void>,
): Promise<{ readonly done: N[]; readonly faults: ServiceError[] }> {
  const done: N[] = [];
  const faults: ServiceError[] = [];
  for (let at = 0; at < names.length; at += LIMIT) {
    const batch = names.slice(at, at + LIMIT);
    const failed: ServiceError[] = [];
    for (const result of await Promise.allSettled(batch.map((name) => work(name).then(() => name)))) {
      if (result.status === 'fulfilled') done.push(result.value);
      else if (isUnavailable(result.reason)) failed.push(result.reason);
      else throw result.reason;
    }
    faults.push(...failed);
    const [fault] = failed;
    if (fault === undefined || failed.length < batch.length) continue;
    // Does the store answer at all, for a name that does not exist?
    const id = ulid();
    await store.head({ tenantId: id, ref: `${id}.bin` }).catch(() => {
      throw fault;
    });
  }
  return { done, faults };
}

const isUnavailable = (error: unknown): error is ServiceError =>
  error instanceof ServiceError && error.error === 'storage_unavailable';
