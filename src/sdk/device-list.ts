/**
 * The tenant's devices, and which of them get keys. The server's list is not trusted: a device is accepted only if its
 * certificate verifies under the master key. A device without a valid certificate blocks every write until the user
 * certifies or revokes it.
 */
import { toBase64Url } from '../protocol/base64.js';
import { asError } from '../protocol/error-code.js';
import { certifyDevice, isCertified, type ListedDevice } from '../crypto/device.js';
import { FINGERPRINT_BYTES, fingerprintText } from '../crypto/fingerprint.js';
import type { Sodium } from '../crypto/sodium.js';
import { equalBytes, lengthPrefixed } from '../protocol/bytes.js';
import { within } from '../protocol/clock.js';
import { SERVICE_NAME } from '../protocol/limits.js';
import { SingleFlight } from '../protocol/single-flight.js';
import { ClientError, isTransient, ProtocolError, UncertifiedDeviceError, type Uncertified } from './errors.js';
import { ListSubscriptions, type Subscription } from './list-subscriptions.js';
import { devicesJson, LEFT_OUT_MAX, type DeviceEntry } from './replies.js';
import type { Core } from './core.js';

/**
 * The fingerprint that users compare between two screens: 128 bits of BLAKE2b over id and public key, as eight groups
 * of four hex digits. Both devices show the same one for the same device.
 */
export function fingerprintOfDevice(
  sodium: Sodium,
  device: { readonly id: string; readonly pubkey: Uint8Array },
): string {
  const input = lengthPrefixed(`${SERVICE_NAME}-fingerprint-v1`, device.id, device.pubkey);
  return fingerprintText(sodium.blake2b(FINGERPRINT_BYTES, input));
}

/** How long a write waits for the first reading of the list: a silent server must not delay showing the write. */
const FIRST_READ_MS = 1_000;

/** Most revoked devices remembered in a run. Above it the list is refused (`too_large`), so that memory stays bounded. */
const REVOKED_MAX = 20_000;

/** The verified device list. */
export class DeviceList {
  private known: readonly DeviceEntry[] | undefined;
  private readonly reading = new SingleFlight(() => this.readList());
  /**
   * Devices once listed as revoked, and when that was, ms. Revocation is final: one that is listed as active again is
   * uncertified, in later runs too, whose `remembered` is the list with what `withRevoked` adds.
   */
  private readonly revoked = new Map<string, number>();

  /** True while the first reading takes longer than `FIRST_READ_MS`: see `readInTime`. */
  private late = false;
  private readonly subscriptions: ListSubscriptions<DeviceEntry>;

  constructor(
    private readonly options: Pick<Core, 'api' | 'sodium' | 'identity' | 'emit' | 'clock'> & {
      /**
       * The list of an earlier run: used until the first reading, so that a device can write while its server is
       * unreachable.
       */
      readonly remembered?: readonly DeviceEntry[];
    },
  ) {
    this.subscriptions = new ListSubscriptions(listText, (error) => options.emit('problem', { error }));
    this.known = options.remembered;
    this.noteRevoked(options.remembered ?? []);
  }

  /** All devices of the last reading, revoked ones included; reads the list if that has not happened yet. */
  async list(): Promise<readonly DeviceEntry[]> {
    return this.known ?? this.reading.join();
  }

  /**
   * Reads the list and reports uncertified devices. Calls during a reading share the next one, because the current
   * reading may be older than the change that caused the call (a revocation, for example).
   */
  refresh(): Promise<readonly DeviceEntry[]> {
    return this.reading.fresh();
  }

  /**
   * Subscribes to the list: the current one first, then each one that differs. It is read again after each `caught_up`
   * and when a device joins or is revoked; `online` is as of the last reading.
   */
  subscribe(listener: (devices: readonly DeviceEntry[]) => void): Promise<Subscription<DeviceEntry>> {
    return this.subscriptions.subscribe(listener, () => this.list());
  }

  /** Counts of the last reading: devices that are not revoked, and uncertified ones. Null before the first reading. */
  counts(): { readonly active: number; readonly uncertified: readonly Uncertified[] } | null {
    if (this.known === undefined) return null;
    const active = this.known.filter(isActive);
    return { active: active.length, uncertified: this.uncertifiedIn(active) };
  }

