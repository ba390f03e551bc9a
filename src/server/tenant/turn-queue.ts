/**
 * Limits concurrent work, round robin between tenants and, within a tenant, between its devices. However many replays
 * of one tenant wait, another tenant's waits only for those under way, and requests are served in between (FAIR-25).
 */

import { Counts } from '../../protocol/counts.js';

type Start = () => void;

/** Waiting work of one tenant by device; the first entry is next. */
type WaitingDevices = Map<string, Start[]>;

type Owner = Record<'tenantId' | 'deviceId', string>;

/**
 * Runs at most `places` pieces of work at once. While `shared` or more are under way, only tenants that have none under
 * way get a place: so one tenant has at most `shared` places, and a few cannot hold all of them.
 */
export class TurnQueue {
  /** Pieces of work under way, of all tenants and by tenant. */
  private running = 0;
  private readonly busy = new Counts();
  /** Waiting tenants, in the order of their turns. */
  private readonly waiting = new Map<string, WaitingDevices>();

  constructor(
    private readonly places: number,
    private readonly shared = 1,
  ) {}

  /** Runs `work` when a place is free; settles like it. */
  take<T>({ tenantId, deviceId }: Owner, work: () => Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const start = (): void => {
        // Only after the result (such as a page) was sent and pending requests were handled.
        const end = (): void => {
          setImmediate(() => {
            this.count(tenantId, -1);
            this.startNext();
          });
        };
        // A synchronous throw of `work` also rejects.
        new Promise<T>((settle) => settle(work())).then(resolve, reject).then(end, end);
      };
      const devices: WaitingDevices = this.waiting.get(tenantId) ?? new Map<string, Start[]>();
      this.waiting.set(tenantId, devices);
      const before = devices.get(deviceId);
      if (before === undefined) devices.set(deviceId, [start]);
      else before.push(start);
      this.startNext();
    });
  }

  private count(tenantId: string, by: 1 | -1): void {
    this.running += by;
    this.busy.add(tenantId, by);
  }

  /** Starts work while places are free: tenants take turns, as do a tenant's devices. */
  private startNext(): void {
    // A tenant that moves to the end of the queue is visited again, until it may have no more or nothing waits.
    for (const [tenantId, devices] of this.waiting) {
      if (this.running >= this.places) return;
      if (this.running >= this.shared && this.busy.of(tenantId) > 0) continue;
      const [first] = devices;
      if (first === undefined) continue;
      this.count(tenantId, 1);
      const [deviceId, starts] = first;
      const start = starts.shift();
      // Device and tenant move to the end of their queues if they have more waiting work.
      devices.delete(deviceId);
      if (starts.length > 0) devices.set(deviceId, starts);
      this.waiting.delete(tenantId);
      if (devices.size > 0) this.waiting.set(tenantId, devices);
      start?.();
    }
  }
}
