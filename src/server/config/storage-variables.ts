/** The variables of the object store (Configuration), and the rules between them. */
import {
  flag,
  oneOf,
  optional,
  publicUrl,
  secret,
  SECRET_MAX,
  wholeNumber,
  type ConfigProblem,
  type ValuesOf,
  type Variable,
} from './variables.js';

/** A bucket's name (Google Cloud Storage and S3; dots are allowed, though they spoil TLS under a bucket's own host). */
const BUCKET = /^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$/;
const PREFIX = /^[A-Za-z0-9._-]{1,64}(\/[A-Za-z0-9._-]{1,64}){0,7}$/;
const MIB = 1024 * 1024;

const bucket = (name: string): Variable<string | null> =>
  optional(name, "a bucket's name: 3 to 222 of a-z 0-9 . _ -", (text) => (BUCKET.test(text) ? text : undefined));

const endpoint = (name: string): Variable<string | null> =>
  optional(name, 'an http or https URL without user, query and fragment', publicUrl);

/** See config.ts, VARIABLES. */
export const STORAGE_VARIABLES = {
  /** Where blobs are kept: a folder under `dataDir`, or a bucket. */
  storageKind: oneOf('STORAGE_KIND', ['local', 'gcs', 's3'], 'local'),
  /** Key of the MAC in the local store's URLs; null: generated and kept under `dataDir` (see secrets.ts). */
  blobUrlSecret: secret('BLOB_URL_SECRET', 16, SECRET_MAX),
  /** Bytes of the largest blob; the variable is in MiB. */
  maxBlobBytes: {
    ...wholeNumber('MAX_BLOB_SIZE_MB', { fallback: 1_024, min: 1, max: 1_048_576, unit: 'MiB' }),
    fallback: 1_024 * MIB,
    parse: (text) => {
      const megabytes = /^\d{1,7}$/.test(text) ? Number(text) : 0;
      return megabytes >= 1 && megabytes <= 1_048_576 ? megabytes * MIB : undefined;
    },
  } satisfies Variable<number>,
  /** What names in the bucket begin with, without slashes at its ends; null: nothing. */
  storagePrefix: optional(
    'STORAGE_PREFIX',
    'up to 8 parts of A-Z a-z 0-9 . _ - joined by slashes, none of them . or ..',
    (text) => (PREFIX.test(text) && !text.split('/').some((part) => /^\.{1,2}$/.test(part)) ? text : undefined),
  ),
  gcsBucket: bucket('GCS_BUCKET'),
  /** Another server than Google's. */
  gcsEndpoint: endpoint('GCS_ENDPOINT'),
  s3Bucket: bucket('S3_BUCKET'),
  /** What requests are signed for; null: as the AWS SDK finds it. */
  s3Region: optional('S3_REGION', 'a region such as eu-central-1; auto for R2', (text) =>
    /^[a-z0-9-]{2,64}$/.test(text) ? text : undefined,
  ),
  /** Another server than AWS: R2, MinIO, Ceph. */
  s3Endpoint: endpoint('S3_ENDPOINT'),
  /** What clients reach that server by; null: the same. */
  s3PublicEndpoint: endpoint('S3_PUBLIC_ENDPOINT'),
  /** The bucket in the path instead of the host's name; null: where an endpoint is set. */
  s3ForcePathStyle: optional('S3_FORCE_PATH_STYLE', 'true or false', flag),
};

/** What the chosen store needs. */
export function storageConflicts({
  storageKind,
  gcsBucket,
  s3Bucket,
}: ValuesOf<typeof STORAGE_VARIABLES>): ConfigProblem[] {
  const needs = (name: string): ConfigProblem => {
    return { name, got: 'nothing', takes: `the bucket that blobs are kept in: STORAGE_KIND is ${storageKind}` };
  };
  if (storageKind === 'gcs' && gcsBucket === null) return [needs('GCS_BUCKET')];
  if (storageKind === 's3' && s3Bucket === null) return [needs('S3_BUCKET')];
  return [];
}
