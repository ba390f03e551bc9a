/** Sockets of the front, with a stand-in for the tenant's actor: upgrade, frames, heartbeats, closing. */
import { once } from 'node:events';
import t from 'tap';
import { until } from './support/events.js';
import { DEVICE, frontOf, OTHER_DEVICE, tokenOf } from './support/front.js';
import { openSocket, raw, refusedSocket, socketOf, TestSocket } from './support/front-sockets.js';

const hello = { type: 'hello', since: 0 };
const turn = () => new Promise((resolve) => setImmediate(resolve));

t.test('TOKEN-16 TOKEN-17 TOKEN-21 TOKEN-22 ERR-08 SHAPE-10: an upgrade needs a valid token', async (t) => {
  const { port, actor, lines } = await frontOf(t);
  const good = { authorization: `Bearer ${tokenOf()}` };
  const bad = tokenOf({ forged: true });
  await socketOf(t, port, { query: '', headers: good });
  await socketOf(t, port, { query: `?token=${bad}`, headers: good });
  const b = await socketOf(t, port, { query: `?shape=b&token=${tokenOf()}` });
  t.equal(actor.sessions.at(-1)?.port.shape, 'b');
  t.ok(b);

  const cases: [query: string, headers: Record<string, string>, status: number, code: string][] = [
    [`?token=${tokenOf()}`, { authorization: `Bearer ${bad}` }, 401, 'unauthorized'],
    [`?token=${tokenOf()}`, { authorization: 'Basic x' }, 401, 'unauthorized'],
    ['', {}, 401, 'unauthorized'],
    ['?shape=b', {}, 401, 'missing_token'],
    [`?shape=b&token=${bad}`, {}, 401, 'invalid_token'],
    [`?token=${tokenOf({ expiresAt: 1 })}`, {}, 401, 'expired_token'],
    [`?shape=b&token=${tokenOf({ deviceId: OTHER_DEVICE })}`, {}, 401, 'invalid_token'],
    [`?shape=c&token=${tokenOf()}`, {}, 400, 'validation'],
    // A malformed token or ticket parameter is a bad token, not a bad query.
    [`?token=${tokenOf()}&token=${tokenOf()}`, {}, 401, 'unauthorized'],
    [`?shape=b&token=${tokenOf()}&token=${tokenOf()}`, {}, 401, 'invalid_token'],
    ['?shape=b&token=', {}, 401, 'missing_token'],
    ['?shape=b&ticket=', {}, 401, 'missing_token'],
    ['?shape=b&ticket=x&ticket=x', {}, 401, 'invalid_token'],
    ['?shape=b&token=&ticket=x', {}, 401, 'missing_token'],
  ];
  for (const [query, headers, status, code] of cases) {
    const reply = await refusedSocket(t, port, { query, headers });
    t.equal(`${reply.status} ${String(reply.error['code'])}`, `${status} ${code}`);
    t.type(reply.error['message'], 'string');
    t.ok(reply.headers['x-request-id']);
  }
  actor.admit(DEVICE, 2, true);
  t.equal((await refusedSocket(t, port)).error['code'], 'device_revoked');
  actor.admit(DEVICE);
  actor.state = 'inactive';
  t.equal((await refusedSocket(t, port)).error['code'], 'payment_required');
  t.equal(actor.sessions.length, 3);
  t.notOk(JSON.stringify(lines).includes(tokenOf()), 'no token in the log');
});

t.test("SHAPE-10: a socket's shape is that of its URL, without one that of WIRE_SHAPE", async (t) => {
  for (const wireShape of ['a', 'b'] as const) {
    const { port, actor } = await frontOf(t, { config: { wireShape } });
    const other = wireShape === 'a' ? 'b' : 'a';
    const token = `token=${tokenOf()}`;
    const shapeOf = async (query: string, headers: Record<string, string> = {}): Promise<unknown> => {
      await socketOf(t, port, { query, headers });
      return actor.sessions.at(-1)?.port.shape;
    };
    t.equal(await shapeOf(`?${token}`), wireShape);
    t.equal(await shapeOf(`?shape=${other}&${token}`), other);
    t.equal(await shapeOf(`?${token}`, { 'x-wire-shape': other }), wireShape, 'a header does not decide');
    t.equal(await shapeOf(`?shape=${wireShape}&${token}`, { 'x-wire-shape': other }), wireShape);
    t.equal(await shapeOf(`?bin_id=x&${token}`), wireShape, 'nor does another parameter of the query');
  }
});

