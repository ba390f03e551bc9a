/** Calls to the object store for many names, a bounded number at a time. */
import { ulid } from 'ulid';
import { ServiceError } from '../../protocol/errors.js';
import type { ObjectName, ObjectStore } from './ports.js';

const LIMIT = 8;

/** Results of `mapLimit`, each in the order of the names. */
interface Mapped<N> {
  readonly done: N[];
  /** The store's refusals of the other names. */
  readonly faults: ServiceError[];
}

/**
 * Calls `work` for every name, in concurrent batches. A refusal of one name (`storage_unavailable`) does not end the
 * others; if the store does not answer at all, throws the refusal. Throws any other error after its batch.
 */
export async function mapLimit<N extends ObjectName>(
  store: Pick<ObjectStore, 'head'>,
  names: readonly N[],
  work: (name: N) => Promise<void>,
): Promise<Mapped<N>> {
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
    if (fault !== undefined && refused.length === batch.length) await expectStore(store, fault);
  }
  return { done, faults };
}

/** Throws `fault` if the store does not even answer for a name that does not exist. */
async function expectStore(store: Pick<ObjectStore, 'head'>, fault: ServiceError): Promise<void> {
  const id = ulid();
  await store.head({ tenantId: id, ref: `${id}.bin` }).catch(() => {
    throw fault;
  });
}

const isRefusal = (error: unknown): error is ServiceError =>
  error instanceof ServiceError && error.error === 'storage_unavailable';
