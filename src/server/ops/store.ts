/** The nightly jobs' statements, and the advisory lock that lets one instance run them (sql/0007_jobs.sql). */
import type pg from 'pg';
import { DAY_MS, HOUR_MS } from '../../protocol/clock.js';
import { UNCLAIMED_MS } from '../../protocol/limits.js';
import { Store } from '../storage/query.js';
import { openClient, valueOf } from '../storage/database.js';
import { purgeSome } from '../storage/key-purger.js';

/** One job. A batch is one transaction of a bounded size, so an interrupted run continues where it stopped. */
export interface Job {
  readonly name: string;
  /**
   * Does the next batch; resolves with the rows it changed: fewer than `full` means that nothing is left. A long batch
   * ends early when `stopped` is aborted.
   */
  batch(stopped: AbortSignal): Promise<number>;
  /** Rows of a full batch. */
  readonly full: number;
}

/** An arbitrary number, the same on all instances. */
const JOBS_LOCK = 7_265_763_012;
/** Signups' lock (sql/0011_signups.sql). */
const SIGNUP_LOCK = 7_265_763_011;
/**
 * Frees unclaimed tenants under the signups' lock (HOST-18). A signup frees old names too, but skips rows that this job has
 * locked; without the common lock it would count them as unclaimed and refuse.
 */
const FREE_UNCLAIMED = `WITH turn AS MATERIALIZED (SELECT pg_advisory_xact_lock(${SIGNUP_LOCK}))
  SELECT free_unclaimed($1, $2, $3) AS n FROM turn`;
/** Rows of a batch: a few milliseconds of a lock. */
const FULL = 500;
/**
 * Pairings and challenges are kept this long after they expire: a late answer gets a different error than a wrong one.
 */
const EXPIRED_MS = DAY_MS;
/** No provider repeats an event after this time; its signature would have expired too. */
const WEBHOOK_MS = 30 * DAY_MS;
/** The row of `job_runs` that stands for all jobs together. */
const ALL = 'nightly';

/**
 * Every job on the database, in the order in which they run.
 * @param options.softDeleteMs SOFT_DELETE_DAYS in milliseconds.
 */
export function nightlyJobs(options: { pool: pg.Pool; now: () => number; softDeleteMs: number }): readonly Job[] {
  const { now, softDeleteMs } = options;
  const store = new JobStore(options.pool);
  return [
    { name: 'empty deleted items', full: FULL, batch: () => store.run('empty_deleted', now() - softDeleteMs) },
    { name: 'purge keys of revoked devices', full: 1, batch: (stopped) => store.purgeKeys(stopped) },
    { name: 'clear what has expired', full: FULL, batch: () => store.run('clear_expired', now() - EXPIRED_MS) },
    { name: 'free unclaimed tenants', full: FULL, batch: () => store.freeUnclaimed(now()) },
    { name: 'clear old webhooks', full: FULL, batch: () => store.run('clear_webhooks', now() - WEBHOOK_MS) },
  ];
}

class JobStore extends Store {
  /** Runs a function of the database on rows from before this time; returns the rows that it changed. */
  run(name: string, before: number): Promise<number> {
    return this.value(name, before, FULL);
  }

  async freeUnclaimed(now: number): Promise<number> {
    return (await this.one<{ n: number }>(FREE_UNCLAIMED, [now - UNCLAIMED_MS, FULL, now])).n;
  }

  /**
   * Purges all keys of one device, in statements of a bounded size, until `stopped` is aborted: the next run then begins
   * with the same device. Returns how many devices are done.
   */
  async purgeKeys(stopped: AbortSignal): Promise<number> {
    const text = 'SELECT tenant_id AS tenant, device_id AS device FROM devices_to_purge(1)';
    const found = await this.first<{ tenant: string; device: string }>(text, [], { readOnly: true });
    if (found === undefined) return 0;
    let after: string | null = '';
    while (after !== null && !stopped.aborted) after = await purgeSome(this.pool, found.tenant, found.device, after);
    return after === null ? 1 : 0;
  }
}

/**
 * The right of one instance at a time to run the jobs: an advisory lock on a connection of its own, so that an instance
 * that dies loses it with its connection.
 */
export class PostgresJobTurn extends Store {
  constructor(
    pool: pg.Pool,
    private readonly url: string,
  ) {
    super(pool);
  }

  /**
   * Runs `work` while this instance alone holds the lock; resolves with false, and does nothing, where another one holds
   * it. `lost` is aborted when the lock is lost while `work` runs.
   */
  async take(work: (lost: AbortSignal) => Promise<void>): Promise<boolean> {
    const lost = new AbortController();
    const client = await openClient({ url: this.url, name: 'service jobs', onLost: (error) => lost.abort(error) });
    try {
      if (!(await valueOf<boolean>(client, 'SELECT pg_try_advisory_lock($1)', [JOBS_LOCK]))) return false;
      await work(lost.signal);
      return true;
    } finally {
      await client.end();
    }
  }

  /** When all jobs last completed, ms since 1970; null: never. */
  async lastRun(): Promise<number | null> {
    const text = 'SELECT finished_at AS at FROM job_runs WHERE name = $1';
    return (await this.first<{ at: number }>(text, [ALL], { readOnly: true }))?.at ?? null;
  }

  /** Notes that all jobs have completed. A later time stays, unless it is so far ahead that the clock was set back. */
  async ran(at: number): Promise<void> {
    const text = `INSERT INTO job_runs AS j (name, finished_at) VALUES ($1, $2)
      ON CONFLICT (name) DO UPDATE SET finished_at = excluded.finished_at
      WHERE j.finished_at NOT BETWEEN excluded.finished_at AND excluded.finished_at + ${HOUR_MS}`;
    await this.rows(text, [ALL, at]);
  }
}