t.test('HTTP-13: an upgrade that is not a valid WebSocket handshake is 400', async (t) => {
  const { port, actor } = await frontOf(t);
  const upgrade = (over: string): string =>
    `GET /ws?token=${tokenOf()} HTTP/1.1\r\nHost: x\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n${over}\r\n`;
  const cases: [lines: string, status: number][] = [
    ['Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n', 101],
    ['Upgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n', 101],
    ['Upgrade: h2c\r\nSec-WebSocket-Version: 13\r\n', 400],
    ['Upgrade: websocket\r\nSec-WebSocket-Version: 8\r\n', 400],
    ['Upgrade: websocket\r\n', 400],
    ['Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nContent-Length: 3\r\n', 400],
    ['Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nTransfer-Encoding: chunked\r\n', 400],
  ];
  for (const [lines, status] of cases) t.equal(await (await raw(t, port, upgrade(lines))).status(), status, lines);
  t.equal(actor.sessions.length, 2);
});

t.test('TOKEN-18 TOKEN-19: a ticket opens one socket, and none for a client that has disconnected', async (t) => {
  const spent: string[] = [];
  let answer: ((first: boolean) => void) | undefined;
  const { port, actor } = await frontOf(t, {
    services: {
      tickets: {
        issueSocket: () => ({ ticket: 'x', expiresAt: 1 }),
        readSocket: (ticket) => ({
          ...{ deviceId: DEVICE, epoch: 1, expiresAt: 4e12 },
          spend: () => {
            spent.push(ticket);
            if (ticket === 'slow') return new Promise((resolve) => (answer = resolve));
            return Promise.resolve(spent.filter((each) => each === ticket).length === 1);
          },
        }),
      },
    },
  });
  await socketOf(t, port, { query: '?ticket=one' });
  t.equal((await refusedSocket(t, port, { query: '?ticket=one' })).status, 401);
  await socketOf(t, port, { query: `?ticket=unused&token=${tokenOf()}` });
  t.same(spent, ['one', 'one'], 'a token takes precedence over a ticket, which stays unspent');
  t.equal((await refusedSocket(t, port, { query: '?ticket=two&shape=c' })).status, 400);
  t.same(spent, ['one', 'one'], 'a request that is refused for its form does not spend it either');

  const gone = await raw(
    t,
    port,
    'GET /ws?ticket=slow HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n' +
      'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n',
  );
  await until('the question', () => answer !== undefined);
  gone.socket.destroy();
  await socketOf(t, port);
  answer?.(true);
  await socketOf(t, port);
  t.equal(actor.sessions.length, 4, 'no socket for the client that disconnected');
});

t.test('TOKEN-15: a socket that opens while its device is revoked is closed', async (t) => {
  const { port, actor } = await frontOf(t);
  actor.open = () => 'device_revoked';
  const opened = await socketOf(t, port);
  t.equal(await opened.closed(), 4403);
  actor.open = () => 'unavailable';
  t.equal(await (await socketOf(t, port)).closed(), 1012);
  t.equal(actor.ended, 0);
});

t.test('WS-22: a device has at most 16 sockets', async (t) => {
  const { port, actor, front } = await frontOf(t);
  actor.admit(OTHER_DEVICE);
  const opened = await Promise.all(Array.from({ length: 20 }, () => openSocket(t, port)));
  const sockets = opened.filter((each) => each instanceof TestSocket);
  t.equal(sockets.length, 16);
  for (const each of opened) if (!(each instanceof TestSocket)) t.equal(each.status, 429);
  await socketOf(t, port, { query: `?token=${tokenOf({ deviceId: OTHER_DEVICE })}` });
  sockets[0]?.ws.close();
  await sockets[0]?.closed();
  await socketOf(t, port);
  t.equal(front.sockets, 17);
});

