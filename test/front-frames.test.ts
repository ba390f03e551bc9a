/**
 * What the front's sockets and connections may cost: how much they may send, what is held for clients that do not read or
 * do not finish, and when it is released.
 */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import type { WebSocket } from 'uWebSockets.js';
import t, { type Test } from 'tap';
import { DeviceSocket, type SocketData } from '../src/server/realtime/device-socket.js';
import { charge, LargeFrames, OVER } from '../src/server/realtime/frame-rates.js';
import { FairBudget, type LoadBound } from '../src/server/http/limits.js';
import { CLOSE } from '../src/protocol/close-codes.js';
import { UNSENT_MAX } from '../src/protocol/limits.js';
import type { App } from '../src/server/app/route-table.js';
import type { LogPage } from '../src/server/tenant/ports.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';
import {
  DEVICE,
  frontOf,
  OTHER_DEVICE,
  StubActor,
  tokenOf,
  ask,
  liveItem,
  writeA,
  type TestFront,
} from './support/front.js';
import { refusedSocket, socketOf, type TestSocket, raw } from './support/front-sockets.js';
import { range } from './support/stream.js';

const hello = { type: 'hello', since: 0 };
const KIB = 1024;
const turn = () => new Promise((resolve) => setImmediate(resolve));
const query = `?token=${tokenOf({ deviceId: OTHER_DEVICE })}`;
/** A frame of `size` bytes that is not JSON. */
const junk = (size: number): string => '['.repeat(size);

/** Sends the frames without waiting, and a ping after them. */
async function flood(socket: TestSocket, frames: readonly string[]): Promise<void> {
  for (const frame of frames.slice(1)) socket.ws.send(frame);
  await socket.say(frames[0] ?? '{"type":"pong"}');
}
const pongs = (count: number): string[] => Array<string>(count).fill('{"type":"pong"}');

t.test('FAIR-20: a socket may send 20 frames and 256 KiB a second, and 60 frames at once', (t) => {
  /** Charges `count` frames that are `apartMs` apart; returns how many were accepted. */
  const said = (count: number, apartMs: number, bytes: number): number => {
    let level = 0;
    for (let n = 0; n < count; n++) {
      level = charge(level, n === 0 ? 0 : apartMs, bytes);
      if (level === OVER) return n;
    }
    return count;
  };
  t.equal(said(100, 0, 15), 60, 'sixty at once');
  t.equal(said(10_000, 50, 15), 10_000, 'twenty a second without end');
  t.ok(said(10_000, 45, 15) < 10_000, 'no more than twenty a second');
  t.equal(said(100, 0, 16 * KIB), 16, '256 KiB at once');
  t.equal(said(10_000, 63, 16 * KIB), 10_000);
  t.ok(said(10_000, 55, 16 * KIB) < 10_000);
  t.equal(said(100, -5_000, 15), 60, 'a clock that is set back adds no allowance');
  t.equal(charge(charge(0, 0, 16 * KIB), 1e12, 0) % 1, 0, 'an integer, however long it was silent');
  t.end();
});

t.test('FAIR-22: large frames are counted per device, tenant and process', (t) => {
  const clock = new TestClock();
  const large = new LargeFrames(clock);
  const taken = (tenant: string, device: string, bytes: number): number =>
    range(1, 1_000).findIndex(() => !large.take(tenant, device, bytes));
  t.equal(taken('a', '1', KIB - 1), -1, 'frames below 1 KiB are not counted');
  t.equal(taken('a', '1', 16 * KIB), 16, 'a device: 256 KiB');
  for (const device of ['2', '3', '4']) t.equal(taken('a', device, 16 * KIB), 16);
  t.equal(taken('a', '5', 16 * KIB), 0, 'a tenant: 1 MiB');
  for (const tenant of ['b', 'c', 'd', 'e']) for (const device of ['1', '2', '3', '4']) taken(tenant, device, 16 * KIB);
  t.notOk(large.take('a', '9', 16 * KIB), 'the process: 4 MiB');
  t.ok(large.take('honest', '1', 16 * KIB), 'a tenant that used less than an equal part is not refused');
  clock.advance(1_000);
  t.equal(taken('a', '1', 16 * KIB), 16, 'a second later all of it is free');
  t.end();
});

