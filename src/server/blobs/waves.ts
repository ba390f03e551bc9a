/** Calls to the store for many names: a few at once, and no longer than it answers at all. */
import { ulid } from 'ulid';
import { ServiceError } from '../../protocol/errors.js';
import type { ObjectName, ObjectStore } from './ports.js';

/** Calls to the store at once. */
const AT_ONCE = 8;

/** What became of a list of names. */
export interface Waved<N> {
  readonly done: N[];
  /** What the store refused of the others. */
  readonly faults: ServiceError[];
}

/**
 * Does `work` for all of them, a few at once. What the store refuses of one name keeps it from no other; where it is
 * away altogether this ends with `storage_unavailable`. Every other error ends it too, with what was under way done.
 */
export async function inWaves<N extends ObjectName>(
  store: Pick<ObjectStore, 'head'>,
  names: readonly N[],
  work: (name: N) => Promise<void>,
): Promise<Waved<N>> {
  const all: Waved<N> = { done: [], faults: [] };
  for (let at = 0; at < names.length; at += AT_ONCE) {
    const wave = await oneWave(names.slice(at, at + AT_ONCE), work);
    all.done.push(...wave.done);
    all.faults.push(...wave.faults);
    const [fault] = wave.faults;
    if (fault !== undefined && wave.done.length === 0) await expectStore(store, fault);
  }
  return all;
}

/** Throws `fault` where the store does not answer for a name that nobody has either. */
async function expectStore(store: Pick<ObjectStore, 'head'>, fault: ServiceError): Promise<void> {
  const nobody = ulid();
  await store.head({ tenantId: nobody, ref: `${nobody}.bin` }).catch(() => {
    throw fault;
  });
}

async function oneWave<N extends ObjectName>(names: readonly N[], work: (name: N) => Promise<void>): Promise<Waved<N>> {
  const wave: Waved<N> = { done: [], faults: [] };
  const results = await Promise.allSettled(names.map(work));
  for (const [index, name] of names.entries()) {
    const result = results[index];
    if (result?.status === 'fulfilled') wave.done.push(name);
    else if (isRefusal(result?.reason)) wave.faults.push(result.reason);
    else throw result?.reason;
  }
  return wave;
}

const isRefusal = (error: unknown): error is ServiceError =>
  error instanceof ServiceError && error.error === 'storage_unavailable';
