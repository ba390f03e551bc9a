/** The devices of a tenant (specification, Device; contract 9). */
import type { Clock, Timer } from '../protocol/clock.js';
import { certField, deviceReply, nameField, type DeviceReply } from '../protocol/device-fields.js';
import { ServiceError } from '../protocol/errors.js';
import type { DevicePatchBody } from '../protocol/requests.js';
import type { DevicePatch, DeviceRecord, DeviceStore, Seen } from './ports.js';

export interface DevicesOptions {
  readonly store: DeviceStore;
  readonly clock: Clock;
  readonly changed: (tenantId: string) => Promise<void>;
  /** Devices of a tenant that hold a socket, on any instance. */
  readonly online: (tenantId: string) => Promise<ReadonlySet<string>>;
  /** Told when noting that devices were seen failed. Nothing else is lost by it. */
  readonly onFault: (error: unknown) => void;
}

/** A device with what only the tenant's own devices are told. Times are milliseconds since 1970. */
export interface FullDevice extends DeviceReply {
  readonly cert: Uint8Array | null;
  readonly revokedAt: number | null;
  readonly lastSeenAt: number | null;
}

export interface ListedDevice extends FullDevice {
  readonly online: boolean;
  /** True for the device that asks. */
  readonly current: boolean;
}

/** A device is noted as seen at most this often. */
const SEEN_EVERY_MS = 60_000;
/** Sightings are written together after this time. */
const SEEN_FLUSH_MS = 1_000;
const SEEN_PER_WRITE = 2_000;

const full = (device: DeviceRecord): FullDevice => ({
  ...deviceReply(device),
  cert: device.cert,
  revokedAt: device.revokedAt,
  lastSeenAt: device.lastSeenAt,
});

export class Devices {
  /** When each device was last noted, ms: by the object that its tenant's actor holds, so it goes with that. */
  private readonly noted = new WeakMap<object, number>();
  private pending: Seen[] = [];
  private timer: Timer | undefined;
  private flushing: Promise<void> = Promise.resolve();

  constructor(private readonly options: DevicesOptions) {}

  /** All devices of the tenant, revoked ones too, oldest first. */
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

  /** Changes name, glyph or certificate; what is absent stays. Throws `device_not_found`, `validation`. */
  async patch(tenantId: string, id: string, body: DevicePatchBody): Promise<{ device: FullDevice }> {
    const patch: DevicePatch = {
      ...(body.name === undefined ? {} : { name: nameField('name', body.name) }),
      ...(body.glyph === undefined ? {} : { glyph: body.glyph }),
      ...(body.cert === undefined ? {} : { cert: certField('cert', body.cert) }),
    };
    const verdict = await this.options.store.patchDevice(tenantId, id, patch);
    if (verdict !== 'ok') throw new ServiceError(verdict);
    await this.options.changed(tenantId);
    return { device: await this.known(tenantId, id) };
  }

  /**
   * Revokes a device; `by` is the device that asks, so that one which was revoked a moment ago cannot go on revoking.
   * When it resolves its tokens are dead and its sockets here closed. Again: 200, nothing changes.
   * Throws `device_not_found`, `last_device`, `device_revoked` (the caller's own).
   */
  async revoke(tenantId: string, id: string, by: string | null = null): Promise<{ device: FullDevice }> {
    const verdict = await this.options.store.revokeDevice({ tenantId, id, by, now: this.options.clock.now() });
    if (verdict !== 'ok') throw new ServiceError(verdict);
    await this.options.changed(tenantId);
    return { device: await this.known(tenantId, id) };
  }

  /**
   * Notes that the device was just seen: at most once a minute each, written in the background with others.
   * `device` is the one object that stands for it while its tenant is loaded.
   */
  touch(tenantId: string, device: { readonly id: string }): void {
    const now = this.options.clock.now();
    const last = this.noted.get(device);
    if (last !== undefined && now - last < SEEN_EVERY_MS && now >= last) return;
    this.noted.set(device, now);
    const deviceId = device.id;
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
    this.flushing = this.flushing.then(() => this.write());
    return this.flushing;
  }

  private async write(): Promise<void> {
    while (this.pending.length > 0) {
      const seen = this.pending.splice(0, SEEN_PER_WRITE);
      try {
        await this.options.store.touch(seen);
      } catch (error) {
        this.options.onFault(error);
      }
    }
  }

  private async known(tenantId: string, id: string): Promise<FullDevice> {
    const device = await this.options.store.device(tenantId, id);
    if (device === undefined) throw new ServiceError('device_not_found');
    return full(device);
  }
}
