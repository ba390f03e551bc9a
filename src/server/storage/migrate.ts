/**
 * Forward-only numbered migrations: sql/0001_name.sql, sql/0002_name.sql and so on.
 *
 * Each runs in one transaction that inserts its own row into `migrations` first, under an advisory lock. So two
 * instances that start at once apply each migration once, and one that fails leaves the schema as it was.
 */
import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type pg from 'pg';
import { asError } from '../../protocol/error-code.js';
import { hasTable, inTransaction, rowOf, valueOf, withClient } from './database.js';

interface Migration {
  readonly number: number;
  readonly name: string;
  readonly sql: string;
  /** Hex, of the text with Unix line ends, so that a checkout on another system is the same migration. */
  readonly sha256: string;
}

/** One row of the table `migrations`. */
type Applied = Omit<Migration, 'sql'>;

/** The database cannot be used by this server; the message says what to do. */
export class MigrationError extends Error {
  override readonly name = 'MigrationError';
}

/** Key of the advisory lock, in the server's own database. */
const MIGRATION_LOCK = 7_265_763_002;
const SERVER_VERSION_MIN = 140_000;

const TABLE = `CREATE TABLE IF NOT EXISTS migrations (
  number     integer PRIMARY KEY,
  name       text NOT NULL,
  sha256     text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now()
)`;

async function readFolder(folder: string): Promise<Migration[]> {
  const names = (await readdir(folder)).filter((name) => name.endsWith('.sql')).sort();
  const migrations: Migration[] = [];
  for (const [index, file] of names.entries()) {
    const match = /^(\d{4})_([a-z0-9_-]+)\.sql$/.exec(file);
    if (match === null || Number(match[1]) !== index + 1) {
      const expected = String(index + 1).padStart(4, '0');
      throw new MigrationError(
        `${join(folder, file)}: migrations are numbered without a gap; expected ${expected}_name.sql here.`,
      );
    }
    const sql = (await readFile(join(folder, file), 'utf8')).replaceAll('\r\n', '\n');
    const sha256 = createHash('sha256').update(sql).digest('hex');
    migrations.push({ number: index + 1, name: file.slice(0, -'.sql'.length), sql, sha256 });
  }
  if (migrations.length === 0) throw new MigrationError(`No migrations in ${folder}.`);
  return migrations;
}

async function requireUsable(client: pg.Client): Promise<void> {
  const { version, number, encoding } = await rowOf<{ version: string; number: string; encoding: string }>(
    client,
    `SELECT current_setting('server_version') AS version, current_setting('server_version_num') AS number,
            current_setting('server_encoding') AS encoding`,
  );
  if (Number(number) < SERVER_VERSION_MIN)
    throw new MigrationError(`The database is PostgreSQL ${version}; this server needs 14 or newer.`);
  if (encoding !== 'UTF8') {
    throw new MigrationError(
      `The database's encoding is ${encoding}; this server needs UTF8: CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0.`,
    );
  }
}

/**
 * Tables can be created where the migrations create them. From PostgreSQL 15 on, rights in the database do not include
 * its schema `public`: without this check the first migration fails, and its error does not say what is missing.
 */
async function requireRights(client: pg.Client): Promise<void> {
  const { user, database, may } = await rowOf<{ user: string; database: string; may: boolean | null }>(
    client,
    `SELECT current_user AS user, current_database() AS database,
            has_schema_privilege(current_schema(), 'CREATE') AS may`,
  );
  if (may === true) return;
  throw new MigrationError(
    `The user "${user}" may not create tables in the database "${database}". ` +
      `Make that user its owner: ALTER DATABASE "${database}" OWNER TO "${user}".`,
  );
}

async function readApplied(client: pg.Client, dryRun: boolean): Promise<Applied[]> {
  if (!dryRun) await client.query(TABLE);
  else if (!(await hasTable(client, 'migrations'))) return [];
  return (await client.query<Applied>('SELECT number, name, sha256 FROM migrations ORDER BY number')).rows;
}

/** The applied migrations must be a prefix of those in the folder: otherwise another server wrote the database. */
function requireKnown(applied: readonly Applied[], migrations: readonly Migration[]): void {
  const last = applied.at(-1)?.number ?? 0;
  if (last > migrations.length) {
    throw new MigrationError(
      `This database was written by a newer version of the server (its schema is ${last}, this version knows ` +
        `${migrations.length}). Update the server, or restore a backup that this version wrote.`,
    );
  }
  for (const [index, { number, name }] of applied.entries()) {
    const known = migrations[index];
    if (known?.number === number && known.name === name) continue;
    throw new MigrationError(
      `The database's migration ${number} is "${name}"; this server expects "${known?.name ?? '-'}" as ${index + 1}. ` +
        'Start the server that the database belongs to.',
    );
  }
}

async function apply(client: pg.Client, { number, name, sql, sha256 }: Migration): Promise<void> {
  const transaction = (): Promise<string> => valueOf(client, 'SELECT pg_current_xact_id()::text');
  const work = async (): Promise<void> => {
    await client.query('INSERT INTO migrations (number, name, sha256) VALUES ($1, $2, $3)', [number, name, sha256]);
    const before = await transaction();
    await client.query(sql);
    // A COMMIT inside the file would end the transaction early, and the rest would not be undone after a failure.
    if ((await transaction()) !== before) throw new Error('it ends its transaction; remove its BEGIN and COMMIT');
  };
  await inTransaction(client, work).catch((cause: unknown) => {
    const reason = asError(cause).message;
    throw new MigrationError(`Migration ${name} failed, the schema is as it was before it: ${reason}`, { cause });
  });
}

interface MigrateOptions {
  /** Connection string of the database; the user must be allowed to create tables and functions. */
  readonly url: string;
  readonly folder: string;
  /** Number of the last migration to apply; default: the newest. For restoring rows of an older version. */
  readonly upTo?: number;
  /** Reports what would be applied, and applies nothing. */
  readonly dryRun?: boolean;
}

/**
 * Brings the database to the newest schema of `folder`. Waits while another instance does the same. Resolves with the
 * names of the migrations that it applied; `schema`, the number of the last one that the database now has, or would have
 * after a run without `dryRun`; and `altered`, the names of those whose file is no longer the one that was applied: the
 * schema may differ from the files.
 * @throws MigrationError when the database is too old, from a newer server, or a migration fails.
 */
export async function migrate(options: MigrateOptions) {
  const { url, folder, dryRun = false } = options;
  const known = await readFolder(folder);
  const migrations = known.slice(0, options.upTo ?? known.length);
  // No time limit: a migration of a large table, or the wait for another instance's, takes as long as it takes.
  return withClient(url, 'service migrate', async (client) => {
    await requireUsable(client);
    if (!dryRun) await requireRights(client);
    await client.query('SELECT pg_advisory_lock($1)', [MIGRATION_LOCK]);
    const applied = await readApplied(client, dryRun);
    requireKnown(applied, migrations);
    const pending = migrations.slice(applied.length);
    // Commands that only read look too, perhaps as a user that may do nothing else: of a current schema nothing is created.
    if (dryRun && pending.length > 0) await requireRights(client);
    if (!dryRun) for (const migration of pending) await apply(client, migration);
    const altered = applied.filter(({ sha256 }, index) => migrations[index]?.sha256 !== sha256);
    return {
      applied: pending.map(({ name }) => name),
      schema: migrations.length,
      altered: altered.map(({ name }) => name),
    };
  });
}
