/** The devices of a tenant (specification, Device; contract 9). */
import type { Clock, Timer } from '../protocol/clock.js';
import { certField, deviceReply, nameField, type DeviceReply } from '../protocol/device-fields.js';
import { ServiceError } from '../protocol/errors.js';
import type { DevicePatchBody } from '../protocol/requests.js';
import { SingleFlight } from '../protocol/single-flight.js';
import { tellChange, type ChangeTeller } from '../protocol/tell.js';
import type { DeviceRecord, DeviceStore, Seen } from './ports.js';

/** What the service is made of. `onFault` is also told when noting that devices were seen failed. */
export interface DevicesOptions extends ChangeTeller {
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

/** A device is noted as seen at most this often while its tenant's devices are not read anew. */
const SEEN_EVERY_MS = 60_000;
/** Sightings are written together after this time. */
const SEEN_FLUSH_MS = 1_000;
const SEEN_PER_WRITE = 2_000;
/** Sightings that wait for a database that stands still; beyond them the oldest go. */
const SEEN_WAITING_MAX = 50_000;

const full = (device: DeviceRecord): FullDevice => ({
  ...deviceReply(device),
  cert: device.cert,
  revokedAt: device.revokedAt,
  lastSeenAt: device.lastSeenAt,
});

/** The devices of all tenants (contract 9). */
export class Devices {
  /** When each device was last noted, ms: by the object that its tenant's actor holds, so it goes with that. */
  private readonly noted = new WeakMap<object, number>();
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
    await tellChange(this.options, tenantId);
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
    await tellChange(this.options, tenantId);
    return { device: full(revoked.device) };
  }

  /**
   * Notes that the device was just seen: at most once a minute for each `device`, written in the background with
   * others. That is the object that stands for it from one reading of its tenant's devices to the next.
   */
  touch(tenantId: string, device: { readonly id: string }): void {
    const now = this.options.clock.now();
    const last = this.noted.get(device);
    if (last !== undefined && now - last < SEEN_EVERY_MS && now >= last) return;
    this.noted.set(device, now);
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

  private async write(): Promise<void> {
    while (this.pending.length > 0) {
      const seen = this.pending.splice(0, SEEN_PER_WRITE);
      try {
        await this.options.store.touch(seen);
      } catch (error) {
        this.options.onFault(error, '');
      }
    }
  }
}
