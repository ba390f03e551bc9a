/**
 * The tenant's devices, and which of them get keys (contract 9). The server's list is a claim: a device counts only
 * when its certificate holds under the master key. One that does not stops every write until the user has decided.
 */
import { certifyDevice, isCertified, type ListedDevice } from '../crypto/device.js';
import type { Sodium } from '../crypto/sodium.js';
import { equalBytes, lengthPrefixed } from '../protocol/bytes.js';
import { SERVICE_NAME } from '../protocol/limits.js';
import { wireBytes, type DeviceApi } from './api.js';
import { ClientError, UncertifiedDeviceError, type Uncertified } from './errors.js';
import { asError, type Emit } from './events.js';
import type { Identity } from './identity.js';
import type { DeviceEntry } from './replies.js';

const FINGERPRINT_BYTES = 16;

/**
 * What a person compares between two screens: 128 bits of BLAKE2b over id and public key, as eight groups of four hex
 * digits. Both devices show it for the same device.
 */
export function fingerprintOf(sodium: Sodium, device: { readonly id: string; readonly pubkey: Uint8Array }): string {
  const hash = sodium.blake2b(
    FINGERPRINT_BYTES,
    lengthPrefixed(`${SERVICE_NAME}-fingerprint-v1`, device.id, device.pubkey),
  );
  const hex = Array.from(hash, (byte) => byte.toString(16).padStart(2, '0')).join('');
  return (hex.match(/.{4}/g) ?? []).join(' ');
}

/** What the roster needs of its device. */
export interface RosterOptions {
  readonly api: DeviceApi;
  readonly sodium: Sodium;
  readonly identity: Identity;
  readonly emit: Emit;
  /** The list of an earlier program: believed until the first reading, so that a device out of reach of its server writes. */
  readonly remembered?: readonly DeviceEntry[];
}

/** The device list as this device believes it. */
export class Roster {
  private known: readonly DeviceEntry[] | undefined;
  private reading: Promise<readonly DeviceEntry[]> | undefined;

  constructor(private readonly options: RosterOptions) {
    this.known = options.remembered;
  }

  /** All devices of the last reading, revoked ones too; reads them where that has not happened yet. */
  async list(): Promise<readonly DeviceEntry[]> {
    return this.known ?? this.refresh();
  }

  /** Reads the list now, and tells who in it nobody vouches for. Calls that come meanwhile share the reading. */
  refresh(): Promise<readonly DeviceEntry[]> {
    this.reading ??= this.readList().finally(() => {
      this.reading = undefined;
    });
    return this.reading;
  }

  /** Whom to seal for: every device that is not revoked. Throws `UncertifiedDeviceError`. */
  async recipients(): Promise<readonly ListedDevice[]> {
    const active = (await this.list()).filter((device) => device.revokedAt === null);
    const strangers = this.strangersIn(active);
    if (strangers.length > 0) throw new UncertifiedDeviceError(strangers);
    return active.map((device) => this.listed(device));
  }

  /**
   * Vouches for a device after its fingerprint was compared with the one on its own screen. The fingerprint is asked
   * for so that the server cannot put another key in the device's place between the comparison and this call.
   */
  async certify(id: string, fingerprint: string): Promise<void> {
    const { api, sodium, identity } = this.options;
    const device = (await this.refresh()).find((entry) => entry.id === id);
    if (device === undefined) throw new ClientError('unknown_device', `there is no device ${id}`);
    const plain = (text: string): string => text.replace(/[\s:-]/g, '').toLowerCase();
    if (plain(fingerprintOf(sodium, device)) !== plain(fingerprint)) {
      throw new ClientError(
        'fingerprint',
        `device ${id} has another fingerprint than the one given: it is not that device`,
      );
    }
    const cert = certifyDevice(sodium, identity.masterKey, { id, publicKey: device.pubkey });
    await api.patchDevice(id, { cert: wireBytes(cert) });
    await this.refresh();
  }

  /** Gives a device another name, for everybody to see. Throws `ClientError` `unknown_device`. */
  async rename(id: string, name: string): Promise<void> {
    if (!(await this.refresh()).some((entry) => entry.id === id)) {
      throw new ClientError('unknown_device', `there is no device ${id}`);
    }
    await this.options.api.patchDevice(id, { name });
    await this.refresh();
  }

  private async readList(): Promise<readonly DeviceEntry[]> {
    const devices = await this.options.api.devices();
    this.known = devices;
    await this.vouchForSelf(devices);
    this.options.emit('devices', { devices });
    const strangers = this.strangersIn(devices.filter((device) => device.revokedAt === null));
    if (strangers.length > 0) this.options.emit('uncertified', { devices: strangers });
    return devices;
  }

  /** This device needs nobody else's word for itself; the others do, so the certificate is stored where it is lacking. */
  private async vouchForSelf(devices: readonly DeviceEntry[]): Promise<void> {
    const { api, sodium, identity } = this.options;
    const own = devices.find((device) => device.id === identity.deviceId);
    if (own === undefined || !equalBytes(own.pubkey, identity.keys.publicKey)) return;
    if (isCertified(sodium, identity.masterKey, { id: own.id, publicKey: own.pubkey, cert: own.cert })) return;
    try {
      await api.patchDevice(own.id, { cert: wireBytes(this.ownListed().cert) });
    } catch (error) {
      // Own writes do not need it. The other devices will say so, and at the next reading it is tried again.
      this.options.emit('problem', { error: asError(error) });
    }
  }

  private strangersIn(devices: readonly DeviceEntry[]): Uncertified[] {
    const { sodium, identity } = this.options;
    return devices
      .filter((device) => !isCertified(sodium, identity.masterKey, this.listed(device)))
      .map((device) => ({
        id: device.id,
        name: device.name,
        pairedAt: device.pairedAt,
        fingerprint: fingerprintOf(sodium, device),
      }));
  }

  private listed(device: DeviceEntry): ListedDevice {
    // Of itself a device knows better than the list: a foreign key under its own id is not taken over.
    if (device.id === this.options.identity.deviceId) return this.ownListed();
    return { id: device.id, publicKey: device.pubkey, cert: device.cert };
  }

  private ownListed(): ListedDevice & { readonly cert: Uint8Array } {
    const { sodium, identity } = this.options;
    const own = { id: identity.deviceId, publicKey: identity.keys.publicKey };
    return { ...own, cert: certifyDevice(sodium, identity.masterKey, own) };
  }
}
