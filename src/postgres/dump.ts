/**
 * The database as rows of text, and back: what a backup holds. Logical, so that it goes into any PostgreSQL from 14 on,
 * embedded or not. Everything is read in one snapshot and written in one transaction.
 */
import type { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type pg from 'pg';
import { from as copyFrom, to as copyTo } from 'pg-copy-streams';
import { openClient } from './database.js';

/**
 * Tables of a backup, those first that others refer to. Left out: who is up (`instances`, `presence`), limits that run
 * out within the hour (`rate_limits`), the history's name (`installation`: a restored database tells another one,
 * contract 11), changes of host names (read from `tenants` at every start), and what the schema says of itself.
 */
export const DUMPED_TABLES = [
  'tenants',
  'devices',
  'bins',
  'blobs',
  'items',
  'pair_sessions',
  'challenges',
  'spent_tickets',
  'job_runs',
  'webhook_events',
  'subscriptions',
] as const;
/** Tables that a backup leaves out on purpose; a test holds that there is no other. */
export const LEFT_OUT_TABLES = [
  'installation',
  'instances',
  'presence',
  'rate_limits',
  'host_changes',
  'migrations',
] as const;

/** What the schema was when the rows were read. */
export interface DumpedSchema {
  /** Number of the last migration. */
  readonly schema: number;
  /** Server version of the database, for people. */
  readonly postgres: string;
}

/** Rows of the tables, one table after the other. */
export interface Dump {
  readonly about: DumpedSchema;
  /** Rows of a table in PostgreSQL's COPY text format, with its columns named in `columns`. */
  read(table: string): Promise<{ readonly columns: readonly string[]; readonly rows: Readable }>;
  /** About how many bytes all tables take in the database; for progress. */
  readonly bytes: number;
}

const IDENTIFIER = /^[a-z_][a-z0-9_]*$/;

async function columnsOf(client: pg.Client, table: string): Promise<string[]> {
  const { rows } = await client.query<{ name: string }>(
    `SELECT attname AS name FROM pg_attribute
     WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum`,
    [table],
  );
  return rows.map(({ name }) => name);
}

/**
 * Reads everything in one snapshot, while servers go on writing. The streams must be read one after the other, each to
 * its end, before `work` resolves.
 */
export async function dumpDatabase<T>(url: string, work: (dump: Dump) => Promise<T>): Promise<T> {
  const client = await openClient({ url, name: 'service backup', statementTimeoutMs: 0, onLost: () => undefined });
  try {
    await client.query('BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY');
    const { rows } = await client.query<{ schema: number; postgres: string; bytes: number }>(
      `SELECT (SELECT max(number) FROM migrations) AS schema, current_setting('server_version') AS postgres,
        (SELECT sum(pg_table_size(t::regclass))::bigint FROM unnest($1::text[]) t) AS bytes`,
      [[...DUMPED_TABLES]],
    );
    const [about] = rows;
    if (about === undefined) throw new Error('the database told nothing of itself');
    const { schema, postgres, bytes } = about;
    return await work({
      about: { schema, postgres },
      bytes,
      async read(table) {
        if (!IDENTIFIER.test(table)) throw new Error(`not a table: ${table}`);
        const columns = await columnsOf(client, table);
        const text = `COPY ${table} (${columns.join(', ')}) TO STDOUT`;
        return { columns, rows: client.query(copyTo(text)) };
      },
    });
  } finally {
    await client.end();
  }
}

/** Rows that are written back. */
export interface Restored {
  readonly table: string;
  readonly columns: readonly string[];
  readonly rows: Readable;
}

/** What keeps rows from being restored. */
export class RestoreError extends Error {
  override readonly name = 'RestoreError';
}

/**
 * Replaces all rows by those given, in one transaction: it is all there afterwards, or as it was. The history gets a
 * new name with the next connection, so that devices ahead of the backup replay (contract 11). Rejects with
 * `RestoreError` where the figures do not fit the rows.
 */
export async function restoreDatabase(url: string, tables: AsyncIterable<Restored>): Promise<void> {
  const client = await openClient({ url, name: 'service restore', statementTimeoutMs: 0, onLost: () => undefined });
  try {
    await client.query('BEGIN');
    try {
      await client.query(
        `TRUNCATE ${[...DUMPED_TABLES, 'instances', 'presence', 'rate_limits', 'host_changes'].join(', ')}`,
      );
      const left = new Set<string>(DUMPED_TABLES);
      for await (const { table, columns, rows } of tables) {
        if (!left.delete(table) || !columns.every((column) => IDENTIFIER.test(column))) {
          throw new RestoreError(
            `the backup names a table or column that does not exist, or twice: ${JSON.stringify(table)}`,
          );
        }
        await pipeline(rows, client.query(copyFrom(`COPY ${table} (${columns.join(', ')}) FROM STDIN`)));
      }
      // An empty table is there too, without rows: one that is not named was lost, and its rows with it.
      if (left.size > 0) throw new RestoreError(`the backup lacks ${[...left].join(', ')}`);
      const found = await client.query<{ tenant: string; what: string }>(
        'SELECT tenant_id AS tenant, what FROM discrepancies() LIMIT 3',
      );
      if (found.rows.length > 0) {
        const named = found.rows.map(({ tenant, what }) => `${what} of ${tenant}`).join(', ');
        throw new RestoreError(`the backup's figures do not fit its rows: ${named}`);
      }
      await client.query('DELETE FROM installation');
      await client.query('COMMIT');
    } catch (error) {
      // When this fails too the connection is gone, and the transaction with it; the first error is the one to tell.
      await client.query('ROLLBACK').catch(() => undefined);
      throw error;
    }
  } finally {
    await client.end();
  }
}
