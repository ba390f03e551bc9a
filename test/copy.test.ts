/** Rows that are read by COPY: every value unchanged, and every failure as of other statements. */
import t from 'tap';
import type pg from 'pg';
import { copyRows, type CopiedRow } from '../src/server/storage/copy.js';
import { poolOf, testDatabase, type WithTeardown } from './support/postgres.js';

async function pool(t: WithTeardown): Promise<pg.Pool> {
  const { url } = await testDatabase(t, 'empty');
  return poolOf(t, url, { size: 1 });
}

interface Asked {
  readonly database: pg.Pool;
  readonly sql: string;
}

/** What a function makes of each row. */
async function copied<T>({ database, sql }: Asked, of: (row: CopiedRow) => T): Promise<T[]> {
  const { found } = await copyRows(database, sql, () => {
    const rows: T[] = [];
    return { found: rows, take: (row: CopiedRow) => rows.push(of(row)) };
  });
  return found;
}

const skipped = async (database: pg.Pool, sql: string): Promise<unknown[]> =>
  copied({ database, sql }, (row) => row.skip());

t.test('rows arrive whole and in order: bytes, numbers and NULL', async (t) => {
  const database = await pool(t);
  t.same(await skipped(database, 'SELECT 1 WHERE false'), []);
  const sql = `SELECT n::bigint, decode(repeat(lpad(to_hex(n), 2, '0'), n * 1000), 'hex'), NULL::bytea, 'n' || n FROM generate_series(0, 255) n`;
  const rows = await copied({ database, sql }, (row) => {
    const number = row.int8();
    const length = row.value();
    const bytes = Buffer.from(row.bytes.subarray(row.at, row.at + length));
    row.at += length;
    return { number, bytes, none: row.value(), text: row.text() };
  });
  t.equal(rows.length, 256);
  for (const [n, { number, bytes, none, text }] of rows.entries()) {
    const whole = number === n && bytes.equals(Buffer.alloc(n * 1_000, n)) && none === -1 && text === `n${n}`;
    if (!whole) t.fail(`row ${n}`);
  }
  const numbers = { database, sql: 'SELECT 9007199254740991, -1::bigint, NULL::bigint, NULL::text' };
  const largest = await copied(numbers, (row) => [row.int8(), row.int8(), row.int8(), row.text()]);
  t.same(largest, [[Number.MAX_SAFE_INTEGER, -1, null, null]]);
});

t.test('a row whose columns are not those that its reader expects is a failure', async (t) => {
  const database = await pool(t);
  await t.rejects(
    copied({ database, sql: 'SELECT 1' }, (row) => row.int8()),
    { message: /int8 of 4 bytes/ },
  );
  await t.rejects(
    copied({ database, sql: 'SELECT 1::bigint, 2' }, (row) => row.int8()),
    { message: /other columns/ },
  );
  t.same(await copied({ database, sql: 'SELECT 1::bigint' }, (row) => row.int8()), [1], 'the next copy works');
});

t.test('DUR-05: a copy that fails midway or loses its connection rejects; the next one works', async (t) => {
  const database = await pool(t);
  await t.rejects(skipped(database, 'SELECT 10 / (500 - n) FROM generate_series(1, 1000) n'), { code: '22012' });
  await t.rejects(skipped(database, 'SELECT nothing FROM nowhere'), { code: '42P01' });
  // Each attempt kills its own connection, and is repeated a bounded number of times.
  const killed = await skipped(database, 'SELECT pg_terminate_backend(pg_backend_pid())').catch(
    (error: unknown) => error,
  );
  t.match(killed, { error: 'unavailable' });
  t.equal((await skipped(database, 'SELECT 1')).length, 1);
  t.equal(database.idleCount, 1, 'the connection was returned to the pool');
});
