/**
 * What a client does with the address that a server names for a blob. The server is not trusted, and the address may
 * lead anywhere: no token goes there, no redirect is followed, and nothing but http is spoken.
 */
import type { JsonObject } from '../../crypto/payload.js';
import { ProtocolError } from '../errors.js';

const badUrl = (what: string): ProtocolError =>
  new ProtocolError(`the server names ${what} for a blob`, { code: 'bad_url' });

/**
 * The address, where it is one that may be asked: https, or http where the server itself is reached so. Throws
 * `ProtocolError` `bad_url`; the message never has the address, which is a right by itself.
 */
export function blobAddress(url: string, baseUrl: string): URL {
  if (!URL.canParse(url)) throw badUrl('something that is no address');
  const parsed = new URL(url);
  const plain = parsed.protocol === 'http:' && new URL(baseUrl).protocol === 'http:';
  if (parsed.protocol !== 'https:' && !plain) throw badUrl('an address of a scheme that is not allowed');
  if (parsed.username !== '' || parsed.password !== '') throw badUrl('an address with a user name');
  parsed.hash = '';
  return parsed;
}

/** Headers that stores ask for. Others (cookies, framing, another host) could make one request mean two things. */
const ALLOWED = /^(content-type|content-md5|content-disposition|cache-control|if-none-match|x-[a-z0-9-]{1,60})$/;
const VALUE = /^[\x20-\x7e]{0,1024}$/;
const HEADERS_MAX = 32;

/**
 * What the server wants to be sent with an upload, lower-case names. `content-length` and `host`, which are signed too
 * and which every platform sets by itself, are left out where they are right. Throws `ProtocolError` `bad_url`.
 */
export function uploadHeaders(
  told: JsonObject | null,
  { url, size }: { readonly url: URL; readonly size: number },
): Record<string, string> {
  const entries = Object.entries(told ?? {});
  if (entries.length > HEADERS_MAX) throw badUrl('too many headers');
  const headers: Record<string, string> = {};
  for (const [given, value] of entries) {
    const name = given.toLowerCase();
    if (name === 'content-length' && String(value) === String(size)) continue;
    if (name === 'host' && value === url.host) continue;
    if (!ALLOWED.test(name) || typeof value !== 'string' || !VALUE.test(value))
      throw badUrl('a header that is not allowed');
    headers[name] = value;
  }
  return headers;
}
