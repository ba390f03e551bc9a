/** Upgrades of the embedded database over a major version, killed at will. */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { Test } from 'tap';
import { EXIT } from '../../src/terminal/terminal.js';
import { DUMPED_TABLES } from '../../src/server/storage/dump.js';
import { EmbeddedPostgres } from '../../src/server/storage/embedded/embedded.js';
import { admin } from './admin.js';
import { claim, join as joinDevice, mustWrite, newItem } from './devices.js';
import { oldPostgres, startOld } from './old-postgres.js';
import { databasePassword, temporaryFolder } from './postgres.js';
import { runServer, runSql } from './server.js';

const run = promisify(execFile);
const CHILD = fileURLToPath(new URL('../fixtures/upgrade-child.js', import.meta.url));

/** All rows, as text. */
export async function contents(url: string): Promise<Record<string, unknown>> {
  const all: Record<string, unknown> = {};
  for (const table of DUMPED_TABLES) all[table] = await runSql(url, `SELECT x::text FROM ${table} x ORDER BY x::text`);
  return all;
}

/** A stopped cluster of the old version, made through a server, and what is in it. */
export async function filledFolder(t: Test) {
  const dataDir = join(await temporaryFolder(t), 'data');
  const old = await startOld(t, dataDir);
  const server = await runServer(t, { database: { url: old.url } });
  const first = await claim(server.wire);
  const second = await joinDevice(server.wire, first);
  const ids = [first.id, second.id];
  const write = (ct: Buffer): Promise<number> => mustWrite(server.wire, first, newItem(ids, { ct }));
  for (let n = 0; n < 20; n++) await write(Buffer.alloc(40_000, `\\t\n\r\\N${n}`));
  const gone = newItem(ids);
  await mustWrite(server.wire, first, gone);
  await server.wire.delete(`/items/${gone.id}`, { token: first.token });
  const me = await server.wire.get('/me', { token: first.token });
  await server.stop();
  const rows = await contents(old.url);
  await old.stop();
  return { dataDir, devices: [first, second], epoch: me.text('epoch'), head: me.number('headVersion'), rows };
}

/** Major version of the cluster in a folder. */
export const majorIn = async (path: string): Promise<number> =>
  Number(await readFile(join(path, 'PG_VERSION'), 'utf8'));

/** Kills upgrades before these steps (`middle`: while rows are copied), and looks at what became of both databases. */
export async function killedBefore(t: Test, steps: readonly string[]): Promise<void> {
  const from = oldPostgres?.major ?? 0;
  const template = await filledFolder(t);
  for (const step of steps) {
    const dataDir = join(await temporaryFolder(t), 'data');
    await run('cp', ['-a', template.dataDir, dataDir]);
    const child = spawn(process.execPath, [CHILD, dataDir, oldPostgres?.folder ?? '', step], {
      stdio: ['ignore', 'ignore', 'inherit'],
    });
    t.same(await once(child, 'exit'), [null, 'SIGKILL'], step);
    const kept = step === 'move-new' ? `postgres-${from}` : 'postgres';
    t.equal(await majorIn(join(dataDir, kept)), from, `${step}: the old one is there`);
    const call = await admin(t, { DATA_DIR: dataDir });
    if (step === 'move-new') {
      t.notOk(existsSync(join(dataDir, 'postgres')), 'between the two names');
      t.match(await call.json('verify'), { code: EXIT.ok, data: { items: 20 } }, 'and yet no empty one is made');
    } else {
      const old = await startOld(t, dataDir);
      t.same(await contents(old.url), template.rows, `${step}: the old one holds everything`);
      await old.stop();
    }
    const again = await call.json('upgrade-postgres');
    t.match(again, { code: EXIT.ok, data: { done: step !== 'move-new' } }, again.stderr);
    const names = (await readdir(dataDir)).sort();
    t.same(names, ['postgres', `postgres-${from}`, 'postgres.log', 'secrets'], `${step}: nothing else is left`);
    const password = await databasePassword(dataDir);
    const upgraded = await EmbeddedPostgres.start({ dataDir, password, onLog: () => undefined });
    t.same(await contents(upgraded.url), template.rows, `${step}: all is in the new one`);
    const [found] = await runSql(upgraded.url, `SELECT claim_epoch('fresh') AS epoch`);
    // Once the old database gave its history's name away it may not have it back.
    if (!['name-new', 'move-old'].includes(step))
      t.equal(found?.['epoch'], template.epoch, `${step}: the same history`);
    else t.not(found?.['epoch'], template.epoch, `${step}: another history`);
    await upgraded.stop();
  }
}
