/** Removes a revoked device's entries from the stored keys, in batches, in the background. */
import type pg from 'pg';
import { type Clock, MINUTE_MS, monotonic, systemClock, type Timer } from '../../protocol/clock.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import type { KeyPurger } from '../tenant/ports.js';
import { valueOf, withRetry } from './database.js';

const BATCH = 500;
/** Queued purges, of all tenants and of one. A purge beyond this is requested again when its tenant is loaded again. */
const WAITING_MAX = 1_000;
const WAITING_OF_TENANT_MAX = 100;
/** Consecutive failures of one purge, about a quarter of an hour; then it waits until its tenant is loaded again. */
const FAILURES_MAX = 20;
const RETRY_BASE_MS = 1_000;
const RETRY_MAX_MS = MINUTE_MS;

/**
 * Removes a revoked device's entries from the keys of the items that follow `after`, a batch of them. Resolves with the
 * last one; null: all are done, and the device is marked as purged.
 */
export async function purgeSome(pool: pg.Pool, tenantId: string, deviceId: string, after: string) {
  const text = 'SELECT purge_device_keys($1, $2, $3, $4)';
  const last = await withRetry(() => valueOf<string | null>(pool, text, [tenantId, deviceId, after, BATCH]));
  if (last === after) throw new Error('the purge does not advance');
  return last;
}

/** The purge of one revoked device. */
interface Job {
  readonly tenantId: string;
  readonly deviceId: string;
  /** Items up to this id are done. */
  after: string;
  /** Failures since the last successful batch. */
  failures: number;
  /** By `monotonic`, ms. */
  notBefore: number;
}

/**
 * Purges one batch of one device at a time, so that it does not compete with writes; tenants take turns. A failed purge
 * is retried after 1, 2, 4 ... 60 s; the others continue meanwhile.
 */
export class PostgresKeyPurger implements KeyPurger {
  /** In the order of their turns. */
  private waiting: Job[] = [];
  private readonly working = new SingleFlight(() => this.work());
  private timer: Timer | undefined;
  private closing = false;
  private readonly now: () => number;

  /** @param onFault called for every failure, even if it is retried. */
  constructor(
    private readonly pool: pg.Pool,
    private readonly onFault: (error: unknown, tenantId: string) => void,
    private readonly clock: Clock = systemClock,
  ) {
    this.now = monotonic(clock);
  }

  /** Queues the purge of a revoked device, which is marked as purged when it is done. False: there is no room. */
  purge(tenantId: string, deviceId: string): boolean {
    if (this.closing || this.waiting.length >= WAITING_MAX) return false;
    if (this.waiting.filter((job) => job.tenantId === tenantId).length >= WAITING_OF_TENANT_MAX) return false;
    this.waiting.push({ tenantId, deviceId, after: '', failures: 0, notBefore: 0 });
    void this.working.fresh();
    return true;
  }

  /** Resolves when the current batch has ended; unfinished purges are found again by the missing mark. */
  async close(): Promise<void> {
    this.closing = true;
    this.timer?.cancel();
    await this.working.idle();
  }

  private async work(): Promise<void> {
    this.timer?.cancel();
    for (let job = this.takeDue(); job !== undefined; job = this.takeDue()) {
      try {
        if (await this.purgeBatch(job)) this.waiting.unshift(job);
      } catch (error) {
        this.postpone(job);
        this.onFault(error, job.tenantId);
      }
      this.passOn(job);
    }
    if (this.closing || this.waiting.length === 0) return;
    const next = Math.min(...this.waiting.map(({ notBefore }) => notBefore));
    // A timer may fire slightly early: then nothing is due, and another one is set.
    this.timer = this.clock.setTimer(Math.max(0, next - this.now()), () => void this.working.fresh());
  }

  private takeDue(): Job | undefined {
    if (this.closing) return undefined;
    const now = this.now();
    const at = this.waiting.findIndex(({ notBefore }) => notBefore <= now);
    return at < 0 ? undefined : this.waiting.splice(at, 1)[0];
  }

  /** The tenant's purges move to the end, in their order. */
  private passOn({ tenantId }: Job): void {
    const isOwn = (job: Job): boolean => job.tenantId === tenantId;
    this.waiting = [...this.waiting.filter((job) => !isOwn(job)), ...this.waiting.filter(isOwn)];
  }

  private postpone(job: Job): void {
    job.failures++;
    if (job.failures >= FAILURES_MAX) return;
    job.notBefore = this.now() + Math.min(RETRY_MAX_MS, RETRY_BASE_MS * 2 ** (job.failures - 1));
    this.waiting.push(job);
  }

  /** False: the device is done. */
  private async purgeBatch(job: Job): Promise<boolean> {
    const last = await purgeSome(this.pool, job.tenantId, job.deviceId, job.after);
    job.failures = 0;
    if (last !== null) job.after = last;
    return last !== null;
  }
}
