/** What people compare between two screens: short, and made so that nobody can find another input that gives the same. */
import { text } from '../protocol/bytes.js';
import { KEY_BYTES, SERVICE_NAME } from '../protocol/limits.js';
import { b32, expectLength, type Sodium } from './sodium.js';

/** Of a hash so many bytes are shown: 128 bits. */
export const FINGERPRINT_BYTES = 16;

const MASTER_CONTEXT = text(`${SERVICE_NAME}-master-fingerprint-v1`);

/** 16 bytes as eight groups of four lower-case hex digits. */
export function fingerprintText(hash: Uint8Array): string {
  const hex = Array.from(hash.subarray(0, FINGERPRINT_BYTES), (byte) => byte.toString(16).padStart(2, '0')).join('');
  return (hex.match(/.{4}/g) ?? []).join(' ');
}

/**
 * The master key's fingerprint: the first 16 bytes of B32("service-master-fingerprint-v1", key = master). All devices
 * of one user show the same; it gives nothing of the key away.
 */
export function fingerprintOfMaster(sodium: Sodium, masterKey: Uint8Array): string {
  expectLength('master key', masterKey, KEY_BYTES);
  return fingerprintText(b32(sodium, MASTER_CONTEXT, masterKey));
}
