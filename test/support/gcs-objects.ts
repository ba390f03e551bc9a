/** What the stand-in of Google's store keeps, and how it answers for it: objects, ranges, listings, in Google's formats. */
import { createHash } from 'node:crypto';

/** An object of a bucket. */
export interface GcsObject {
  readonly name: string;
  readonly body: Buffer;
  readonly contentType: string;
  readonly generation: number;
  /** Milliseconds since 1970. */
  readonly updated: number;
}

/** What is answered. `body` undefined: none. */
export interface GcsAnswer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: Buffer | undefined;
}

/** A refusal of the XML interface. */
export const xmlError = (status: number, code: string): GcsAnswer => ({
  status,
  headers: { 'content-type': 'application/xml; charset=UTF-8' },
  body: Buffer.from(
    `<?xml version='1.0' encoding='UTF-8'?><Error><Code>${code}</Code><Message>${code}.</Message></Error>`,
  ),
});

/** A refusal of the JSON interface. */
export const jsonError = (code: number, reason: string): GcsAnswer => ({
  ...json({ error: { code, message: `${reason}.`, errors: [{ domain: 'global', reason, message: `${reason}.` }] } }),
  status: code,
});

export const json = (value: unknown): GcsAnswer => ({
  status: 200,
  headers: { 'content-type': 'application/json; charset=UTF-8' },
  body: Buffer.from(JSON.stringify(value)),
});

/** CRC-32C (RFC 3720, appendix B.4), base64 of its four bytes: the library that reads checks it. */
function crc32c(body: Buffer): string {
  let crc = 0xffffffff;
  // By number: an iterator takes seconds for a large body.
  for (let at = 0; at < body.length; at++) crc = (CRC_TABLE[(crc ^ (body[at] ?? 0)) & 0xff] ?? 0) ^ (crc >>> 8);
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE((crc ^ 0xffffffff) >>> 0);
  return bytes.toString('base64');
}

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, index) => {
  let value = index;
  for (let bit = 0; bit < 8; bit++) value = (value & 1) === 1 ? 0x82f63b78 ^ (value >>> 1) : value >>> 1;
  return value;
});

interface Sums {
  readonly crc32c: string;
  readonly md5: Buffer;
}

const known = new WeakMap<Buffer, Sums>();

/** Checksums of a body, which never changes: they are taken once. */
function sumsOf(body: Buffer): Sums {
  const sums = known.get(body) ?? { crc32c: crc32c(body), md5: createHash('md5').update(body).digest() };
  known.set(body, sums);
  return sums;
}

/** Metadata as the JSON interface gives it: 64-bit numbers are text. */
export const metadataOf = ({ name, body, contentType, generation, updated }: GcsObject, bucket: string): object => ({
  kind: 'storage#object',
  id: `${bucket}/${name}/${generation}`,
  name,
  bucket,
  generation: String(generation),
  size: String(body.length),
  contentType,
  md5Hash: sumsOf(body).md5.toString('base64'),
  crc32c: sumsOf(body).crc32c,
  timeCreated: new Date(updated).toISOString(),
  updated: new Date(updated).toISOString(),
});

/** The object, or the part of it that `Range` names (RFC 9110, 14). */
export function contentOf(object: GcsObject, range: string | undefined, disposition: string | undefined): GcsAnswer {
  const { body, contentType, generation, updated } = object;
  const { crc32c, md5 } = sumsOf(body);
  const headers = {
    'content-type': contentType,
    'accept-ranges': 'bytes',
    etag: `"${md5.toString('hex')}"`,
    'last-modified': new Date(updated).toUTCString(),
    'x-goog-generation': String(generation),
    'x-goog-hash': `crc32c=${crc32c},md5=${md5.toString('base64')}`,
    'x-goog-stored-content-length': String(body.length),
    'x-goog-stored-content-encoding': 'identity',
    ...(disposition === undefined ? {} : { 'content-disposition': disposition }),
  };
  if (range === undefined) return { status: 200, headers, body };
  const [, first = '', last = ''] = /^bytes=(\d*)-(\d*)$/.exec(range) ?? [];
  const from = first === '' ? Math.max(0, body.length - Number(last)) : Number(first);
  const to = first === '' || last === '' ? body.length - 1 : Math.min(Number(last), body.length - 1);
  if (from > to) return { ...xmlError(416, 'InvalidRange'), headers: { 'content-range': `bytes */${body.length}` } };
  const part = { 'content-range': `bytes ${from}-${to}/${body.length}` };
  return { status: 206, headers: { ...headers, ...part }, body: body.subarray(from, to + 1) };
}

/** What a listing asks for. */
interface GcsQuery {
  readonly prefix: string;
  readonly max: number;
  /** The last name of the page before; empty: from the beginning. */
  readonly after: string;
}

/** A page of a listing, in the order of names. */
export function listingOf(objects: Iterable<GcsObject>, bucket: string, { prefix, max, after }: GcsQuery): object {
  const all = [...objects]
    .filter(({ name }) => name.startsWith(prefix) && name > after)
    .sort((a, b) => (a.name < b.name ? -1 : 1));
  const page = all.slice(0, max);
  const next =
    all.length > page.length ? { nextPageToken: Buffer.from(page.at(-1)?.name ?? '').toString('base64url') } : {};
  // As Google does: no `items` where there are none.
  const items = page.length === 0 ? {} : { items: page.map((object) => metadataOf(object, bucket)) };
  return { kind: 'storage#objects', ...items, ...next };
}
