/** Parsers of environment variables: numbers, choices, secrets, addresses (config.ts). */
import { isIP } from 'node:net';
import { databaseAddress } from '../../protocol/database-url.js';

/** One environment variable. `parse` returns undefined for an invalid value. */
export interface Variable<T> {
  readonly name: string;
  /** Describes the valid values, with their unit, in the error message. */
  readonly takes: string;
  /** The value when the variable is unset or empty. */
  readonly fallback: T;
  readonly secret?: boolean;
  parse(text: string): T | undefined;
}

/** The values of a table of variables. */
export type ValuesOf<Table> = {
  readonly [K in keyof Table]: Table[K] extends Variable<infer T> ? T : never;
};

/** One invalid variable: its name, its value (never that of a secret) and what it takes. */
export interface ConfigProblem {
  readonly name: string;
  readonly got: string;
  readonly takes: string;
}

/** A variable with a default. */
export const variable = <T>(
  name: string,
  takes: string,
  read: Pick<Variable<T>, 'fallback' | 'parse'>,
): Variable<T> => ({
  name,
  takes,
  ...read,
});

/** A variable that is null when unset. */
export const optional = <T>(name: string, takes: string, parse: Variable<T>['parse']): Variable<T | null> =>
  variable<T | null>(name, takes, { fallback: null, parse });

/** A whole number within bounds; `unit` names what it counts. */
export function wholeNumber(
  name: string,
  [fallback, min, max]: readonly [fallback: number, min: number, max: number],
  unit?: string,
): Variable<number> {
  const parse = (text: string): number | undefined => {
    const value = /^\d{1,16}$/.test(text) ? Number(text) : NaN;
    return value >= min && value <= max ? value : undefined;
  };
  return variable(name, `a whole number from ${min} to ${max}${unit ? ` (${unit})` : ''}`, { fallback, parse });
}

/** One of a few fixed values. */
export function oneOf<const T extends string>(name: string, values: readonly T[], fallback: T): Variable<T> {
  const parse = (text: string): T | undefined => values.find((value) => value === text);
  return variable(name, `one of ${values.join(', ')}`, { fallback, parse });
}

/** A token or key of the operator. It is sent in headers, so it is visible ASCII without spaces. */
export function secret(name: string, min: number, max: number): Variable<string | null> {
  const parse = (text: string): string | undefined =>
    text.length >= min && text.length <= max && /^[\x21-\x7e]+$/.test(text) ? text : undefined;
  const takes = `at least ${min} visible ASCII characters without spaces, at most ${max}`;
  return { ...optional(name, takes, parse), secret: true };
}

/** Longest secret: it has to fit into the headers of a request, 4 KiB altogether. */
export const SECRET_MAX = 1_024;

/** Milliseconds of a day. */
export const DAY_MS = 86_400_000;
/** The maximum of all variables in days: ten years. */
export const TTL_DAYS_MAX = 3_650;

/** Days, which may have a fraction, as milliseconds. */
export function days(text: string): number | undefined {
  const value = /^\d{1,4}(\.\d{1,9})?$/.test(text) ? Math.round(Number(text) * DAY_MS) : 0;
  return value >= 1 && value <= TTL_DAYS_MAX * DAY_MS ? value : undefined;
}

/** Whole days as milliseconds. */
export const wholeDays = (text: string): number | undefined =>
  /^\d{1,4}$/.test(text) && Number(text) <= TTL_DAYS_MAX ? Number(text) * DAY_MS : undefined;

/** A parser of texts that fit `pattern`. */
export const matching =
  (pattern: RegExp) =>
  (text: string): string | undefined =>
    pattern.test(text) ? text : undefined;

/** A host name (RFC 1123). */
const HOST_NAME = /^(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$/i;

const parsedUrl = (text: string): URL | undefined => (URL.canParse(text) ? new URL(text) : undefined);

/** A host name in lower case. */
export const hostName = (text: string): string | undefined => (HOST_NAME.test(text) ? text.toLowerCase() : undefined);

/** A boolean. */
export const flag = (text: string): boolean | undefined =>
  text === 'true' || text === 'false' ? text === 'true' : undefined;

/** Where to listen: an IP address or a host name. */
export const address = (text: string): string | undefined =>
  isIP(text) !== 0 || HOST_NAME.test(text) ? text : undefined;

/** The address of a PostgreSQL database, or of several servers of which one takes writes. */
export const databaseUrl = (text: string): string | undefined =>
  databaseAddress(text) === undefined ? undefined : text;

/** A base URL: without user, query, fragment and trailing slash. */
export function publicUrl(text: string): string | undefined {
  const url = parsedUrl(text);
  if (url === undefined || (url.protocol !== 'http:' && url.protocol !== 'https:')) return undefined;
  if (url.username !== '' || url.password !== '' || url.search !== '' || url.hash !== '') return undefined;
  return `${url.origin}${url.pathname}`.replace(/\/+$/, '');
}

/** A comma-separated list; undefined where an entry is invalid. */
export function list(text: string, entry: (part: string) => string | undefined): readonly string[] | undefined {
  const parts = text.split(',').map((part) => entry(part.trim()));
  return parts.every((part) => part !== undefined) ? Object.freeze(parts) : undefined;
}

/** An origin as browsers write it, or `*`. */
export function origin(text: string): string | undefined {
  if (text === '*') return text;
  const url = parsedUrl(text);
  return (url?.protocol === 'http:' || url?.protocol === 'https:') && url.origin === text.toLowerCase()
    ? url.origin
    : undefined;
}

/** An address or a range, as `address/prefix`. */
export function cidr(text: string): string | undefined {
  const match = /^([0-9a-f.:]+)(?:\/(\d{1,3}))?$/i.exec(text);
  const address = match?.[1] ?? '';
  const bits = isIP(address) === 4 ? 32 : isIP(address) === 6 ? 128 : undefined;
  if (bits === undefined) return undefined;
  const prefix = match?.[2] === undefined ? bits : Number(match[2]);
  return prefix <= bits ? `${address}/${prefix}` : undefined;
}
