import { writeFile } from 'node:fs/promises';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { join } from 'node:path';
import t from 'tap';
import type pg from 'pg';
import {
  createPool,
  isConnectionLoss,
  isRetryable,
  isUnavailable,
  openClient,
  parseInt8,
  withRetry,
} from '../src/server/storage/database.js';
import { migrate, MigrationError } from '../src/server/storage/migrate.js';
import { soon } from './support/events.js';
import { openFor } from './support/loopback-server.js';
import { temporaryFolder, testDatabase, type WithTeardown } from './support/postgres.js';
import { TcpProxy } from './support/tcp-proxy.js';

type Files = Record<string, string>;

async function sqlFolder(t: WithTeardown, files: Files): Promise<string> {
  const folder = await temporaryFolder(t);
  for (const [name, text] of Object.entries(files)) await writeFile(join(folder, name), text);
  return folder;
}

function pool(t: WithTeardown, url: string, onIdleError: (error: Error) => void = () => undefined): pg.Pool {
  const made = createPool({ url, name: 'database test', size: 2, onIdleError });
  t.teardown(async () => made.end());
  return made;
}

async function tables(database: pg.Pool): Promise<string[]> {
  const sql = "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public' ORDER BY 1";
  return (await database.query<{ name: string }>(sql)).rows.map(({ name }) => name);
}

/** The one value of an expression. */
async function valueOf(database: pg.Pool | pg.PoolClient, expression: string): Promise<number | undefined> {
  return (await database.query<{ value: number }>(`SELECT ${expression} AS value`)).rows[0]?.value;
}

const FIRST: Files = { '0001_first.sql': 'CREATE TABLE one (id int8 PRIMARY KEY);' };
const SECOND: Files = { ...FIRST, '0002_second.sql': 'CREATE TABLE two (id int8); INSERT INTO two VALUES (1);' };

t.test('migrations are applied once, in order, and the rest later', async (t) => {
  const { url } = await testDatabase(t, 'empty');
  const first = await migrate({ url, folder: await sqlFolder(t, { ...FIRST, 'README.md': 'not a migration' }) });
  t.strictSame(first, { applied: ['0001_first'], schema: 1, altered: [] });
  const folder = await sqlFolder(t, SECOND);
  t.strictSame(await migrate({ url, folder }), { applied: ['0002_second'], schema: 2, altered: [] });
  t.strictSame(await migrate({ url, folder }), { applied: [], schema: 2, altered: [] });
  const database = pool(t, url);
  t.strictSame(await tables(database), ['migrations', 'one', 'two']);
  t.equal((await database.query('SELECT * FROM two')).rowCount, 1);
});

t.test('DUR-06: instances that start at once apply each migration once', async (t) => {
  const { url } = await testDatabase(t, 'empty');
  const folder = await sqlFolder(t, SECOND);
  const reports = await Promise.all(Array.from({ length: 6 }, async () => migrate({ url, folder })));
  t.strictSame(reports.flatMap(({ applied }) => applied).sort(), ['0001_first', '0002_second']);
  t.ok(reports.every(({ schema }) => schema === 2));
  t.equal((await pool(t, url).query('SELECT * FROM two')).rowCount, 1);
});

t.test('DUR-06: a migration that fails leaves the schema as it was, and can be corrected', async (t) => {
  const { url } = await testDatabase(t, 'empty');
  const bad = await sqlFolder(t, { ...FIRST, '0002_second.sql': 'CREATE TABLE two (id int8); SELECT 1 / 0;' });
  await t.rejects(migrate({ url, folder: bad }), {
    name: 'MigrationError',
    message: /0002_second failed.*division by zero/,
  });
  const database = pool(t, url);
  t.strictSame(await tables(database), ['migrations', 'one']);
  const mended = await migrate({ url, folder: await sqlFolder(t, SECOND) });
  t.strictSame(mended.applied, ['0002_second']);
});

t.test('a migration that ends its transaction itself is refused', async (t) => {
  const { url } = await testDatabase(t, 'empty');
  const folder = await sqlFolder(t, {
    '0001_first.sql': 'CREATE TABLE one (id int8); COMMIT; BEGIN; CREATE TABLE two ();',
  });
  await t.rejects(migrate({ url, folder }), { message: /ends its transaction/ });
});

t.test('a database from a newer or another server is refused and left unchanged', async (t) => {
  const { url } = await testDatabase(t, 'empty');
  await migrate({ url, folder: await sqlFolder(t, SECOND) });
  const older = migrate({ url, folder: await sqlFolder(t, FIRST) });
  await t.rejects(older, { message: /written by a newer version.*schema is 2.*knows 1.*Update the server/ });
  const other = { ...FIRST, '0002_other.sql': 'CREATE TABLE three ();' };
  await t.rejects(migrate({ url, folder: await sqlFolder(t, other) }), {
    message: /migration 2 is "0002_second".*"0002_other"/,
  });
  t.strictSame(await tables(pool(t, url)), ['migrations', 'one', 'two']);
});

