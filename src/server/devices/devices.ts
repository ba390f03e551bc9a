/** Listing, changing and revoking devices, and recording when they were last seen. */
import type { Clock, Timer } from '../../protocol/clock.js';
import { deviceReply, macField, nameField } from '../../protocol/request-fields.js';
import { ServiceError } from '../../protocol/errors.js';
import type { DeviceList, KnownDevice, KnownDeviceReply } from '../../protocol/replies.js';
import type { DevicePatchBody } from '../../protocol/requests.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import { notifyChange, type ChangeNotifier } from '../../protocol/change-notifier.js';
import type { AccountStore, DeviceRecord, Sighting } from './store.js';

/** The dependencies of `Devices`. `onFault` also gets failures to store sightings. */
export interface DevicesOptions extends ChangeNotifier {
  readonly store: Pick<AccountStore, 'devices' | 'patchDevice' | 'revokeDevice' | 'touch'>;
  readonly clock: Clock;
  /** Devices of a tenant that have an open socket, on any instance. */
  readonly online: (tenantId: string) => Promise<ReadonlySet<string>>;
}

/** Minimum time between two recorded sightings of a device, s; it begins anew when its tenant's devices are read. */
const SEEN_EVERY_S = 60;
/**
 * At this interval SEEN_AT_ONCE sightings are written, or 1/SEEN_PARTS of those that wait if that is more. So those of
 * a reconnect storm are written in the minutes after it: in it they would take half of the database's time (bench S6).
 */
const SEEN_FLUSH_MS = 3_000;
const SEEN_AT_ONCE = 500;
const SEEN_PARTS = 20;
/** Sightings in one statement. */
const SEEN_PER_WRITE = 4_000;
/**
 * Maximum of waiting sightings, in a reconnect storm or while the database does not answer: more than a process has
 * sockets. Beyond it the oldest are dropped, and those devices keep an older `lastSeenAt` until they are seen again.
 */
const SEEN_WAITING_MAX = 250_000;

const knownDevice = (device: DeviceRecord): KnownDevice<Uint8Array> => ({
  ...deviceReply(device),
  cert: device.cert,
  revokedAt: device.revokedAt,
  lastSeenAt: device.lastSeenAt,
});

/** Sightings that wait, stored by column: as objects they would take three times the memory (bench S5). */
class WaitingSightings {
  private readonly tenants: string[] = [];
  private readonly devices: string[] = [];
  private readonly times: number[] = [];

  get length(): number {
    return this.times.length;
  }

  push({ tenantId, deviceId, at }: Sighting): void {
    this.tenants.push(tenantId);
    this.devices.push(deviceId);
    this.times.push(at);
  }

  /** Removes the `count` oldest; returns the last of each device: of two in a statement, either could be stored. */
  take(count: number): Sighting[] {
    const [tenants, devices] = [this.tenants.splice(0, count), this.devices.splice(0, count)];
    const found = new Map<string, Sighting>();
    for (const [n, at] of this.times.splice(0, count).entries()) {
      const [tenantId = '', deviceId = ''] = [tenants[n], devices[n]];
      found.set(`${tenantId}/${deviceId}`, { tenantId, deviceId, at });
    }
    return [...found.values()];
  }
}

export class Devices {
  private readonly pending = new WaitingSightings();
  /** How many of `pending` the next write takes; Infinity: all. */
  private due = 0;
  private closed = false;
  private timer: Timer | undefined;
  private readonly flushing = new SingleFlight(() => this.write());

  constructor(private readonly options: DevicesOptions) {}

  /** All devices of the tenant, revoked ones too, oldest first. Throws `unavailable`. */
  async list(tenantId: string, currentDeviceId: string): Promise<DeviceList<Uint8Array>> {
    const [devices, online] = await Promise.all([this.options.store.devices(tenantId), this.options.online(tenantId)]);
    return {
      devices: devices.map((device) => ({
        ...knownDevice(device),
        online: device.revokedAt === null && online.has(device.id),
        current: device.id === currentDeviceId,
      })),
    };
  }