t.test('FAIR-20 FAIR-21: a socket that sends too much closes, and its device must wait 10 s', async (t) => {
  for (const shape of ['a', 'b']) {
    const { port, actor, clock } = await frontOf(t);
    actor.admit(OTHER_DEVICE);
    const mine = { query: `?shape=${shape}&token=${tokenOf()}` };
    const attacks: [what: string, send: (socket: TestSocket) => unknown][] = [
      ['frames', (socket) => flood(socket, pongs(70))],
      ['junk', (socket) => flood(socket, Array<string>(70).fill(junk(100)))],
      ['bytes', (socket) => flood(socket, Array<string>(20).fill(junk(14 * KIB)))],
      ['pings of the protocol', (socket) => range(1, 70).forEach(() => socket.ws.ping())],
      ['pongs of the protocol', (socket) => range(1, 70).forEach(() => socket.ws.pong())],
    ];
    const quiet = await socketOf(t, port, mine);
    await quiet.say(hello);
    for (const [what, send] of attacks) {
      const socket = await socketOf(t, port, mine);
      await socket.say(hello);
      const hellos = actor.hellos.length;
      await send(socket);
      socket.ws.send(JSON.stringify(hello));
      t.equal(await socket.closed(), CLOSE.tooMuch, what);
      t.equal(actor.hellos.length, hellos, 'what follows is not read');
      const refused = await refusedSocket(t, port, mine);
      t.equal(refused.status, 429);
      t.equal(refused.headers['retry-after'], '10');
      await (await socketOf(t, port, { query })).say(hello);
      await quiet.say({ type: 'pong' });
      t.equal(quiet.closeCode, undefined, 'another socket of the device stays');
      clock.advance(9_999);
      t.equal((await refusedSocket(t, port, mine)).headers['retry-after'], '1');
      clock.advance(1);
    }
    const socket = await socketOf(t, port, mine);
    for (const _ of range(1, 10)) {
      await flood(socket, pongs(18));
      clock.advance(1_000);
    }
    t.equal(socket.closeCode, undefined, 'twenty a second are accepted');
    await flood(socket, pongs(57));
    t.equal(socket.closeCode, undefined, 'so are sixty at once after a pause');
  }
});

t.test('FAIR-21: a clock that is set back does not make a device wait longer', async (t) => {
  const { port, clock } = await frontOf(t);
  const mine = { query: `?token=${tokenOf()}` };
  const socket = await socketOf(t, port, mine);
  await flood(socket, pongs(70));
  t.equal(await socket.closed(), CLOSE.tooMuch);
  t.equal((await refusedSocket(t, port, mine)).headers['retry-after'], '10');
  clock.setBy(-3_600_000);
  await (await socketOf(t, port, mine)).say(hello);
});

t.test('FAIR-22: the limit on large frames counts all sockets of a device together', async (t) => {
  const { port, actor } = await frontOf(t);
  actor.admit(OTHER_DEVICE);
  const sockets = await Promise.all(range(1, 16).map(() => socketOf(t, port)));
  for (const socket of sockets) await socket.say(hello);
  for (const socket of sockets) await socket.say(junk(15 * KIB));
  const errors = ({ frames }: TestSocket): number => frames.filter(({ type }) => type === 'error').length;
  t.same(sockets.map(errors), Array(16).fill(1));
  for (const socket of sockets.slice(0, 2)) socket.ws.send(junk(15 * KIB));
  await until('a close', () => sockets.some(({ closeCode }) => closeCode === CLOSE.tooMuch));
  await sockets[15]?.say({ type: 'pong' });
  t.equal(sockets[15]?.closeCode, undefined, 'a socket that sends little stays');
  const other = await socketOf(t, port, { query });
  await other.say(hello);
  await other.say(junk(15 * KIB));
  t.equal(errors(other), 1, 'another device is not affected');
});

/** Fills the system's buffers for the connection until `bytes` wait in the server. */
async function stuff(socket: TestSocket, send: (frames: string[]) => number, bytes: number): Promise<number> {
  socket.ws.pause();
  const frame = JSON.stringify({ type: 'big', pad: 'x'.repeat(200_000) });
  let unsent = 0;
  // 100 MB are more than any system buffers: the server has cut the socket then, which a paused client does not notice.
  for (let frames = 0; unsent < bytes && socket.closeCode === undefined; frames++) {
    if (frames === 500) throw new Error('the socket was cut');
    unsent = send([frame]);
    await turn();
  }
  return unsent;
}

