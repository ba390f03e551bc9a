/**
 * The URL of one PostgreSQL server, or of several of which one accepts writes, in libpq's syntax (PostgreSQL manual,
 * 34.1.1.2 and 34.1.1.3): `postgres://user:password@one:5432,two:5432/name?target_session_attrs=read-write`.
 */

interface DatabaseAddress {
  /** A URL for each server, in order. */
  readonly servers: readonly string[];
  /** Connect only to a server that accepts writes: there are several servers, or the URL demands it. */
  readonly writable: boolean;
}

/** Most servers in one URL. */
const SERVERS_MAX = 8;
/** The servers are between the scheme (and credentials, if any) and the path. */
const PARTS = /^(postgres(?:ql)?:\/\/(?:[^/?#]*@)?)([^/?#@]*)([/?#].*)?$/;
const ATTRIBUTES = 'target_session_attrs';
/** Values of `target_session_attrs` that require a server that accepts writes. */
const WRITABLE = new Set(['read-write', 'primary']);

/** The URL of one server, without `target_session_attrs`; undefined if it is invalid or names no database. */
function serverUrl(text: string): string | undefined {
  if (!URL.canParse(text)) return undefined;
  const url = new URL(text);
  const socket = url.searchParams.get('host');
  // libpq also accepts a list of socket folders (`?host=/a,/b`), which is not supported here.
  if (socket?.includes(',') === true || (url.hostname === '' && socket === null)) return undefined;
  if (url.pathname.length <= 1) return undefined;
  if (!url.searchParams.has(ATTRIBUTES)) return text;
  url.searchParams.delete(ATTRIBUTES);
  return url.href;
}

/** Parses a URL; undefined if it is not a PostgreSQL URL, or asks for servers that do not accept writes. */
export function databaseAddress(text: string): DatabaseAddress | undefined {
  const [, before = '', list = '', after = ''] = PARTS.exec(text) ?? [];
  const servers = list.split(',').map((server) => serverUrl(`${before}${server}${after}`));
  if (before === '' || servers.length > SERVERS_MAX || !servers.every((url) => url !== undefined)) return undefined;
  const wanted = new URL(`${before}x${after}`).searchParams.get(ATTRIBUTES);
  if (wanted !== null && !WRITABLE.has(wanted)) return undefined;
  return { servers, writable: servers.length > 1 || wanted !== null };
}
