/** The epoch names the history that versions count in; a client that knows another one is reset. */
import { chown, readFile, stat, appendFile, writeFile } from 'node:fs/promises';
import { join as joinPath } from 'node:path';
import t from 'tap';
import { TestClock } from './support/clock.js';
import { claim, mustWrite, newItem, type TestDevice } from './support/devices.js';
import { until } from './support/events.js';
import { preparedFolder, testDatabase, type WithTeardown } from './support/postgres.js';
import { runServer, runSql, spawnServer, type Running } from './support/server.js';
import { changesOf, range, versionsOf } from './support/stream.js';
import { SHAPES, type Json, type Wire } from './support/wire.js';

t.setTimeout(600_000);

interface World {
  readonly server: Running;
  readonly wire: Wire;
  readonly device: TestDevice;
  readonly epoch: string;
  readonly head: number;
}

async function world(t: WithTeardown, options: Parameters<typeof runServer>[1] = {}): Promise<World> {
  const server = await runServer(t, options);
  const device = await claim(server.wire);
  let head = 0;
  for (const _ of range(1, 5)) head = await mustWrite(server.wire, device, newItem([device.id]));
  return { server, wire: server.wire, device, head, epoch: await epochOf(server.wire) };
}

const epochOf = async (wire: Wire): Promise<string> => (await wire.get('/service/status')).text('epoch');

async function helloOnce(
  wire: Wire,
  token: string,
  hello: { shape?: 'a' | 'b'; since?: number; epoch?: string | null },
): Promise<Json[]> {
  const { shape = 'a', since = 0, epoch } = hello;
  const socket = await wire.connect({ shape, token });
  const frames = await socket.hello(since, epoch === undefined ? {} : { epoch });
  await socket.close();
  return frames;
}

const typesOf = (frames: readonly Json[]): unknown[] => frames.map((frame) => frame['type']);
/** The frames for a client that must start over from 0. */
const anew = (head: number): string[] => ['reset', ...range(1, head).map(() => 'item'), 'caught_up'];

t.test('one history', async (t) => {
  const { wire, device, epoch, head } = await world(t);
  const { token } = device;

  t.test('EPOCH-01: the epoch is the same everywhere, in both shapes', async (t) => {
    t.ok(epoch.length > 0);
    for (const shape of SHAPES) {
      const me = await wire.get('/me', { token, shape });
      t.match(JSON.stringify(me.body), new RegExp(`"epoch":"${epoch}"`));
      t.equal((await wire.get('/items?since=0', { token, shape })).text('epoch'), epoch);
      t.equal((await wire.get('/service/status', { shape })).text('epoch'), epoch);
      t.equal((await helloOnce(wire, token, { shape })).at(-1)?.['epoch'], epoch);
    }
  });

  t.test(
    'EPOCH-02 EPOCH-03: a hello with another epoch, or a since above the head, gets reset and everything',
    async (t) => {
      for (const shape of SHAPES) {
        const hellos = [
          { since: 0, epoch: 'another' },
          { since: 3, epoch: 'another' },
          { since: head, epoch: '' },
          { since: head + 1 },
          { since: head + 1, epoch },
          { since: Number.MAX_SAFE_INTEGER, epoch: null },
          { since: head + 7, epoch: 'another' },
        ];
        for (const hello of hellos) {
          const frames = await helloOnce(wire, token, { shape, ...hello });
          const label = `${shape} ${JSON.stringify(hello)}`;
          t.same(typesOf(frames), anew(head), label);
          t.strictSame(frames[0], { type: 'reset', epoch }, label);
          t.same(versionsOf(frames), range(1, head), label);
          t.equal(frames.at(-1)?.['epoch'], epoch, label);
        }
      }
    },
  );

  t.test('EPOCH-05: a hello with the right epoch or none, and a since up to the head, gets no reset', async (t) => {
    for (const shape of SHAPES) {
      for (const since of range(0, head)) {
        for (const own of [epoch, null, undefined]) {
          const frames = await helloOnce(wire, token, { shape, since, epoch: own });
          t.same(typesOf(frames), anew(head).slice(1 + since), `${shape} ${since} ${String(own)}`);
        }
      }
    }
  });
});

t.test('EPOCH-04: an instance that lags does not reset a client that saw a higher version elsewhere', async (t) => {
  // Neither clock runs: the first never notifies the second, and the second never compares by itself.
  const database = await testDatabase(t);
  const { wire, device, epoch } = await world(t, { database, clock: new TestClock() });
  const second = await runServer(t, { database, clock: new TestClock() });
  const behind = await second.wire.connect({ token: device.token });
  const start = Number((await behind.hello()).at(-1)?.['version']);
  for (const round of range(1, 20)) {
    const version = await mustWrite(wire, device, newItem([device.id]));
    t.equal(version, start + round);
    t.same(typesOf(await helloOnce(second.wire, device.token, { since: version, epoch })), ['caught_up']);
    const page = await second.wire.get(`/items?since=${version}&epoch=${epoch}`, { token: device.token });
    t.not(page.at('reset'), true);
  }
  const reset = await helloOnce(second.wire, device.token, { since: start + 21 });
  t.same(typesOf(reset), anew(start + 20), 'a client whose since is above the stored head is reset');
});