t.test('FAIR-24: a socket that is to close gets what it was sent before, and its close code', async (t) => {
  const { port, front, clock, actor } = await frontOf(t);
  const socket = await socketOf(t, port);
  await socket.say(hello);
  const { port: behind } = actor.sessions[0] ?? { port: undefined };
  const unsent = await stuff(socket, (frames) => behind?.send(frames) ?? Infinity, 300_000);
  t.equal(front.held()['sockets_unsent'], unsent);
  behind?.close(CLOSE.revoked, 'device revoked');
  t.equal(behind?.send(['{}']), 0, 'it gets nothing more');
  socket.ws.send(JSON.stringify(hello));
  socket.ws.resume();
  t.equal(await socket.closed(), CLOSE.revoked);
  t.equal(actor.hellos.length, 1, 'its frames are no longer read');
  t.equal(front.held()['sockets_unsent'], 0);

  const deaf = await socketOf(t, port);
  await deaf.say(hello);
  const { port: other } = actor.sessions[0] ?? { port: undefined };
  await stuff(deaf, (frames) => other?.send(frames) ?? Infinity, 300_000);
  other?.close(CLOSE.revoked, 'device revoked');
  clock.advance(4_999);
  await turn();
  t.equal(front.sockets, 1);
  clock.advance(1);
  await until('no socket left', () => front.sockets === 0);
  t.equal(front.held()['sockets_unsent'], 0, 'a socket that does not read is cut, and nothing is held for it');
});

t.test('FAIR-23: sockets that do not read hold at most a share; those that stand still are cut first', async (t) => {
  const { port, front, clock, actor } = await frontOf(t);
  actor.admit(OTHER_DEVICE);
  const share = (128 * KIB * KIB) / 16;
  const open = async (options = {}): Promise<{ socket: TestSocket; send: (frames: string[]) => number }> => {
    const socket = await socketOf(t, port, options);
    await socket.say(hello);
    const session = actor.sessions.at(-1);
    return { socket, send: (frames) => session?.port.send(frames) ?? 0 };
  };
  const other = await open({ query });
  const others = await stuff(other.socket, other.send, 300_000);
  const deaf: (typeof other)[] = [];
  for (const _ of range(1, 6)) deaf.push(await open());
  for (const { socket, send } of deaf) {
    await stuff(socket, send, 1_000_000);
    clock.advance(10);
  }
  t.ok((front.held()['sockets_unsent'] ?? 0) - others <= share);
  clock.advance(5_000);
  // Together more than is left of the share, whatever the kernel takes of it; each less than the library drops.
  const fresh = [await open(), await open(), await open()];
  for (const { socket, send } of fresh) await stuff(socket, send, 2_000_000);
  t.ok((front.held()['sockets_unsent'] ?? 0) - others <= share, 'the share holds');
  const stays = [...deaf, ...fresh].map(({ send }) => send([]) > 0);
  const cut = stays.indexOf(true);
  t.ok(
    cut > 0 && cut < deaf.length && stays.slice(cut).every(Boolean),
    `those that stood still longest: ${stays.join()}`,
  );
  t.ok(other.send([]) > 0, 'no socket of another device, which stood still for longer');
  for (const { socket } of [other, ...deaf, ...fresh]) socket.ws.terminate();
  await until('no socket left', () => front.sockets === 0);
  t.equal(front.held()['sockets_unsent'], 0);
});

t.test('FAIR-28: a client that does not read gets no more answers', async (t) => {
  const { port, front, clock, actor } = await frontOf(t);
  const socket = await socketOf(t, port);
  await socket.say(hello);
  const session = actor.sessions[0];
  await stuff(socket, (frames) => session?.port.send(frames) ?? Infinity, 20_000);
  const before = front.held()['sockets_unsent'] ?? 0;
  const hellos = actor.hellos.length;
  for (const round of range(1, 20)) {
    for (const _ping of range(1, 18)) socket.ws.send('{"type":"ping"}');
    socket.ws.send(JSON.stringify(hello));
    await until('the hello', () => actor.hellos.length >= hellos + round);
    clock.advance(1_000);
  }
  t.ok((front.held()['sockets_unsent'] ?? 0) <= before + 100, 'no answer was added, at most a heartbeat');
  socket.ws.resume();
  await once(socket.ws, 'message');
});

