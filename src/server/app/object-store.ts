/** The object store that the configuration names. */
import { join } from 'node:path';
import { LocalStore } from '../blobs/objects/local.js';
import type { ObjectStore } from '../blobs/ports.js';
import type { Config } from '../config/config.js';
import type { Log } from '../http/ports.js';

/** The local store of this data folder. */
export const localStore = ({ dataDir }: Pick<Config, 'dataDir'>, secret: string): LocalStore =>
  new LocalStore(join(dataDir, 'blobs'), secret);

/** The only place where a provider's library is loaded: loading takes long, and the local store needs none. */
export async function openBucket(settings: Config, log: Pick<Log, 'warn'>): Promise<ObjectStore> {
  const { storageKind, storagePrefix } = settings;
  const prefix = storagePrefix ?? undefined;
  if (storageKind === 'gcs') {
    const { GcsStore } = await import('../blobs/objects/gcs.js');
    const { gcsBucket, gcsEndpoint } = settings;
    return new GcsStore({ bucket: gcsBucket ?? '', prefix, endpoint: gcsEndpoint ?? undefined, log });
  }
  const { S3Store } = await import('../blobs/objects/s3.js');
  return new S3Store({
    bucket: settings.s3Bucket ?? '',
    prefix,
    region: settings.s3Region ?? undefined,
    endpoint: settings.s3Endpoint ?? undefined,
    publicEndpoint: settings.s3PublicEndpoint ?? undefined,
    forcePathStyle: settings.s3ForcePathStyle ?? undefined,
    log,
  });
}

/** Runs `work` with the store that the configuration names, without a log, and closes it. A local store cannot sign. */
export async function withStore<T>(settings: Config, work: (store: ObjectStore) => Promise<T>): Promise<T> {
  const silent = { warn: () => undefined };
  const store: ObjectStore =
    settings.storageKind === 'local' ? localStore(settings, '') : await openBucket(settings, silent);
  try {
    return await work(store);
  } finally {
    store.close?.();
  }
}
