/**
 * Servers that end: sockets of a drained one, which are closed in an order and with a reason; draining as the operator
 * orders it, through the database and by a signal; SIGTERM under load.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import t from 'tap';
import type { DeviceSocket } from '../src/server/realtime/device-socket.js';
import { Departures } from '../src/server/realtime/departures.js';
import { retryAfterOf, retryAfterReason } from '../src/protocol/retry-after.js';
import { TestClock } from './support/clock.js';
import { until, soon } from './support/events.js';
import { ask, frontOf, tokenOf } from './support/front.js';
import { openSocket, socketOf, TestSocket } from './support/front-sockets.js';
import { admin } from './support/admin.js';
import { claim, join, mustWrite, newItem, writeBody } from './support/devices.js';
import { runServer, spawnServer } from './support/server.js';
import { Wire, type Socket, spelled } from './support/wire.js';
import { KeepAlive } from './support/keep-alive.js';
import { testDatabase } from './support/postgres.js';
import { difference, listAll, range, startWriters, untilVersion, versionsOf } from './support/stream.js';

t.setTimeout(600_000);

interface Sent {
  readonly n: number;
  readonly at: number;
  readonly code: number;
  /** Seconds. */
  readonly after: number;
}

/** Stands in for a socket, and records its close. */
interface Fake {
  closing: boolean;
  wire: object | undefined;
  session: { phase: { kind: string } };
  close(code: number, reason: string): void;
}

/** A generator of numbers that is the same each time (an LCG). */
function repeatable(): () => number {
  let state = 42;
  return () => (state = (state * 1_664_525 + 1_013_904_223) % 4_294_967_296) / 4_294_967_296;
}

function world(count: number) {
  const clock = new TestClock();
  const started = clock.now();
  const sent: Sent[] = [];
  const sockets = Array.from({ length: count }, (_, n): Fake => {
    const fake: Fake = {
      closing: false,
      wire: {},
      session: { phase: { kind: 'live' } },
      close: (code, reason) => {
        fake.closing = true;
        sent.push({ n, at: clock.now() - started, code, after: retryAfterOf(reason) ?? NaN });
      },
    };
    return fake;
  });
  const open = (): DeviceSocket[] => sockets.filter((one) => !one.closing) as unknown as DeviceSocket[];
  const departures = new Departures(clock, open, repeatable());
  /** The number of sockets closed in each of `count` equal parts of the time. */
  const parts = (ms: number, count: number): number[] => {
    const found = Array<number>(count).fill(0);
    for (const { at } of sent) {
      const part = Math.min(count - 1, Math.floor((at * count) / ms));
      found[part] = (found[part] ?? 0) + 1;
    }
    return found;
  };
  return { clock, sent, sockets, departures, parts };
}

const MINUTE_MS = 60_000;

t.test(
  'DRAIN-02: sockets are closed evenly over the minutes, in random order, with 1012 and a retry-after',
  async (t) => {
    const { clock, sent, departures, parts } = world(3_000);
    const over = departures.over(5 * MINUTE_MS);
    for (let ms = 0; ms < 5 * MINUTE_MS; ms += 10) clock.advance(10);
    await over;
    t.equal(sent.length, 3_000);
    t.equal(new Set(sent.map(({ n }) => n)).size, 3_000, 'each once');
    t.ok(
      sent.every(({ code, after }) => code === 1012 && after === 1),
      'one second, since the other instances have time enough',
    );
    const each = parts(5 * MINUTE_MS, 100);
    t.ok(
      Math.max(...each) <= 31 && Math.min(...each) >= 29,
      `30 in each 3 s: ${Math.min(...each)} to ${Math.max(...each)}`,
    );
    // Adjacent sockets in the list, such as the devices of one tenant, are not closed together.
    const near = sent.filter(({ n }) => n < 300).map(({ at }) => at / (5 * MINUTE_MS));
    t.ok(near.length === 300 && Math.min(...near) < 0.05 && Math.max(...near) > 0.95);
  },
);

