/** Devices that a server slips into the list: no key may be sealed for any of them. */
import { certifyDevice } from '../../../src/crypto/device.js';
import { nodeSodium } from '../../../src/crypto/sodium-node.js';
import { newId } from '../../support/client.js';
import { base64url, type Json } from '../proxy.js';

export const spy = nodeSodium.boxKeyPair();
const spyId = newId();

type Change = (devices: readonly Json[]) => readonly Json[];

export interface Slip {
  readonly id: string;
  readonly does: string;
  /** Returns the bent list for the device with this id. */
  readonly change: (deviceId: string) => Change;
}

const added =
  (cert: (devices: readonly Json[]) => unknown) =>
  (devices: readonly Json[]): readonly Json[] => [
    ...devices,
    {
      ...devices[0],
      id: spyId,
      name: 'Spy',
      pubkey: base64url(spy.publicKey),
      cert: cert(devices),
      current: false,
      revokedAt: null,
    },
  ];

const otherThan = (id: string) => (device: Json) => device['id'] !== id && device['revokedAt'] === null;

const slip = (number: number, does: string, change: Slip['change']): Slip => ({ id: `LIAR-${number}`, does, change });

export const SLIPS: readonly Slip[] = [
  slip(56, 'adds a device without a certificate', () => added(() => null)),
  slip(57, 'adds a device with an invented certificate', () => added(() => base64url(Buffer.alloc(32, 3)))),
  slip(58, 'adds a device with the certificate of another', (deviceId) =>
    added((devices) => devices.find(otherThan(deviceId))?.['cert']),
  ),
  slip(59, 'adds a device with a certificate under another master key', () =>
    added(() => {
      const device = { id: spyId, publicKey: spy.publicKey };
      return base64url(certifyDevice(nodeSodium, nodeSodium.random(32), device));
    }),
  ),
  slip(
    60,
    "gives a user's device another key",
    (deviceId) => (devices) =>
      devices.map((device) => (otherThan(deviceId)(device) ? { ...device, pubkey: base64url(spy.publicKey) } : device)),
  ),
];
