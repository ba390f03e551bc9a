/** Where a profile's local copy lies. The one place that knows which store that is. */
import { join } from 'node:path';
import type { Identity } from '../../client/identity.js';
import { openNodeStore } from '../../client/store/node-store.js';
import type { StoreRepair } from '../../client/store/open.js';
import { MemoryStore, type Entry, type Store } from '../../client/store/store.js';

const STORE_FOLDER = 'store';

/** A local copy, open. */
export interface OpenedStore {
  readonly store: Store;
  /** Null: it was sound, or new. */
  readonly repair: StoreRepair | null;
  close(): Promise<void>;
}

/** Whose store, and where. */
export interface StorePlace {
  /** The profile's. */
  readonly folder: string;
  readonly owner: Pick<Identity, 'tenantId' | 'deviceId'>;
}

/** The local copy of a profile's folder; another process that has it open is waited for by `exclusively`. */
export async function openStore({ folder, owner }: StorePlace): Promise<OpenedStore> {
  const { store, repair } = await openNodeStore(join(folder, STORE_FOLDER), owner);
  return { store, repair, close: () => store.close() };
}

/**
 * What the stream said so far, in memory: for a program that only looks, and must not keep others from writing. Own
 * changes that wait are left out: they are the business of whoever holds the profile.
 */
export async function copyOf(store: Store): Promise<Store> {
  const copy = new MemoryStore();
  const entries: Entry[] = [];
  for await (const entry of store.entries()) entries.push(entry);
  await copy.apply({ entries, cursor: await store.cursor() });
  return copy;
}