t.test('an applied migration whose file changed is reported; other line endings are no change', async (t) => {
  const { url } = await testDatabase(t, 'empty');
  await migrate({ url, folder: await sqlFolder(t, { '0001_first.sql': 'CREATE TABLE one (\n id int8);\n' }) });
  const windows = await migrate({
    url,
    folder: await sqlFolder(t, { '0001_first.sql': 'CREATE TABLE one (\r\n id int8);\r\n' }),
  });
  t.strictSame(windows.altered, []);
  const changed = await migrate({
    url,
    folder: await sqlFolder(t, { '0001_first.sql': 'CREATE TABLE one (id int4);' }),
  });
  t.strictSame(changed, { applied: [], schema: 1, altered: ['0001_first'] });
});

t.test('a folder that is not numbered without a gap is refused before the database is touched', async (t) => {
  for (const files of [
    {},
    { '0002_second.sql': '' },
    { ...FIRST, '0003_third.sql': '' },
    { ...FIRST, '0001_again.sql': '' },
    { 'first.sql': '' },
  ]) {
    const folder = await sqlFolder(t, files as Files);
    await t.rejects(migrate({ url: 'postgres://nobody@127.0.0.1:1/none', folder }), MigrationError);
  }
});

t.test('a database that is not UTF8 is refused', async (t) => {
  const { url } = await testDatabase(t, 'empty');
  const admin = pool(t, url);
  const other = new URL(url);
  other.pathname += '_ascii';
  await admin.query(`CREATE DATABASE ${other.pathname.slice(1)} TEMPLATE template0 ENCODING 'SQL_ASCII'`);
  await t.rejects(migrate({ url: other.href, folder: await sqlFolder(t, FIRST) }), {
    message: /encoding is SQL_ASCII/,
  });
  await admin.query(`DROP DATABASE ${other.pathname.slice(1)}`);
});

t.test('int8 is read as a number, alone and in arrays, and never rounded', async (t) => {
  const database = pool(t, (await testDatabase(t, 'empty')).url);
  const { rows } = await database.query(
    'SELECT 9007199254740991::int8 AS most, ARRAY[1, NULL, -2]::int8[] AS list, 5::int4 AS small',
  );
  t.strictSame(rows, [{ most: 9_007_199_254_740_991, list: [1, null, -2], small: 5 }]);
  await t.rejects(database.query('SELECT 9007199254740992::int8'), RangeError);
  t.throws(() => parseInt8('-9007199254740992'), RangeError);
  t.equal(await valueOf(database, '1'), 1, 'the pool still works');
});

t.test('FAIR-43: the rows that refer to a tenant are found by an index that begins with it', async (t) => {
  const { rows } = await pool(t, (await testDatabase(t)).url).query<{ name: string; indexed: boolean }>(
    `SELECT conrelid::regclass::text AS name, EXISTS (
        SELECT FROM pg_index i WHERE i.indrelid = c.conrelid AND i.indpred IS NULL AND i.indkey[0] = c.conkey[1]
      ) AS indexed
      FROM pg_constraint c WHERE contype = 'f' AND confrelid = 'tenants'::regclass ORDER BY 1`,
  );
  t.ok(rows.length > 4, 'there are such tables');
  for (const { name, indexed } of rows) t.ok(indexed, name);
});

t.test('DUR-05: connections that die while idle or in use are reported, classified and replaced', async (t) => {
  const { url } = await testDatabase(t, 'empty');
  const idle = deferred<Error>();
  const database = pool(t, url, idle.resolve);
  const killer = pool(t, url);
  const pid = await valueOf(database, 'pg_backend_pid()');
  await killer.query('SELECT pg_terminate_backend($1)', [pid]);
  t.ok(isConnectionLoss(await idle.promise), 'the idle connection');
  t.equal(await valueOf(database, '1'), 1);

  const client = await database.connect();
  const working = await valueOf(client, 'pg_backend_pid()');
  const sleeping = client.query('SELECT pg_sleep(60)').then(
    () => undefined,
    (error: unknown) => error,
  );
  await killer.query('SELECT pg_terminate_backend($1)', [working]);
  const error = await sleeping;
  t.ok(isConnectionLoss(error), 'the connection in use');
  client.release(error instanceof Error);
  t.equal(await valueOf(database, '1'), 1);
});

t.test('DUR-05: a connection to a network that swallows all is ended in bounded time', async (t) => {
  const { url } = await testDatabase(t, 'empty');
  const proxy = await TcpProxy.before(t, url);
  const client = await openClient({ url: proxy.through(url), name: 'test', onLost: () => t.fail('it was not lost') });
  proxy.freeze();
  await t.resolves(soon(client.end(), 'the end of a connection', 20_000));
});