  /** The devices to seal for: all that are not revoked. Throws `UncertifiedDeviceError`. */
  async recipients(): Promise<readonly ListedDevice[]> {
    const active = (await this.list()).filter(isActive);
    const uncertified = this.uncertifiedIn(active);
    if (uncertified.length > 0) throw new UncertifiedDeviceError(uncertified);
    return active.map((device) => this.listed(device));
  }

  /**
   * Certifies a device after its fingerprint was compared with the one on its own screen. The fingerprint is a
   * parameter so that the server cannot replace the key between the comparison and this call. Throws `ClientError`
   * `unknown_device`, `revoked_device` or `fingerprint`.
   */
  async certify(id: string, fingerprint: string): Promise<void> {
    const { api, sodium, identity } = this.options;
    const device = await this.entry(id);
    // It stays uncertified here whatever its certificate, so a success would be reported that changes nothing.
    if (this.isRevoked(id)) {
      const way = isActive(device) ? 'the server lists it as active again, so revoke it again' : 'pair it anew';
      throw new ClientError('revoked_device', `device ${id} was revoked: ${way}`);
    }
    const plain = (text: string): string => text.replace(/[\s:-]/g, '').toLowerCase();
    if (plain(fingerprintOfDevice(sodium, device)) !== plain(fingerprint)) {
      throw new ClientError(
        'fingerprint',
        `device ${id} has another fingerprint than the one given: it is not that device`,
      );
    }
    const cert = certifyDevice(sodium, identity.masterKey, { id, publicKey: device.pubkey });
    await api.patchDevice(id, { cert: toBase64Url(cert) });
    await this.refresh();
  }

  /**
   * The devices to seal a new write for: as `recipients`, or only this device where the list was never read and the
   * server is unreachable or silent. The write then waits in the outbox; when it is sent, the server names the missing
   * devices (RETRY-08), which get their keys as `recipients` allows.
   */
  async sealFor(): Promise<readonly ListedDevice[]> {
    try {
      if (this.known === undefined && !(await this.readInTime())) return [this.ownListed()];
      return await this.recipients();
    } catch (error) {
      if (this.known !== undefined || !isTransient(error)) throw error;
      return [this.ownListed()];
    }
  }

  /**
   * Reads the list; false if that takes longer than `FIRST_READ_MS`. The reading then continues in the background, and
   * later calls do not wait for it.
   */
  private async readInTime(): Promise<boolean> {
    if (this.late) return false;
    const read = this.list();
    await within(this.options.clock, FIRST_READ_MS, read, undefined);
    if (this.known !== undefined) return true;
    this.late = true;
    const report = (error: unknown): void => {
      if (!isTransient(error)) this.options.emit('problem', { error: asError(error) });
    };
    read.finally(() => (this.late = false)).catch(report);
    return false;
  }

  /** True for a device that was ever listed as revoked. */
  isRevoked(id: string): boolean {
    return this.revoked.has(id);
  }

  /** Renames a device; all devices of the tenant see the new name. Throws `ClientError` `unknown_device`. */
  async rename(id: string, name: string): Promise<void> {
    await this.entry(id);
    await this.options.api.patchDevice(id, { name });
    await this.refresh();
  }

  private async entry(id: string): Promise<DeviceEntry> {
    const device = (await this.refresh()).find((entry) => entry.id === id);
    if (device === undefined) throw new ClientError('unknown_device', `there is no device ${id}`);
    return device;
  }

  private async readList(): Promise<readonly DeviceEntry[]> {
    const listed = await this.options.api.devices();
    this.noteRevoked(listed);
    if (this.revoked.size > REVOKED_MAX)
      throw new ProtocolError('the server lists ever new devices', { code: 'too_large' });
    const devices = this.withRevoked(listed);
    this.known = devices;
    await this.vouchForSelf(devices);
    this.options.emit('devices', { devices });
    this.subscriptions.deliver(devices);
    const uncertified = this.uncertifiedIn(devices.filter(isActive));
    if (uncertified.length > 0) this.options.emit('uncertified', { devices: uncertified });
    return devices;
  }

