/** Where a profile's local copy lies. The one place that knows which store that is. */
import type { Identity } from '../../client/identity.js';
import { MemoryStore, type Store } from '../../client/store.js';
import { privateFolder } from './files.js';

/** A local copy, open. */
export interface OpenedStore {
  readonly store: Store;
  close(): Promise<void>;
}

/** Whose store, and where. */
export interface StorePlace {
  /** The profile's. */
  readonly folder: string;
  readonly owner: Pick<Identity, 'tenantId' | 'deviceId'>;
}

/** The local copy of a profile's folder; another process that has it open is waited for by `exclusively`. */
export async function openStore({ folder }: StorePlace): Promise<OpenedStore> {
  await privateFolder(folder);
  return { store: new MemoryStore(), close: () => Promise.resolve() };
}

/**
 * What the stream said so far, in memory: for a program that only looks, and must not keep others from writing. Own
 * changes that wait are left out: they are the business of whoever holds the profile.
 */
export async function copyOf(store: Store): Promise<Store> {
  const copy = new MemoryStore();
  await copy.apply({ entries: await store.entries(), cursor: await store.cursor() });
  return copy;
}