/** A socket that is not open yet. */
const alone = (): DeviceSocket =>
  new DeviceSocket(
    {
      actor: new StubActor(),
      device: { id: DEVICE, tokenEpoch: 1, revoked: false, keysPurged: false },
      claims: { tenantId: '', deviceId: DEVICE, epoch: 1, expiresAt: 4e12 },
    },
    'a',
    new FairBudget(UNSENT_MAX, new TestClock()),
  );

t.test('FAIR-28: answers end where 16 KiB are unsent, and no earlier', (t) => {
  const sent: string[] = [];
  let unsent = 0;
  const socket = alone();
  const wire = {
    send: (frame: string) => {
      sent.push(frame);
      return 1;
    },
    getBufferedAmount: () => unsent,
  };
  socket.wire = wire as unknown as WebSocket<SocketData>;
  for (const bytes of [0, 16 * KIB - 1, 16 * KIB, 1e6]) {
    unsent = bytes;
    socket.answer(`${bytes}`);
  }
  t.same(sent, ['0', '16383']);
  t.end();
});

t.test('WS-21: a frame that the library drops ends the socket, since its client cannot see the gap', (t) => {
  const calls: unknown[] = [];
  let unsent = 5;
  const wire = {
    send: (frame: string) => (frame === 'two' ? 2 : 1),
    cork: (fn: () => void) => fn(),
    getBufferedAmount: () => unsent,
    end: (...args: unknown[]) => calls.push(args),
  };
  const socket = alone();
  t.equal(socket.send(['one']), 0, 'not open yet');
  socket.wire = wire as unknown as WebSocket<SocketData>;
  t.equal(socket.send(['one', 'three']), 5);
  t.same(calls, []);
  socket.send(['one', 'two', 'three']);
  t.equal(socket.send(['four']), 0, 'it gets nothing more');
  t.same(calls, [], 'what was sent before must go out first');
  unsent = 0;
  socket.drained();
  t.match(calls, [[CLOSE.overloaded, String]]);
  t.end();
});

const MIB = 1024 * 1024;
const WIDE: LoadBound = { calls: 10_000, bodies: 100 * MIB, replies: 1_000 * MIB };

/** A page that no kernel takes in one piece: 20 MiB of JSON. */
const LONG: LogPage = {
  rows: Array.from({ length: 240 }, (_, n) => liveItem(n + 1, Buffer.alloc(65_000))),
  more: false,
  summary: { version: 240, itemCount: 240, versionSum: 240 },
};

/** A connection that sends and does not read. */
async function unread(t: Test, port: number, text: string): Promise<Socket> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => undefined);
  socket.pause();
  t.teardown(() => socket.destroy());
  await once(socket, 'connect');
  socket.write(text);
  return socket;
}

const ITEMS = `GET /api/items?since=0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${tokenOf({ deviceId: DEVICE })}\r\n\r\n`;

const held = ({ front }: TestFront, budget: string): number => front.held()[budget] ?? NaN;
const nothing = ({ front }: TestFront): boolean => Object.values(front.held()).every((amount) => amount === 0);

t.test('FAIR-10 FAIR-06: a reply that is not read is held for half a minute, and then cut off', async (t) => {
  const test = await frontOf(t, { services: { bounds: { devices: WIDE, unauthenticated: WIDE } } });
  test.page = LONG;
  const timers = test.clock.waiting;
  const reader = await unread(t, test.port, ITEMS);
  await until('the reply', () => held(test, 'device_replies') > 15 * MIB && held(test, 'device_calls') === 0);
  test.clock.advance(29_000);
  t.ok(held(test, 'device_replies') > 15 * MIB);
  test.clock.advance(1_000);
  await until('an empty house', () => nothing(test));
  t.equal(test.clock.waiting, timers, 'no timer is left');
  reader.destroy();
});