t.test('DRAIN-03: a short drain closes 1,000 sockets per step, and gives different times to come back', async (t) => {
  const { clock, sent, departures } = world(10_000);
  const over = departures.over(0);
  t.equal(sent.length, 1_000, 'closes in one step');
  for (let step = 0; step < 9; step++) clock.advance(50);
  await over;
  t.equal(sent.length, 10_000);
  const seconds = sent.map(({ after }) => after);
  t.equal(Math.max(...seconds), 20, '10,000 at 500 a second');
  for (let second = 2; second <= 19; second++) {
    const inIt = seconds.filter((each) => each === second).length;
    t.ok(inIt >= 400 && inIt <= 600, `${inIt} are to come back after ${second} s`);
  }
});

t.test('DRAIN-04: a socket in a replay is closed when it is caught up, or at the end', async (t) => {
  const { clock, sent, sockets, departures } = world(10);
  const [slow, slower] = sockets;
  for (const one of [slow, slower]) if (one !== undefined) one.session.phase.kind = 'replaying';
  const over = departures.over(MINUTE_MS);
  const pass = (ms: number): void => {
    for (let passed = 0; passed < ms; passed += 50) clock.advance(50);
  };
  pass(50_000);
  t.equal(sent.length, 8, 'all the others, at their time');
  if (slow !== undefined) slow.session.phase.kind = 'live';
  pass(9_000);
  t.equal(sent.length, 9);
  t.equal(sent.at(-1)?.n, 0);
  pass(1_500);
  await over;
  t.equal(sent.at(-1)?.n, 1, 'at the end');
});

t.test('DRAIN-05: a second order closes the remaining sockets, over its own time', async (t) => {
  const { clock, sent, departures } = world(100);
  const pass = (ms: number): void => {
    for (let passed = 0; passed < ms; passed += 1_000) clock.advance(1_000);
  };
  const first = departures.over(10 * MINUTE_MS);
  pass(5 * MINUTE_MS - 1_000);
  t.equal(sent.length, 50);
  const second = departures.over(MINUTE_MS);
  pass(30_000);
  t.equal(sent.length, 76, 'half of the remaining ones in half of its minute');
  const third = departures.over(0);
  await Promise.all([first, second, third]);
  t.equal(sent.length, 100, 'at once');
  t.equal(new Set(sent.map(({ n }) => n)).size, 100);
  await departures.over(MINUTE_MS);
  t.equal(sent.length, 100, 'no socket is left');
});

t.test('DRAIN-14: a clock that is set back delays the sockets by no more than the time of the drain', async (t) => {
  const { clock, sent, departures } = world(100);
  const over = departures.over(MINUTE_MS);
  for (let ms = 0; ms < 30_000; ms += 50) clock.advance(50);
  t.ok(sent.length >= 49 && sent.length <= 51);
  clock.setBy(-60 * MINUTE_MS);
  for (let ms = 0; ms < MINUTE_MS + 100; ms += 50) clock.advance(50);
  await over;
  t.equal(sent.length, 100);
});

t.test('DRAIN-06: the time in a close frame is a whole number of seconds, from 1 to 600', (t) => {
  t.same([0, -7, 0.2, 1, 1.1, 600, 1e9].map(retryAfterReason), [
    ...['retry-after=1', 'retry-after=1', 'retry-after=1', 'retry-after=1', 'retry-after=2'],
    ...['retry-after=600', 'retry-after=600'],
  ]);
  t.same(
    ['retry-after=1', 'retry-after=600', 'retry-after=601', 'retry-after=999999999'].map(retryAfterOf),
    [1, 600, 601, 999_999_999],
  );
  for (const other of [
    ...['', 'restart', '7', 'retry-after=', 'retry-after=x', 'retry-after=0', 'retry-after=01', 'retry-after=-1'],
    ...['retry-after=1.5', 'retry-after=1e3', 'retry-after=1 ', ' retry-after=1', 'x retry-after=1', 'Retry-After=1'],
    ...['retry-after=1s', 'retry-after=1\n', 'retry-after=9999999999'],
  ])
    t.equal(retryAfterOf(other), undefined, JSON.stringify(other));
  t.end();
});