t.test('a client outside a pool reports its loss once', async (t) => {
  const { url } = await testDatabase(t, 'empty');
  const lost = deferred<Error>();
  let times = 0;
  const client = await openClient({
    url,
    name: 'lane',
    onLost: (error) => {
      times++;
      lost.resolve(error);
    },
  });
  const ended = new Promise<void>((resolve) => client.once('end', resolve));
  await client.query('SELECT pg_terminate_backend(pg_backend_pid())').catch(() => undefined);
  t.ok(isConnectionLoss(await lost.promise));
  await ended;
  t.equal(times, 1);
  await client.end();
});

t.test(
  'a statement past its limit ends as unavailable; a server that never answers as a lost connection',
  async (t) => {
    const { url } = await testDatabase(t, 'empty');
    const client = await openClient({
      url,
      name: 'slow',
      statementTimeoutMs: 20,
      onLost: (error) => t.fail(error.message),
    });
    const late = await client.query('SELECT pg_sleep(60)').catch((error: unknown) => error);
    t.ok(isUnavailable(late));
    t.notOk(isConnectionLoss(late));
    const ended = once(client, 'end');
    t.teardown(async () => Promise.all([client.end(), ended]));

    const silent = createServer((socket) => socket.resume());
    const port = await openFor(t, silent);
    const settings = {
      url: `postgres://u:p@127.0.0.1:${port}/d`,
      name: 'silent',
      connectTimeoutMs: 20,
      onLost: () => undefined,
    };
    t.ok(isConnectionLoss(await openClient(settings).catch((error: unknown) => error)));
    silent.close();
    await once(silent, 'close');
    t.ok(isConnectionLoss(await openClient(settings).catch((error: unknown) => error)), 'refused');
  },
);

t.test("DUR-02 INST-12: a database's own synchronous_commit and isolation level have no effect", async (t) => {
  const { url } = await testDatabase(t);
  const name = new URL(url).pathname.slice(1);
  const first = pool(t, url);
  await first.query(`ALTER DATABASE ${name} SET synchronous_commit = off`);
  await first.query(`ALTER DATABASE ${name} SET default_transaction_isolation = 'repeatable read'`);
  const settings = `SELECT current_setting('synchronous_commit') || ', ' || current_setting('transaction_isolation') AS value`;
  const client = await openClient({ url, name: 'database test', onLost: () => undefined });
  t.teardown(async () => client.end());
  for (const connection of [pool(t, url), client])
    t.same((await connection.query(settings)).rows, [{ value: 'on, read committed' }]);
});

t.test('errors are classified by code and text', (t) => {
  const coded = (code: string): Error => Object.assign(new Error('x'), { code });
  for (const code of ['08006', '57P01', '57P02', '57P03', 'ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'ETIMEDOUT']) {
    t.ok(isConnectionLoss(coded(code)), code);
    t.ok(isUnavailable(coded(code)), code);
  }
  for (const text of [
    'Connection terminated unexpectedly',
    'Query read timeout',
    'timeout exceeded when trying to connect',
  ]) {
    t.ok(isConnectionLoss(new Error(text)), text);
  }
  for (const code of ['53300', '53100', '57014', '25006', '54000', '58030', 'EMFILE', 'ENFILE', 'EADDRNOTAVAIL']) {
    t.ok(isUnavailable(coded(code)), code);
    t.notOk(isConnectionLoss(coded(code)), code);
  }
  for (const code of ['23505', '42601', '40001', '']) t.notOk(isUnavailable(coded(code)), code);
  for (const code of ['40P01', '40001']) t.ok(isRetryable(coded(code)), code);
  for (const value of [coded('23505'), 'ECONNRESET', undefined, null]) {
    t.notOk(isRetryable(value));
    t.notOk(isConnectionLoss(value));
  }
  t.end();
});

t.test('retries end with success, with an error that is not worth one, or after the last attempt', async (t) => {
  const deadlock = Object.assign(new Error('deadlock'), { code: '40P01' });
  const waits: number[] = [];
  const wait = (ms: number): Promise<void> => {
    waits.push(ms);
    return Promise.resolve();
  };
  let calls = 0;
  const work = (): Promise<string> => (++calls < 4 ? Promise.reject(deadlock) : Promise.resolve('done'));
  t.equal(await withRetry(work, undefined, wait), 'done');
  t.equal(calls, 4);
  t.equal(waits.length, 3);
  for (const [index, ms] of waits.entries())
    t.ok(ms >= 2.5 * 2 ** index && ms <= 5 * 2 ** index, `wait ${index}: ${ms} ms`);

  calls = -10;
  await t.rejects(withRetry(work, undefined, wait), { code: '40P01' });
  t.equal(calls, -5);
  calls = 0;
  await t.rejects(
    withRetry(work, () => false, wait),
    { code: '40P01' },
  );
  t.equal(calls, 1);
});

function deferred<T>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let settle: (value: T) => void = () => undefined;
  const promise = new Promise<T>((resolve) => {
    settle = resolve;
  });
  return { promise, resolve: settle };
}
