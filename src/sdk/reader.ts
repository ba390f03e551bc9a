/**
 * Readers of JSON sent by a server: each turns an unknown value into a typed one, or throws `ProtocolError` with the
 * path. A server is not trusted to follow the protocol. Unknown keys are ignored, because newer servers add some.
 */
import { isObject } from '../protocol/bytes.js';
import { decodeBase64 } from '../protocol/base64.js';
import { isBinId, isUlid } from '../protocol/ids.js';
import { ProtocolError } from './errors.js';

/** Checks a value; `path` names it in the error. */
export type Reader<T> = (value: unknown, path: string) => T;

/** The type that a reader returns. */
export type Read<R> = R extends Reader<infer T> ? T : never;

/** The error of an invalid value. */
export const malformed = (path: string, rule: string): ProtocolError => new ProtocolError(`${path}: ${rule}`);

/** A reader that accepts the values for which `fits` is true. `rule`: the error's text for all others. */
export const matching =
  <T>(rule: string, fits: (value: unknown) => value is T): Reader<T> =>
  (value, path) => {
    if (!fits(value)) throw malformed(path, rule);
    return value;
  };

/** A reader that accepts the texts for which `fits` is true. */
export const matchingText = (rule: string, fits: (value: string) => boolean): Reader<string> =>
  matching(rule, (value): value is string => typeof value === 'string' && fits(value));

/** Any text. */
export const string = matchingText('must be a string', () => true);

/** A text that is not empty. */
export const nonEmpty = matchingText('must be a string that is not empty', (value) => value !== '');

/** A text of 1 to `most` characters: for values that are stored, or sent back to a server. */
export const short = (most: number): Reader<string> =>
  matchingText(`must have 1 to ${most} characters`, ({ length }) => length > 0 && length <= most);

const TOKEN = /^[\x21-\x7e]{1,4096}$/;

/**
 * A token or ticket: characters that are allowed in a header. A token that cannot be sent would never be refused, and
 * so never be replaced.
 */
export const tokenText = matchingText('must be a token', (value) => TOKEN.test(value));

/** True or false. */
export const boolean = matching('must be true or false', (value) => typeof value === 'boolean');

/** True for an integer from 0 to 2^53 - 1: a version, a count, a time in ms. */
export const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && Number(value) >= 0;

/** As `isCount`. */
export const count = matching('must be an integer from 0 to 2^53 - 1', isCount);

/** An item, device or challenge id. */
export const ulidText = matching('must be a ULID', isUlid);

/** A bin's id, which becomes part of a path. */
export const binIdText = matching('must be a bin id', isBinId);

/** Bytes from base64 or base64url: any number, exactly `least`, or `least` to `most`. */
export const bytes =
  (least = 0, most = least === 0 ? Infinity : least): Reader<Uint8Array> =>
  (value, path) => {
    const decoded = typeof value === 'string' ? decodeBase64(value) : undefined;
    if (decoded === undefined) throw malformed(path, 'must be base64');
    const { length } = decoded;
    if (length < least || length > most)
      throw malformed(path, `must be ${least === most ? '' : `${least} to `}${most} bytes, got ${length}`);
    return decoded;
  };

/** Null for null and for an absent field. */
export const nullable =
  <T>(inner: Reader<T>): Reader<T | null> =>
  (value, path) =>
    value === null || value === undefined ? null : inner(value, path);

/** An array of at most `most` entries. */
export const array =
  <T>(inner: Reader<T>, most = Infinity): Reader<T[]> =>
  (value, path) => {
    if (!Array.isArray(value)) throw malformed(path, 'must be an array');
    if (value.length > most)
      throw new ProtocolError(`${path}: must have at most ${most} entries`, { code: 'too_large' });
    return value.map((entry, at) => inner(entry, `${path}[${at}]`));
  };

/** Any object, its fields unread. */
export const record = matching('must be an object', isObject);

/** Maximum levels of an object that is passed on unread. */
const DEPTH_MAX = 8;

const isShallow = (value: unknown, levels: number): boolean =>
  typeof value !== 'object' ||
  value === null ||
  (levels > 0 && Object.values(value).every((inner) => isShallow(inner, levels - 1)));

/** Any object, passed on unread; replaced by an empty one if it is nested too deeply. */
const shallow: Reader<Readonly<Record<string, unknown>>> = (value, path) => {
  const found = record(value, path);
  return isShallow(found, DEPTH_MAX) ? found : {};
};

/** Any text, truncated: for values that are shown or logged. */
const truncated =
  (most: number): Reader<string> =>
  (value, path) =>
    string(value, path).slice(0, most);

/** An object with these fields; others are dropped. */
export const object =
  <S extends Readonly<Record<string, Reader<unknown>>>>(fields: S): Reader<{ readonly [K in keyof S]: Read<S[K]> }> =>
  (value, path) => {
    const source = record(value, path);
    const out: Record<string, unknown> = {};
    for (const [key, read] of Object.entries(fields))
      out[key] = read(Object.hasOwn(source, key) ? source[key] : undefined, path === '' ? key : `${path}.${key}`);
    return out as { readonly [K in keyof S]: Read<S[K]> };
  };

/** One field of an object. */
export const field =
  <T>(key: string, inner: Reader<T>): Reader<T> =>
  (value, path) =>
    object({ [key]: inner })(value, path)[key] as T;

/** An error body; bounded, since it is shown and logged. */
export const errorBody = object({ code: truncated(100), message: truncated(2_000), details: nullable(shallow) });
