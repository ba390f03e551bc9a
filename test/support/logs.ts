/** The commit and the item log to be tested: in memory, or on a database of its own through the lanes of production. */
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { PostgresCommitLanes, type LanesOptions } from '../../src/server/storage/commit/lanes.js';
import { createPool, openClient } from '../../src/server/storage/database.js';
import { PostgresItemLog } from '../../src/server/storage/item-log.js';
import type { Change } from '../../src/server/tenant/change.js';
import type { ItemRow } from '../../src/server/tenant/codec.js';
import { systemClock } from '../../src/protocol/clock.js';
import type { CommitLanes, ItemLog, LogPage } from '../../src/server/tenant/ports.js';
import type { Summary } from '../../src/protocol/item.js';
import { MemoryLog } from './memory-log.js';
import { testDatabase, type WithTeardown } from './postgres.js';

export interface BlobState {
  readonly state: string;
  readonly itemId: string | null;
}

/** A log and what the tests have to do behind its back. */
export interface LogUnderTest {
  readonly lanes: CommitLanes;
  readonly log: ItemLog;
  readonly newTenant: () => Promise<string>;
  /** Devices, bins or state changed. */
  readonly bump: (tenantId: string) => Promise<void>;
  readonly putBlob: (tenantId: string, ref: string, blob: BlobState) => Promise<void>;
  readonly blob: (tenantId: string, ref: string) => Promise<BlobState | undefined>;
  /** The nightly job's hard delete. */
  readonly purge: (tenantId: string, id: string) => Promise<void>;
  readonly storageBytes: (tenantId: string) => Promise<number>;
}

interface Decision {
  /** The change with what was decided of it. */
  readonly outcome: Change;
  readonly summary: Summary;
  readonly generation: number;
}

/** Submits a change and waits for what becomes of it. */
export function commit(lanes: CommitLanes, change: Change): Promise<Decision> {
  return new Promise((resolve, reject) => {
    lanes.submit(change, {
      committed: ([outcome, ...more], standing) => {
        if (outcome === undefined || more.length > 0) reject(new Error('not the one outcome of this change'));
        else resolve({ outcome, ...standing });
      },
      failed: (_, error) => reject(error),
      settled: () => undefined,
    });
  });
}

/** Every row of a tenant, in version order. */
export async function allRows(log: ItemLog, tenantId: string): Promise<readonly ItemRow[]> {
  return (await stored(log, tenantId)).rows;
}

/** Everything that is stored, each row over bytes of its own: those of a page share them, with what lies between. */
export async function stored(log: ItemLog, tenantId: string): Promise<LogPage> {
  const page = await log.page({ tenantId, since: 0, limit: 1_000_000 });
  return { ...page, rows: page.rows.map((row) => row.copy()) };
}

let tenants = 0;
const nextTenant = (): string => `N${++tenants}`.padStart(26, '0');

export function memoryLogs(cap = 0): LogUnderTest {
  const log = new MemoryLog({ cap });
  const later = <T>(work: () => T): Promise<T> => Promise.resolve().then(work);
  return {
    lanes: log,
    log,
    newTenant: () =>
      later(() => {
        const tenantId = nextTenant();
        log.addTenant(tenantId);
        return tenantId;
      }),
    bump: (tenantId) =>
      later(() => {
        log.tenant(tenantId).generation++;
      }),
    putBlob: (tenantId, ref, blob) => later(() => void log.tenant(tenantId).blobs.set(ref, { ...blob })),
    blob: (tenantId, ref) => later(() => log.tenant(tenantId).blobs.get(ref)),
    purge: (tenantId, id) => later(() => log.purge(tenantId, id)),
    storageBytes: (tenantId) => later(() => log.tenant(tenantId).storageBytes),
  };
}

export interface PostgresLogs extends LogUnderTest {
  readonly pool: pg.Pool;
  readonly url: string;
  readonly faults: unknown[];
  /** Another set of lanes on the same database, as another instance has them. */
  readonly moreLanes: (options?: Partial<LanesOptions>) => PostgresCommitLanes;
}

