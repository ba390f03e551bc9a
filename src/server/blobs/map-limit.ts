/** Calls to the object store for many names, a bounded number at a time. */
import { ulid } from 'ulid';
import { ServiceError } from '../../protocol/errors.js';
import type { ObjectName, ObjectStore } from './ports.js';

const LIMIT = 8;

/**
 * Calls `work` for every name, in concurrent batches. A refusal of one name (`storage_unavailable`) does not end the
 * others; if the store does not answer at all, throws the refusal. Throws any other error after its batch. `done`: the
 * other names; `faults`: the refusals. Both are in the order of the names.
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
    const refused: ServiceError[] = [];
    for (const result of await Promise.allSettled(batch.map((name) => work(name).then(() => name)))) {
      if (result.status === 'fulfilled') done.push(result.value);
      else if (isRefusal(result.reason)) refused.push(result.reason);
      else throw result.reason;
    }
    faults.push(...refused);
    const [fault] = refused;
    if (fault === undefined || refused.length < batch.length) continue;
    // Does the store answer at all, for a name that does not exist?
    const id = ulid();
    await store.head({ tenantId: id, ref: `${id}.bin` }).catch(() => {
      throw fault;
    });
  }
  return { done, faults };
}

const isRefusal = (error: unknown): error is ServiceError =>
  error instanceof ServiceError && error.error === 'storage_unavailable';