t.test('FAIR-07 FAIR-04: a reply that a device has left unread for 5 seconds gives way to its next one', async (t) => {
  const test = await frontOf(t, {
    services: { bounds: { devices: { ...WIDE, replies: 16 * 22 * MIB }, unauthenticated: WIDE } },
  });
  test.actor.admit(OTHER_DEVICE);
  test.page = LONG;
  const first = await unread(t, test.port, ITEMS);
  const cut = once(first, 'close');
  await until('the reply', () => held(test, 'device_calls') === 0 && held(test, 'device_replies') > 15 * MIB);
  test.clock.advance(5_000);
  test.page = { ...LONG, rows: [] };
  t.equal((await ask(test.port, '/api/items')).status, 200);
  t.equal(held(test, 'device_replies'), 0);
  first.resume();
  await cut;
});

t.test('FAIR-08: calls for which there is no room wait in turn, and read nothing meanwhile', async (t) => {
  let answer = (): void => undefined;
  let asked = 0;
  const test = await frontOf(t, {
    services: {
      // Room for two pages of a device.
      bounds: { devices: { ...WIDE, replies: 16 * 12 * MIB }, unauthenticated: WIDE },
      items: {
        page: () => {
          asked++;
          return new Promise<LogPage>((resolve) => {
            const before = answer;
            answer = () => {
              before();
              resolve({ ...LONG, rows: [] });
            };
          });
        },
      },
    },
  });
  test.actor.admit(OTHER_DEVICE);
  const replies = [1, 2, 3, 4, 5].map(() => ask(test.port, '/api/items'));
  await until('five calls', () => held(test, 'device_calls') === 5);
  t.equal(asked, 2);
  t.equal(held(test, 'device_replies'), 12 * MIB);
  const other = ask(test.port, '/api/items', { token: tokenOf({ deviceId: OTHER_DEVICE }) });
  await until('the other device, which does not wait', () => asked === 3);
  answer();
  t.equal((await other).status, 200);
  await until('the next two', () => asked === 5);
  test.clock.advance(5_000);
  answer();
  const last = await Promise.all(replies);
  t.same(last.map(({ status }) => status).sort(), [200, 200, 200, 200, 429]);
  t.ok(last.every(({ status, headers }) => status === 200 || Number(headers['retry-after']) >= 1));
  t.ok(nothing(test));
});

t.test('FAIR-08: room is also reserved for the lists of bins and devices', async (t) => {
  const never = () => new Promise<never>(() => undefined);
  const test = await frontOf(t, {
    services: {
      bounds: { devices: WIDE, unauthenticated: WIDE },
      bins: { list: never } as unknown as App['bins'],
      devices: { list: never, touch: () => undefined } as unknown as App['devices'],
    },
  });
  const get = (path: string): string => ITEMS.replace('/api/items?since=0', path);
  await unread(t, test.port, get('/api/bins'));
  await until('the bins', () => held(test, 'device_replies') === 6 * MIB);
  await unread(t, test.port, get('/api/devices'));
  await until('the devices', () => held(test, 'device_replies') > 6 * MIB);
  t.equal(held(test, 'device_replies'), 7.5 * MIB);
});

t.test('FAIR-08 FAIR-06: a client that disconnects while it waits for room takes none', async (t) => {
  const test = await frontOf(t, {
    services: {
      bounds: { devices: { ...WIDE, replies: 16 * 6 * MIB }, unauthenticated: WIDE },
      items: { page: () => new Promise<LogPage>(() => undefined) },
    },
  });
  await unread(t, test.port, ITEMS);
  await until('one page', () => held(test, 'device_replies') === 6 * MIB);
  const waiting = await unread(t, test.port, ITEMS);
  await until('two calls', () => held(test, 'device_calls') === 2);
  waiting.destroy();
  await until('one call', () => held(test, 'device_calls') === 1);
  t.equal(held(test, 'device_replies'), 6 * MIB);
});

t.test('FAIR-09 FAIR-14: on one connection one reply is held, however many are requested', async (t) => {
  for (const [length, times, atOnce] of [
    [20_000, 5_000, 5_000],
    [1_000_000, 100, 1],
  ] as const) {
    let asked = 0;
    const bytes = Buffer.alloc(length, 'x');
    const docs = () => ({ type: 'text/html', hash: `${++asked}`, cache: 'no-cache', bytes });
    const test = await frontOf(t, { services: { docs } });
    const reader = await unread(t, test.port, '');
    // Not `once`, which rejects when a request can no longer be written.
    const cut = new Promise((resolve) => reader.once('close', resolve));
    for (let n = 0; n < times; n += atOnce) {
      reader.write('GET /docs HTTP/1.1\r\nHost: x\r\n\r\n'.repeat(atOnce));
      t.equal((await ask(test.port, '/api/me')).status, 200);
    }
    // 100 MB were requested: the connection ended at the first reply that could not be sent.
    reader.resume();
    await cut;
    t.ok(asked > 1 && asked < times / 2, `${asked} of ${times} were answered`);
    await until('an empty house', () => nothing(test));
  }
});

