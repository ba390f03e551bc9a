/** `service-admin backup` and `restore` on real databases and servers. */
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import t, { type Test } from 'tap';
import { writeArchive } from '../src/server/admin/backup/archive.js';
import { EXIT } from '../src/terminal/terminal.js';
import { dumpDatabase, DUMPED_TABLES } from '../src/server/storage/dump.js';
import { migrate } from '../src/server/storage/migrate.js';
import { SQL_FOLDER } from '../src/root.js';
import { admin, builtAdmin } from './support/admin.js';
import { until } from './support/events.js';
import { claim, mustWrite, newItem } from './support/devices.js';
import { temporaryFolder, testDatabase } from './support/postgres.js';
import { Scene } from './support/scene.js';
import { runServer, runSql, spawnServer, TOKEN_SECRET } from './support/server.js';

const itemsIn = async (url: string): Promise<number> =>
  Number((await runSql(url, 'SELECT count(*) AS n FROM items'))[0]?.['n']);

t.test('OPER-15: `backup` works beside a running server, and `verify FILE` refuses a damaged file', async (t) => {
  const scene = await Scene.start(t);
  for (let n = 0; n < 5; n++) await scene.written();
  const env = { DATABASE_URL: scene.server.databaseUrl };
  const call = await admin(t, env);
  const folder = await temporaryFolder(t);
  const file = join(folder, 'one.tar.gz');
  const made = await (await builtAdmin(t, env)).json('backup', file);
  t.equal(made.code, EXIT.ok, made.stderr);
  const { size, mode } = await stat(file);
  t.match(made.data, { file, size, rows: { items: 5, devices: 2, tenants: 1 } });
  t.equal(mode & 0o777, 0o600);
  t.match(made.stderr, /secrets/, 'stderr mentions the secrets, which are not in the file');
  t.match(await call.json('backup', file), { code: EXIT.usage, error: { message: /exists/, hint: /--force/ } });
  t.match(await call.json('backup', folder, '--force'), { code: EXIT.usage });
  t.match(await call.json('backup', join(folder, 'no', 'where')), { code: EXIT.usage });
  const plain = await call.plain('backup', file, '--force');
  t.match(plain.stdout, /one\.tar\.gz: 1 tenant, 2 devices, 5 items \(deleted ones too\); [\d.]+ [KM]iB/);
  t.same(await readdir(folder), ['one.tar.gz'], 'no other file is left');
  const away = await admin(t, {});
  t.match(await away.json('verify', file), { code: EXIT.ok, data: { whole: true } }, '`verify FILE` needs no database');
  const bytes = await readFile(file);
  await writeFile(file, bytes.subarray(0, bytes.length - 30));
  t.match(await away.json('verify', file), { code: EXIT.untrusted, error: { code: 'damaged' } });
  t.match(await away.json('verify', join(folder, 'none')), { code: EXIT.failure, error: { code: 'enoent' } });
});

t.test('OPER-15: a user of the database that may only read makes a backup', async (t) => {
  const { url } = await testDatabase(t);
  const reader = new URL(url);
  reader.username = `reader_${randomBytes(8).toString('hex')}`;
  reader.password = randomBytes(8).toString('hex');
  await runSql(url, `CREATE ROLE ${reader.username} LOGIN PASSWORD '${reader.password}' IN ROLE pg_read_all_data`);
  t.teardown(() => runSql(url, `DROP ROLE ${reader.username}`));
  const call = await admin(t, { DATABASE_URL: reader.href });
  const made = await call.json('backup', join(await temporaryFolder(t), 'backup.tar.gz'));
  t.equal(made.code, EXIT.ok, made.stderr);
});

