/** Puts together what blobs are made of: the store, its rows, and the transfers through this server (contract 8). */
import { Blobs } from './blobs/blobs.js';
import type { ObjectStore } from './blobs/ports.js';
import { Transfers } from './blobs/transfers.js';
import { localStore, openBucket } from './objects/open.js';
import type { Parts } from './parts.js';
import { BlobStore } from './postgres/blob-store.js';

/** Blobs of a running server. */
export interface Storage {
  readonly blobs: Blobs;
  readonly store: ObjectStore;
  readonly rows: BlobStore;
  /** Undefined: clients reach the store by themselves. */
  readonly transfers: Transfers | undefined;
}

/** Opens the store of the configuration. Nothing is asked of it yet: a store that is down is no reason not to start. */
export async function composeStorage({ config, log, clock, database, blobUrlSecret }: Parts): Promise<Storage> {
  const { storageKind, maxBlobBytes: maxBytes, storageCapBytes: capBytes } = config;
  const rows = new BlobStore(database.pool);
  const local = storageKind === 'local' ? localStore(config, blobUrlSecret) : undefined;
  const store = local ?? (await openBucket(config, log));
  const blobs = new Blobs({ store, rows, clock, maxBytes, capBytes });
  const transfers =
    local === undefined ? undefined : new Transfers({ files: local, rows, clock, secret: blobUrlSecret });
  return { blobs, store, rows, transfers };
}
