/** Forms of the identifiers on the wire (specification, Conventions; contract 5, 6, 9). */
import { NAME_MAX } from './limits.js';

/** A ULID: 26 upper-case Crockford characters, the first at most 7 (48 bits of time). */
export const ULID = /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/;
/** Chosen by the client that makes the bin. */
export const BIN_ID = /^[A-Za-z0-9_-]{1,64}$/;
/** A bin's short name, unique in its tenant. */
export const BIN_SLUG = /^[a-z0-9][a-z0-9-]{0,62}$/;
/** A blob's name: `<ULID>.bin`, drawn by the server. */
export const BLOB_REF = /^[0-7][0-9A-HJKMNP-TV-Z]{25}\.bin$/;

/** A blob of a tenant, as signed URLs, stores and backups name it: `<tenantId>/<ref>` (contract 8). */
export interface BlobName {
  readonly tenantId: string;
  /** `<ULID>.bin`. */
  readonly ref: string;
}

/** True where both parts have their form: nothing else ever becomes a path or a key. */
export const isBlobName = ({ tenantId, ref }: BlobName): boolean => ULID.test(tenantId) && BLOB_REF.test(ref);

/** The name in `<tenantId>/<ref>`; undefined where that is none. */
export function blobNameIn(path: string): BlobName | undefined {
  const [tenantId = '', ref = '', ...more] = path.split('/');
  const name = { tenantId, ref };
  return more.length === 0 && isBlobName(name) ? name : undefined;
}

/** True for a text of the form `ULID`. */
export const isUlid = (value: unknown): value is string => typeof value === 'string' && ULID.test(value);
/** True for a text of the form `BIN_ID`. */
export const isBinId = (value: unknown): value is string => typeof value === 'string' && BIN_ID.test(value);

/**
 * A name a person reads (device names): 1 to 64 characters, well-formed, no control characters and no
 * bidirectional overrides, which could make one name look like another on the approval screen (contract 9).
 */
export function isDisplayName(value: string): boolean {
  const length = Array.from(value).length;
  return (
    length >= 1 && length <= NAME_MAX && !/[\p{Cc}\p{Cs}\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/u.test(value)
  );
}
