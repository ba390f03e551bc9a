/** Every statement that changes several tenants locks them in the order of their ids, so that none deadlock. */
import t from 'tap';
import { blobRef, deleteChange, itemId, TS, writeChange, writeOf } from './support/changes.js';
import { until } from './support/events.js';
import { commit, postgresLogs, type PostgresLogs } from './support/logs.js';

interface Case {
  readonly title: string;
  readonly given?: (logs: PostgresLogs, tenants: readonly string[]) => Promise<unknown>;
  /** Gets the tenants in descending order, as they may be in a batch. */
  readonly work: (logs: PostgresLogs, tenants: readonly string[]) => Promise<unknown>;
}

const each = async (tenants: readonly string[], work: (tenantId: string) => Promise<unknown>): Promise<unknown> =>
  Promise.all(tenants.map(work));

/** In one lane, and submitted in one turn: one batch. */
const writeEach = async (logs: PostgresLogs, tenants: readonly string[]): Promise<unknown> => {
  const lanes = logs.moreLanes({ lanes: 1 });
  return each(tenants, async (tenantId) => commit(lanes, writeChange(writeOf(), { tenantId })));
};

const deleteEach = async (logs: PostgresLogs, tenants: readonly string[]): Promise<unknown> => {
  const lanes = logs.moreLanes({ lanes: 1 });
  return each(tenants, async (tenantId) => commit(lanes, deleteChange(itemId(1), null, { tenantId })));
};

const blobEach =
  (state: string) =>
  async (logs: PostgresLogs, tenants: readonly string[]): Promise<unknown> =>
    each(tenants, async (tenantId) => logs.putBlob(tenantId, blobRef(1), { state, itemId: null }));

const CASES: readonly Case[] = [
  { title: 'new items', work: writeEach },
  { title: 'other changes', given: writeEach, work: deleteEach },
  {
    title: 'the hard delete',
    given: async (logs, tenants) => {
      await writeEach(logs, tenants);
      await deleteEach(logs, tenants);
      // The delete of the tenant with the highest id is the oldest, and so the first to be processed.
      await logs.pool.query('UPDATE items SET deleted_at = 100 - (SELECT count(*) FROM tenants WHERE id < tenant_id)');
    },
    work: async ({ pool }) => pool.query('SELECT empty_deleted($1, 10)', [TS]),
  },
  {
    title: 'taking unused blobs',
    given: blobEach('orphan'),
    work: async ({ pool }) => pool.query('SELECT * FROM take_unused_blobs($1, $1, $1, 10)', [TS]),
  },
  {
    title: 'freeing blobs',
    given: blobEach('dying'),
    work: async ({ pool }, tenants) =>
      pool.query('SELECT free_blobs($1, $2)', [tenants, tenants.map(() => blobRef(1))]),
  },
];

for (const { title, given, work } of CASES) {
  t.test(`INST-13: tenants are locked in the order of their ids: ${title}`, async (t) => {
    const logs = await postgresLogs(t);
    const { pool } = logs;
    const ids = [await logs.newTenant(), await logs.newTenant(), await logs.newTenant()];
    const [low, middle, high] = ids.toSorted();
    const falling = ids.toSorted().toReversed();
    await given?.(logs, falling);
    const rival = await pool.connect();
    await rival.query('BEGIN');
    await rival.query('SELECT 1 FROM tenants WHERE id = $1 FOR UPDATE', [middle]);
    const done = work(logs, falling);
    const waits = `SELECT 1 FROM pg_locks l JOIN pg_stat_activity a USING (pid)
      WHERE NOT l.granted AND a.datname = current_database()`;
    await until('the wait for the rival', async () => (await pool.query(waits)).rowCount !== 0);
    const free = await pool.query<{ id: string }>('SELECT id FROM tenants FOR UPDATE SKIP LOCKED');
    t.strictSame(
      free.rows.map(({ id }) => id),
      [high],
      `${String(low)} is locked, and the last tenant is not locked before the one that is waited for`,
    );
    await rival.query('COMMIT');
    rival.release();
    await done;
    t.strictSame(logs.faults, []);
  });
}
