/** Closing the sockets of a drained server: when, in which order and with which reason; and its front meanwhile. */
import t from 'tap';
import type { DeviceSocket } from '../src/server/realtime/device-socket.js';
import { Departures } from '../src/server/realtime/departures.js';
import { retryAfterOf, retryAfterReason } from '../src/protocol/retry-after.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';
import { ask, frontOf, tokenOf } from './support/front.js';
import { openSocket, socketOf, TestSocket } from './support/front-sockets.js';

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
  const departures = new Departures({ clock, random: repeatable(), sockets: open });
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
  t.same(['retry-after=1', 'retry-after=600', 'retry-after=601'].map(retryAfterOf), [1, 600, 601]);
  for (const other of [
    ...['', 'restart', '7', 'retry-after=', 'retry-after=x', 'retry-after=0', 'retry-after=01', 'retry-after=-1'],
    ...['retry-after=1.5', 'retry-after=1e3', 'retry-after=1 ', ' retry-after=1', 'x retry-after=1', 'Retry-After=1'],
    ...['retry-after=1s', 'retry-after=1\n', 'retry-after=9999999999'],
  ])
    t.equal(retryAfterOf(other), undefined, JSON.stringify(other));
  t.end();
});

t.test(
  'DRAIN-01 DRAIN-07: a server that is drained is not ready, accepts no sockets, and answers requests',
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
    await open?.say({ type: 'ping' });
    t.equal(open?.closeCode, undefined, 'the remaining sockets work');
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