t.test('WS-10 WS-11 WS-12 WS-13 WS-14 WS-15 WS-16 WS-18: A refuses malformed frames, B ignores them', async (t) => {
  const { port, actor } = await frontOf(t);
  const malformed: (string | Buffer)[] = [
    '{"type":"hello","since":-1}',
    '{"type":"hello","since":1.5}',
    '{"type":"hello","since":"0"}',
    '{"type":"hello","since":9007199254740992}',
    '{"type":"hello"}',
    '{"type":"other"}',
    '{"since":0}',
    'null',
    '[]',
    '{"type":"hello"',
    '',
    Buffer.from(JSON.stringify(hello)),
  ];
  for (const frame of malformed) {
    const a = await socketOf(t, port);
    await a.say(frame);
    t.equal(await a.closed(), 4400, String(frame));
    t.match(a.frames[0], { type: 'error', code: 'validation', message: String });

    const b = await socketOf(t, port, { query: `?shape=b&token=${tokenOf()}` });
    await b.say(frame);
    t.same(b.frames, [{ type: 'pong' }], 'B ignores it');
    b.ws.close();
    await b.closed();
  }
  t.equal(actor.hellos.length, 0);

  for (const shape of ['a', 'b']) {
    const socket = await socketOf(t, port, { query: `?shape=${shape}&token=${tokenOf()}` });
    await socket.say({ type: 'pong' });
    await socket.say({ ...hello, since: 9_007_199_254_740_991, epoch: 'e', acks: true, more: 1 });
    t.same(actor.hellos.at(-1), { since: 9_007_199_254_740_991, epoch: 'e', acks: true });
    await socket.say(hello);
    t.same(actor.hellos.at(-1), { since: 0, epoch: null, acks: false });
    for (const frame of malformed) await socket.say(frame);
    t.equal(socket.closeCode, undefined, 'the socket stays');
    t.equal(socket.frames.filter((frame) => frame['type'] === 'error').length, shape === 'a' ? malformed.length : 0);
  }
});

t.test('WS-17: a frame over 16 KiB closes the socket with 1009', async (t) => {
  const { port } = await frontOf(t);
  const bare = JSON.stringify({ ...hello, pad: '' }).length;
  const frame = (size: number): string => JSON.stringify({ ...hello, pad: 'x'.repeat(size - bare) });
  const fits = await socketOf(t, port);
  t.equal(Buffer.byteLength(frame(16 * 1024)), 16 * 1024);
  await fits.say(frame(16 * 1024));
  t.equal(fits.closeCode, undefined);
  for (const size of [16 * 1024 + 1, 64 * 1024]) {
    const over = await socketOf(t, port);
    over.ws.send(frame(size));
    t.equal(await over.closed(), 1009);
  }
  // The library's own bound: it cuts the connection without a close frame (see FRAME_READ_MAX).
  const far = await socketOf(t, port);
  far.ws.send(frame(64 * 1024 + 1));
  t.equal(await far.closed(), 1006);
});

