/** The variables of the object store (contract 14; specification, Configuration constants), and the rules between them. */
import type { Config, ConfigProblem } from './config.js';
import { oneOf, publicUrl, secret, SECRET_MAX, wholeNumber, type Variable } from './variables.js';

/** A bucket's name (Google Cloud Storage and S3; dots are allowed, though they spoil TLS under a bucket's own host). */
const BUCKET = /^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$/;
const PREFIX = /^[A-Za-z0-9._-]{1,64}(\/[A-Za-z0-9._-]{1,64}){0,7}$/;
const MIB = 1024 * 1024;

const bucket = (name: string): Variable<string | null> => ({
  name,
  takes: "a bucket's name: 3 to 222 of a-z 0-9 . _ -",
  fallback: null,
  parse: (text) => (BUCKET.test(text) ? text : undefined),
});

const endpoint = (name: string): Variable<string | null> => ({
  name,
  takes: 'an http or https URL without user, query and fragment',
  fallback: null,
  parse: publicUrl,
});

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
  storagePrefix: {
    name: 'STORAGE_PREFIX',
    takes: 'up to 8 parts of A-Z a-z 0-9 . _ - joined by slashes, none of them . or ..',
    fallback: null,
    parse: (text) => (PREFIX.test(text) && !text.split('/').some((part) => /^\.{1,2}$/.test(part)) ? text : undefined),
  } satisfies Variable<string | null>,
  gcsBucket: bucket('GCS_BUCKET'),
  /** Another server than Google's. */
  gcsEndpoint: endpoint('GCS_ENDPOINT'),
  s3Bucket: bucket('S3_BUCKET'),
  /** What requests are signed for; null: as the AWS SDK finds it. */
  s3Region: {
    name: 'S3_REGION',
    takes: 'a region such as eu-central-1; auto for R2',
    fallback: null,
    parse: (text) => (/^[a-z0-9-]{2,64}$/.test(text) ? text : undefined),
  } satisfies Variable<string | null>,
  /** Another server than AWS: R2, MinIO, Ceph. */
  s3Endpoint: endpoint('S3_ENDPOINT'),
  /** What clients reach that server by; null: the same. */
  s3PublicEndpoint: endpoint('S3_PUBLIC_ENDPOINT'),
  /** The bucket in the path instead of the host's name; null: where an endpoint is set. */
  s3ForcePathStyle: {
    name: 'S3_FORCE_PATH_STYLE',
    takes: 'true or false',
    fallback: null,
    parse: (text) => (text === 'true' || text === 'false' ? text === 'true' : undefined),
  } satisfies Variable<boolean | null>,
};

/** What the chosen store needs. */
export function storageConflicts({ storageKind, gcsBucket, s3Bucket }: Config): ConfigProblem[] {
  const needs = (name: string): ConfigProblem => {
    return { name, got: 'nothing', takes: `the bucket that blobs are kept in: STORAGE_KIND is ${storageKind}` };
  };
  if (storageKind === 'gcs' && gcsBucket === null) return [needs('GCS_BUCKET')];
  if (storageKind === 's3' && s3Bucket === null) return [needs('S3_BUCKET')];
  return [];
}