t.test('FAIR-09: a reader that is merely slow gets the whole reply', async (t) => {
  const test = await frontOf(t);
  test.page = LONG;
  const reader = await unread(t, test.port, ITEMS);
  await until('the reply', () => held(test, 'device_replies') > 15 * MIB);
  let got = 0;
  reader.on('data', (chunk: Buffer) => (got += chunk.length));
  reader.resume();
  await until('all of it', () => got > 15 * MIB && nothing(test));
  t.equal((await ask(test.port, '/api/me')).status, 200);
});

t.test('FAIR-12: a route without a token takes 8 KiB of body; claiming and recovery take 64 KiB', async (t) => {
  const { port } = await frontOf(t);
  const sized = async (path: string, bytes: number): Promise<number> => {
    const body = { pad: 'x'.repeat(bytes - '{"pad":""}'.length) };
    return (await ask(port, path, { body, token: null })).status;
  };
  const small = ['pair-fetch-epk', 'pair-fetch-npk', 'reauth', 'reauth/challenge'].map(
    (name) => `/api/devices/${name}`,
  );
  for (const path of [...small, '/api/password/verify']) {
    t.equal(await sized(path, 8_193), 413, path);
    t.not(await sized(path, 8_192), 413, path);
  }
  for (const path of ['/api/devices/bootstrap', '/api/devices/recover']) {
    t.not(await sized(path, 65_536), 413, path);
    t.equal(await sized(path, 65_537), 413, path);
  }
});

t.test('RATE-15: a body beyond the rate is refused before it is read', async (t) => {
  const test = await frontOf(t, { config: { rateReadPerS: 1_000, rateWritePerS: 1_000 } });
  const full = { items: [writeA()], pad: 'x'.repeat(1_000_000) };
  const batch = () => ask(test.port, '/api/items/batch', { body: full });
  for (let n = 0; n < 8; n++) t.equal((await batch()).status, 200);
  const head =
    'POST /api/items/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n' +
    `Authorization: Bearer ${tokenOf()}\r\nContent-Length: 1000000\r\n\r\n`;
  const refused = await raw(t, test.port, head);
  t.equal(await refused.status(), 429, 'before any of it was sent');
  t.match(refused.got, /retry-after: 1\r/i);
  t.equal((await ask(test.port, '/api/items', { body: writeA() })).status, 200, 'small bodies are accepted');
  test.clock.advance(1_000);
  t.equal((await batch()).status, 200);
  // The length of a chunked body is not known before: it is charged afterwards.
  const text = JSON.stringify(full);
  const chunked =
    'POST /api/items/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n' +
    `Authorization: Bearer ${tokenOf()}\r\n\r\n${text.length.toString(16)}\r\n${text}\r\n0\r\n\r\n`;
  const outcomes: number[] = [];
  for (let n = 0; n < 6; n++) outcomes.push(await (await raw(t, test.port, chunked)).status());
  t.same(outcomes.slice(-2), [429, 429]);
});

t.test('RATE-16: after replies beyond the rate, reads are 429 until the excess is made up', async (t) => {
  const test = await frontOf(t, { config: { rateReadPerS: 1_000, rateWritePerS: 1_000 } });
  test.page = LONG;
  const read = () => ask(test.port, '/api/items');
  for (let n = 0; n < 2; n++) t.equal((await read()).status, 200);
  const late = await read();
  t.equal(late.status, 429);
  t.match(late.headers['retry-after'], /^[1-9]$/);
  t.equal((await ask(test.port, '/api/items', { body: writeA() })).status, 200, 'writes are accepted');
  test.clock.advance(Number(late.headers['retry-after']) * 1_000);
  t.equal((await read()).status, 200);
});
