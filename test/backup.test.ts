/** Backup and restore of the database. */
import { readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { gunzipSync } from 'node:zlib';
import t from 'tap';
import { readArchive, verifyArchive, writeArchive } from '../src/server/admin/backup/archive.js';
import { dumpDatabase, DUMPED_TABLES, restoreDatabase } from '../src/server/storage/dump.js';
import { migrate } from '../src/server/storage/migrate.js';
import { SQL_FOLDER } from '../src/root.js';
import { mustWrite, newItem } from './support/devices.js';
import { temporaryFolder, testDatabase } from './support/postgres.js';
import { Scene } from './support/scene.js';
import { runServer, runSql } from './support/server.js';
import { listAll, versionsOf } from './support/stream.js';
import { contents } from './support/upgrades.js';

const nothing = (): void => undefined;

/** Tables that a backup leaves out on purpose (src/server/storage/dump.ts). */
const LEFT_OUT_TABLES = [
  'installation',
  'epochs',
  'instances',
  'presence',
  'notice_key',
  'rate_limits',
  'host_changes',
  'migrations',
];

async function backup(url: string, path: string): Promise<void> {
  await dumpDatabase(url, async ({ about, bytes, read }) =>
    writeArchive(
      path,
      { tables: DUMPED_TABLES, read, bytes, createdAt: 1_700_000_000_000, version: 'test', ...about },
      nothing,
    ),
  );
}

async function restore(url: string, path: string): Promise<void> {
  const manifest = await verifyArchive(path, nothing);
  await restoreDatabase(url, readArchive(path, manifest, nothing));
}

/** Whether gunzip gives the same bytes for both: some bits of a gzip file have no meaning. */
function isSame(one: Buffer, other: Buffer): boolean {
  try {
    return gunzipSync(one).equals(gunzipSync(other));
  } catch {
    return false;
  }
}

t.test('BACKUP-07: every table is in the backup, or left out by name', async (t) => {
  const { url } = await testDatabase(t);
  const rows = await runSql(
    url,
    `SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace`,
  );
  t.same(rows.map((row) => row['relname']).sort(), [...DUMPED_TABLES, ...LEFT_OUT_TABLES].sort());
});

t.test('BACKUP-01 BACKUP-02 BACKUP-03 BACKUP-06: a backup made during writes is restored as a snapshot', async (t) => {
  const scene = await Scene.start(t);
  const { server, wire, first } = scene;
  const folder = await temporaryFolder(t);
  const path = join(folder, 'one.tar.gz');
  for (let n = 0; n < 30; n++) await scene.written();
  await wire.delete(`/items/${(await scene.written()).id}`, scene.as('a'));
  await wire.post('/bins', { id: 'second', meta: Buffer.alloc(40, 7) }, scene.as('a'));
  // More than one part's worth of rows, with bytes that COPY must escape.
  for (let n = 0; n < 60; n++) await mustWrite(wire, first, scene.item({ ct: Buffer.alloc(60_000, `\\t\n\r\\N${n}`) }));
  let writing = true;
  const writer = (async () => {
    while (writing) await scene.written();
  })();
  await backup(server.databaseUrl, path);
  writing = false;
  await writer;
  t.same(await readdir(folder), ['one.tar.gz'], 'no other file is left');
  t.equal((await stat(path)).mode & 0o777, 0o600);
  const manifest = await verifyArchive(path, nothing);
  t.ok(manifest.parts.filter((part) => part.table === 'items').length > 1);

  const fresh = await testDatabase(t);
  await restore(fresh.url, path);
  const restored = await runServer(t, { database: fresh });
  const me = await restored.wire.get('/me', { token: first.token });
  t.equal(me.status, 200, 'tokens are still valid: TOKEN_SECRET is the same');
  t.ok(me.number('server.itemCount') >= 90);
  const head = me.number('headVersion');
  t.not(me.text('epoch'), (await scene.me()).text('epoch'));
  const ahead = await restored.wire.get(`/items?since=${head + 100}`, { token: first.token });
  t.equal(ahead.at('reset'), true, 'a device that is ahead is reset');
  const socket = await restored.wire.connect({ token: scene.second.token });
  socket.ws.send(JSON.stringify({ type: 'hello', since: head, epoch: (await scene.me()).text('epoch') }));
  t.match(await socket.next(), { type: 'reset' });
  const { changes } = await listAll(restored.wire, first.token);
  const beyond = await restored.wire.connect({ token: scene.second.token });
  const frames = await beyond.hello(head + 100);
  t.match(frames[0], { type: 'reset', epoch: me.text('epoch') }, 'a socket that is ahead is reset');
  t.same(
    versionsOf(frames),
    changes.map(({ version }) => version),
    'and gets everything again',
  );
  t.ok(changes.length > 90);
  const item = newItem(scene.ids);
  t.equal(await mustWrite(restored.wire, first, item), head + 1);
  await restored.stop();
  await server.stop();
  const twice = join(folder, 'two.tar.gz');
  await backup(server.databaseUrl, twice);
  const other = await testDatabase(t);
  await restore(other.url, twice);
  t.same(await contents(other.url), await contents(server.databaseUrl), 'every row is restored byte for byte');
});

t.test('BACKUP-04 BACKUP-05: a damaged backup or a failed restore leaves the database as it was', async (t) => {
  const scene = await Scene.start(t);
  for (let n = 0; n < 5; n++) await scene.written();
  await scene.server.stop();
  const { databaseUrl: url } = scene.server;
  const folder = await temporaryFolder(t);
  const path = join(folder, 'good.tar.gz');
  await backup(url, path);
  const good = await readFile(path);
  const before = await contents(url);
  const bad = join(folder, 'bad.tar.gz');
  const files: [string, Buffer][] = [
    ['empty', Buffer.alloc(0)],
    ['text', Buffer.from('not a backup')],
    ['cut in half', good.subarray(0, good.length >> 1)],
    ['without its end', good.subarray(0, good.length - 20)],
  ];
  for (let n = 0; n < 40; n++) {
    const spoilt = Buffer.from(good);
    const at = 12 + Math.floor(((good.length - 30) * n) / 40);
    spoilt[at] = (spoilt[at] ?? 0) ^ 0x40;
    if (!isSame(spoilt, good)) files.push([`byte ${at}`, spoilt]);
  }
  for (const [name, bytes] of files) {
    await writeFile(bad, bytes);
    await t.rejects(restore(url, bad), { name: 'ArchiveError' }, name);
  }
  t.same(await contents(url), before);

  const manifest = await verifyArchive(path, nothing);
  const wrong = { ...manifest, tables: { ...manifest.tables, items: { columns: ['tenant_id', 'no_such'] } } };
  await t.rejects(restoreDatabase(url, readArchive(path, wrong, nothing)));
  t.same(await contents(url), before, 'the database is as it was');
  const { items: _left, ...others } = manifest.tables;
  for (const tables of [{}, others, { items: manifest.tables['items'] ?? { columns: [] }, ...others }])
    await t.rejects(
      restoreDatabase(url, readArchive(path, { ...manifest, tables }, nothing)),
      Object.keys(tables).join(),
    );
  // Its checksums are right, and yet it would empty the database.
  const empty = { ...manifest, tables: {}, parts: [] };
  await t.rejects(restoreDatabase(url, readArchive(path, empty, nothing)), { name: 'RestoreError', message: /lacks/ });
  t.same(await contents(url), before, 'a backup that lacks a table changes nothing');
  await writeFile(bad, good);
  const half = readArchive(bad, manifest, nothing);
  await t.rejects(
    restoreDatabase(
      url,
      (async function* () {
        for await (const table of half) {
          if (table.table !== 'items') yield table;
          else {
            for await (const _ of table.rows);
            yield { ...table, rows: Readable.from([]) };
          }
        }
      })(),
    ),
    { name: 'RestoreError', message: /figures do not fit/ },
  );
  t.same(await contents(url), before, 'a backup that lacks rows changes nothing');
});

t.test('BACKUP-06: a backup that fails leaves no file', async (t) => {
  const { url } = await testDatabase(t);
  const folder = await temporaryFolder(t);
  const path = join(folder, 'never.tar.gz');
  const failing = (force: boolean): Promise<unknown> =>
    dumpDatabase(url, async ({ about, bytes, read }) =>
      writeArchive(
        path,
        {
          tables: DUMPED_TABLES,
          bytes,
          createdAt: 1,
          version: 'test',
          ...about,
          read: async (table) => {
            if (table === 'items') throw new Error('the connection broke');
            return read(table);
          },
        },
        nothing,
        force,
      ),
    );
  await t.rejects(failing(false), /the connection broke/);
  t.same(await readdir(folder), []);
  await writeFile(path, 'the one before');
  await t.rejects(failing(true), /the connection broke/);
  t.same(await readdir(folder), ['never.tar.gz']);
  t.equal(await readFile(path, 'utf8'), 'the one before', 'one that was to be replaced is whole');
});

t.test('BACKUP-06: a file that appears while the backup is made is not replaced', async (t) => {
  const { url } = await testDatabase(t);
  const folder = await temporaryFolder(t);
  const path = join(folder, 'backup.tar.gz');
  const making = backup(url, path);
  await writeFile(path, 'of somebody else');
  await t.rejects(making, { code: 'usage', message: /already exists/ });
  t.equal(await readFile(path, 'utf8'), 'of somebody else');
  t.same(await readdir(folder), ['backup.tar.gz']);
});

t.test('BACKUP-08: a dry run of migrate says what it would apply without applying it', async (t) => {
  const { url } = await testDatabase(t, 'empty');
  const would = await migrate({ url, folder: SQL_FOLDER, dryRun: true });
  t.ok(would.applied.length >= 8);
  t.same(await runSql(url, `SELECT 1 FROM pg_class WHERE relname = 'migrations'`), [], 'nothing is applied');
  t.same((await migrate({ url, folder: SQL_FOLDER, upTo: 3 })).applied, would.applied.slice(0, 3));
  t.same((await migrate({ url, folder: SQL_FOLDER })).applied, would.applied.slice(3));
});
