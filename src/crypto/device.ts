/** Device certificates: the proof that a holder of the master key vouches for a device. */
import { lengthPrefixed, text } from '../protocol/bytes.js';
import { SERVICE_NAME } from '../protocol/limits.js';
import { CryptoRefusal } from './refusal.js';
import { expectLength, PUBLIC_KEY_BYTES, withDerivedKey, type KeyPair, type Sodium } from './sodium.js';

const CERT_CONTEXT = `${SERVICE_NAME}-device-v1`;
/** The certificate key is B32(this, key = master). */
const CERT_KEY_CONTEXT = text(`${SERVICE_NAME}-device-cert-v1`);

interface DeviceIdentity {
  /** ULID. */
  readonly id: string;
  /** X25519, 32 bytes. */
  readonly publicKey: Uint8Array;
}

/** A device as the server lists it. `cert` is null if no holder of the master key has vouched for it. */
export interface ListedDevice extends DeviceIdentity {
  readonly cert: Uint8Array | null;
}

/** This device with its key pair. */
export interface OwnDevice {
  readonly id: string;
  readonly keys: KeyPair;
}

const certInput = (device: DeviceIdentity): Uint8Array => lengthPrefixed(CERT_CONTEXT, device.id, device.publicKey);

/** deviceCert: crypto_auth(LP("service-device-v1", deviceId, npk), certificate key), 32 bytes (CRYPTO-20). */
export function certifyDevice(sodium: Sodium, masterKey: Uint8Array, device: DeviceIdentity): Uint8Array {
  expectLength('device public key', device.publicKey, PUBLIC_KEY_BYTES);
  return withDerivedKey(sodium, masterKey, CERT_KEY_CONTEXT, (key) => sodium.auth(certInput(device), key));
}

/** True when the device's certificate was made under this master key for exactly this id and public key. */
export function isCertified(sodium: Sodium, masterKey: Uint8Array, device: ListedDevice): boolean {
  const { cert } = device;
  if (cert === null || device.publicKey.length !== PUBLIC_KEY_BYTES) return false;
  return withDerivedKey(sodium, masterKey, CERT_KEY_CONTEXT, (key) => sodium.authVerify(cert, certInput(device), key));
}

/**
 * Throws `uncertified_device`, naming the ids, unless every device's certificate verifies. Called before every sealing
 * of a key, so that no key goes to a device only because the server listed it.
 */
export function expectCertified(sodium: Sodium, masterKey: Uint8Array, devices: readonly ListedDevice[]): void {
  const refused = devices.filter((device) => !isCertified(sodium, masterKey, device)).map((device) => device.id);
  if (refused.length > 0) {
    throw new CryptoRefusal(
      'uncertified_device',
      `no valid certificate for ${refused.join(', ')}: compare the device and certify it, or revoke it`,
    );
  }
}