t.test('EPOCH-06: a restart of the server keeps the epoch', async (t) => {
  const database = await testDatabase(t);
  const { server, epoch, device, head } = await world(t, { database });
  await server.stop();
  const again = await runServer(t, { database });
  t.equal(await epochOf(again.wire), epoch);
  t.same(typesOf(await helloOnce(again.wire, device.token, { since: head, epoch })), ['caught_up']);
});

t.test('EPOCH-07: a copy, a restored copy under the old name, and another cluster have another epoch', async (t) => {
  const database = await testDatabase(t);
  const { server, epoch, device, head } = await world(t, { database });
  await server.stop();
  const admin = new URL(database.url);
  const name = admin.pathname.slice(1);
  admin.pathname = '/postgres';
  const urlOf = (other: string): string => Object.assign(new URL(database.url), { pathname: `/${other}` }).href;

  const expectAnother = async (url: string, known: readonly string[], label: string): Promise<string> => {
    const copy = await runServer(t, { database: { url } });
    const found = await epochOf(copy.wire);
    t.notOk(known.includes(found), label);
    t.same(typesOf(await helloOnce(copy.wire, device.token, { since: head, epoch })), anew(head), label);
    const page = await copy.wire.get(`/items?since=${head}&epoch=${epoch}`, { token: device.token });
    t.equal(page.at('reset'), true, label);
    await copy.stop();
    return found;
  };

  await runSql(admin.href, `CREATE DATABASE ${name}_copy TEMPLATE ${name}`);
  t.teardown(async () => runSql(admin.href, `DROP DATABASE IF EXISTS ${name}_copy`));
  const copied = await expectAnother(urlOf(`${name}_copy`), [epoch], 'a copy');
  await runSql(admin.href, `DROP DATABASE ${name}`);
  await runSql(admin.href, `CREATE DATABASE ${name} TEMPLATE ${name}_copy`);
  const restored = await expectAnother(database.url, [epoch, copied], 'put back under the old name');
  // A dump that was loaded into another cluster differs from this one in the system identifier only.
  await runSql(database.url, "UPDATE installation SET system_identifier = '1'");
  const moved = await expectAnother(database.url, [epoch, copied, restored], 'another cluster');
  await runSql(database.url, "UPDATE installation SET timeline = '00000000'");
  await expectAnother(database.url, [epoch, copied, restored, moved], 'another timeline');
});

t.test('EPOCH-07: a database that was recovered from its log has a new timeline and another epoch', async (t) => {
  const dataDir = await preparedFolder(t);
  const first = await spawnServer(t, { embedded: true, dataDir });
  const device = await claim(first.wire);
  const head = await mustWrite(first.wire, device, newItem([device.id]));
  const epoch = await epochOf(first.wire);
  await first.end('SIGTERM');
  const cluster = joinPath(dataDir, 'postgres');
  const { uid, gid } = await stat(joinPath(cluster, 'PG_VERSION'));
  await appendFile(joinPath(cluster, 'postgresql.auto.conf'), "restore_command = 'false'\n");
  await writeFile(joinPath(cluster, 'recovery.signal'), '');
  await chown(joinPath(cluster, 'recovery.signal'), uid, gid);
  const second = await spawnServer(t, { embedded: true, dataDir });
  const log = await readFile(joinPath(dataDir, 'postgres.log'), 'utf8');
  t.match(log, /selected new timeline ID: 2/, 'the cluster was recovered');
  t.not(await epochOf(second.wire), epoch);
  t.same(typesOf(await helloOnce(second.wire, device.token, { since: head, epoch })), anew(head));
  t.equal(changesOf(await helloOnce(second.wire, device.token, {})).length, 1, 'the data is kept');
});

t.test('EPOCH-08: the epoch is compared at every connection, while the server runs', async (t) => {
  const { server, wire, device, epoch, head } = await world(t);
  const live = await wire.connect({ token: device.token });
  await live.hello(head, { epoch });
  await server.sql("UPDATE installation SET system_identifier = '1'");
  t.equal(await epochOf(wire), epoch, 'existing connections do not compare it');
  await server.sql(
    'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()',
  );
  const { code } = await live.closed;
  t.equal(code, 1012, 'a socket of the old history is closed');
  // A connection that died may be handed out once more.
  await until('an answer', async () => (await wire.get('/service/status')).status === 200);
  const now = await epochOf(wire);
  t.not(now, epoch);
  const frames = await helloOnce(wire, device.token, { since: head, epoch });
  t.same(typesOf(frames), anew(head));
  t.equal(frames[0]?.['epoch'], now);
});
