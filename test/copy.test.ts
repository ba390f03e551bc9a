/** Rows whose bytes come by COPY: every value as it is, and every failure as other statements fail. */
import t from 'tap';
import type pg from 'pg';
import { copyRows, int8Of } from '../src/postgres/copy.js';
import { createPool } from '../src/postgres/database.js';
import { testDatabase, type WithTeardown } from './support/postgres.js';

async function pool(t: WithTeardown): Promise<pg.Pool> {
  const { url } = await testDatabase(t, 'empty');
  const made = createPool({ url, name: 'copy test', size: 1, onIdleError: () => undefined });
  t.teardown(async () => made.end());
  return made;
}

t.test('rows come whole and in order: bytes, numbers and NULL', async (t) => {
  const database = await pool(t);
  t.same(await copyRows(database, 'SELECT 1 WHERE false'), []);
  const sql = `SELECT n::bigint, decode(repeat(lpad(to_hex(n), 2, '0'), n * 1000), 'hex'), NULL::bytea FROM generate_series(0, 255) n`;
  const rows = await copyRows(database, sql);
  t.equal(rows.length, 256);
  for (const [n, [number, bytes, none]] of rows.entries()) {
    const whole = number?.length === 8 && int8Of(number) === n && bytes?.equals(Buffer.alloc(n * 1_000, n)) === true;
    if (!whole || none !== null) t.fail(`row ${n}`);
  }
  const [largest] = await copyRows(database, 'SELECT 9007199254740991, -1::bigint');
  t.same(
    largest?.map((value) => value && int8Of(value)),
    [Number.MAX_SAFE_INTEGER, -1],
  );
});

t.test(
  'DUR-05: a copy that fails in the middle, and one whose connection dies, say so; the next one works',
  async (t) => {
    const database = await pool(t);
    await t.rejects(copyRows(database, 'SELECT 10 / (500 - n) FROM generate_series(1, 1000) n'), { code: '22012' });
    await t.rejects(copyRows(database, 'SELECT nothing FROM nowhere'), { code: '42P01' });
    // Each attempt kills the connection it came on: it is asked again, a bounded number of times.
    const killed = await copyRows(database, 'SELECT pg_terminate_backend(pg_backend_pid())').catch(
      (error: unknown) => error,
    );
    t.match(killed, { error: 'unavailable' });
    t.equal((await copyRows(database, 'SELECT 1')).length, 1);
    t.equal(database.idleCount, 1, 'and the connection was given back');
  },
);
