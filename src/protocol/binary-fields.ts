/** Decodes the binary fields of requests, but for item writes, which have a decoder of their own (tenant/decode.ts). */
import { decodeBase64 } from './base64.js';
import { invalid } from './errors.js';
import { SIG_BYTES } from './limits.js';

/** Which writes need a sig: all, those with a payloadEnc of shape A, or none (reference, HTTP, The two shapes). */
export type RequireSig = 'always' | 'a' | 'never';

function decoded(path: string, value: string): Uint8Array {
  const bytes = decodeBase64(value);
  if (bytes === undefined) throw invalid(path, 'must be base64 or base64url without white space');
  return bytes;
}

/** Decodes base64 of exactly `length` bytes. Throws `validation`. */
export function bytesField(path: string, value: string, length: number): Uint8Array {
  const bytes = decoded(path, value);
  if (bytes.length !== length) throw invalid(path, `must be ${length} bytes, got ${bytes.length}`);
  return bytes;
}

/** Decodes base64 of `min` to `max` bytes. Throws `validation`. */
export function bytesWithin(path: string, value: string, min: number, max: number): Uint8Array {
  const bytes = decoded(path, value);
  if (bytes.length < min || bytes.length > max)
    throw invalid(path, `must be ${min} to ${max} bytes, got ${bytes.length}`);
  return bytes;
}

/** A MAC of 32 bytes (an item tag, a device certificate, a confirmation), or null if absent. Throws `validation`. */
export function macField(path: string, value: string | null | undefined): Uint8Array | null {
  return value === null || value === undefined ? null : bytesField(path, value, SIG_BYTES);
}
