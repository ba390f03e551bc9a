/** Calls to the store for many names: a few at once, and no longer than it answers at all. */
import { ServiceError } from '../protocol/errors.js';
import type { ObjectName } from './ports.js';

/** Calls to the store at once. */
const AT_ONCE = 8;

/** What became of a list of names. */
export interface Waved<N> {
  readonly done: N[];
  /** What the store refused of the others. */
  readonly faults: ServiceError[];
}

/**
 * Does `work` for all of them, a few at once. What the store refuses of one name keeps it from no other. Where it
 * refuses all of a few at once `lost` is asked: it throws where the store is away altogether. Every other error ends
 * it, with what was under way done.
 */
export async function inWaves<N extends ObjectName>(
  names: readonly N[],
  work: (name: N) => Promise<void>,
  lost: (fault: ServiceError) => Promise<void>,
): Promise<Waved<N>> {
  const all: Waved<N> = { done: [], faults: [] };
  for (let at = 0; at < names.length; at += AT_ONCE) {
    const wave = await oneWave(names.slice(at, at + AT_ONCE), work);
    all.done.push(...wave.done);
    all.faults.push(...wave.faults);
    const [fault] = wave.faults;
    if (fault !== undefined && wave.done.length === 0) await lost(fault);
  }
  return all;
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
