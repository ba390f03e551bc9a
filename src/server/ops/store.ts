/** The nightly jobs' statements, and the advisory lock that lets one instance run them (sql/0007_jobs.sql). */
import type pg from 'pg';
import type { Job, JobTurn } from './ports.js';
import { UNCLAIMED_MS } from '../../protocol/limits.js';
import { ask, askOne } from '../storage/ask.js';
import { openClient } from '../storage/database.js';

/** Any number; all instances use it. */
const JOBS_LOCK = 7_265_763_012;
/** Signups' lock (sql/0011_signups.sql). */
const SIGNUP_LOCK = 7_265_763_011;
/**
 * Frees in turn with the signups (HOST-18). A signup frees the old names too, but passes over the rows that the night is
 * deleting, and would count them among those that wait.
 */
const FREE_UNCLAIMED = `WITH turn AS MATERIALIZED (SELECT pg_advisory_xact_lock(${SIGNUP_LOCK}))
  SELECT free_unclaimed($1, $2, $3) AS n FROM turn`;
/** Rows of a batch: a few milliseconds of a lock. */
const FULL = 500;
/** Pairings and challenges outlive their time a little, so that late is told apart from wrong. */
const EXPIRED_MS = 86_400_000;
/** No provider sends an event again after so long; its signature would be stale anyway. */
const WEBHOOK_MS = 30 * 86_400_000;
const KEY_BATCH = 500;
const ALL = 'nightly';

/** What the jobs depend on. */
export interface JobOptions {
  readonly pool: pg.Pool;
  readonly now: () => number;
  /** SOFT_DELETE_DAYS in milliseconds. */
  readonly softDeleteMs: number;
}

/** Every job there is, in the order in which they run. */
export function nightlyJobs({ pool, now, softDeleteMs }: JobOptions): readonly Job[] {
  const count = async (text: string, values: readonly unknown[]): Promise<number> =>
    (await askOne<{ n: number }>(pool, { text, values })).n;
  return [
    {
      name: 'empty deleted items',
      full: FULL,
      batch: async () => count('SELECT empty_deleted($1, $2) AS n', [now() - softDeleteMs, FULL]),
    },
    { name: 'purge keys of revoked devices', full: 1, batch: async () => purgeKeys(pool) },
    {
      name: 'clear what has expired',
      full: FULL,
      batch: async () => count('SELECT clear_expired($1, $2) AS n', [now() - EXPIRED_MS, FULL]),
    },
    {
      name: 'free unclaimed tenants',
      full: FULL,
      batch: async () => count(FREE_UNCLAIMED, [now() - UNCLAIMED_MS, FULL, now()]),
    },
    {
      name: 'clear old webhooks',
      full: FULL,
      batch: async () => count('SELECT clear_webhooks($1, $2) AS n', [now() - WEBHOOK_MS, FULL]),
    },
  ];
}

/** One device's keys, all of them; 0 where no device is left to purge. */
async function purgeKeys(pool: pg.Pool): Promise<number> {
  const text = 'SELECT tenant_id AS tenant, device_id AS device FROM devices_to_purge(1)';
  const [found] = await ask<{ tenant: string; device: string }>(pool, { text, values: [], readOnly: true });
  if (found === undefined) return 0;
  for (let after: string | null = ''; after !== null;) {
    const row: { last: string | null } = await askOne(pool, {
      text: 'SELECT purge_device_keys($1, $2, $3, $4) AS last',
      values: [found.tenant, found.device, after, KEY_BATCH],
    });
    after = row.last;
  }
  return 1;
}

/** The turn, as an advisory lock on a connection of its own: an instance that dies loses it with its connection. */
export class PostgresJobTurn implements JobTurn {
  constructor(
    private readonly pool: pg.Pool,
    private readonly url: string,
  ) {}

  async take(work: (lost: AbortSignal) => Promise<void>): Promise<boolean> {
    const lost = new AbortController();
    const client = await openClient({ url: this.url, name: 'service jobs', onLost: (error) => lost.abort(error) });
    try {
      const { rows } = await client.query<{ mine: boolean }>('SELECT pg_try_advisory_lock($1) AS mine', [JOBS_LOCK]);
      if (rows[0]?.mine !== true) return false;
      await work(lost.signal);
      return true;
    } finally {
      await client.end();
    }
  }

  async lastRun(): Promise<number | null> {
    const text = 'SELECT finished_at AS at FROM job_runs WHERE name = $1';
    const [row] = await ask<{ at: number }>(this.pool, { text, values: [ALL], readOnly: true });
    return row?.at ?? null;
  }

  async ran(at: number): Promise<void> {
    const text = `INSERT INTO job_runs AS j (name, finished_at) VALUES ($1, $2)
      ON CONFLICT (name) DO UPDATE SET finished_at = greatest(j.finished_at, excluded.finished_at)`;
    await ask(this.pool, { text, values: [ALL, at] });
  }
}
