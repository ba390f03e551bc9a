/**
 * Places at the log for replays, given in turn: to tenants, and within one to its devices. However many sockets a tenant
 * has brought up to date, another's waits for no more than the pages that are being read, and requests find the process
 * with time for them (FAIR-25).
 */

type Start = () => void;

/** Replays of one tenant that wait, by device: the next turn is the first one's. */
type WaitingDevices = Map<string, Start[]>;

/** Whose turn it is to be. */
export interface Replayer {
  readonly tenantId: string;
  readonly deviceId: string;
}

/** Has at most so many of them under way at once, and one of a tenant. */
export class ReplayQueue {
  /** Tenants that have a place. */
  private readonly busy = new Set<string>();
  /** Tenants that wait, in the order of their turns. */
  private readonly waiting = new Map<string, WaitingDevices>();

  constructor(private readonly places: number) {}

  /** Does the work when its turn comes. */
  take<T>({ tenantId, deviceId }: Replayer, work: () => Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const start = (): void => {
        // Not before what was read is sent, and requests that came meanwhile were looked at.
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

  /** The first that has no place yet. */
  private nextTenant(): string | undefined {
    for (const tenantId of this.waiting.keys()) if (!this.busy.has(tenantId)) return tenantId;
    return undefined;
  }

  /** Takes the tenant's next out; tenant and device go to the end of their lines. */
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
