/** The object store that the configuration names. */
import { join } from 'node:path';
import type { ObjectStore } from '../ports.js';
import type { StoreLog } from './fault.js';
import { LocalStore } from './local.js';

/** The part of the configuration that is used here; described in src/server/config/config.ts. */
interface StorageSettings {
  readonly storageKind: 'local' | 'gcs' | 's3';
  readonly dataDir: string;
  readonly storagePrefix: string | null;
  readonly gcsBucket: string | null;
  readonly gcsEndpoint: string | null;
  readonly s3Bucket: string | null;
  readonly s3Region: string | null;
  readonly s3Endpoint: string | null;
  readonly s3PublicEndpoint: string | null;
  readonly s3ForcePathStyle: boolean | null;
}

/** The local store of this data folder. */
export const localStore = ({ dataDir }: Pick<StorageSettings, 'dataDir'>, secret: string): LocalStore =>
  new LocalStore(join(dataDir, 'blobs'), secret);

/** The only place where a provider's library is loaded: loading takes long, and the local store needs none. */
export async function openBucket(settings: StorageSettings, log: StoreLog): Promise<ObjectStore> {
  const { storageKind, storagePrefix } = settings;
  const prefix = storagePrefix ?? undefined;
  if (storageKind === 'gcs') {
    const { GcsStore } = await import('./gcs.js');
    const { gcsBucket, gcsEndpoint } = settings;
    return new GcsStore({ bucket: gcsBucket ?? '', prefix, endpoint: gcsEndpoint ?? undefined, log });
  }
  const { S3Store } = await import('./s3.js');
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
export async function withStore<T>(settings: StorageSettings, work: (store: ObjectStore) => Promise<T>): Promise<T> {
  const silent = { warn: () => undefined };
  const store = settings.storageKind === 'local' ? localStore(settings, '') : await openBucket(settings, silent);
  try {
    return await work(store);
  } finally {
    await store.close();
  }
}
