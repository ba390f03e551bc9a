/** Draining as the operator orders it: by `service-admin` through the database, and by a signal. */
import t from 'tap';
import { retryAfterOf } from '../src/protocol/retry-after.js';
import { admin } from './support/admin.js';
import { TestClock } from './support/clock.js';
import { claim, join, mustWrite, newItem } from './support/devices.js';
import { until } from './support/events.js';
import { runServer, spawnServer } from './support/server.js';
import { Wire, type Socket } from './support/wire.js';

/** Advances the clocks, so that instances send heartbeats, until `work` settles. */
async function beating<T>(clocks: readonly TestClock[], work: Promise<T>): Promise<T> {
  let over = false;
  const done = (): void => void (over = true);
  work.then(done, done);
  await until('the end of the command', () => {
    for (const clock of clocks) clock.advance(100);
    return over;
  });
  return work;
}

t.test('DRAIN-10 DRAIN-11: instances are listed, and drained by their row, not by a notification', async (t) => {
  const clocks = [new TestClock(), new TestClock()];
  const one = await runServer(t, { clock: clocks[0] });
  const operator = await admin(t, { DATABASE_URL: one.databaseUrl });
  const device = await claim(one.wire);
  const other = await join(one.wire, device);
  const sockets = await Promise.all(Array.from({ length: 5 }, () => one.wire.connect({ token: other.token })));
  for (const socket of sockets) await socket.hello();

  t.match(await operator.json('drain', 'nobody'), { code: 3, error: { code: 'instance_not_found' } });
  const [mine] = (await operator.json('instances')).data['instances'] as Record<string, unknown>[];
  t.match(mine, { pid: process.pid, port: one.port, draining: false });
  const id = String(mine?.['id']);
  t.match(await operator.json('drain', id), { code: 5, error: { code: 'last_instance' } });
  t.match(await operator.plain('drain', id, '--minutes', '121'), { code: 2 });

  const two = await runServer(t, { clock: clocks[1], database: { url: one.databaseUrl } });
  for (const text of [
    JSON.stringify({ from: 'operator', drain: { ms: 0, alone: true } }),
    JSON.stringify({ from: id, drain_ms: 0, drain_asked_at: 1 }),
  ])
    await one.sql("SELECT pg_notify('service', $1)", [text]);
  clocks[0]?.advance(10_000);
  t.equal((await one.wire.get('/ready')).status, 200, 'a notification alone drains nothing');

  const ended = await beating(clocks, operator.json('drain', id, '--minutes', '0'));
  t.match(ended, { code: 0, data: { drained: [id], stopped: [] } });
  for (const { code, reason } of await Promise.all(sockets.map((socket) => socket.closed))) {
    t.equal(code, 1012);
    t.ok(retryAfterOf(reason));
  }
  t.equal((await one.wire.get('/ready')).status, 503);
  t.equal((await two.wire.get('/ready')).status, 200);
  await mustWrite(one.wire, device, newItem([device.id, other.id]));
  const moved = await two.wire.connect({ token: other.token });
  await moved.hello();
  const listed = await operator.plain('instances');
  t.match(listed.stdout, /drained/);
  t.match(listed.stdout, /serving/);
  const rest = (await operator.json('instances')).data['instances'] as Record<string, unknown>[];
  const left = rest.find((row) => row['id'] !== id);
  t.match(await operator.json('drain', String(left?.['id'])), { code: 5, error: { code: 'last_instance' } });
  t.match(
    await beating(clocks, operator.json('drain', String(left?.['id']), '--minutes', '0', '--force')),
    { code: 0 },
    '--force drains the last instance',
  );
  t.equal((await moved.closed).code, 1012);
});

/** `count` sockets, each on a connection of its own. */
const opened = (port: number, token: string, count: number): Promise<Socket[]> =>
  Promise.all(Array.from({ length: count }, () => new Wire(port).connect({ token })));

t.test('DRAIN-12: SIGUSR2 to one process leaves the port to the other; to the parent it drains both', async (t) => {
  const server = await spawnServer(t, { env: { INSTANCES: '2', DRAIN_MINUTES: '0' } });
  const device = await claim(server.wire);
  const sockets = await opened(server.port, device.token, 14);
  t.teardown(() => sockets.forEach((socket) => socket.terminate()));
  const operator = await admin(t, { DATABASE_URL: server.databaseUrl });
  const rows = async () => (await operator.json('instances')).data['instances'] as Record<string, unknown>[];
  await until('both, with their sockets', async () => {
    const all = await rows();
    return all.length === 2 && all.reduce((sum, row) => sum + Number(row['sockets']), 0) === 14;
  });
  const [first] = await rows();
  process.kill(Number(first?.['pid']), 'SIGUSR2');
  let closed = 0;
  for (const socket of sockets) void socket.closed.then(({ code }) => (closed += Number(code === 1012)));
  await until('its sockets to go', () => closed === Number(first?.['sockets']));
  const later = await opened(server.port, device.token, 2);
  t.teardown(() => later.forEach((socket) => socket.terminate()));
  for (const socket of later) await socket.hello();
  for (let n = 0; n < 8; n++) {
    const wire = new Wire(server.port);
    t.equal((await wire.get('/ready')).status, 200, 'the other process answers');
    wire.close();
  }
  server.process.kill('SIGUSR2');
  for (const socket of later) t.equal((await socket.closed).code, 1012);
  const wire = new Wire(server.port);
  t.equal((await wire.get('/ready')).status, 503, 'the port stays open');
  t.equal((await wire.get('/me', { token: device.token })).status, 200);
  wire.close();
  t.equal(await server.end('SIGTERM'), 0);
});
