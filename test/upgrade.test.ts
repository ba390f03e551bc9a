/** An embedded database of another major version. The long test upgrades one with the real old programs. */
import { readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { keptSecret } from '../src/server/config/secrets.js';
import { EmbeddedPostgres } from '../src/server/storage/embedded/embedded.js';
import { admin } from './support/admin.js';
import { preparedFolder } from './support/postgres.js';
import { spawnServer } from './support/server.js';

/** Everything in a folder, with its size and when it was changed. */
async function contentsOf(folder: string): Promise<string[]> {
  const names = await readdir(folder, { recursive: true });
  const lines = names.map(async (name) => {
    const { size, mtimeMs } = await stat(join(folder, name));
    return `${name} ${size} ${mtimeMs}`;
  });
  return (await Promise.all(lines)).sort();
}

t.test('OPER-21: a database of another major version is refused, and the error says what to do', async (t) => {
  const dataDir = await preparedFolder(t);
  const password = await keptSecret(dataDir, 'database-password');
  const start = (): Promise<EmbeddedPostgres> => EmbeddedPostgres.start({ dataDir, password, onLog: () => undefined });
  await (await start()).stop();
  const file = join(dataDir, 'postgres', 'PG_VERSION');
  const now = Number(await readFile(file, 'utf8'));
  const call = await admin(t, { DATA_DIR: dataDir });
  t.match(await call.json('upgrade-postgres'), { code: EXIT.ok, data: { done: false, to: now } });
  await writeFile(file, '12\n');
  const before = await contentsOf(join(dataDir, 'postgres'));
  await t.rejects(start(), { name: 'ClusterVersionError', message: /made by PostgreSQL 12.*upgrade-postgres/ });
  const died = spawnServer(t, { embedded: true, dataDir });
  await t.rejects(died, { message: /ended with 1.*upgrade-postgres/s });
  t.match(await call.json('tenants', 'list'), { code: EXIT.refused, error: { code: 'postgres_version' } });
  t.match(await call.json('upgrade-postgres'), {
    code: EXIT.usage,
    error: { code: 'old_binaries', hint: /npm install .*--old-binaries/ },
  });
  t.same(await contentsOf(join(dataDir, 'postgres')), before, 'nothing is touched');
  await writeFile(file, `${now + 1}\n`);
  await t.rejects(start(), { name: 'ClusterVersionError', message: /which is older/ });
  t.match(await call.json('upgrade-postgres'), { code: EXIT.refused, error: { code: 'postgres_version' } });
  await writeFile(file, 'rubbish');
  await t.rejects(start(), /PG_VERSION is damaged/);
  await writeFile(file, `${now}\n`);
  await (await start()).stop();
  const empty = await admin(t, {});
  t.match(await empty.json('upgrade-postgres'), { code: EXIT.notFound, error: { code: 'no_database' } });
  const external = await admin(t, { DATABASE_URL: 'postgres://somewhere/else' });
  t.match(await external.json('upgrade-postgres'), { code: EXIT.usage, error: { hint: /pg_upgrade/ } });
});
