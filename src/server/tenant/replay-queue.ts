/**
 * Limits concurrent replay reads, round robin between tenants and, within a tenant, between its devices. However many
 * sockets of one tenant replay, another tenant's waits only for the pages that are being read, and requests are served
 * in between (FAIR-25).
 */

type Start = () => void;

/** Waiting replays of one tenant by device; the first entry is next. */
type WaitingDevices = Map<string, Start[]>;

/** The socket's tenant and device. */
interface Replayer {
  readonly tenantId: string;
  readonly deviceId: string;
}

/** Runs at most `places` replay reads at once, and one for each tenant. */
export class ReplayQueue {
  /** Tenants with a read under way. */
  private readonly busy = new Set<string>();
  /** Tenants that wait, in the order of their turns. */
  private readonly waiting = new Map<string, WaitingDevices>();

  constructor(private readonly places: number) {}

  /** Runs `work` when a place is free; settles as it does. */
  take<T>({ tenantId, deviceId }: Replayer, work: () => Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const start = (): void => {
        // Only after the page was sent and pending requests were handled.
        const end = (): void => {
          setImmediate(() => {
            this.busy.delete(tenantId);
            this.startNext();
          });
        };
        work().then(resolve, reject).then(end, end);
      };
      const line: WaitingDevices = this.waiting.get(tenantId) ?? new Map<string, Start[]>();
      this.waiting.set(tenantId, line);
      const before = line.get(deviceId);
      if (before === undefined) line.set(deviceId, [start]);
      else before.push(start);
      this.startNext();
    });
  }

  private startNext(): void {
    while (this.busy.size < this.places) {
      const tenantId = this.nextTenant();
      if (tenantId === undefined) return;
      this.busy.add(tenantId);
      this.takeFirst(tenantId)?.();
    }
  }

  /** The first waiting tenant without a read under way. */
  private nextTenant(): string | undefined {
    for (const tenantId of this.waiting.keys()) if (!this.busy.has(tenantId)) return tenantId;
    return undefined;
  }

  /** Removes the tenant's next replay; tenant and device move to the end of their queues. */
  private takeFirst(tenantId: string): Start | undefined {
    const line = this.waiting.get(tenantId) ?? new Map<string, Start[]>();
    const [deviceId = '', starts = []] = line.entries().next().value ?? [];
    const start = starts.shift();
    line.delete(deviceId);
    if (starts.length > 0) line.set(deviceId, starts);
    this.waiting.delete(tenantId);
    if (line.size > 0) this.waiting.set(tenantId, line);
    return start;
  }
}
