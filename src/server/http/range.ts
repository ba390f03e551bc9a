/** Which part of a file a request asks for (RFC 9110, 14). Pure. */

/** Bytes from `start` up to, and not with, `end`. */
export interface Part {
  readonly start: number;
  readonly end: number;
}

/** A longer list of tags is as none: whoever sends it gets the whole. */
const TAGS_MAX = 4_096;

/** Whether one of the tags of an `If-None-Match` header is this one (RFC 9110, 13.1.2: weakly compared). */
export function hasTag(header: string, etag: string): boolean {
  if (header.length > TAGS_MAX) return false;
  return header.split(',').some((tag) => [etag, `W/${etag}`, '*'].includes(tag.trim()));
}

/**
 * The part that `Range` names, `whole` where all is to be sent, `outside` where it lies outside of the file. A header that
 * is malformed, of another unit, or of several ranges is as none (RFC 9110, 14.2), as is one whose `If-Range` has another
 * tag.
 */
export function partOf(
  { range, ifRange }: { readonly range: string; readonly ifRange: string },
  { size, etag }: { readonly size: number; readonly etag: string },
): Part | 'whole' | 'outside' {
  if (range === '' || (ifRange !== '' && ifRange.trim() !== etag)) return 'whole';
  const found = /^bytes\s*=\s*(\d{0,16})\s*-\s*(\d{0,16})$/i.exec(range.trim());
  if (found === null) return 'whole';
  const [, first = '', last = ''] = found;
  if (first === '' && last === '') return 'whole';
  if (first === '') {
    const suffix = Number(last);
    return suffix === 0 || size === 0 ? 'outside' : { start: Math.max(0, size - suffix), end: size };
  }
  const start = Number(first);
  if (last !== '' && Number(last) < start) return 'whole';
  if (start >= size) return 'outside';
  return { start, end: last === '' ? size : Math.min(size, Number(last) + 1) };
}