t.test('OPER-27: the text in a backup cannot control a terminal', async (t) => {
  const file = join(await temporaryFolder(t), 'evil.tar.gz');
  const rows = { tables: [], bytes: 0, read: () => Promise.reject(new Error('there is no table')) };
  const about = { createdAt: 0, version: '\u001b[2J\u202egone', schema: 1, postgres: '18' };
  await writeArchive(file, { ...rows, ...about }, () => undefined);
  const { code, stdout, stderr } = await (await admin(t, {})).plain('verify', file);
  t.equal(code, EXIT.ok, stderr);
  t.match(stdout, /by version <U\+001B>\[2J<U\+202E>gone, schema 1/);
  t.notMatch(stdout + stderr, /[\u001b\u202e]/);
});

t.test('OPER-16 OPER-17: a restore verifies the file, replaces data only after a yes, without a server', async (t) => {
  const scene = await Scene.start(t);
  const { server, wire, first } = scene;
  const url = server.databaseUrl;
  for (let n = 0; n < 5; n++) await scene.written();
  const call = await admin(t, { DATABASE_URL: url, TOKEN_SECRET });
  const folder = await temporaryFolder(t);
  const file = join(folder, 'backup.tar.gz');
  t.equal((await call.json('backup', file)).code, EXIT.ok);
  await scene.written();
  const epoch = (await scene.me()).text('epoch');
  t.match(await call.json('restore', file, '--force', '--yes'), {
    code: EXIT.refused,
    error: { code: 'server_running' },
  });
  wire.close();
  await server.stop();
  // The backends of a stopped server end a moment later: here one ends only while the command looks for them.
  const lingering = new pg.Client({ connectionString: url, application_name: 'service-commit' });
  await lingering.connect();
  const restoring = call.json('restore', file);
  // Whatever the text of its statement: it is the one that the command sends again and again.
  const sentAt = new Map<string, string>();
  await until('the command looks again', async () => {
    const { rows } = await lingering.query<{ statement: string; at: string }>(
      `SELECT pid || query AS statement, query_start::text AS at FROM pg_stat_activity
       WHERE datname = current_database() AND pid <> pg_backend_pid() AND query <> ''`,
    );
    return rows.some(({ statement, at }) => {
      const before = sentAt.get(statement);
      sentAt.set(statement, at);
      return before !== undefined && before !== at;
    });
  });
  await lingering.end();
  t.match(await restoring, { code: EXIT.refused, error: { code: 'not_empty' } });
  t.match(await call.json('restore', file), { code: EXIT.refused, error: { code: 'not_empty', message: /6 items/ } });
  t.match(await call.json('restore', file, '--force'), { code: EXIT.usage }, 'no terminal to confirm at');
  t.match(await call.answering(/Replace all/, 'no', 'restore', file, '--force'), { code: EXIT.failure });
  const bytes = await readFile(file);
  const bad = join(folder, 'bad.tar.gz');
  const half = bytes.length >> 1;
  await writeFile(bad, Buffer.concat([bytes.subarray(0, half), Buffer.from('damage'), bytes.subarray(half + 6)]));
  t.match(await call.json('restore', bad, '--force', '--yes'), { code: EXIT.untrusted, error: { code: 'damaged' } });
  t.equal(await itemsIn(url), 6, 'the data is unchanged');
  t.match(await call.answering(/Replace all/, 'yes', 'restore', file, '--force'), { code: EXIT.ok });
  t.equal(await itemsIn(url), 5);

  const fresh = await testDatabase(t, 'empty');
  const other = await admin(t, { DATABASE_URL: fresh.url });
  const done = await other.json('restore', file);
  t.match(done, { code: EXIT.ok, data: { items: 5, devices: 2, newEpoch: true } }, done.stderr);
  t.match(done.stderr, /no TOKEN_SECRET here/);
  const restored = await runServer(t, { database: fresh });
  const me = await restored.wire.get('/me', { token: first.token });
  t.equal(me.status, 200);
  t.not(me.text('epoch'), epoch);
});

t.test(
  'OPER-18 OPER-27: a backup whose schema the database cannot be brought to is refused, with what to do',
  async (t) => {
    const { url } = await testDatabase(t);
    const call = await admin(t, { DATABASE_URL: url });
    const folder = await temporaryFolder(t);
    const file = join(folder, 'backup.tar.gz');
    await call.json('backup', file);
    const newer = join(folder, 'newer.tar.gz');
    const source = { tables: [], bytes: 0, createdAt: 1, version: '99.0.0\u009b2J', schema: 9_999, postgres: '18' };
    await writeArchive(newer, { ...source, read: () => Promise.reject(new Error('no tables')) }, () => undefined);
    t.match(await call.json('restore', newer), {
      code: EXIT.refused,
      error: { code: 'schema', message: /which this version \(schema \d+\) cannot read$/, hint: /99\.0\.0<U\+009B>2J/ },
    });
    await runSql(url, 'UPDATE migrations SET number = number + 1 WHERE number = (SELECT max(number) FROM migrations)');
    t.match(await call.json('backup', join(folder, 'no.tar.gz')), { code: EXIT.refused }, 'no backup is made either');
    t.match(await call.json('restore', file), {
      code: EXIT.refused,
      error: { code: 'schema', message: /older schema/, hint: /without tables/ },
    });
  },
);

/** A database of an older schema with the rows of `from`, as far as that schema has their tables and columns. */
async function olderDatabase(t: Test, upTo: number, from: string): Promise<string> {
  const { url } = await testDatabase(t, 'empty');
  await migrate({ url, folder: SQL_FOLDER, upTo });
  const there = await runSql(
    url,
    `SELECT relname AS name FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace`,
  );
  const names = new Set(there.map((row) => row['name']));
  for (const table of DUMPED_TABLES.filter((name) => names.has(name))) {
    const [all] = await runSql(from, `SELECT json_agg(x) AS rows FROM ${table} x`);
    const rows = JSON.stringify(all?.['rows'] ?? []);
    await runSql(url, `INSERT INTO ${table} SELECT * FROM json_populate_recordset(NULL::${table}, $1)`, [rows]);
  }
  return url;
}

t.test('BACKUP-09: a backup of an older schema is restored whole; one with wrong figures is refused', async (t) => {
  const scene = await Scene.start(t);
  for (let n = 0; n < 5; n++) await scene.written();
  await scene.wire.delete(`/items/${(await scene.written()).id}`, scene.as('a'));
  const rows = await scene.rows();
  const { first } = scene;
  await scene.server.stop();
  const folder = await temporaryFolder(t);
  const writeOlder = async (file: string, url: string): Promise<void> =>
    dumpDatabase(url, async ({ about, tables, bytes, read }) => {
      await writeArchive(
        file,
        { tables, read, bytes, createdAt: 1, version: 'older', ...about },
        () => undefined,
        true,
      );
    });
  for (const upTo of [1, 5, 8]) {
    const url = await olderDatabase(t, upTo, scene.server.databaseUrl);
    const file = join(folder, `${upTo}.tar.gz`);
    await writeOlder(file, url);
    t.match(await (await admin(t, {})).json('verify', file), { code: EXIT.ok, data: { schema: upTo } });
    const fresh = await testDatabase(t, 'empty');
    const call = await admin(t, { DATABASE_URL: fresh.url, TOKEN_SECRET });
    const done = await call.json('restore', file);
    t.match(done, { code: EXIT.ok, data: { items: 5, devices: 2, schema: upTo } }, done.stderr);
    t.match(await call.json('verify'), { code: EXIT.ok, data: { discrepancies: [] } });
    t.match(await call.json('migrate', '--dry-run'), { data: { applied: [] } }, 'the database has the present schema');
    const server = await runServer(t, { database: fresh });
    const reply = await server.wire.get('/items?since=0', { token: first.token });
    t.same(reply.list('items'), rows, `schema ${upTo}: every row is restored`);
    await mustWrite(server.wire, first, newItem(scene.ids));
    await server.stop();

    await runSql(url, 'UPDATE tenants SET item_count = 7');
    await writeOlder(file, url);
    const empty = await testDatabase(t, 'empty');
    const told = await (await admin(t, { DATABASE_URL: empty.url })).json('restore', file);
    t.match(told, { code: EXIT.untrusted, error: { code: 'damaged', message: /do not fit/ } }, told.stderr);
  }
});

t.test('OPER-19: with the embedded database the commands work beside its server and without it', async (t) => {
  const server = await spawnServer(t, { embedded: true });
  const { dataDir } = server;
  const device = await claim(server.wire);
  for (let n = 0; n < 3; n++) await mustWrite(server.wire, device, newItem([device.id]));
  const call = await admin(t, { DATA_DIR: dataDir });
  const folder = await temporaryFolder(t);
  const file = join(folder, 'backup.tar.gz');
  t.match(await call.json('backup', file), { code: EXIT.ok, data: { rows: { items: 3 } } });
  t.match(await call.json('restore', file, '--force', '--yes'), { error: { code: 'server_running' } });
  server.wire.close();
  t.equal(await server.end('SIGTERM'), 0);
  t.match(await call.json('tenants', 'list'), { code: EXIT.ok, data: { tenants: [{ items: 3 }] } });
  t.notOk(existsSync(join(dataDir, 'postgres', 'postmaster.pid')), 'the command stops the database again');
  const elsewhere = await admin(t, { DATA_DIR: join(folder, 'new') });
  t.match(await elsewhere.json('restore', file), { code: EXIT.ok, data: { items: 3 } });
  t.match(await elsewhere.json('verify'), { code: EXIT.ok, data: { items: 3, discrepancies: [] } });
});
