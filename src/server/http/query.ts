/** Parses queries, and the headers Host and Accept. */

/** Name to value; null marks a name that was given more than once. */
export type Query = ReadonlyMap<string, string | null>;

interface ParsedQuery {
  /** Without the parameters that have a malformed escape. */
  readonly values: Query;
  readonly malformed: boolean;
}

/**
 * The longest query that is parsed: valid ones have a token and a few numbers. The library accepts half a megabyte, and
 * a quarter of a million parameters would be parsed before authentication.
 */
export const QUERY_MAX = 4_096;

export const EMPTY_QUERY: ParsedQuery = { values: new Map(), malformed: false };

/** Parses a query. A malformed parameter leaves the others readable, since the refusal has the shape that they name. */
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
      // decodeURIComponent throws for a malformed escape only.
      malformed = true;
    }
  }
  return { values, malformed };
}

/** A name, or an address in brackets, with an optional port, which may be empty (RFC 9110, 7.2; RFC 3986, 3.2.3). */
const HOST = /^(\[[0-9a-f:.]*\]|[^:[\]]*)(?::\d{0,5})?$/i;

/** A name as most clients send it, which needs no parsing. */
const BARE_HOST = /^[a-z0-9.-]+$/;

/**
 * The host name of a Host header, lower case, without port. Empty for other forms, which proxies may parse differently.
 */
export const hostName = (header: string): string =>
  BARE_HOST.test(header) ? header : (HOST.exec(header)?.[1] ?? '').toLowerCase();

/** Whether an Accept header names HTML, as that of a browser that opens a page does. */
export const acceptsHtml = (accept: string): boolean => accept.toLowerCase().includes('text/html');
