/** Upgrade of the embedded database to another major version: real old programs, real servers, a kill at every step. */
import { execFile } from 'node:child_process';
import { readdir, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { planUpgrade, requireSpace } from '../src/server/storage/embedded/upgrade-plan.js';
import { UPGRADE_STEPS } from '../src/server/storage/embedded/upgrade.js';
import { admin } from './support/admin.js';
import { mustWrite, newItem, type TestDevice } from './support/devices.js';
import { oldPostgres, startOld, withoutOld } from './support/old-postgres.js';
import { runServer, spawnServer } from './support/server.js';
import { smallDisk } from './support/small-disk.js';
import { contents, filledFolder, killedBefore, majorIn } from './support/upgrades.js';

t.setTimeout(840_000);

const run = promisify(execFile);

const from = oldPostgres?.major ?? 0;
const folder = oldPostgres?.folder ?? '';

t.test('OPER-22 OPER-23 OPER-25: a major upgrade keeps all rows and can be undone', { skip: withoutOld }, async (t) => {
  const { dataDir, devices, epoch, head, rows } = await filledFolder(t);
  const [first, second] = devices as [TestDevice, TestDevice];
  await t.rejects(spawnServer(t, { embedded: true, dataDir }), { message: /upgrade-postgres/ });
  const call = await admin(t, { DATA_DIR: dataDir });
  const before = (await readdir(dataDir)).sort();
  t.match(await call.json('upgrade-postgres', '--dry-run'), {
    code: EXIT.ok,
    data: { dryRun: true, from, keptAs: join(dataDir, `postgres-${from}`), oldPostgres: RegExp(folder) },
  });
  t.same((await readdir(dataDir)).sort(), before);
  t.match(await call.json('upgrade-postgres', '--old-binaries', dataDir), {
    code: EXIT.usage,
    error: { code: 'old_binaries' },
  });
  const plan = await planUpgrade(dataDir);
  if ('current' in plan) throw new Error('it was upgraded already');
  t.ok(plan.needBytes > 128 * 1024 * 1024);
  t.ok(plan.freeBytes > 0);
  t.throws(() => requireSpace({ ...plan, freeBytes: 1_000_000 }), { name: 'UpgradeError', reason: 'space' });
  requireSpace({ ...plan, freeBytes: plan.needBytes });
  // Less than an empty cluster alone is taken to need.
  const disk = await smallDisk(t, '128m');
  if (disk !== undefined) {
    await run('cp', ['-a', dataDir, join(disk, 'data')]);
    const there = await admin(t, { DATA_DIR: join(disk, 'data') });
    for (const more of [[], ['--dry-run']])
      t.match(await there.json('upgrade-postgres', ...more), { code: EXIT.refused, error: { code: 'space' } });
    t.same((await readdir(join(disk, 'data'))).sort(), before);
  }

  const running = await startOld(t, dataDir);
  t.match(await call.json('upgrade-postgres'), { code: EXIT.unavailable, error: { code: 'busy' } });
  await running.stop();
  t.equal(await majorIn(join(dataDir, 'postgres')), from, 'the database is unchanged');
  const added = (await readdir(dataDir)).filter((name) => !before.includes(name));
  t.same(added, []);

  const done = await call.plain('upgrade-postgres');
  t.equal(done.code, EXIT.ok, done.stderr);
  t.match(done.stdout, /: 1 tenant, 2 devices, 21 items/);
  t.same((await readdir(dataDir)).sort(), [...before, `postgres-${from}`].sort(), 'only the old folder was added');
  const server = await spawnServer(t, { embedded: true, dataDir });
  const me = await server.wire.get('/me', { token: first.token });
  t.same([me.text('epoch'), me.number('headVersion')], [epoch, head], 'the same history');
  const socket = await server.wire.connect({ token: second.token });
  socket.ws.send(JSON.stringify({ type: 'hello', since: head, epoch }));
  t.match(await socket.next(), { type: 'caught_up', version: head }, 'nothing is sent again');
  const ids = [first.id, second.id];
  t.equal(await mustWrite(server.wire, first, newItem(ids)), head + 1);
  server.wire.close();
  t.equal(await server.end('SIGTERM'), 0);
  t.match(await call.json('verify'), { code: EXIT.ok, data: { items: 21, discrepancies: [] } });

  await rename(join(dataDir, 'postgres'), join(dataDir, 'set-aside'));
  await rename(join(dataDir, `postgres-${from}`), join(dataDir, 'postgres'));
  const old = await startOld(t, dataDir);
  t.same(await contents(old.url), rows, 'the old database has its rows unchanged');
  const back = await runServer(t, { database: { url: old.url } });
  const other = await back.wire.get('/me', { token: first.token });
  t.equal(other.number('headVersion'), head, 'the old database would assign the next version again');
  t.not(other.text('epoch'), epoch, 'the old database announces another epoch');
  await back.stop();
  await old.stop();
});

t.test('OPER-24: an upgrade killed at any step finishes later', { skip: withoutOld, timeout: 600_000 }, async (t) => {
  await killedBefore(t, [...UPGRADE_STEPS, 'middle']);
});
