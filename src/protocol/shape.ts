/**
 * What shapes A and B share: the spelling of keys and of bytes (reference, HTTP, The two shapes).
 * Replies and frames are built once as plain objects with camelCase keys and raw bytes; `encode` spells them.
 */
import { toBase64, toBase64Url } from './base64.js';
import { invalid } from './errors.js';
import type { SpelledBody } from './requests.js';

/**
 * One of the two spellings of the wire: A is camelCase and base64url, B snake_case and base64 (reference, HTTP, The two
 * shapes).
 */
export type Shape = 'a' | 'b';

/** Bytes as a shape spells them. */
export const bytesOut = (shape: Shape, bytes: Uint8Array): string =>
  shape === 'a' ? toBase64Url(bytes) : toBase64(bytes);

/** `binId` as `bin_id`. */
export const toSnake = (key: string): string => key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

/**
 * A reply or frame in its wire form: keys snake_case in B, bytes base64url (A) or base64 (B).
 * Values do not change. No reply has keys that are data (a map keyed by device id), so renaming keys is safe;
 * items, which do, have codecs of their own.
 */
export function encode(shape: Shape, value: unknown): unknown {
  if (value instanceof Uint8Array) return bytesOut(shape, value);
  if (Array.isArray(value)) return value.map((entry) => encode(shape, entry));
  if (value === null || typeof value !== 'object') return value;
  const out: Record<string, unknown> = {};
  for (const [key, entry] of Object.entries(value)) {
    if (entry !== undefined) out[shape === 'a' ? key : toSnake(key)] = encode(shape, entry);
  }
  return out;
}

type FieldOf<T> = T extends unknown ? keyof T & string : never;

/** Every field that a request can have. One that is missing here does not compile. */
const FIELDS: Readonly<Record<FieldOf<SpelledBody>, true>> = {
  answer: true,
  attestation: true,
  binId: true,
  blobKeys: true,
  blobNonce: true,
  blobRef: true,
  cert: true,
  challengeId: true,
  claimToken: true,
  code: true,
  confirmation: true,
  contentType: true,
  ct: true,
  currentPassword: true,
  deviceCert: true,
  deviceId: true,
  email: true,
  epk: true,
  force: true,
  glyph: true,
  host: true,
  id: true,
  ifVersion: true,
  items: true,
  key: true,
  master: true,
  meta: true,
  name: true,
  nonce: true,
  password: true,
  passwordTicket: true,
  pubkey: true,
  recoveryPubkey: true,
  reject: true,
  sig: true,
  signature: true,
  size: true,
  slug: true,
  subdomain: true,
  ts: true,
  type: true,
  version: true,
  wrapped: true,
  wrappedMasterKey: true,
};

/** Either spelling of a field to its camelCase one. */
const SPELLINGS: ReadonlyMap<string, string> = new Map(
  Object.keys(FIELDS).flatMap((name): [string, string][] => [
    [name, name],
    [toSnake(name), name],
  ]),
);

/**
 * A request body with camelCase keys. In B either spelling is read; both spellings of one key are refused. Only the
 * keys of this object are renamed: callers rename nested objects where the schema has them. Unknown keys are left out:
 * renaming 16,000 of them took longer than parsing them (FAIR-41).
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
 * The shape a body itself shows, or undefined when it shows none (reference, HTTP, The two shapes).
 * A body with marks of both is refused. Where query or header name a shape, it is not asked.
 */
export function shapeOfBody(body: Record<string, unknown>): Shape | undefined {
  const b = MARKS_B.find((key) => Object.hasOwn(body, key));
  const a = MARKS_A.find((key) => Object.hasOwn(body, key));
  if (a !== undefined && b !== undefined) throw invalid(b, `mixes shapes: ${a} is shape A, ${b} is shape B`);
  return b !== undefined ? 'b' : a !== undefined ? 'a' : undefined;
}
