/** HTTP connections where the process has few descriptors for them (src/server/http/connections.ts). */
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { statSync } from 'node:fs';
import { connect } from 'node:net';
import t, { type Test } from 'tap';
import { until } from './support/events.js';
import { frontOf } from './support/front.js';
import { raw, Raw, socketOf } from './support/front-sockets.js';

const HEALTH = 'GET /api/health HTTP/1.1\r\nHost: x\r\n\r\n';
const NO_PROXY = { trustedProxies: ['10.0.0.0/8'] };

/** A connection from one of this machine's addresses, which sends nothing yet. */
async function idle(t: Test, port: number, from = '127.0.0.1'): Promise<Raw> {
  const socket = connect({ port, host: '127.0.0.1', localAddress: from });
  t.teardown(() => socket.destroy());
  const connection = new Raw(socket);
  await once(socket, 'connect');
  return connection;
}

const many = (t: Test, port: number, count: number, from?: string): Promise<Raw[]> =>
  Promise.all(Array.from({ length: count }, () => idle(t, port, from)));

const closedOf = (connections: readonly Raw[]): number => connections.filter(({ closed }) => closed).length;

/** What one request on a new connection gets. It is accepted after all connections before it. */
async function health(t: Test, port: number, from: string): Promise<string> {
  const connection = await idle(t, port, from);
  connection.socket.write(HEALTH);
  await connection.until(() => connection.closed || connection.got.includes('}'));
  return connection.got;
}

t.test('FAIR-52: an address that keeps connections open leaves room for others', async (t) => {
  const { port, clock, lines } = await frontOf(t, { config: NO_PROXY, room: { connections: 40 } });
  const said = (): number => lines.filter((line) => JSON.stringify(line).includes('connections are closed')).length;
  const held = await many(t, port, 19);
  t.match(await health(t, port, '127.0.0.3'), /^HTTP\/1\.1 200 /);
  held.push(...(await many(t, port, 16)));
  const [extra] = await many(t, port, 1);
  await extra?.until(() => extra.closed);
  for (const address of ['127.0.0.2', '127.0.0.3'])
    t.match(await health(t, port, address), /^HTTP\/1\.1 200 /, address);
  t.equal(closedOf(held), 0, 'those that it has are kept');
  t.equal(said(), 1);
  clock.advance(12_000);
  held.push(...(await many(t, port, 2)));
  const [full] = await many(t, port, 1, '127.0.0.4');
  await full?.until(() => full.closed);
  t.equal(closedOf(held), 0, 'it may open some again, up to all of the room');
  t.equal(said(), 2, 'one line for each window');
});

t.test('FAIR-52: while connections are scarce, requests that keep them count, whatever their replies', async (t) => {
  const { port, clock } = await frontOf(t, { config: NO_PROXY, room: { connections: 40 } });
  const kept = await raw(t, port, '');
  const preflight =
    'OPTIONS /api/items HTTP/1.1\r\nHost: x\r\nOrigin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n\r\n';
  const statuses = (): string[] => [...kept.got.matchAll(/HTTP\/1\.1 (\d{3})/g)].map(([, status]) => status ?? '');
  const asked = async (text: string): Promise<void> => {
    const before = statuses().length;
    kept.socket.write(text);
    await kept.until(() => kept.closed || statuses().length > before);
  };
  for (let times = 0; times < 20; times++) await asked(preflight);
  t.equal(new Set(statuses()).size, 1, 'none is refused before');
  const held = await many(t, port, 20, '127.0.0.2');
  t.match(await health(t, port, '127.0.0.3'), /^HTTP\/1\.1 200 /, 'accepted after them');
  for (let times = 0; times < 17; times++) await asked(preflight);
  await kept.until(() => kept.closed);
  t.equal(statuses().length, 37);
  t.equal(statuses().at(-1), '429');
  t.match(kept.got, /"rate_limited"/);
  t.match(await health(t, port, '127.0.0.3'), /^HTTP\/1\.1 200 /, 'another address has its own share');
  clock.advance(12_000);
  t.match(await health(t, port, '127.0.0.1'), /^HTTP\/1\.1 200 /, 'in the next window it may again');
  t.equal(closedOf(held), 0);
});

t.test('FAIR-52: a network has four times the share of an address', async (t) => {
  const { port } = await frontOf(t, { config: NO_PROXY, room: { connections: 200 } });
  const held = await many(t, port, 100, '127.0.1.1');
  for (let host = 1; host <= 4; host++) held.push(...(await many(t, port, 16, `127.0.2.${host}`)));
  const [extra] = await many(t, port, 1, '127.0.2.5');
  await extra?.until(() => extra.closed);
  t.match(await health(t, port, '127.0.3.1'), /^HTTP\/1\.1 200 /, 'another network');
  t.equal(closedOf(held), 0);
});

