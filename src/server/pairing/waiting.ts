/** Held calls of new devices: each waits for its session to change, one per session (Pairing, step 3). */
import type { Clock, Timer } from '../../protocol/clock.js';

/** Why a wait ended. `look`: the session may have changed, or the time is up. `end`: the call is over. */
type Wake = 'look' | 'end';

/** One held call. */
export class Waiter {
  private wake: ((why: Wake) => void) | undefined;
  private woken = false;
  private ended = false;

  constructor(
    readonly tenantId: string,
    readonly lookupId: string,
    /** Its position in the order in which calls arrived. */
    readonly arrival: number,
  ) {}

  /** Something of the tenant changed. If the call is reading its session meanwhile, its next wait ends at once. */
  notify(): void {
    this.woken = true;
    this.wake?.('look');
  }

  /** The call ends, now or at its next wait. */
  end(): void {
    this.ended = true;
    this.wake?.('end');
  }

  /** Waits for `notify` or the end, at most `ms` milliseconds. */
  async next(clock: Clock, ms: number): Promise<Wake> {
    if (this.ended) return 'end';
    let timer: Timer | undefined;
    try {
      if (this.woken) return 'look';
      return await new Promise<Wake>((resolve) => {
        this.wake = resolve;
        timer = clock.setTimer(ms, () => resolve('look'));
      });
    } finally {
      timer?.cancel();
      this.wake = undefined;
      this.woken = false;
    }
  }
}

/** All held calls of this instance. */
export class Waiters {
  /** By tenant, then by session. */
  private readonly tenants = new Map<string, Map<string, Waiter>>();
  private arrivals = 0;

  /** Numbers a call on arrival, since its first statements may take longer than those of a later call. */
  arrive(): number {
    return ++this.arrivals;
  }

  get size(): number {
    return [...this.tenants.values()].reduce((sum, sessions) => sum + sessions.size, 0);
  }

  /**
   * Adds a held call for the session. Two calls for one session are from the same device: the one that arrived later is
   * held, and the other ends.
   */
  add(tenantId: string, lookupId: string, arrival: number): Waiter {
    const waiter = new Waiter(tenantId, lookupId, arrival);
    const sessions = this.tenants.get(tenantId) ?? new Map<string, Waiter>();
    const before = sessions.get(lookupId);
    if (before !== undefined && before.arrival > arrival) {
      waiter.end();
      return waiter;
    }
    before?.end();
    sessions.set(lookupId, waiter);
    this.tenants.set(tenantId, sessions);
    return waiter;
  }

  remove(waiter: Waiter): void {
    const sessions = this.tenants.get(waiter.tenantId);
    if (sessions?.get(waiter.lookupId) === waiter) sessions.delete(waiter.lookupId);
    if (sessions?.size === 0) this.tenants.delete(waiter.tenantId);
  }

  /** Makes the held calls of a tenant read their sessions again. */
  notify(tenantId: string): void {
    for (const waiter of this.tenants.get(tenantId)?.values() ?? []) waiter.notify();
  }
}