t.test('HEART-01 HEART-02 HEART-03 HEART-04 WS-19: silent and expired sockets are closed', async (t) => {
  const { port, clock, actor } = await frontOf(t);
  /** Advances the clock; `socket`, where given, sends a frame every 10 seconds. */
  const pass = async (ms: number, socket?: TestSocket, says: string | object = { type: 'pong' }): Promise<void> => {
    for (let done = 0; done < ms; done += 10_000) {
      clock.advance(10_000);
      await socket?.say(says);
    }
  };
  const pings = (socket: TestSocket): number => socket.frames.filter((frame) => frame['type'] === 'ping').length;

  const mute = await socketOf(t, port);
  await pass(20_000, mute);
  clock.advance(9_900);
  await mute.say({ type: 'pong' });
  t.equal(mute.closeCode, undefined);
  clock.advance(300);
  t.equal(await mute.closed(), 4408, '30 seconds without hello');

  const lively = await socketOf(t, port);
  await lively.say(hello);
  await pass(300_000, lively);
  t.equal(lively.closeCode, undefined);
  t.ok(pings(lively) >= 9 && pings(lively) <= 11, `ten pings in five minutes, not ${pings(lively)}`);
  await pass(120_000, lively, hello);
  t.equal(lively.closeCode, undefined, 'any frame proves life');
  for (let round = 0; round < 6; round++) {
    lively.ws.ping();
    await once(lively.ws, 'pong');
    lively.ws.pong();
    clock.advance(25_000);
  }
  await lively.say({ type: 'pong' });
  t.equal(lively.closeCode, undefined, 'pings and pongs of the protocol prove life too');

  const silent = await socketOf(t, port);
  await silent.say(hello);
  clock.advance(89_800);
  await lively.say({ type: 'pong' });
  t.equal(silent.closeCode, undefined);
  clock.advance(400);
  t.equal(await silent.closed(), 4408, '90 seconds without a frame');
  t.equal(lively.closeCode, undefined);

  const expiring = await socketOf(t, port, { query: `?token=${tokenOf({ expiresAt: clock.now() + 45_000 })}` });
  await expiring.say(hello);
  await pass(40_000, expiring);
  t.equal(expiring.closeCode, undefined);
  clock.advance(5_200);
  t.equal(await expiring.closed(), 4401);
  t.equal(actor.sessions.length, 1);
});

t.test('HEART-02 HEART-04: silent sockets are closed in time where the clock was set back', async (t) => {
  const { port, clock, front } = await frontOf(t);
  const pass = (ms: number): void => {
    for (let passed = 0; passed < ms; passed += 1_000) clock.advance(1_000);
  };
  const [silent, mute] = [await socketOf(t, port), await socketOf(t, port)];
  await silent.say(hello);
  // Also where the process had stood still before: its silence then does not count.
  clock.setBy(5_000);
  pass(1_000);
  clock.setBy(-3_600_000);
  pass(60_000);
  t.equal(await mute.closed(), 4408, 'after an interval and the time for a hello');
  t.equal(silent.closeCode, undefined);
  pass(60_000);
  t.equal(await silent.closed(), 4408, 'after an interval and the grace');
  t.equal(front.sockets, 0);
});

t.test('TOKEN-27: a socket whose token expires while it is being opened leaves no session', async (t) => {
  const { port, clock, actor } = await frontOf(t);
  // Sockets are closed by the second: this token is still valid, and its second has passed.
  const untilNext = 1_000 - (clock.now() % 1_000);
  clock.advance(untilNext + 500);
  const token = tokenOf({ expiresAt: clock.now() + 400 });
  for (let n = 0; n < 20; n++) {
    const socket = await socketOf(t, port, { query: `?token=${token}` });
    t.equal(await socket.closed(), 4401);
  }
  t.equal(actor.sessions.length, 0);
});

t.test('HEART-05: pings of many sockets are spread over the interval', async (t) => {
  const { port, clock, actor } = await frontOf(t);
  const devices = Array.from({ length: 5 }, (_, at) => `01ARZ3NDEKTSV4RRFFQ69G5F${String(at).padStart(2, '0')}`);
  for (const id of devices) actor.admit(id);
  const tokens = devices.flatMap((deviceId) => Array<string>(12).fill(tokenOf({ deviceId })));
  const sockets = await Promise.all(tokens.map((token) => socketOf(t, port, { query: `?token=${token}` })));
  for (const socket of sockets) await socket.say(hello);
  let most = 0;
  let before = 0;
  const pings = (): number =>
    sockets.reduce((sum, { frames }) => sum + frames.filter((f) => f['type'] === 'ping').length, 0);
  for (let tick = 0; tick < 30; tick++) {
    clock.advance(1_000);
    await Promise.all(sockets.map((socket) => socket.say({ type: 'pong' })));
    most = Math.max(most, pings() - before);
    before = pings();
  }
  t.equal(before, 60, 'one ping per socket and interval');
  t.ok(most <= 20, `at most ${most} of 60 in a thirtieth of the interval`);
});

