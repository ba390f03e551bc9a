/** INSTANCES=n: several processes on one port. */
import { fork, spawn, type ChildProcess } from 'node:child_process';
import { readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join as pathOf } from 'node:path';
import { mock } from 'node:test';
import { pino } from 'pino';
import t from 'tap';
import { EmbeddedPostgres } from '../src/server/storage/embedded/embedded.js';
import { Instance, KILL_AFTER_MS } from '../src/server/app/instances.js';
import { claim, join, mustWrite, newItem, type TestDevice } from './support/devices.js';
import { until } from './support/events.js';
import { freePort } from './support/free-port.js';
import { openFor } from './support/loopback-server.js';
import { temporaryFolder } from './support/postgres.js';
import { exists } from './support/processes.js';
import { runSql, spawnServer, type Child } from './support/server.js';
import { Wire, type Socket } from './support/wire.js';

/** Process ids of the instances that a parent has started, recognised by their command line. */
async function childrenOf(pid: number): Promise<number[]> {
  const text = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8');
  const pids = text.trim().split(' ').filter(Boolean).map(Number);
  const mine = await Promise.all(
    pids.map(async (child) => ({ child, line: await readFile(`/proc/${child}/cmdline`, 'utf8').catch(() => '') })),
  );
  return mine.filter(({ line }) => line.includes('--instance')).map(({ child }) => child);
}

const up = async (url: string): Promise<number> =>
  Number(
    (
      await runSql(
        url,
        "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'service-listen' AND datname = current_database()",
      )
    )[0]?.['n'],
  );

/** Sockets over many connections, so that each instance has some. */
async function watchers(server: Child, device: TestDevice, count: number): Promise<Socket[]> {
  const sockets = await Promise.all(
    Array.from({ length: count }, async () => new Wire(server.port).connect({ token: device.token })),
  );
  await Promise.all(sockets.map(async (socket) => socket.hello()));
  return sockets;
}

const idOf = (frame: Readonly<Record<string, unknown>>): unknown =>
  (frame['item'] as { id?: unknown } | undefined)?.id ?? frame['id'];

t.test('INST-19: instances on a given address are queried there whether the server is claimed', async (t) => {
  const server = await spawnServer(t, { env: { INSTANCES: '2', HOST: '127.0.0.2', TMPDIR: '/nowhere' } });
  t.ok(
    server.output.some((line) => line.includes('no folder for links')),
    'INST-58: without a folder for their links the instances start nevertheless',
  );
  await until('it is said', () => server.output.some((line) => line.includes('It is unclaimed')));
  t.ok(
    server.output.some((line) => line.includes('http://127.0.0.2:')),
    'the log names the address that answers',
  );
  t.equal(await server.end('SIGTERM'), 0);
});

t.test('INST-19 INST-20 INST-21: two instances on one port; a killed one is replaced, no write lost', async (t) => {
  const temporary = await temporaryFolder(t);
  const server = await spawnServer(t, { env: { INSTANCES: '2', TMPDIR: temporary } });
  t.equal(await up(server.databaseUrl), 2);
  const [links = ''] = (await readdir(temporary)).map((name) => pathOf(temporary, name));
  t.equal((await stat(links)).mode & 0o777, 0o700, 'INST-59: only its owner can enter the folder of the links');
  t.equal((await readdir(links)).length, 2);
  const first = await claim(server.wire);
  const second = await join(server.wire, first);
  const sockets = await watchers(server, second, 12);
  t.teardown(() => sockets.forEach((socket) => socket.terminate()));
  const ids = [first.id, second.id];
  const written = [];
  for (let n = 0; n < 20; n++) {
    const item = newItem(ids);
    // Each write has a connection of its own: the kernel spreads connections over the instances.
    const wire = new Wire(server.port);
    await mustWrite(wire, first, item);
    wire.close();
    written.push(item.id);
  }
  for (const socket of sockets) {
    const got = [];
    for (let n = 0; n < written.length; n++) got.push(idOf(await socket.next()));
    t.same(got, written, 'every socket receives every write once, in order');
  }

  const parent = server.process.pid ?? 0;
  const before = await childrenOf(parent);
  t.equal(before.length, 2);
  const [victim] = before;
  if (victim === undefined) throw new Error('no instance');
  process.kill(victim, 'SIGKILL');
  const acknowledged: string[] = [];
  await until('another instance in its place', async () => {
    const item = newItem(ids);
    const wire = new Wire(server.port);
    // A connection that the kernel gave to the dead instance is cut; the client tries again.
    const done = await mustWrite(wire, first, item).then(
      () => true,
      () => false,
    );
    wire.close();
    if (done) acknowledged.push(item.id);
    const others = (await childrenOf(parent)).filter((pid) => !before.includes(pid));
    return others.length > 0 && (await up(server.databaseUrl)) >= 2;
  });
  t.ok(acknowledged.length > 0, 'the other instance served meanwhile');
  const wire = new Wire(server.port);
  t.teardown(() => wire.close());
  const stored = new Set<unknown>();
  for (let since = 0, more = true; more;) {
    const page = await wire.get(`/items?since=${since}&limit=1000`, { token: first.token });
    for (const row of page.list('items')) stored.add(row['id']);
    since = page.number('nextSince');
    more = page.at('hasMore') === true;
  }
  t.same(
    [...written, ...acknowledged].filter((id) => !stored.has(id)),
    [],
    'nothing acknowledged is lost',
  );
  const last = await childrenOf(parent);
  t.equal(await server.end('SIGTERM'), 0);
  t.same(last.filter(exists), [], 'no instance is left');
  t.same(await readdir(temporary), [], 'the folder of the links is removed');
});

