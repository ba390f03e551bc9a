/** What two devices show to prove that they hold the same master key. */
import type { Sodium } from '../crypto/sodium.js';
import { lengthPrefixed } from '../protocol/bytes.js';
import { SERVICE_NAME } from '../protocol/limits.js';

const FINGERPRINT_BYTES = 16;

/**
 * The master key's fingerprint: 128 bits of BLAKE2b under a context of its own, as eight groups of four hex digits.
 * Equal on all devices of a vault; it gives nothing away of the key.
 */
export function masterFingerprint(sodium: Sodium, masterKey: Uint8Array): string {
  const input = lengthPrefixed(`${SERVICE_NAME}-master-fingerprint-v1`, masterKey);
  const hex = Array.from(sodium.blake2b(FINGERPRINT_BYTES, input), (byte) => byte.toString(16).padStart(2, '0'));
  return (hex.join('').match(/.{4}/g) ?? []).join(' ');
}
