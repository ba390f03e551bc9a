/** What a URL's query says, and a Host header. */

/** Name to value; null marks a name that was given more than once. */
export type Query = ReadonlyMap<string, string | null>;

/** What a query says. */
export interface ParsedQuery {
  /** Name to value; null marks a name that was given more than once. Parts with a malformed escape are left out. */
  readonly values: Query;
  /** Some part had a malformed escape. */
  readonly malformed: boolean;
}

/**
 * The longest query that is read: ours have a token and a few numbers. The library lets half a megabyte through, and
 * its quarter of a million parts would be read before anybody knows whose they are.
 */
export const QUERY_MAX = 4_096;

/** Of a request without a query. */
export const EMPTY_QUERY: ParsedQuery = { values: new Map(), malformed: false };

/**
 * Reads a query. One bad part leaves the others readable: the refusal needs to know the shape (reference, HTTP, The two
 * shapes).
 */
export function parseQuery(text: string): ParsedQuery {
  if (text === '') return EMPTY_QUERY;
  const values = new Map<string, string | null>();
  let malformed = false;
  for (const part of text.split('&')) {
    const at = part.indexOf('=');
    const [name, value] = at < 0 ? [part, ''] : [part.slice(0, at), part.slice(at + 1)];
    try {
      const key = decodeURIComponent(name.replaceAll('+', ' '));
      const decoded = decodeURIComponent(value.replaceAll('+', ' '));
      values.set(key, values.has(key) ? null : decoded);
    } catch {
      // decodeURIComponent throws for nothing else than a malformed escape.
      malformed = true;
    }
  }
  return { values, malformed };
}

/** A name or an address in brackets, and maybe a port, which may be empty (RFC 9110, 7.2; RFC 3986, 3.2.3). */
const HOST = /^(\[[0-9a-f:.]*\]|[^:[\]]*)(?::\d{0,5})?$/i;

/**
 * The host name of a Host header: lower case, without port. Empty for one of another form, such as one with a user's
 * part: a proxy could read that as another host than we do.
 */
export const hostName = (header: string): string => (HOST.exec(header)?.[1] ?? '').toLowerCase();