t.test('INST-21: instances end with the embedded database on SIGTERM, and when their parent dies', async (t) => {
  const server = await spawnServer(t, { embedded: true, env: { INSTANCES: '2', TOKEN_SECRET: '' } });
  const device = await claim(server.wire);
  // Every instance accepts the token: all of them use the same stored secret.
  for (let n = 0; n < 8; n++) {
    const wire = new Wire(server.port);
    t.equal((await wire.get('/me', { token: device.token })).status, 200);
    wire.close();
  }
  const pids = await childrenOf(server.process.pid ?? 0);
  t.equal(await server.end('SIGTERM'), 0);
  t.same(pids.filter(exists), []);
  const temporary = await temporaryFolder(t);
  const again = await spawnServer(t, { env: { INSTANCES: '2', TMPDIR: temporary } });
  const orphans = await childrenOf(again.process.pid ?? 0);
  await again.end('SIGKILL');
  await until('instances without a parent end by themselves', () => !orphans.some(exists));
  t.same(await readdir(temporary), [], 'INST-59: the folder of the links is removed');
});

t.test(
  'INST-62: with INSTANCE_PORTS=own each instance has a port, and a write on one reaches the sockets of the other',
  async (t) => {
    const port = await freePort();
    const server = await spawnServer(t, { env: { INSTANCES: '2', INSTANCE_PORTS: 'own', PORT: String(port) } });
    t.equal(server.port, port);
    const rows = await runSql(server.databaseUrl, 'SELECT DISTINCT port FROM instances ORDER BY port');
    t.same(rows, [{ port }, { port: port + 1 }]);
    const device = await claim(server.wire);
    const other = await join(server.wire, device);
    const wires = [new Wire(port), new Wire(port + 1)];
    t.teardown(() => wires.forEach((wire) => wire.close()));
    const sockets = await Promise.all(wires.map(async (wire) => wire.connect({ token: other.token })));
    t.teardown(() => sockets.forEach((socket) => socket.terminate()));
    for (const socket of sockets) await socket.hello();
    for (const wire of wires) {
      const item = newItem([device.id, other.id]);
      await mustWrite(wire, device, item);
      for (const socket of sockets) t.equal(idOf(await socket.next()), item.id);
    }
    t.equal(await server.end('SIGTERM'), 0);
  },
);

t.test('INST-22: the start fails on a port that a foreign process holds, with one instance and with two', async (t) => {
  const port = await openFor(t, createServer());
  for (const INSTANCES of ['1', '2'])
    await t.rejects(spawnServer(t, { env: { INSTANCES, PORT: String(port) } }), /in use|before it listened/);
});

t.test('INST-20: an instance whose process cannot be started is tried again', async (t) => {
  const folder = await temporaryFolder(t);
  const program = pathOf(folder, 'instance.mjs');
  await writeFile(
    program,
    "process.send({ port: 1, tenantId: null }); process.once('message', () => process.exit(3));",
  );
  let starts = 0;
  let first: ChildProcess | undefined;
  const again = new Promise<void>((resolve) => {
    const instance = new Instance(
      () => {
        starts++;
        if (starts === 2) return spawn(pathOf(folder, 'no-such-program'));
        if (starts === 3) throw new Error('EAGAIN');
        const child = fork(program);
        first ??= child;
        if (starts === 4) child.once('message', () => resolve());
        return child;
      },
      pino({ enabled: false }),
    );
    t.teardown(() => instance.stop().catch(() => undefined));
    instance.begin().then(
      () => first?.send('end'),
      (error: unknown) => t.fail(String(error)),
    );
  });
  await again;
  t.equal(starts, 4);
});

t.test('INST-22: an instance that does not stop is killed, so that its parent can stop the database', async (t) => {
  const program = pathOf(await temporaryFolder(t), 'instance.mjs');
  await writeFile(
    program,
    "process.on('SIGTERM', () => process.send('told')); process.send({ port: 1, tenantId: null }); setInterval(() => {}, 1e6);",
  );
  let child: ChildProcess | undefined;
  const instance = new Instance(() => (child = fork(program)), pino({ enabled: false }));
  await instance.begin();
  const told = new Promise((resolve) => child?.once('message', resolve));
  mock.timers.enable({ apis: ['setTimeout'] });
  t.teardown(() => mock.timers.reset());
  const stopped = t.rejects(instance.stop(), /SIGKILL/);
  await told;
  mock.timers.tick(KILL_AFTER_MS - 1);
  t.equal(child?.killed && child.signalCode, null, 'it is not killed before KILL_AFTER_MS');
  mock.timers.tick(1);
  await stopped;
});

t.test('INST-22: a start on an address that is not this machine’s fails and stops the embedded database', async (t) => {
  const dataDir = pathOf(await temporaryFolder(t), 'data');
  const env = { INSTANCES: '2', HOST: '192.0.2.1', PORT: '0' };
  await t.rejects(spawnServer(t, { embedded: true, dataDir, env }), /before it listened/);
  t.equal(await EmbeddedPostgres.runningUrl(dataDir, ''), null);
});