/** A lane's connection. */
export const openLane = (url: string, onLost: (error: Error) => void): Promise<pg.Client> =>
  openClient({ url, name: 'test lane', onLost });

export async function postgresLogs(t: WithTeardown, cap = 0): Promise<PostgresLogs> {
  const { url } = await testDatabase(t);
  const faults: unknown[] = [];
  const pool = createPool({ url, name: 'test', size: 8, onIdleError: (error) => faults.push(error) });
  t.teardown(async () => pool.end());
  const moreLanes = (options: Partial<LanesOptions> = {}): PostgresCommitLanes => {
    const lanes = new PostgresCommitLanes({
      connect: async (onLost) => openLane(url, onLost),
      prepares: true,
      lanes: 2,
      spareCores: true,
      storageCap: cap,
      history: { epoch: 'epoch' },
      clock: systemClock,
      wait: async (ms) => sleep(ms),
      onFault: (error) => faults.push(error),
      ...options,
    });
    t.teardown(async () => lanes.close());
    return lanes;
  };
  const one = async <R extends pg.QueryResultRow>(text: string, values: unknown[]): Promise<R | undefined> =>
    (await pool.query<R>(text, values)).rows[0];
  return {
    pool,
    url,
    faults,
    moreLanes,
    lanes: moreLanes(),
    log: new PostgresItemLog(pool),
    async newTenant() {
      const tenantId = nextTenant();
      await pool.query('INSERT INTO tenants (id, created_at) VALUES ($1, 1)', [tenantId]);
      return tenantId;
    },
    async bump(tenantId) {
      await pool.query('UPDATE tenants SET generation = generation + 1 WHERE id = $1', [tenantId]);
    },
    async putBlob(tenantId, ref, { state, itemId }) {
      const text = 'INSERT INTO blobs (tenant_id, ref, size, state, item_id, created_at) VALUES ($1, $2, 9, $3, $4, 1)';
      await pool.query(text, [tenantId, ref, state, itemId]);
    },
    blob: async (tenantId, ref) =>
      one<pg.QueryResultRow & BlobState>(
        'SELECT state, item_id AS "itemId" FROM blobs WHERE tenant_id = $1 AND ref = $2',
        [tenantId, ref],
      ),
    async purge(tenantId, id) {
      const text =
        'UPDATE items SET type = NULL, ts = NULL, sender_device = NULL, write_hash = NULL WHERE tenant_id = $1 AND id = $2';
      await pool.query(text, [tenantId, id]);
    },
    async storageBytes(tenantId) {
      const row = await one<{ bytes: number }>('SELECT storage_bytes AS bytes FROM tenants WHERE id = $1', [tenantId]);
      return row?.bytes ?? Number.NaN;
    },
  };
}

/**
 * What a tenant's row says of itself and what its items say, which must be the same. The item that changed last holds
 * the head as its version.
 */
export async function sums(pool: pg.Pool, tenantId: string): Promise<{ told: unknown; counted: unknown }> {
  const told = await pool.query<Record<string, number>>(
    'SELECT head, item_count, version_sum, storage_bytes FROM tenants WHERE id = $1',
    [tenantId],
  );
  const counted = await pool.query<Record<string, number>>(
    `SELECT coalesce(max(version), 0) AS head,
       count(*) FILTER (WHERE deleted_at IS NULL) AS item_count,
       coalesce(sum(version) FILTER (WHERE deleted_at IS NULL), 0)::bigint AS version_sum,
       coalesce(sum(coalesce(octet_length(ct), 0) + coalesce(octet_length(keys), 0)
         + coalesce(octet_length(blob_keys), 0)), 0)::bigint AS storage_bytes
     FROM items WHERE tenant_id = $1`,
    [tenantId],
  );
  return { told: told.rows[0], counted: counted.rows[0] };
}