t.test(
  'DRAIN-01 DRAIN-02 DRAIN-07: a server that is drained is not ready, accepts no sockets, and answers requests',
  async (t) => {
    const { port, front, clock, actor } = await frontOf(t, { services: { ready: () => !front.draining } });
    const ready = async (): Promise<string> => {
      const { status, json } = await ask(port, '/api/ready', { token: null });
      return `${status} ${String(json['ready'])}`;
    };
    t.equal(await ready(), '200 true');
    const sockets = await Promise.all(Array.from({ length: 4 }, () => socketOf(t, port)));
    for (const socket of sockets) await socket.say({ type: 'hello', since: 0 });
    front.drain({ ms: 4_000, alone: false });
    t.equal(await ready(), '503 false');
    t.equal((await ask(port, '/api/health', { token: null })).status, 200, 'health is still 200');
    t.equal((await ask(port, '/api/devices')).status, 200, 'requests are answered');
    await until('the first one', () => sockets.filter(({ closeCode }) => closeCode !== undefined).length === 1);
    const [open] = sockets.filter(({ closeCode }) => closeCode === undefined);
    for (const { port: socket } of actor.sessions) socket.send(['{"type":"pushed"}']);
    await open?.say({ type: 'ping' });
    t.equal(open?.closeCode, undefined, 'the remaining sockets work');
    t.ok(
      open?.frames.some(({ type }) => type === 'pushed'),
      'and get what is pushed',
    );
    const late = await openSocket(t, port);
    if (!(late instanceof TestSocket)) throw new Error('refused by status');
    t.equal(await late.closed(), 1012);
    t.match(late.closeReason, /^retry-after=([1-9]|10)$/);
    t.equal(actor.sessions.length, 3, 'the late socket began no session');
    t.equal(
      ((await openSocket(t, port, { query: `?token=${tokenOf({ forged: true })}` })) as { status: number }).status,
      401,
    );
    for (let step = 0; step < 80; step++) clock.advance(50);
    t.same(await Promise.all(sockets.map((socket) => socket.closed())), [1012, 1012, 1012, 1012]);
    t.ok(sockets.every(({ closeReason }) => retryAfterOf(closeReason) !== undefined));
    t.equal(front.sockets, 0);
    t.equal((await ask(port, '/api/devices')).status, 200, 'requests are answered until it is stopped');
  },
);

t.test('DRAIN-08: a stop during a drain closes the remaining sockets within a second', async (t) => {
  const { port, front, clock } = await frontOf(t);
  const sockets = await Promise.all(Array.from({ length: 6 }, () => socketOf(t, port)));
  front.drain({ ms: 60 * MINUTE_MS, alone: false });
  await until('the first one', () => sockets.some(({ closeCode }) => closeCode !== undefined));
  const stopped = front.close(1_000);
  for (let step = 0; step < 20; step++) {
    clock.advance(50);
    await new Promise((resolve) => setImmediate(resolve));
  }
  await stopped;
  t.same(await Promise.all(sockets.map((socket) => socket.closed())), Array(6).fill(1012));
});

t.test('DRAIN-09: a server that is drained consumes no ticket and loads no tenant', async (t) => {
  let asked = 0;
  const { port, front } = await frontOf(t, {
    loaded: false,
    services: {
      tickets: {
        issueSocket: () => ({ ticket: 'x', expiresAt: 1 }),
        readSocket: (ticket) =>
          ticket === 'altered'
            ? undefined
            : {
                ...{ deviceId: 'device', epoch: 1, expiresAt: 4e12 },
                spend: () => Promise.resolve(++asked > 0),
              },
      },
      tenants: {
        actors: new Map(),
        get: () => Promise.reject(new Error(`${++asked}`)),
        hurry: () => undefined,
        changed: () => Promise.resolve(),
      },
    },
  });
  front.drain({ ms: 0, alone: false });
  for (const query of ['?ticket=x', `?token=${tokenOf()}`]) {
    const socket = await socketOf(t, port, { query });
    t.equal(await socket.closed(), 1012);
  }
  t.match(await openSocket(t, port, { query: '?ticket=altered' }), { status: 401 }, 'a forged ticket gets no socket');
  t.equal(asked, 0);
});

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

