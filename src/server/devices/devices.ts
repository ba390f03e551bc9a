/** The devices of a tenant. */
import type { Clock, Timer } from '../../protocol/clock.js';
import { certField, deviceReply, nameField, type DeviceReply } from '../../protocol/device-fields.js';
import { ServiceError } from '../../protocol/errors.js';
import type { DevicePatchBody } from '../../protocol/requests.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import { notifyChange, type ChangeNotifier } from '../../protocol/change-notifier.js';
import type { DeviceRecord, DeviceStore, Seen } from './ports.js';

/** What the service is made of. `onFault` is also told when noting that devices were seen failed. */
export interface DevicesOptions extends ChangeNotifier {
  readonly store: DeviceStore;
  readonly clock: Clock;
  /** Devices of a tenant that hold a socket, on any instance. */
  readonly online: (tenantId: string) => Promise<ReadonlySet<string>>;
}

/** A device with what only the tenant's own devices are told. Times are milliseconds since 1970. */
export interface FullDevice extends DeviceReply {
  readonly cert: Uint8Array | null;
  readonly revokedAt: number | null;
  readonly lastSeenAt: number | null;
}

/** A device as `GET /devices` lists it. */
export interface ListedDevice extends FullDevice {
  readonly online: boolean;
  /** True for the device that asks. */
  readonly current: boolean;
}

/** A device is noted as seen at most this often, to the second, while its tenant's devices are not read anew. */
const SEEN_EVERY_S = 60;
/** Sightings are written together after this time. */
const SEEN_FLUSH_MS = 3_000;
const SEEN_PER_WRITE = 4_000;
/** Sightings that wait for a database that stands still; beyond them the oldest go. */
const SEEN_WAITING_MAX = 50_000;

const full = (device: DeviceRecord): FullDevice => ({
  ...deviceReply(device),
  cert: device.cert,
  revokedAt: device.revokedAt,
  lastSeenAt: device.lastSeenAt,
});

/** The devices of all tenants. */
export class Devices {
  private pending: Seen[] = [];
  private timer: Timer | undefined;
  private readonly flushing = new SingleFlight(() => this.write());

  constructor(private readonly options: DevicesOptions) {}

  /** All devices of the tenant, revoked ones too, oldest first. Throws `unavailable`. */
  async list(tenantId: string, currentDeviceId: string): Promise<{ devices: ListedDevice[] }> {
    const [devices, online] = await Promise.all([this.options.store.devices(tenantId), this.options.online(tenantId)]);
    return {
      devices: devices.map((device) => ({
        ...full(device),
        online: device.revokedAt === null && online.has(device.id),
        current: device.id === currentDeviceId,
      })),
    };
  }

  /**
   * Changes name, glyph or certificate; what is absent stays. `by` is the device that asks.
   * Throws `device_not_found`, `validation`, `device_revoked` (the caller's own).
   */
  async patch(tenantId: string, id: string, body: DevicePatchBody, by: string): Promise<{ device: FullDevice }> {
    const fields = {
      ...(body.name === undefined ? {} : { name: nameField('name', body.name) }),
      ...(body.glyph === undefined ? {} : { glyph: body.glyph }),
      ...(body.cert === undefined ? {} : { cert: certField('cert', body.cert) }),
    };
    const patched = await this.options.store.patchDevice({ tenantId, id, by, fields });
    if (patched.verdict !== 'ok') throw new ServiceError(patched.verdict);
    await notifyChange(this.options, tenantId);
    return { device: full(patched.device) };
  }

  /**
   * Revokes a device; `by` is the device that asks, so that one which was revoked a moment ago cannot go on revoking.
   * When it resolves its tokens are dead and its sockets here closed; where the tenant could not be read anew, within
   * 5 s. Again: 200, nothing changes.
   * Throws `device_not_found`, `last_device`, `device_revoked` (the caller's own).
   */
  async revoke(tenantId: string, id: string, by: string): Promise<{ device: FullDevice }> {
    const revoked = await this.options.store.revokeDevice({ tenantId, id, by, now: this.options.clock.now() });
    if (revoked.verdict !== 'ok') throw new ServiceError(revoked.verdict);
    await notifyChange(this.options, tenantId);
    return { device: full(revoked.device) };
  }

  /**
   * Notes that the device was just seen: at most once a minute for each `device`, written in the background with
   * others. That is the object that stands for it from one reading of its tenant's devices to the next: when that was
   * is kept there, and goes with it.
   */
  touch(tenantId: string, device: { readonly id: string; notedAt?: number }): void {
    const now = this.options.clock.now();
    // In whole seconds, which take no memory of their own: a million devices are held.
    const second = Math.floor(now / 1_000);
    const { notedAt = 0 } = device;
    if (second - notedAt < SEEN_EVERY_S && second >= notedAt) return;
    device.notedAt = second;
    const deviceId = device.id;
    if (this.pending.length >= SEEN_WAITING_MAX) this.pending.splice(0, SEEN_PER_WRITE);
    this.pending.push({ tenantId, deviceId, at: now });
    this.timer ??= this.options.clock.setTimer(SEEN_FLUSH_MS, () => {
      this.timer = undefined;
      void this.flush();
    });
  }

  /** Writes what waits; then nothing is under way any more. */
  close(): Promise<void> {
    return this.flush();
  }

  /** Writes what waits. Failures go to `onFault`. */
  flush(): Promise<void> {
    this.timer?.cancel();
    this.timer = undefined;
    return this.flushing.fresh();
  }

  /** What comes meanwhile waits for its own time: a crowd would have a statement written for every few devices. */
  private async write(): Promise<void> {
    for (let left = this.pending.length; left > 0 && this.pending.length > 0; left -= SEEN_PER_WRITE) {
      const seen = this.pending.splice(0, Math.min(left, SEEN_PER_WRITE));
      try {
        await this.options.store.touch(seen);
      } catch (error) {
        this.options.onFault(error, '');
      }
    }
  }
}
