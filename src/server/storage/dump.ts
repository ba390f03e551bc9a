/**
 * The database as rows of text, and back: the contents of a backup. Logical, so that it can be restored into any
 * PostgreSQL from 14 on, embedded or not. Everything is read in one snapshot and written in one transaction.
 */
import type { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type pg from 'pg';
import { from as copyFrom, to as copyTo } from 'pg-copy-streams';
import type { BlobName } from '../../protocol/ids.js';
import { type Client, inTransaction, rowOf, valueOf, withClient } from './database.js';

/**
 * Tables of a backup, referenced tables first. Left out: which instances and devices are online (`instances`,
 * `presence`), limits that expire within the day (`rate_limits`), the history's names (`installation`, `epochs`: a
 * restored database reports another one), the instances' key (`notice_key`: each database has its own), changes of host
 * names (`host_changes`: read from `tenants` at every start), and the schema's own records (`migrations`). A test checks
 * that there are no others.
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
  'gone_tenants',
] as const;

/** The schema at the time the rows were read. */
export interface DumpedSchema {
  /** Number of the last migration. */
  readonly schema: number;
  /** Server version of the database, for display. */
  readonly postgres: string;
}

/** Rows of the tables, one table after the other. */
export interface Dump {
  readonly about: DumpedSchema;
  /** The tables of `DUMPED_TABLES` that exist in a database of this schema, in that order. */
  readonly tables: readonly string[];
  /** Rows of a table in PostgreSQL's COPY text format, with its columns named in `columns`. */
  read(table: string): Promise<{ readonly columns: readonly string[]; readonly rows: Readable }>;
  /**
   * Approximate size of all tables as text, in bytes, for progress. Most data is binary, read as two digits per byte.
   */
  readonly bytes: number;
  /** Blobs of items that are not deleted: a backup of the local store is to have their bytes. */
  blobsOfItems(): Promise<BlobName[]>;
}

/** Bytes in pieces. */
export type Chunks = Iterable<Uint8Array> | AsyncIterable<Uint8Array>;

/** Passes chunks through, after calling `onChunk` for each. */
export async function* tapped(
  chunks: Chunks,
  onChunk: (chunk: Uint8Array) => Promise<void> | void,
): AsyncGenerator<Uint8Array> {
  for await (const chunk of chunks) {
    await onChunk(chunk);
    yield chunk;
  }
}

const IDENTIFIER = /^[a-z_][a-z0-9_]*$/;

/** Names that a statement returns. */
const namesOf = async (client: Client, text: string, value: string | readonly string[]): Promise<string[]> =>
  (await client.query<{ name: string }>(text, [value])).rows.map(({ name }) => name);

/** The tables that exist, in the order given: an older schema has fewer. */
const existing = (client: Client, tables: readonly string[]): Promise<string[]> =>
  namesOf(
    client,
    'SELECT name FROM unnest($1::text[]) WITH ORDINALITY AS t(name, at) WHERE to_regclass(name) IS NOT NULL ORDER BY at',
    tables,
  );

const columnsOf = (client: Client, table: string): Promise<string[]> =>
  namesOf(
    client,
    `SELECT attname AS name FROM pg_attribute
     WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum`,
    table,
  );

/**
 * Reads everything in one snapshot, while servers continue to write. The streams must be read one after the other, each
 * to its end, before `work` resolves.
 */
export async function dumpDatabase<T>(url: string, work: (dump: Dump) => Promise<T>): Promise<T> {
  return withClient(url, 'service backup', async (client) => {
    await client.query('BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY');
    const tables = await existing(client, DUMPED_TABLES);
    const { schema, postgres, bytes } = await rowOf<DumpedSchema & { bytes: number }>(
      client,
      `SELECT (SELECT max(number) FROM migrations) AS schema, current_setting('server_version') AS postgres,
        (SELECT 2 * sum(pg_table_size(t::regclass))::bigint FROM unnest($1::text[]) t) AS bytes`,
      [tables],
    );
    return await work({
      about: { schema, postgres },
      tables,
      bytes,
      async read(table) {
        if (!IDENTIFIER.test(table)) throw new Error(`not a table: ${table}`);
        const columns = await columnsOf(client, table);
        const text = `COPY ${table} (${columns.join(', ')}) TO STDOUT`;
        return { columns, rows: client.query(copyTo(text)) };
      },
      async blobsOfItems() {
        if (!tables.includes('blobs')) return [];
        const text = `SELECT b.tenant_id AS "tenantId", b.ref FROM blobs b
          JOIN items i ON i.tenant_id = b.tenant_id AND i.id = b.item_id AND i.blob_ref = b.ref
          WHERE b.state = 'ready' AND i.deleted_at IS NULL`;
        return (await client.query<BlobName>(text)).rows;
      },
    });
  });
}

/** A table to be restored; its rows in the format that `Dump.read` returns. */
export interface Restored {
  readonly table: string;
  readonly columns: readonly string[];
  readonly rows: Readable;
}

/** The rows cannot be restored, or do not fit each other; the message says why. */
export class RestoreError extends Error {
  override readonly name = 'RestoreError';
}

/** Emptied before a restore, and not refilled. */
const EMPTIED_TABLES: readonly string[] = ['instances', 'presence', 'rate_limits', 'host_changes'];

/**
 * Throws `RestoreError` if counts, sums or storage figures do not match the rows. A schema too old for the check
 * passes: the check is repeated after its migration.
 */
export async function requireFitting(client: Client): Promise<void> {
  if (!(await valueOf<boolean>(client, "SELECT to_regprocedure('discrepancies()') IS NOT NULL"))) return;
  const found = await client.query<{ tenant: string; what: string }>(
    'SELECT tenant_id AS tenant, what FROM discrepancies() LIMIT 3',
  );
  if (found.rows.length === 0) return;
  const named = found.rows.map(({ tenant, what }) => `${what} of ${tenant}`).join(', ');
  throw new RestoreError(`the figures do not fit the rows: ${named}`);
}

/**
 * Replaces all rows by those given, in one transaction: all or nothing. The schema must be that of the rows. The
 * history gets a new name with the next connection, so that devices ahead of the backup replay. Rejects with
 * `RestoreError` if the figures do not match the rows.
 */
export async function restoreDatabase(url: string, tables: AsyncIterable<Restored>): Promise<void> {
  return withClient(url, 'service restore', async (client) =>
    inTransaction(client, async () => {
      await fill(client, tables);
      await requireFitting(client);
      await client.query('DELETE FROM installation');
    }),
  );
}

async function fill(client: pg.Client, tables: AsyncIterable<Restored>): Promise<void> {
  const filled = await existing(client, DUMPED_TABLES);
  await client.query(`TRUNCATE ${[...filled, ...(await existing(client, EMPTIED_TABLES))].join(', ')}`);
  const left = new Set(filled);
  for await (const { table, columns, rows } of tables) {
    if (!left.delete(table) || !columns.every((column) => IDENTIFIER.test(column))) {
      throw new RestoreError(
        `the backup names a table or column that does not exist, or twice: ${JSON.stringify(table)}`,
      );
    }
    await pipeline(rows, client.query(copyFrom(`COPY ${table} (${columns.join(', ')}) FROM STDIN`)));
  }
  // An empty table is listed too, without rows: a table that is not listed was lost together with its rows.
  if (left.size > 0) throw new RestoreError(`the backup lacks ${[...left].join(', ')}`);
}

/** Figures of a table. `sum` is the same for the same rows in any order and in any version of PostgreSQL. */
export interface TableFigures {
  readonly table: string;
  readonly rows: number;
  readonly sum: string;
}

/** Counts and sums up the rows of every dumped table that exists. */
export async function tableFigures(url: string): Promise<TableFigures[]> {
  return withClient(url, 'service figures', async (client) => {
    const figures: TableFigures[] = [];
    for (const table of await existing(client, DUMPED_TABLES)) {
      const columns = (await columnsOf(client, table)).map((column) => `t.${column}`).join(', ');
      // 60 bits of each row's hash, added without overflow.
      const found = await rowOf<{ rows: number; sum: string }>(
        client,
        `SELECT count(*) AS rows, coalesce(sum(('x' || left(md5(ROW(${columns})::text), 15))::bit(60)::bigint), 0)::text AS sum
         FROM ${table} t`,
      );
      figures.push({ table, ...found });
    }
    return figures;
  });
}
