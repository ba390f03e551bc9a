/** What this process knows of a tenant: its items, which version each change got, and when it was to be sent. */

/** Microseconds of the machine's monotonic clock, the same in all processes and threads of it. */
export const nowUs = (): number => Number(process.hrtime.bigint() / 1_000n);

/** An item of the run. */
export interface Entry {
  readonly index: number;
  readonly id: string;
  /** Of the last content that was sent. */
  ts: number;
  /** The last version that was acknowledged; 0: none. */
  version: number;
  /** `busy`: a change is under way. `unknown`: a change was not answered. `refused`: it was never stored. */
  state: 'busy' | 'live' | 'deleted' | 'unknown' | 'refused';
  /** When the change under way, or the last one, was to be sent. */
  sentAt: number;
  /** Of a blob: its name, and what its bytes hash to. */
  blob: { readonly ref: string; readonly hash: string } | undefined;
}

/** A change that was acknowledged. */
interface Change {
  readonly entry: Entry;
  /** The device that made it, as its place in the tenant. */
  readonly device: number;
  readonly sentAt: number;
  /** A delete. */
  readonly deletes: boolean;
}

/** The book of one tenant. */
export class Ledger {
  readonly entries: Entry[] = [];
  private readonly byId = new Map<string, Entry>();
  /** By version. */
  readonly changes = new Map<number, Change>();
  /** The last version of each device's changes. */
  private readonly lastBy: number[] = [];
  /** What the server did wrong during the run. */
  readonly faults = new Set<string>();
  /** Versions of items that this run did not write, as sockets had them. */
  readonly foreign = new Set<number>();
  /** Items that may be replaced, deleted or read. */
  private readonly free: Entry[] = [];
  /** Changes whose answer never came. */
  unanswered = 0;

  /** @param base the head before the run. */
  constructor(readonly base: number) {}

  /** A new item whose first write is to be sent at `sentAt`. */
  begin(id: string, ts: number, sentAt: number): Entry {
    const entry: Entry = {
      ...{ index: this.entries.length, id, ts, version: 0, state: 'busy', sentAt, blob: undefined },
    };
    this.entries.push(entry);
    this.byId.set(id, entry);
    return entry;
  }

  entryOf(id: string): Entry | undefined {
    return this.byId.get(id);
  }

  /** The change under way is acknowledged as `version`. */
  acknowledge(entry: Entry, version: number, { device, deletes }: { device: number; deletes: boolean }): void {
    if (this.changes.has(version)) this.faults.add(`version ${version} was answered for two changes`);
    this.changes.set(version, { entry, device, sentAt: entry.sentAt, deletes });
    for (let by = this.lastBy.length; by <= device; by++) this.lastBy.push(0);
    this.lastBy[device] = Math.max(this.lastBy[device] ?? 0, version);
    entry.version = version;
    entry.state = deletes ? 'deleted' : 'live';
    if (!deletes) this.free.push(entry);
  }

  /** The change under way did not happen, or nobody knows. */
  fail(entry: Entry, stored: 'no' | 'unknown'): void {
    if (stored === 'unknown') {
      entry.state = 'unknown';
      this.unanswered++;
    } else if (entry.version === 0) entry.state = 'refused';
    else {
      entry.state = 'live';
      this.free.push(entry);
    }
  }

  /** Takes an item on which no change is under way, for a change; undefined: there is none. */
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

  /** When the change of an item by which it got this version was to be sent. */
  sentAtOf(entry: Entry, version: number): number {
    // The push may be here before the answer: then it is of the change under way.
    return this.changes.get(version)?.sentAt ?? entry.sentAt;
  }

  /** Whether the sockets of the tenant's devices, in their order, have the last change that each has to get. */
  arrivedAt(receivers: readonly { readonly live: boolean; readonly at: number }[]): boolean {
    const others = (device: number): number[] => this.lastBy.filter((_, by) => by !== device);
    return receivers.every(({ live, at }, device) => !live || at >= Math.max(0, ...others(device)));
  }
}
