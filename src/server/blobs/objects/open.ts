/** The object store that the configuration names. */
import { join } from 'node:path';
import type { ObjectStore } from '../ports.js';
import type { StoreLog } from './fault.js';
import { LocalStore } from './local.js';

/** Of the configuration, what is used here; described in src/server/config/config.ts. */
export interface StorageSettings {
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

/** The local store under this data folder. */
export const localStore = ({ dataDir }: Pick<StorageSettings, 'dataDir'>, secret: string): LocalStore =>
  new LocalStore({ folder: join(dataDir, 'blobs'), secret });

/** What is set, by its name; null is unset. */
function given<T extends Readonly<Record<string, unknown>>>(values: T): { [K in keyof T]?: Exclude<T[K], null> } {
  const set = Object.entries(values).filter(([, value]) => value !== null);
  return Object.fromEntries(set) as { [K in keyof T]?: Exclude<T[K], null> };
}

/** Whoever keeps blobs in a folder does without the hosted stores' libraries, which take long to load. */
export async function openBucket(settings: StorageSettings, log: StoreLog): Promise<ObjectStore> {
  const { storageKind, storagePrefix: prefix } = settings;
  if (storageKind === 'gcs') {
    const { GcsStore } = await import('./gcs.js');
    const { gcsBucket: bucket, gcsEndpoint: endpoint } = settings;
    return new GcsStore({ bucket: bucket ?? '', ...given({ prefix, endpoint }), log });
  }
  const { S3Store } = await import('./s3.js');
  const { s3Bucket: bucket, s3Region: region, s3Endpoint: endpoint, s3PublicEndpoint: publicEndpoint } = settings;
  const { s3ForcePathStyle: forcePathStyle } = settings;
  return new S3Store({
    bucket: bucket ?? '',
    ...given({ prefix, region, endpoint, publicEndpoint, forcePathStyle }),
    log,
  });
}

/** Gives `work` the store that the configuration names, and closes it after. It can sign nothing with the local store. */
export async function withStore<T>(
  settings: StorageSettings,
  log: StoreLog,
  work: (store: ObjectStore) => Promise<T>,
): Promise<T> {
  const store = settings.storageKind === 'local' ? localStore(settings, '') : await openBucket(settings, log);
  try {
    return await work(store);
  } finally {
    await store.close();
  }
}