  private noteRevoked(devices: readonly DeviceEntry[]): void {
    for (const { id, revokedAt, wasRevokedAt } of devices) {
      const at = revokedAt ?? wasRevokedAt ?? null;
      if (at !== null && !this.revoked.has(id)) this.revoked.set(id, at);
    }
  }

  /**
   * The list with what the server does not say any more: which devices were revoked or certified, and the revoked ones
   * that it leaves out. Without them it could list a device as active in a later run, which would know nothing of that.
   * A device that never had a valid certificate takes no place, as the server can invent any number of them, and needs
   * none, as it gets no keys. Beyond `LEFT_OUT_MAX` the oldest are forgotten: so many certificates makes only who has the
   * master key, and reads everything anyway; refusing the list would let such a device end all writing.
   */
  private withRevoked(listed: readonly DeviceEntry[]): readonly DeviceEntry[] {
    const before = new Map((this.known ?? []).map((device) => [device.id, device]));
    const marked = listed.map((device) => {
      const known = before.get(device.id);
      before.delete(device.id);
      const wasRevokedAt = isActive(device) ? this.revoked.get(device.id) : undefined;
      // The server may take the certificate away, or the key, before it leaves the device out.
      const wasCertified = this.wasCertified(device) || (known !== undefined && this.wasCertified(known));
      return { ...device, ...(wasRevokedAt !== undefined && { wasRevokedAt }), ...(wasCertified && { wasCertified }) };
    });
    const leftOut = [...before.values()].flatMap((device) => {
      const revokedAt = this.revoked.get(device.id);
      if (revokedAt === undefined || !this.wasCertified(device)) return [];
      return { ...device, revokedAt, wasRevokedAt: null, wasCertified: true, online: false };
    });
    return [...marked, ...leftOut.slice(0, LEFT_OUT_MAX)];
  }

  /** True for a device that has a valid certificate, or once had one. */
  private wasCertified(device: DeviceEntry): boolean {
    const { sodium, identity } = this.options;
    return device.wasCertified === true || isCertified(sodium, identity.masterKey, this.listed(device));
  }

  /** Stores this device's own certificate on the server where it is missing, because the other devices need it. */
  private async vouchForSelf(devices: readonly DeviceEntry[]): Promise<void> {
    const { api, sodium, identity } = this.options;
    const own = devices.find((device) => device.id === identity.deviceId);
    if (own === undefined || !equalBytes(own.pubkey, identity.keys.publicKey)) return;
    if (isCertified(sodium, identity.masterKey, { id: own.id, publicKey: own.pubkey, cert: own.cert })) return;
    try {
      await api.patchDevice(own.id, { cert: toBase64Url(this.ownListed().cert) });
    } catch (error) {
      // This device's own writes do not need it. The next reading tries again.
      this.options.emit('problem', { error: asError(error) });
    }
  }

  private uncertifiedIn(devices: readonly DeviceEntry[]): Uncertified[] {
    const { sodium, identity } = this.options;
    return devices
      .filter((device) => this.revoked.has(device.id) || !isCertified(sodium, identity.masterKey, this.listed(device)))
      .map(({ id, name, pairedAt, pubkey }) => {
        const fingerprint = fingerprintOfDevice(sodium, { id, pubkey });
        return { id, name, pairedAt, fingerprint, wasRevoked: this.isRevoked(id) };
      });
  }

  private listed(device: DeviceEntry): ListedDevice {
    // This device's own key never comes from the list: another key under its id is ignored.
    if (device.id === this.options.identity.deviceId) return this.ownListed();
    return { id: device.id, publicKey: device.pubkey, cert: device.cert };
  }

  private ownListed(): ListedDevice & { readonly cert: Uint8Array } {
    const { sodium, identity } = this.options;
    const own = { id: identity.deviceId, publicKey: identity.keys.publicKey };
    return { ...own, cert: certifyDevice(sodium, identity.masterKey, own) };
  }
}

const isActive = ({ revokedAt }: DeviceEntry): boolean => revokedAt === null;

/** The fields whose change notifies subscribers: all but `lastSeenAt`. */
const listText = (devices: readonly DeviceEntry[]): string =>
  JSON.stringify(devicesJson(devices).map((device) => ({ ...device, lastSeenAt: null })));
