/** What this process knows of a tenant: its items, the version that each change got, and its scheduled time. */

/** Microseconds of the machine's monotonic clock, the same in all processes and threads of it. */
export const nowUs = (): number => Number(process.hrtime.bigint() / 1_000n);

/** An item of the run. */
export interface Entry {
  readonly index: number;
  readonly id: string;
  /** `ts` of the last content that was sent, ms. */
  ts: number;
  /** The last version that was acknowledged; 0: none. */
  version: number;
  /** `busy`: a change is under way. `unknown`: a change was not answered. `refused`: it was never stored. */
  state: 'busy' | 'live' | 'deleted' | 'unknown' | 'refused';
  /** Scheduled time of the change under way, or of the last one, us. */
  sentAt: number;
  /** Of a blob: its ref, and the hash of its plaintext. */
  blob: { readonly ref: string; readonly hash: string } | undefined;
}

/** A change that was acknowledged. */
interface Change {
  readonly entry: Entry;
  /** Index in the tenant of the device that made it. */
  readonly device: number;
  readonly sentAt: number;
  readonly deletes: boolean;
}

/** The records of one tenant. */
export class Ledger {
  readonly entries: Entry[] = [];
  /** The same, by id. */
  readonly byId = new Map<string, Entry>();
  /** Acknowledged changes, by version. */
  readonly changes = new Map<number, Change>();
  /** The last version of each device's changes. */
  private readonly lastBy = new Map<number, number>();
  /** Faults of the server seen during the run. */
  readonly faults = new Set<string>();
  /** Versions of items that this run did not write, as sockets and the audit saw them. */
  readonly foreign = new Set<number>();
  /** Items that may be replaced, deleted or read. */
  private readonly free: Entry[] = [];
  /** Changes whose answer never came. */
  unanswered = 0;

  /** @param base the head before the run. */
  constructor(readonly base: number) {}

  /** Adds a new item whose first write is scheduled for `sentAt` (us, see `nowUs`). */
  begin(id: string, ts: number, sentAt: number): Entry {
    const entry: Entry = {
      ...{ index: this.entries.length, id, ts, version: 0, state: 'busy', sentAt, blob: undefined },
    };
    this.entries.push(entry);
    this.byId.set(id, entry);
    return entry;
  }

  /** Records that the change under way was acknowledged as `version`. */
  acknowledge(entry: Entry, version: number, { device, deletes }: { device: number; deletes: boolean }): void {
    if (this.changes.has(version)) this.faults.add(`version ${version} was returned for two changes`);
    this.changes.set(version, { entry, device, sentAt: entry.sentAt, deletes });
    this.lastBy.set(device, Math.max(this.lastBy.get(device) ?? 0, version));
    entry.version = version;
    if (deletes) entry.state = 'deleted';
    else this.giveBack(entry);
  }

  /** Records that the change under way did not happen, or that this is unknown. */
  fail(entry: Entry, stored: 'no' | 'unknown'): void {
    if (stored === 'unknown') {
      entry.state = 'unknown';
      this.unanswered++;
    } else if (entry.version === 0) entry.state = 'refused';
    else this.giveBack(entry);
  }

  /** Takes a random item that `fits` and is not `busy`, and marks it `busy`; undefined: none found in a few tries. */
  take(fits: (entry: Entry) => boolean = () => true): Entry | undefined {
    for (let tries = 0; tries < 8 && this.free.length > 0; tries++) {
      const at = Math.floor(Math.random() * this.free.length);
      const entry = this.free[at];
      if (entry === undefined || !fits(entry)) continue;
      const last = this.free.pop();
      if (last !== undefined && last !== entry) this.free[at] = last;
      entry.state = 'busy';
      return entry;
    }
    return undefined;
  }

  /** Gives back an item that was taken and not changed. */
  giveBack(entry: Entry): void {
    entry.state = 'live';
    this.free.push(entry);
  }

  /** Scheduled time of the change that gave an item this version. */
  sentAtOf(entry: Entry, version: number): number {
    // The push may arrive before the answer: then it belongs to the change under way.
    return this.changes.get(version)?.sentAt ?? entry.sentAt;
  }

  /** Whether each live socket, in the order of the tenant's devices, has the last change of the other devices. */
  caughtUp(receivers: readonly { readonly live: boolean; readonly at: number }[]): boolean {
    const last = [...this.lastBy];
    return receivers.every(
      ({ live, at }, device) => !live || last.every(([by, version]) => by === device || at >= version),
    );
  }
}
