/**
 * What shapes A and B share: the spelling of keys and of bytes (reference, HTTP, The two shapes).
 * Replies and frames are built once as plain objects with camelCase keys and raw bytes; `encode` spells them.
 */
import type typiaLibrary from 'typia';
import { toBase64, toBase64Url } from './base64.js';
import { invalid } from './errors.js';
import type { SpelledBody } from './requests.js';

/** The two spellings of the wire: A is camelCase and base64url, B snake_case and base64. */
export type Shape = 'a' | 'b';

/** `binId` as `bin_id`. */
export const toSnake = (key: string): string => key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

/**
 * A reply or frame in its wire form: keys snake_case in B, bytes base64url (A) or base64 (B). Renaming keys is safe
 * because no reply has keys that are data (a map keyed by device id), except items, which have codecs of their own.
 */
export function encode(shape: Shape, value: unknown): unknown {
  if (value instanceof Uint8Array) return shape === 'a' ? toBase64Url(value) : toBase64(value);
  if (Array.isArray(value)) return value.map((entry) => encode(shape, entry));
  if (value === null || typeof value !== 'object') return value;
  const out: Record<string, unknown> = {};
  for (const [key, entry] of Object.entries(value)) {
    if (entry !== undefined) out[shape === 'a' ? key : toSnake(key)] = encode(shape, entry);
  }
  return out;
}

/** Exists only at build time, as in src/server/http/validators.ts. */
declare const typia: typeof typiaLibrary;

type FieldOf<T> = T extends unknown ? keyof T & string : never;

/** Every field that a request can have. */
const FIELDS: readonly FieldOf<SpelledBody>[] = typia.misc.literals<FieldOf<SpelledBody>>();

/** Maps either spelling of a field to camelCase. */
const SPELLINGS: ReadonlyMap<string, string> = new Map(
  FIELDS.flatMap((name) => [name, toSnake(name)].map((spelling) => [spelling, name] as const)),
);

/**
 * A request body with camelCase keys. B accepts either spelling, but not both of one key. Renames only the keys of this
 * object; callers rename nested objects where the schema has them. Unknown keys are dropped, because renaming 16,000 of
 * them took longer than parsing them (FAIR-41).
 */
export function camelKeys(body: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const out: Record<string, unknown> = {};
  for (const key of Object.keys(body)) {
    const name = SPELLINGS.get(key);
    if (name === undefined) continue;
    if (Object.hasOwn(out, name)) throw invalid(name, 'given in both spellings');
    out[name] = body[key];
  }
  return out;
}

const MARKS_B = ['bin_id', 'ct', 'wrapped', 'size', 'content_type'];
const MARKS_A = ['binId', 'payloadEnc', 'blobRef', 'contentLength', 'contentType'];

/**
 * The shape that a body's keys imply; undefined if they imply none. A body with keys of both is refused. Used only for
 * requests whose query and header specify no shape.
 */
export function shapeOfBody(body: Record<string, unknown>): Shape | undefined {
  const b = MARKS_B.find((key) => Object.hasOwn(body, key));
  const a = MARKS_A.find((key) => Object.hasOwn(body, key));
  if (a !== undefined && b !== undefined) throw invalid(b, `mixes shapes: ${a} is shape A, ${b} is shape B`);
  return b !== undefined ? 'b' : a !== undefined ? 'a' : undefined;
}
