/** Heartbeats: pings, silence, and what counts as a sign of life. The clock is the test's. */
import t from 'tap';
import { TestClock } from './support/clock.js';
import { claim, join, type TestDevice } from './support/devices.js';
import { runServer } from './support/server.js';
import { barrier, range } from './support/stream.js';
import { SHAPES, type Socket, type Wire } from './support/wire.js';
import type { WithTeardown } from './support/postgres.js';

const INTERVAL = 1_000;
const GRACE = 3_500;

interface World {
  readonly clock: TestClock;
  readonly wire: Wire;
  readonly first: TestDevice;
}

async function world(t: WithTeardown): Promise<World> {
  const clock = new TestClock();
  const env = { WS_PING_INTERVAL_MS: String(INTERVAL), WS_PONG_GRACE_MS: String(GRACE) };
  const { wire } = await runServer(t, { clock, env });
  return { clock, wire, first: await claim(wire) };
}

const pings = (socket: Socket): number => socket.of('ping').length;

t.setTimeout(600_000);

t.test('HEART-01: the server sends a ping every interval', async (t) => {
  const { clock, wire, first } = await world(t);
  for (const shape of SHAPES) {
    const socket = await wire.connect({ shape, token: first.token });
    await socket.hello();
    clock.advance(INTERVAL);
    await barrier(socket);
    const before = pings(socket);
    t.equal(before, 1, 'one in the first interval');
    for (const round of range(1, 6)) {
      clock.advance(INTERVAL);
      await barrier(socket);
      t.equal(pings(socket) - before, round);
    }
    t.ok(
      socket.of('ping').every((frame) => Object.keys(frame).length === 1),
      'a ping has no other field',
    );
    await socket.close();
  }
});

t.test('HEART-02: a silent socket is closed with 4408 after the grace, and not before', async (t) => {
  const { clock, wire, first } = await world(t);
  for (const shape of SHAPES) {
    const [silent, alive] = [
      await wire.connect({ shape, token: first.token }),
      await wire.connect({ token: first.token }),
    ];
    await silent.hello();
    await alive.hello();
    const checks = Math.floor((GRACE - 1) / 100);
    for (const _ of range(1, checks)) {
      clock.advance(100);
      await barrier(alive);
    }
    t.equal(silent.ws.readyState, silent.ws.OPEN, 'within the grace it stays');
    for (const _ of range(1, Math.ceil(INTERVAL / 100) + 1)) {
      clock.advance(100);
      await barrier(alive);
    }
    t.equal((await silent.closed).code, 4408);
    t.ok(pings(silent) >= 3, 'the silent socket was pinged');
    t.equal(alive.ws.readyState, alive.ws.OPEN);
    await alive.close();
  }
});

/** What a client may send at any time; each must keep a socket alive for as long as it comes. */
const SIGNS: readonly [name: string, send: (socket: Socket) => void][] = [
  ['pong', (socket) => socket.send({ type: 'pong' })],
  ['ping', (socket) => socket.send({ type: 'ping' })],
  ['an unknown frame', (socket) => socket.send({ type: 'something' })],
  ['nonsense', (socket) => socket.send('nonsense')],
  ['a binary frame', (socket) => socket.send(Buffer.from([1, 2, 3]))],
  ['a hello', (socket) => socket.send({ type: 'hello', since: 0 })],
  ['a ping of the WebSocket protocol', (socket) => socket.ws.ping()],
  ['a pong of the WebSocket protocol', (socket) => socket.ws.pong()],
];

t.test('HEART-03: any frame from the client proves life', async (t) => {
  const { clock, wire, first } = await world(t);
  for (const [name, send] of SIGNS) {
    const socket = await wire.connect({ shape: 'b', token: first.token });
    await socket.hello();
    const witness = await wire.connect({ token: first.token });
    await witness.hello();
    for (const _ of range(1, 4)) {
      clock.advance(GRACE - INTERVAL);
      send(socket);
      // The server has received it before the witness's ping, so it was read once the witness is answered.
      await barrier(witness);
    }
    t.equal(socket.ws.readyState, socket.ws.OPEN, name);
    await Promise.all([socket.close(), witness.close()]);
  }
});

t.test('HEART-04: without a hello within 30 s a socket is closed with 4408', async (t) => {
  const { clock, wire, first } = await world(t);
  for (const shape of SHAPES) {
    const mute = await wire.connect({ shape, token: first.token });
    const greeted = await wire.connect({ shape, token: first.token });
    // B ignores malformed frames, so none of these counts as a hello.
    if (shape === 'b') for (const frame of ['{"type":"hello","since":-1}', '{}', 'x']) mute.send(frame);
    clock.advance(500);
    await barrier(mute);
    await greeted.hello();
    for (const _ of range(1, 29)) {
      clock.advance(INTERVAL);
      await Promise.all([barrier(mute), barrier(greeted)]);
    }
    t.equal(mute.ws.readyState, mute.ws.OPEN, '29.5 s are within the limit');
    clock.advance(INTERVAL);
    t.equal((await mute.closed).code, 4408, 'although it sent other frames');
    await barrier(greeted);
    t.pass('a socket that said hello stays');
    await greeted.close();
  }
});

t.test('HEART-05: pings of many sockets are spread over the interval', async (t) => {
  const { clock, wire, first } = await world(t);
  const devices = [first];
  for (const number of range(2, 6)) devices.push(await join(wire, first, { name: `device ${number}` }));
  const sockets = await Promise.all(
    devices.flatMap((device) => range(1, 15).map(async () => wire.connect({ token: device.token }))),
  );
  await Promise.all(sockets.map(async (socket) => socket.hello()));
  const total = (): number => sockets.reduce((sum, socket) => sum + pings(socket), 0);
  const counts: number[] = [];
  for (const _ of range(1, 20)) {
    const before = total();
    clock.advance(INTERVAL / 10);
    await Promise.all(sockets.map(async (socket) => barrier(socket)));
    counts.push(total() - before);
  }
  const perRound = counts.slice(10).reduce((sum, count) => sum + count, 0);
  t.equal(perRound, sockets.length, 'one ping per socket and interval');
  const most = Math.max(...counts);
  t.ok(most <= sockets.length / 3, `at most a third in a tenth of the interval: ${counts.join(' ')}`);
  t.ok(counts.slice(10).filter((count) => count > 0).length >= 5, 'spread over at least half of it');
});
