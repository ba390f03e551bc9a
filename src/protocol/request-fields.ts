/**
 * Decodes and checks fields of requests: binary ones, but for item writes, which have a decoder of their own
 * (tenant/decode.ts), and those of every route that registers a device (reference, Pairing).
 */
import { decodeBase64 } from './base64.js';
import { invalid } from './errors.js';
import { isDisplayName } from './ids.js';
import { KEY_BYTES, NAME_MAX, SIG_BYTES, WRAPPED_MASTER_KEY_MAX, WRAPPED_MASTER_KEY_MIN } from './limits.js';
import type { Device } from './replies.js';
import type { Glyph } from './requests.js';

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

/** A new device as it describes itself. */
export interface NewDevice {
  readonly id: string;
  readonly name: string;
  readonly glyph: Glyph;
  /** X25519 public key, 32 bytes. */
  readonly pubkey: Uint8Array;
  /** 32 bytes, made by a holder of the master key; the server does not require it. */
  readonly cert: Uint8Array | null;
}

/**
 * X25519 points of low order (RFC 7748, section 7; libsodium's list), little-endian hex without the top bit. A shared
 * secret with one is public, and no client can seal to it: such a device would block all writes.
 */
const LOW_ORDER = new Set([
  '00'.repeat(32),
  `01${'00'.repeat(31)}`,
  'e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800',
  '5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157',
  `ec${'ff'.repeat(30)}7f`,
  `ed${'ff'.repeat(30)}7f`,
  `ee${'ff'.repeat(30)}7f`,
]);

function isLowOrder(key: Uint8Array): boolean {
  const bytes = Buffer.from(key);
  bytes[KEY_BYTES - 1] = (bytes[KEY_BYTES - 1] ?? 0) & 0x7f;
  return LOW_ORDER.has(bytes.toString('hex'));
}

/** An X25519 public key: 32 bytes, not of low order. Throws `validation`. */
export function publicKeyField(path: string, value: string): Uint8Array {
  const key = bytesField(path, value, KEY_BYTES);
  if (isLowOrder(key)) throw invalid(path, 'must be a usable X25519 public key');
  return key;
}

/** A device's `name`. Throws `validation`. */
export function nameField(value: string): string {
  if (!isDisplayName(value)) {
    throw invalid(
      'name',
      `must be 1 to ${NAME_MAX} characters without control and text-direction characters, some of them visible`,
    );
  }
  return value;
}

/** A master key sealed to a device. Throws `validation`. */
export const wrappedMasterKeyField = (value: string): Uint8Array =>
  bytesWithin('wrappedMasterKey', value, WRAPPED_MASTER_KEY_MIN, WRAPPED_MASTER_KEY_MAX);

/** A device as replies show it (reference, Pairing). */
export type DeviceReply = Device<Uint8Array>;

/** Drops all fields that replies do not show. */
export function deviceReply(device: DeviceReply): DeviceReply {
  const { id, name, glyph, pubkey, pairedAt } = device;
  return { id, name, glyph, pubkey, pairedAt };
}
