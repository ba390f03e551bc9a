/**
 * Which devices hold a socket, on any instance (`devicesOnline` of `/me`). Each instance knows its own; a table shares
 * them, written two seconds after a change (later in a reconnect storm), and only while other instances exist.
 */
import type pg from 'pg';
import type { Clock, Timer } from '../../protocol/clock.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import { arrayOf, Store } from './query.js';
import { DATABASE_NOW, SEEN_MS } from './registration.js';

const FLUSH_MS = 2_000;
/**
 * Tenants per statement, or 1/FLUSH_PARTS of those waiting if that is more: the rows of a reconnect storm are written
 * over the minutes after it, since during it they would delay the database's reads (bench S6).
 */
const FLUSH_TENANTS = 500;
const FLUSH_PARTS = 20;
/** Number of rows at which a statement ends early. */
const FLUSH_ROWS = 5_000;
const FORGET = 'DELETE FROM presence WHERE instance_id = $1';

/** A device whose sockets changed. */
type Touched = readonly [tenantId: string, deviceId: string, online: boolean];

interface PresenceOptions {
  readonly instanceId: string;
  readonly pool: pg.Pool;
  readonly clock: Clock;
  /** Devices of a tenant with a socket on this instance. */
  readonly local: (tenantId: string) => ReadonlySet<string>;
  /** Tenants with a socket on this instance. */
  readonly tenants: () => readonly string[];
  readonly othersUp: () => boolean;
  readonly onFault: (error: unknown) => void;
}

/** Publishes this instance's devices with sockets, and reads those of the others. One in each process. */
export class Presence extends Store {
  /** Tenants and their devices whose sockets changed since the last flush. */
  private readonly changed = new Map<string, Set<string>>();
  private timer: Timer | undefined;
  private readonly flushing = new SingleFlight(() => this.flush());
  /**
   * True if this instance's rows may be stale, since they were not maintained while there were no other instances: they
   * are deleted first.
   */
  private anew = false;
  private closed = false;

  constructor(private readonly options: PresenceOptions) {
    super(options.pool);
  }

  /** A socket of the device was opened or closed here. */
  touched(tenantId: string, deviceId: string): void {
    if (!this.options.othersUp()) return;
    this.remember(tenantId, deviceId);
    this.schedule();
  }

  private remember(tenantId: string, deviceId: string): void {
    this.changed.set(tenantId, (this.changed.get(tenantId) ?? new Set<string>()).add(deviceId));
  }

  /** Publishes everything after other instances appeared. */
  announceAll(): void {
    this.anew = true;
    this.schedule();
    for (const tenantId of this.options.tenants()) {
      for (const deviceId of this.options.local(tenantId)) this.touched(tenantId, deviceId);
    }
  }

  /** Devices of the tenant with a socket on any instance. Throws `unavailable`. */
  async online(tenantId: string): Promise<ReadonlySet<string>> {
    const here = new Set(this.options.local(tenantId));
    if (!this.options.othersUp()) return here;
    const rows = await this.rows<{ device_id: string }>(
      `SELECT p.device_id FROM presence p JOIN instances i ON i.id = p.instance_id
       WHERE p.tenant_id = $1 AND p.instance_id <> $2
         AND i.seen_at >= ${DATABASE_NOW} - ${SEEN_MS}`,
      [tenantId, this.options.instanceId],
    );
    for (const row of rows) here.add(row.device_id);
    return here;
  }

  /** Resolves when this instance's rows are deleted. */
  async close(): Promise<void> {
    this.closed = true;
    this.timer?.cancel();
    await this.flushing.idle();
    const { instanceId, onFault } = this.options;
    await this.pool.query(FORGET, [instanceId]).catch(onFault);
  }

  private schedule(): void {
    if (this.closed) return;
    this.timer ??= this.options.clock.setTimer(FLUSH_MS, () => {
      this.timer = undefined;
      void this.flushing.fresh();
    });
  }

  private async flush(): Promise<void> {
    const { instanceId, local, onFault } = this.options;
    const rows: Touched[] = [];
    try {
      if (this.anew) await this.pool.query(FORGET, [instanceId]);
      this.anew = false;
      let left = Math.max(FLUSH_TENANTS, Math.ceil(this.changed.size / FLUSH_PARTS));
      for (const [tenantId, devices] of this.changed) {
        const here = local(tenantId);
        for (const deviceId of devices) rows.push([tenantId, deviceId, here.has(deviceId)]);
        this.changed.delete(tenantId);
        if (--left === 0 || rows.length >= FLUSH_ROWS) break;
      }
      await this.write(rows);
    } catch (error) {
      // Written with the next flush, with the state at that time.
      for (const [tenantId, deviceId] of rows) this.remember(tenantId, deviceId);
      onFault(error);
    }
    if (this.anew || this.changed.size > 0) this.schedule();
  }

  private async write(rows: readonly Touched[]): Promise<void> {
    const column = (online: boolean, n: 0 | 1): string =>
      arrayOf(rows.filter((row) => row[2] === online).map((row) => row[n]));
    await this.pool.query(
      // OFFSET forces a lookup per row. Statistics from a time when this instance had no devices estimate one row: a
      // join would then compare each row with every row to be deleted, which took minutes in a reconnect storm.
      `WITH arrived AS (
         INSERT INTO presence (instance_id, tenant_id, device_id)
         SELECT $1, t, d FROM unnest($2::text[], $3::text[]) AS u(t, d) ON CONFLICT DO NOTHING
       )
       DELETE FROM presence WHERE ctid = ANY (ARRAY(
         SELECT gone.ctid FROM unnest($4::text[], $5::text[]) AS u(t, d) CROSS JOIN LATERAL (
           SELECT ctid FROM presence WHERE tenant_id = u.t AND device_id = u.d AND instance_id = $1 OFFSET 0) AS gone))`,
      [this.options.instanceId, column(true, 0), column(true, 1), column(false, 0), column(false, 1)],
    );
  }
}
