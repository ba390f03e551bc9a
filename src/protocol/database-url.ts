/**
 * The URL of a PostgreSQL, or of several of which one takes writes, as libpq writes it (PostgreSQL manual, 34.1.1.2
 * and 34.1.1.3): `postgres://user:password@one:5432,two:5432/name?target_session_attrs=read-write`.
 */

/** A URL, taken apart. */
export interface DatabaseAddress {
  /** A URL for each server, in their order. */
  readonly servers: readonly string[];
  /** Only a server that takes writes is meant: there are several, or the URL says so. */
  readonly writable: boolean;
}

/** Servers in one URL. */
const SERVERS_MAX = 8;
/** The servers stand between the credentials, or the scheme, and the path. */
const PARTS = /^(postgres(?:ql)?:\/\/(?:[^/?#]*@)?)([^/?#@]*)([/?#].*)?$/;
const ATTRIBUTES = 'target_session_attrs';
/** Values of `target_session_attrs` that mean a server that takes writes. */
const WRITABLE = new Set(['read-write', 'primary']);

/** The URL of one server, without what is no matter of its connection; undefined where it names no database. */
function serverUrl(text: string): string | undefined {
  if (!URL.canParse(text)) return undefined;
  const url = new URL(text);
  const socket = url.searchParams.get('host');
  // A list of sockets' folders (`?host=/a,/b`) is libpq's too, and not read here.
  if (socket?.includes(',') === true || (url.hostname === '' && socket === null)) return undefined;
  if (url.pathname.length <= 1) return undefined;
  if (!url.searchParams.has(ATTRIBUTES)) return text;
  url.searchParams.delete(ATTRIBUTES);
  return url.href;
}

/** Takes a URL apart; undefined where it is not one of PostgreSQL, or asks for servers that do not take writes. */
export function databaseAddress(text: string): DatabaseAddress | undefined {
  const [, before = '', list = '', after = ''] = PARTS.exec(text) ?? [];
  const servers = list.split(',').map((server) => serverUrl(`${before}${server}${after}`));
  if (before === '' || servers.length > SERVERS_MAX || !servers.every((url) => url !== undefined)) return undefined;
  const wanted = new URL(`${before}x${after}`).searchParams.get(ATTRIBUTES);
  if (wanted !== null && !WRITABLE.has(wanted)) return undefined;
  return { servers, writable: servers.length > 1 || wanted !== null };
}
