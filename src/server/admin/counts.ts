/** Figures of a database or a backup, and the checks of a database before a restore. */
import type pg from 'pg';
import { readdir } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Manifest } from './backup/manifest.js';
import type { Config } from '../config/config.js';
import { SQL_FOLDER } from '../../root.js';
import { counted } from '../../terminal/output.js';
import { CommandError, EXIT } from '../../terminal/terminal.js';
import type { OperatorDatabase } from './context.js';

/** Number of the last migration that this version knows. */
export const newestSchema = async (): Promise<number> =>
  (await readdir(SQL_FOLDER)).filter((name) => name.endsWith('.sql')).length;

/** Number of the last migration that the database has; 0: it has no tables of this service. */
export async function schemaOf({ pool }: OperatorDatabase): Promise<number> {
  const there = await pool.query<{ there: boolean }>("SELECT to_regclass('migrations') IS NOT NULL AS there");
  if (there.rows[0]?.there !== true) return 0;
  const { rows } = await pool.query<{ schema: number }>('SELECT coalesce(max(number), 0) AS schema FROM migrations');
  return rows[0]?.schema ?? 0;
}

/** `application_name` of the connections of every running server. A pooler keeps those through it open afterwards. */
const PAST_POOLER = ['service-listen'];
const SERVERS = ['service', 'service-commit', ...PAST_POOLER];

/** Wait for backends, ms: each ends shortly after its client, so a restore right after a stop is not refused. */
const ENDING_MS = 2_000;
const LOOK_EVERY_MS = 100;

/** Throws `CommandError` while a server runs on the database: it would write into the tables that are being replaced. */
export async function requireNoServer(
  { pool, alone }: OperatorDatabase,
  { databaseUrl, listenDatabaseUrl }: Config,
): Promise<void> {
  const running = (): CommandError =>
    new CommandError(
      EXIT.refused,
      'a server is running on this database',
      'Stop all servers first (if one was killed, start it again and stop it), then restore.',
      { code: 'server_running' },
    );
  if (databaseUrl === null && !alone) throw running();
  for (let waited = 0; ; waited += LOOK_EVERY_MS) {
    const { rows } = await pool.query<{ n: number }>(
      'SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND application_name = ANY ($1)',
      [listenDatabaseUrl === null ? SERVERS : PAST_POOLER],
    );
    if ((rows[0]?.n ?? 0) === 0) return;
    if (waited >= ENDING_MS) throw running();
    await sleep(LOOK_EVERY_MS);
  }
}

/**
 * Undefined if the database has no user data; the unclaimed tenant that a server's first start creates does not count.
 * Otherwise returns the counts, or throws `CommandError` without `force`.
 */
export async function requireEmpty({ pool }: OperatorDatabase, force: boolean): Promise<Counts | undefined> {
  const { rows } = await pool.query<{ used: boolean }>(
    `SELECT EXISTS (SELECT 1 FROM items) OR EXISTS (SELECT 1 FROM devices)
       OR EXISTS (SELECT 1 FROM tenants WHERE slug IS NOT NULL OR claimed_at IS NOT NULL OR head > 0) AS used`,
  );
  if (rows[0]?.used === false) return undefined;
  const counts = await countsOf(pool);
  if (force) return counts;
  throw new CommandError(
    EXIT.refused,
    `the database is not empty: ${countsLine(counts)}`,
    'Restore into an empty database, or with --force, which replaces all of this.',
    { code: 'not_empty' },
  );
}

/** Rows in the database. `items`: those that are not deleted. */
export interface Counts {
  readonly tenants: number;
  readonly devices: number;
  readonly items: number;
}

export async function countsOf(pool: pg.Pool): Promise<Counts> {
  const { rows } = await pool.query<Counts>(
    `SELECT (SELECT count(*) FROM tenants) AS tenants, (SELECT count(*) FROM devices WHERE revoked_at IS NULL) AS devices,
      (SELECT coalesce(sum(item_count), 0)::bigint FROM tenants) AS items`,
  );
  const [counts] = rows;
  if (counts === undefined) throw new Error('the database counted nothing');
  return counts;
}

/** `2 tenants, 3 devices, 40 items`. */
export const countsLine = ({ tenants = 0, devices = 0, items = 0 }: Partial<Counts>): string =>
  [counted(tenants, 'tenant'), counted(devices, 'device'), counted(items, 'item')].join(', ');

/** Facts of a backup. `createdAt`: ISO 8601; `bytes`: of all rows, uncompressed. */
export const aboutBackup = ({ createdAt, version, schema, postgres, parts }: Manifest) => ({
  createdAt: new Date(createdAt).toISOString(),
  ...{ version, schema, postgres },
  bytes: parts.reduce((sum, part) => sum + part.bytes, 0),
});