t.test("FAIR-52: a proxy's connections are no address's share, and end where there is no room at all", async (t) => {
  const { port } = await frontOf(t, { room: { connections: 40 } });
  const held = await many(t, port, 40);
  const [full] = await many(t, port, 1);
  await full?.until(() => full.closed);
  t.equal(closedOf(held), 0);
  for (const { socket } of held.splice(0, 10)) socket.destroy();
  await until('room for ten', async () => (await health(t, port, '127.0.0.1')).startsWith('HTTP/1.1 200'));
});

t.test('FAIR-52: a connection that became a socket is none, but takes its room', async (t) => {
  const { port, front } = await frontOf(t, { room: { connections: 6 } });
  const sockets = await Promise.all(Array.from({ length: 4 }, () => socketOf(t, port)));
  const held = await many(t, port, 2);
  const [full] = await many(t, port, 1);
  await full?.until(() => full.closed);
  sockets[0]?.ws.close();
  await until('a socket is gone', () => front.sockets === 3);
  held.push(...(await many(t, port, 1)));
  for (const { socket } of held.splice(0, 2)) socket.destroy();
  await until('room for two', async () => (await health(t, port, '127.0.0.1')).startsWith('HTTP/1.1 200'));
  front.drain({ ms: 60_000, alone: false });
  for (let times = 0; times < 10; times++) t.equal(await (await socketOf(t, port)).closed(), 1012, 'turned away');
  t.match(await health(t, port, '127.0.0.1'), /^HTTP\/1\.1 200 /, 'those that are turned away do not stay counted');
});

t.test('FAIR-52: no connection is taken while no descriptor is left, whoever holds them', async (t) => {
  const at = { exhausted: false };
  const room = { connections: 1_000, isExhausted: () => at.exhausted };
  const { port } = await frontOf(t, { config: NO_PROXY, room });
  const kept = await raw(t, port, HEALTH);
  await kept.until(() => kept.got.includes('}'));
  at.exhausted = true;
  const [extra] = await many(t, port, 1);
  await extra?.until(() => extra.closed);
  for (let n = 0; n < 20; n++) {
    const { length } = kept.got;
    kept.socket.write(HEALTH);
    await kept.until(() => kept.closed || kept.got.slice(length).includes('}'));
    t.match(kept.got.slice(length), /^HTTP\/1\.1 200 /, 'requests on it need no descriptor');
  }
  at.exhausted = false;
  t.match(await health(t, port, '127.0.0.1'), /^HTTP\/1\.1 200 /);
  t.equal(kept.closed, false);
});

/** Evaluates an expression of `room` in a process with this limit of descriptors. */
function inProcess(limit: number, expression: string): unknown {
  const module = new URL('../src/server/realtime/descriptors.js', import.meta.url).href;
  const script = `const { openSync, closeSync } = await import('node:fs');
    const { descriptorRoom } = await import('${module}');
    const clock = { time: 0, now: () => clock.time };
    const room = descriptorRoom(clock);
    console.log(JSON.stringify(${expression}))`;
  const run = ['-c', `ulimit -n ${limit} && exec "$0" --input-type=module -e "$1"`, process.execPath, script];
  return JSON.parse(execFileSync('sh', run).toString());
}

t.test('WS-30 FAIR-52: the numbers of sockets and connections follow from the process’s limit of descriptors', (t) => {
  const fit = (limit: number): unknown => inProcess(limit, 'room');
  t.same(fit(300), { sockets: 172, connections: 236 });
  t.same(fit(10_000), { sockets: 9_500, connections: 9_750 });
  t.end();
});

t.test(
  'FAIR-52: descriptors that anything else holds leave no room either, as the kernel counts them',
  { skip: statSync('/proc/self/fd').size === 0 && 'this kernel does not tell' },
  (t) => {
    const steps = `[() => 0, () => { while (openSync('/dev/null') < 260); }, () => (clock.time = 100), () => closeSync(200),
      () => { for (let fd = 201; fd < 260; fd++) closeSync(fd); }, () => (clock.time = 200)]`;
    t.same(
      inProcess(300, `${steps}.map((step) => (step(), room.isExhausted()))`),
      [false, false, true, true, true, false],
      'looked at every 100 ms',
    );
    t.end();
  },
);