  /**
   * Changes name, glyph or certificate; absent fields stay unchanged. `by` is the calling device.
   * Throws `device_not_found`, `validation`, `device_revoked` (the caller's own).
   */
  async patch(tenantId: string, id: string, body: DevicePatchBody, by: string): Promise<KnownDeviceReply<Uint8Array>> {
    const name = body.name === undefined ? null : nameField(body.name);
    const cert = body.cert === undefined ? undefined : macField('cert', body.cert);
    const patch = { tenantId, id, by, name, glyph: body.glyph ?? null, cert };
    return this.publish(tenantId, await this.options.store.patchDevice(patch));
  }

  /**
   * Revokes a device. `by` is the calling device: one that was itself revoked a moment ago is refused.
   * When it resolves, the device's tokens are invalid and its sockets here closed; within 5 s if the tenant could not
   * be read again. Revoking a revoked device changes nothing and succeeds.
   * Throws `device_not_found`, `last_device`, `device_revoked` (the caller's own).
   */
  async revoke(tenantId: string, id: string, by: string): Promise<KnownDeviceReply<Uint8Array>> {
    const revocation = { tenantId, id, by, now: this.options.clock.now() };
    return this.publish(tenantId, await this.options.store.revokeDevice(revocation));
  }

  /**
   * Records that the device was just seen: at most once a minute for each `device`, written in the background with
   * others. `device` is the object that represents it until its tenant's devices are read again; the time of the last
   * record (`notedAt`, s) is kept on it, so nothing has to be cleaned up when the tenant is dropped.
   */
  touch(tenantId: string, device: { readonly id: string; notedAt?: number }): void {
    const now = this.options.clock.now();
    // Whole seconds fit a small integer, which takes no heap object: a million devices may be in memory.
    const second = Math.floor(now / 1_000);
    const { notedAt = 0 } = device;
    if (second - notedAt < SEEN_EVERY_S && second >= notedAt) return;
    device.notedAt = second;
    if (this.pending.length >= SEEN_WAITING_MAX) this.pending.take(SEEN_PER_WRITE);
    this.pending.push({ tenantId, deviceId: device.id, at: now });
    this.schedule();
  }

  private schedule(): void {
    if (this.closed) return;
    this.timer ??= this.options.clock.setTimer(SEEN_FLUSH_MS, () => {
      this.timer = undefined;
      this.due = Math.max(this.due, SEEN_AT_ONCE, Math.ceil(this.pending.length / SEEN_PARTS));
      void this.flushing.fresh();
    });
  }

  /** Writes the waiting sightings. Once it has resolved, none is written any more. */
  close(): Promise<void> {
    this.closed = true;
    return this.flush();
  }

  /** Writes the waiting sightings. Failures go to `onFault`. */
  flush(): Promise<void> {
    this.timer?.cancel();
    this.timer = undefined;
    this.due = Infinity;
    return this.flushing.fresh();
  }

  /** Sightings that arrive meanwhile wait for the next flush: a reconnect storm must not cost many small statements. */
  private async write(): Promise<void> {
    let left = Math.min(this.due, this.pending.length);
    this.due = 0;
    for (; left > 0 && this.pending.length > 0; left -= SEEN_PER_WRITE) {
      const seen = this.pending.take(Math.min(left, SEEN_PER_WRITE));
      try {
        await this.options.store.touch(seen);
      } catch (error) {
        this.options.onFault(error, '');
      }
    }
    if (this.pending.length > 0) this.schedule();
  }

  /** Announces a stored change, and returns the reply. Throws the store's refusal. */
  private async publish(
    tenantId: string,
    outcome: Awaited<ReturnType<AccountStore['patchDevice']>>,
  ): Promise<KnownDeviceReply<Uint8Array>> {
    if (outcome.verdict !== 'ok') throw new ServiceError(outcome.verdict);
    await notifyChange(this.options, tenantId);
    return { device: knownDevice(outcome) };
  }
}