t.test('WS-25: frames arrive in order, and the actor is notified when a full buffer has drained', async (t) => {
  const { port, actor } = await frontOf(t);
  const socket = await socketOf(t, port);
  await socket.say(hello);
  const session = actor.sessions[0];
  t.equal(session?.port.send(Array.from({ length: 50 }, (_, n) => JSON.stringify({ type: 'x', n }))), 0);
  await socket.say({ type: 'pong' });
  t.same(
    socket.frames.filter((f) => f['type'] === 'x').map((f) => f['n']),
    [...Array(50).keys()],
  );

  socket.ws.pause();
  const big = JSON.stringify({ type: 'big', pad: 'x'.repeat(500_000) });
  let unsent = 0;
  while (unsent === 0) unsent = session?.port.send([big]) ?? 1;
  t.ok(unsent > 0);
  socket.ws.resume();
  await until('the drain', () => actor.drains > 0);
  t.pass('the actor is notified when the buffer has drained');
  session?.port.close(4403, 'device revoked');
  t.equal(await socket.closed(), 4403);
  t.equal(actor.ended, 1);
  t.equal(session?.port.send(['{}']), 0, 'nothing is sent after the close');
  session?.port.close(1012, 'again');
});

t.test('WS-25: the drain is reported only once a slow reader has read everything', async (t) => {
  const { port, actor } = await frontOf(t);
  const socket = await socketOf(t, port);
  await socket.say(hello);
  const session = actor.sessions[0];
  const left: (number | undefined)[] = [];
  actor.drained = () => void left.push(session?.port.send([]));
  socket.ws.pause();
  const big = JSON.stringify({ type: 'big', pad: 'x'.repeat(1_000_000) });
  let unsent = 0;
  while (unsent < 3_000_000) unsent = session?.port.send([big]) ?? Infinity;
  socket.ws.resume();
  await until('the drain', () => left.length > 0);
  t.same(left, [0]);
});

t.test('WS-18: pings of a client that does not read add nothing to its unsent data', async (t) => {
  const { port, actor } = await frontOf(t);
  const socket = await socketOf(t, port);
  await socket.say(hello);
  const session = actor.sessions[0];
  socket.ws.pause();
  const big = JSON.stringify({ type: 'big', pad: 'x'.repeat(1_000_000) });
  let unsent = 0;
  while (unsent < 2_000_000) unsent = session?.port.send([big]) ?? Infinity;
  const hellos = actor.hellos.length;
  for (let i = 0; i < 50; i++) socket.ws.send('{"type":"ping"}');
  socket.ws.send(JSON.stringify(hello));
  await until('the hello', () => actor.hellos.length > hellos);
  t.ok((session?.port.send([]) ?? Infinity) <= unsent, 'no answer was added');
});

t.test('WS-20: a server that stops closes its sockets with 1012 and opens no more', async (t) => {
  const { port, front, clock, actor } = await frontOf(t);
  const sockets = await Promise.all(Array.from({ length: 10 }, () => socketOf(t, port)));
  const stopped = front.close(1_000);
  await Promise.race(sockets.map((socket) => socket.closed()));
  t.ok(
    sockets.some((socket) => socket.closeCode === undefined),
    'sockets are not closed all at once',
  );
  for (let step = 0; step < 20; step++) {
    clock.advance(50);
    await turn();
  }
  t.same(await Promise.all(sockets.map((socket) => socket.closed())), Array(10).fill(1012));
  await stopped;
  t.equal(actor.ended, 10);
  t.equal(front.sockets, 0);
  const refused = await raw(t, port, 'GET / HTTP/1.1\r\n\r\n').catch((error: unknown) => error);
  t.match(refused, { code: 'ECONNREFUSED' });
});

t.test('WS-20: a broken connection leaves no socket behind', async (t) => {
  const { port, front } = await frontOf(t);
  const socket = await socketOf(t, port);
  t.equal(front.sockets, 1);
  socket.ws.terminate();
  await once(socket.ws, 'close');
  await until('no socket left', () => front.sockets === 0);
  t.pass('its socket is no longer counted');
});