const CLIENTS = 40;
const SOCKETS = 14;
/** Sockets are closed over 1.5 s: in at least this many tenths of a second. A slow machine only spreads them more. */
const TENTHS_MIN = 5;
const THINK_MS = 5;

t.test('INST-25 WS-20: one of two instances that gets SIGTERM answers every request and loses no write', async (t) => {
  const database = await testDatabase(t);
  const [one, two] = await Promise.all([spawnServer(t, { database }), spawnServer(t, { database })]);
  const first = await claim(one.wire);
  const second = await join(one.wire, first, { existingWire: two.wire });
  const all = [first.id, second.id];
  const witness = await two.wire.connect({ token: second.token });
  await witness.hello();
  const sockets = await Promise.all(range(1, SOCKETS).map(async () => one.wire.connect({ token: second.token })));
  await Promise.all(sockets.map(async (socket) => socket.hello()));
  const elsewhere = startWriters({ wires: [two.wire], devices: [first], writers: 4, sealFor: all, insertsOnly: true });

  const acked = new Map<number, string>();
  const begun = new Set<number>();
  const wrong: string[] = [];
  /** Every other client pauses between two requests, as a user does. */
  const client = async (number: number): Promise<void> => {
    const connection = await KeepAlive.open(one.port);
    for (;;) {
      const item = newItem(all);
      const body = spelled('a', writeBody('a', item));
      const answer = await connection.ask({ token: first.token, path: '/items', body });
      begun.add(number);
      if (answer === undefined) wrong.push('not answered');
      else if (answer.status === 200) acked.set((JSON.parse(answer.body) as { version: number }).version, item.id);
      else if (answer.status !== 503) wrong.push(`${answer.status} ${answer.body}`);
      if (answer === undefined || answer.last) return connection.end();
      if (number % 2 === 0) await sleep(number * THINK_MS);
    }
  };
  const clients = range(1, CLIENTS).map(client);
  await elsewhere.until(100);
  // The kernel takes connections before the server does: one that was never accepted ends without an answer.
  await until('an answer to every client', () => begun.size === CLIENTS);
  // Timed by the server's own log, because frames may arrive here late.
  const closedAt = (): number[] =>
    one.output.flatMap((line) =>
      line.includes('"socket closed"') ? [(JSON.parse(line) as { time: number }).time] : [],
    );
  const ended = one.end('SIGTERM');
  await until('the first socket to be closed', () => closedAt().length > 0);
  await t.rejects(KeepAlive.open(one.port), 'no new connection is accepted while the others end');
  await soon(Promise.all(clients), 'every connection closed by an answer');
  t.same(wrong, [], 'every request was answered');
  t.equal(await ended, 0, 'the exit code is 0');
  t.same(
    (await Promise.all(sockets.map(async (socket) => socket.closed))).map(({ code }) => code),
    sockets.map(() => 1012),
  );
  await until('the end of the log', () => closedAt().length >= SOCKETS);
  const tenths = new Set(closedAt().map((at) => Math.floor(at / 100)));
  t.ok(tenths.size >= TENTHS_MIN, `the sockets were closed in ${tenths.size} different tenths of a second`);
  await t.rejects(KeepAlive.open(one.port), 'nobody listens there any more');

  await elsewhere.stop();
  t.same([elsewhere.refusals, elsewhere.errors], [[], []], 'the other instance continues meanwhile');
  for (const { version, id } of elsewhere.acked) acked.set(version, id);
  const listing = await listAll(two.wire, first.token);
  const stored = new Map(listing.changes.map(({ version, id }) => [version, id]));
  t.same(
    [...acked].filter(([version, id]) => stored.get(version) !== id),
    [],
    `all of ${acked.size} acknowledged writes are stored`,
  );
  t.equal(stored.size, listing.head, 'the versions have no gap');
  await untilVersion(witness, listing.head);
  t.equal(
    difference(versionsOf(witness.frames), range(1, listing.head)),
    '',
    'the other instance pushed every version, in order',
  );
});
