/** Forms of the identifiers on the wire (specification, Conventions; contract 5, 6, 9). */

/** A ULID: 26 upper-case Crockford characters, the first at most 7 (48 bits of time). */
export const ULID = /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/;
export const BIN_ID = /^[A-Za-z0-9_-]{1,64}$/;
export const BIN_SLUG = /^[a-z0-9][a-z0-9-]{0,62}$/;
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

export const isUlid = (value: unknown): value is string => typeof value === 'string' && ULID.test(value);
export const isBinId = (value: unknown): value is string => typeof value === 'string' && BIN_ID.test(value);

/**
 * A name a person reads (device names): 1 to 64 characters, well-formed, no control characters and no
 * bidirectional overrides, which could make one name look like another on the approval screen (contract 9).
 */
export function isDisplayName(value: string): boolean {
  const length = Array.from(value).length;
  return length >= 1 && length <= 64 && !/[\p{Cc}\p{Cs}\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/u.test(value);
}
