/** Fingerprints that users compare between two screens: short, yet long enough that no second preimage can be found. */
import { text } from '../protocol/bytes.js';
import { SERVICE_NAME } from '../protocol/limits.js';
import { withDerivedKey, type Sodium } from './sodium.js';

/** Bytes of a hash that are shown: 128 bits. */
export const FINGERPRINT_BYTES = 16;

const MASTER_CONTEXT = text(`${SERVICE_NAME}-master-fingerprint-v1`);

/** 16 bytes as eight groups of four lower-case hex digits. */
export function fingerprintText(hash: Uint8Array): string {
  const hex = Array.from(hash.subarray(0, FINGERPRINT_BYTES), (byte) => byte.toString(16).padStart(2, '0')).join('');
  return (hex.match(/.{4}/g) ?? []).join(' ');
}

/**
 * The master key's fingerprint: the first 16 bytes of B32("service-master-fingerprint-v1", key = master). The same on
 * all devices of a user; it reveals nothing about the key.
 */
export const fingerprintOfMaster = (sodium: Sodium, masterKey: Uint8Array): string =>
  withDerivedKey(sodium, masterKey, MASTER_CONTEXT, fingerprintText);
