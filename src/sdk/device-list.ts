/**
 * The tenant's devices, and which of them get keys. The server's list is a claim: a device counts only
 * when its certificate holds under the master key. One that does not stops every write until the user has decided.
 */
import { asError } from '../protocol/error-code.js';
import { certifyDevice, isCertified, type ListedDevice } from '../crypto/device.js';
import { FINGERPRINT_BYTES, fingerprintText } from '../crypto/fingerprint.js';
import type { Sodium } from '../crypto/sodium.js';
import { equalBytes, lengthPrefixed } from '../protocol/bytes.js';
import { SERVICE_NAME } from '../protocol/limits.js';
import { SingleFlight } from '../protocol/single-flight.js';
import { wireBytes } from './api.js';
import { ClientError, isPassing, ProtocolError, UncertifiedDeviceError, type Uncertified } from './errors.js';
import { ListSubscriptions, type Subscription } from './list-subscriptions.js';
import type { DeviceEntry } from './replies.js';
import type { Core } from './core.js';

/**
 * What a person compares between two screens: 128 bits of BLAKE2b over id and public key, as eight groups of four hex
 * digits. Both devices show it for the same device.
 */
export function fingerprintOfDevice(
  sodium: Sodium,
  device: { readonly id: string; readonly pubkey: Uint8Array },
): string {
  const input = lengthPrefixed(`${SERVICE_NAME}-fingerprint-v1`, device.id, device.pubkey);
  return fingerprintText(sodium.blake2b(FINGERPRINT_BYTES, input));
}

/** Devices seen revoked that are remembered. A server that names ever new ones is not read any further. */
const REVOKED_MAX = 20_000;

/** The device list as this device believes it. */
export class DeviceList {
  private known: readonly DeviceEntry[] | undefined;
  private readonly reading = new SingleFlight(() => this.readList());
  /** Devices that were seen revoked. Nothing brings one back, so one that stands is the server's doing. */
  private readonly revoked = new Set<string>();

  private readonly followers: ListSubscriptions<DeviceEntry>;

  constructor(
    private readonly options: Pick<Core, 'api' | 'sodium' | 'identity' | 'emit'> & {
      /** The list of an earlier program: believed until the first reading, so that a device out of reach of its server writes. */
      readonly remembered?: readonly DeviceEntry[];
    },
  ) {
    this.followers = new ListSubscriptions(listText, (error) => options.emit('problem', { error }));
    this.known = options.remembered;
    for (const { id, revokedAt } of options.remembered ?? []) if (revokedAt !== null) this.revoked.add(id);
  }

  /** All devices of the last reading, revoked ones too; reads them where that has not happened yet. */
  async list(): Promise<readonly DeviceEntry[]> {
    return this.known ?? this.reading.join();
  }

  /**
   * Reads the list anew, and tells who in it nobody vouches for. Calls during a reading share the one after it: the one
   * under way may have been answered before what they were made for, as where a device was revoked meanwhile.
   */
  refresh(): Promise<readonly DeviceEntry[]> {
    return this.reading.fresh();
  }

  /**
   * Follows the list: as it is now, then each one that differs. It is read again after each `caught_up` and when a
   * device joins or is revoked; who is online at the moment is as of the last reading.
   */
  subscribe(listener: (devices: readonly DeviceEntry[]) => void): Promise<Subscription<DeviceEntry>> {
    return this.followers.follow(listener, () => this.list());
  }

  /** Of the last reading: how many devices are not revoked, and which of them nobody vouches for. Null: none yet. */
  standing(): { readonly active: number; readonly uncertified: readonly Uncertified[] } | null {
    if (this.known === undefined) return null;
    const active = this.known.filter((device) => device.revokedAt === null);
    return { active: active.length, uncertified: this.strangersIn(active) };
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
    if (plain(fingerprintOfDevice(sodium, device)) !== plain(fingerprint)) {
      throw new ClientError(
        'fingerprint',
        `device ${id} has another fingerprint than the one given: it is not that device`,
      );
    }
    const cert = certifyDevice(sodium, identity.masterKey, { id, publicKey: device.pubkey });
    await api.patchDevice(id, { cert: wireBytes(cert) });
    await this.refresh();
  }

  /**
   * Whom to seal a new write for. As `recipients`; where the list was never read and the server is out of reach, this
   * device alone: the write waits, and the server names the devices it misses when it goes out (RETRY-08), which then
   * get their keys as `recipients` allows.
   */
  async sealFor(): Promise<readonly ListedDevice[]> {
    try {
      return await this.recipients();
    } catch (error) {
      if (this.known !== undefined || !isPassing(error)) throw error;
      return [this.ownListed()];
    }
  }

  /** True for a device that was seen revoked. */
  isRevoked(id: string): boolean {
    return this.revoked.has(id);
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
    for (const { id, revokedAt } of [...(this.known ?? []), ...devices]) if (revokedAt !== null) this.revoked.add(id);
    if (this.revoked.size > REVOKED_MAX)
      throw new ProtocolError('the server lists ever new devices', { code: 'too_large' });
    this.known = devices;
    await this.vouchForSelf(devices);
    this.options.emit('devices', { devices });
    this.followers.tell(devices);
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
      .filter((device) => this.revoked.has(device.id) || !isCertified(sodium, identity.masterKey, this.listed(device)))
      .map((device) => ({
        id: device.id,
        name: device.name,
        pairedAt: device.pairedAt,
        fingerprint: fingerprintOfDevice(sodium, device),
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

/** What followers see of a list. When a device was last seen is no change of it. */
const listText = (devices: readonly DeviceEntry[]): string =>
  JSON.stringify(
    devices.map(({ id, name, glyph, pairedAt, revokedAt, online, current, pubkey, cert }) => [
      ...[id, name, glyph, pairedAt, revokedAt, online, current],
      ...[wireBytes(pubkey), cert === null ? null : wireBytes(cert)],
    ]),
  );
