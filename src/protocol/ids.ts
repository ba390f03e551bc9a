/** Forms of the identifiers on the wire (reference, HTTP, Ids and sizes). */
import { NAME_MAX } from './limits.js';

/** A ULID: 26 upper-case Crockford characters, the first at most 7 (48 bits of time). */
export const ULID = /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/;
/** Chosen by the client that makes the bin. */
export const BIN_ID = /^[A-Za-z0-9_-]{1,64}$/;
/** A bin's short name, unique in its tenant. */
export const BIN_SLUG = /^[a-z0-9][a-z0-9-]{0,62}$/;
/** A blob's name: `<ULID>.bin`, drawn by the server. */
export const BLOB_REF = /^[0-7][0-9A-HJKMNP-TV-Z]{25}\.bin$/;

/** A blob of a tenant, as signed URLs, stores and backups name it: `<tenantId>/<ref>` (reference, Blobs). */
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

/** What leaves a mark on a screen by itself: no control, no white space, no format character, no filler, no joiner. */
const MARK = /[^\p{Cc}\p{Cf}\p{Cs}\p{Z}\p{M}\p{Default_Ignorable_Code_Point}\s\u2800]/u;

/** True for a text in which there is something to see: not empty, blank, or of characters that nobody sees. */
export const isVisible = (text: string): boolean => MARK.test(text);

/**
 * What a name may not have in it: controls, halves of surrogate pairs, line and paragraph separators, marks and overrides
 * of the reading direction, tag characters (a text that nobody sees), and fillers of no width. The two joiners stay:
 * emoji and several scripts are made with them.
 */
const UNFIT =
  /[\p{Cc}\p{Cs}\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/u;

/** The three flags that are written with tag characters: England, Scotland, Wales. */
const FLAGS =
  /\u{1f3f4}\u{e0067}\u{e0062}(?:\u{e0065}\u{e006e}\u{e0067}|\u{e0073}\u{e0063}\u{e0074}|\u{e0077}\u{e006c}\u{e0073})\u{e007f}/gu;

/**
 * A name a person reads (devices, bins): 1 to 64 characters, something to see among them, and nothing that could make
 * one name look like another on the approval screen (DEV-20).
 */
export function isDisplayName(value: string): boolean {
  const length = Array.from(value).length;
  return length >= 1 && length <= NAME_MAX && !UNFIT.test(value.replace(FLAGS, '')) && isVisible(value);
}
