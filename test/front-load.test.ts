/**
 * What the front has under way, and what it refuses beyond that: admission, bodies, upgrades, shutdown; and details of
 * HTTP: replies without a body, what the library refuses by itself, queries, methods.
 */
import t, { type Test } from 'tap';
import { type App, ROWS } from '../src/server/app/route-table.js';
import type { LoadBound } from '../src/server/http/limits.js';
import { soon, until } from './support/events.js';
import {
  DEVICE,
  frontOf,
  STUBS,
  TENANT,
  tokenOf,
  ask,
  writeA,
  type HttpAnswer,
  type StubActor,
  type FrontSetup,
} from './support/front.js';
import { HAS_NEWER_LIBRARY } from './support/node-version.js';
import { openSocket, raw, refusedSocket, socketOf, type Raw } from './support/front-sockets.js';

const turn = () => new Promise((resolve) => setImmediate(resolve));

const WIDE: LoadBound = { calls: 1_000, bodies: 1_000_000, replies: 100_000_000 };

/** Bounds for unauthenticated clients by the share that one address has of each: a sixteenth. */
const strangers = (share: Partial<LoadBound>): LoadBound => ({
  ...WIDE,
  ...Object.fromEntries(Object.entries(share).map(([what, most]) => [what, most * 16])),
});

/** An address limiter that answers only when `answer` is called. */
function slowLimiter() {
  const asked: (() => void)[] = [];
  const addressLimits: App['addressLimits'] = {
    guess: () => Promise.resolve(),
    take: () => new Promise<void>((resolve) => void asked.push(resolve)),
  };
  return { asked, addressLimits, answer: () => asked.forEach((resolve) => resolve()) };
}

/** An unauthenticated call that the address limiter counts; its body has about `size` bytes. */
const stranger = (port: number, size = 0): Promise<HttpAnswer> =>
  ask(port, '/api/password/verify', { body: { password: 'p'.repeat(40), pad: 'x'.repeat(size) }, token: null });

const free = (port: number, headers: Record<string, string> = {}): Promise<HttpAnswer> =>
  ask(port, '/api/password/exists', { token: null, headers });

/** A call from another address. */
const elsewhere = (port: number): Promise<HttpAnswer> => free(port, { 'x-forwarded-for': '203.0.113.9' });

t.test('FAIR-13: unauthenticated calls that wait for the limiter use the share of their address', async (t) => {
  const limiter = slowLimiter();
  const { port, front } = await frontOf(t, {
    services: { ...limiter, bounds: { devices: WIDE, unauthenticated: strangers({ calls: 2 }) } },
  });
  const waiting = [stranger(port), stranger(port)];
  await until('stranger 2 in the wait', () => limiter.asked.length === 2);
  const shed = await stranger(port);
  t.equal(shed.status, 429);
  t.equal(shed.error['code'], 'rate_limited');
  t.match(shed.headers['retry-after'], /^[1-9]\d*$/);
  t.equal(limiter.asked.length, 2, 'the limiter is not queried for the refused call');
  t.equal((await elsewhere(port)).status, 200, 'another address is not refused');
  t.equal((await ask(port, '/api/items', { body: writeA() })).status, 200, 'devices are not refused');
  t.equal((await ask(port, '/api/health', { token: null })).status, 200);
  limiter.answer();
  for (const reply of await Promise.all(waiting)) t.equal(reply.status, 200);
  t.equal((await free(port)).status, 200, 'afterwards there is room again');
  t.same(new Set(Object.values(front.held())), new Set([0]));
});

t.test('ERR-15: where callers with equal shares have reached the bound, the next call is 503', async (t) => {
  const limiter = slowLimiter();
  const { port } = await frontOf(t, {
    services: { ...limiter, bounds: { devices: WIDE, unauthenticated: { ...WIDE, calls: 2 } } },
  });
  const from = (n: number) =>
    ask(port, '/api/password/verify', {
      body: { password: 'p'.repeat(40) },
      token: null,
      headers: { 'x-forwarded-for': `203.0.113.${n}` },
    });
  const waiting = [from(1), from(2)];
  await until('stranger 2 in the wait', () => limiter.asked.length === 2);
  const shed = await from(3);
  t.equal(shed.status, 503);
  t.match(shed.headers['retry-after'], /^[1-9]\d*$/);
  limiter.answer();
  for (const reply of await Promise.all(waiting)) t.equal(reply.status, 200);
});

t.test('FAIR-13: a client that disconnects while it waits is counted until the wait is over', async (t) => {
  const limiter = slowLimiter();
  const { port, lines } = await frontOf(t, {
    services: { ...limiter, bounds: { devices: WIDE, unauthenticated: strangers({ calls: 1 }) } },
  });
  const gone = await raw(t, port, 'POST /api/password/verify HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n');
  await until('stranger 1 in the wait', () => limiter.asked.length === 1);
  gone.socket.destroy();
  t.equal((await free(port)).status, 429, 'its statement is still under way');
  limiter.answer();
  await until('room again', async () => (await free(port)).status === 200);
  t.notOk(lines.some((line) => line.level === 'error'));
});

t.test('FAIR-13: a call whose client disconnects while its device is looked up again is not run', async (t) => {
  const loads: (() => void)[] = [];
  const actors = new Map<string, StubActor>();
  let runs = 0;
  const uploadUrl = (): Promise<never> => Promise.reject(new Error(`run ${++runs}`));
  const { port, actor, lines, front } = await frontOf(t, {
    services: {
      blobs: { ...STUBS.blobs, uploadUrl },
      tenants: {
        actors,
        get: () => new Promise((resolve) => void loads.push(() => resolve(actor))),
        hurry: () => undefined,
        changed: () => Promise.resolve(),
      },
    },
  });
  actors.set(TENANT, actor);
  const body = JSON.stringify({ contentLength: 1, contentType: 'text/plain' });
  const head = `POST /api/blobs/upload-url HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer ${tokenOf()}`;
  const gone = await raw(t, port, `${head}\r\nContent-Length: ${body.length}\r\n\r\n`);
  await until('it is admitted', () => front.held()['device_calls'] === 1);
  actor.current = false;
  gone.socket.write(body);
  await until('the tenant is loaded again', () => loads.length === 1);
  gone.socket.destroy();
  t.equal((await ask(port, '/api/health', { token: null })).status, 200);
  for (const answer of loads) answer();
  await until('nothing is under way', () => front.held()['device_calls'] === 0);
  t.equal(runs, 0);
  t.same(
    lines.filter(({ level }) => level === 'error'),
    [],
  );
});

t.test('FAIR-11: bodies of calls that wait for their admission are counted while they are kept', async (t) => {
  const limiter = slowLimiter();
  const { port, front } = await frontOf(t, {
    services: { ...limiter, bounds: { devices: WIDE, unauthenticated: strangers({ bodies: 1_500 }) } },
  });
  const first = stranger(port, 600);
  await until('stranger 1 in the wait', () => limiter.asked.length === 1);
  await until('one body', () => (front.held()['stranger_bodies'] ?? 0) > 600);
  const text = JSON.stringify({ password: 'p'.repeat(40), pad: 'x'.repeat(600) });
  const second = await raw(
    t,
    port,
    `POST /api/password/verify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${text.length}\r\n\r\n${text}`,
  );
  await until('two bodies', () => (front.held()['stranger_bodies'] ?? 0) > 1_200);
  const third = stranger(port, 600);
  await until('stranger 3 in the wait', () => limiter.asked.length === 3);
  second.socket.destroy();
  await until('room again', () => (front.held()['stranger_bodies'] ?? 0) < 1_200);
  const fourth = stranger(port, 600);
  await until('the fourth body', () => (front.held()['stranger_bodies'] ?? 0) > 1_200);
  await until('stranger 4 in the wait', () => limiter.asked.length === 4);
  limiter.answer();
  for (const reply of await Promise.all([first, fourth])) t.equal(reply.status, 200, 'both calls kept their bodies');
  t.equal((await third).status, 429, 'there was no room for this body, and it was dropped');
  t.equal(front.held()['stranger_bodies'], 0, 'every kept body is released');
});

t.test('FAIR-11: of the bodies that are kept the oldest gives way, and its call is refused', async (t) => {
  const limiter = slowLimiter();
  const { port, front, clock } = await frontOf(t, {
    services: { ...limiter, bounds: { devices: WIDE, unauthenticated: strangers({ bodies: 1_500 }) } },
  });
  const calls: ReturnType<typeof stranger>[] = [];
  for (const count of [1, 2]) {
    calls.push(stranger(port, 600));
    await until('a kept body', () => (front.held()['stranger_bodies'] ?? 0) > count * 600);
  }
  clock.advance(5_000);
  const both = front.held()['stranger_bodies'] ?? 0;
  calls.push(stranger(port, 500));
  await until('the third body in place of the first', () => front.held()['stranger_bodies'] === both - 100);
  await until('stranger 3 in the wait', () => limiter.asked.length === 3);
  limiter.answer();
  t.same(
    (await Promise.all(calls)).map(({ status }) => status),
    [429, 200, 200],
  );
  t.equal(front.held()['stranger_bodies'], 0, 'every kept body is released');
});

t.test("FAIR-11: half-sent bodies count in their sender's share, and the oldest gives way", async (t) => {
  const { port, front, clock } = await frontOf(t, {
    services: { bounds: { devices: WIDE, unauthenticated: strangers({ bodies: 1_500 }) } },
  });
  const half = (address: string): string =>
    'POST /api/devices/bootstrap HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n' +
    `X-Forwarded-For: ${address}\r\nContent-Length: 5000\r\n\r\n${'x'.repeat(600)}`;
  const halves: Raw[] = [];
  for (const count of [1, 2]) {
    halves.push(await raw(t, port, half('203.0.113.1')));
    await until('half a body', () => front.held()['stranger_bodies'] === count * 600);
  }
  const third = await raw(t, port, half('203.0.113.1'));
  t.equal(await third.status(), 429, 'a third half-sent body is not held');
  t.match(third.got, /retry-after: [1-9]/i);
  await raw(t, port, half('203.0.113.2'));
  await until('half a body of somebody else', () => front.held()['stranger_bodies'] === 1_800);
  t.equal((await ask(port, '/api/items', { body: writeA() })).status, 200, 'devices have budgets of their own');
  clock.advance(5_000);
  await raw(t, port, half('203.0.113.1'));
  t.equal(await halves[0]?.status(), 429, 'the oldest gave way');
  t.equal(front.held()['stranger_bodies'], 1_800);
  t.equal(halves[1]?.got, '');
});

t.test('HTTP-24: a body without room costs neither the reply nor the next request, and is dropped', async (t) => {
  const { port, front, lines } = await frontOf(t, { services: { bounds: { devices: WIDE, unauthenticated: WIDE } } });
  const head = `POST /api/items/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${tokenOf()}\r\n`;
  // The share of one device is a sixteenth of a million bytes: it has no room for another part.
  const first = await raw(t, port, `${head}Content-Length: 70000\r\n\r\n${'x'.repeat(60_000)}`);
  await until('half a body', () => front.held()['device_bodies'] === 60_000);
  // Requests as the content: none of them is run.
  const part = 'GET /api/me HTTP/1.1\r\nHost: x\r\n\r\n'.repeat(2_000);
  const declared = await raw(t, port, `${head}Content-Length: ${8 * part.length}\r\n\r\n`);
  for (let sent = 0; sent < 8; sent++) {
    declared.socket.write(part);
    // Refused with the first part; more is sent by a client that has not read this yet.
    t.equal(await declared.status(), 429);
    t.equal(front.held()['device_bodies'], 60_000);
  }
  declared.got = '';
  declared.socket.write('GET /api/health HTTP/1.1\r\nHost: x\r\n\r\n');
  t.equal(await declared.status(), 200, 'the next request');

  // Refused at once too, and its connection ends: how much is left is not known.
  const chunked = await raw(
    t,
    port,
    `${head}Transfer-Encoding: chunked\r\n\r\n${part.length.toString(16)}\r\n${part}\r\n`,
  );
  t.equal(await chunked.status(), 429);
  await chunked.until(() => chunked.closed);
  t.equal(lines.filter((line) => line['path'] === '/api/me').length, 0);
  t.equal(front.held()['device_calls'], 1);
  t.equal(first.got, '');
});

t.test('FAIR-13: a held call gives up its place to another call of its address, with 202', async (t) => {
  const pubkey = Buffer.alloc(32, 7).toString('base64url');
  const names = { host: 'x', name: 'Phone', glyph: 'phone', attestation: pubkey };
  const body = { code: 'one two three four five six', pubkey, ...names };
  const { port, front, clock } = await frontOf(t, {
    services: {
      bounds: { devices: WIDE, unauthenticated: strangers({ calls: 2 }) },
      pairing: {
        ...STUBS.pairing,
        fetchNpk: (_tenant, _body, gone) =>
          new Promise((resolve) => gone.addEventListener('abort', () => resolve('pending'))),
      },
    },
  });
  const held = [1, 2].map(() => ask(port, '/api/devices/pair-fetch-npk', { body, token: null }));
  await until('two that wait', () => front.held()['stranger_calls'] === 2);
  t.equal((await free(port)).status, 429);
  t.equal((await elsewhere(port)).status, 200);
  clock.advance(5_000);
  t.equal((await free(port)).status, 200);
  t.equal((await Promise.race(held)).status, 202, 'pending: the client may repeat the call');
});

t.test('FAIR-13: calls whose tenant is being loaded, and sockets being opened, are counted', async (t) => {
  const loads: (() => void)[] = [];
  const spends: ((first: boolean) => void)[] = [];
  const { port, actor } = await frontOf(t, {
    services: {
      bounds: { devices: strangers({ calls: 1 }), unauthenticated: strangers({ calls: 1 }) },
      tenants: {
        actors: new Map(),
        get: () => new Promise((resolve) => void loads.push(() => resolve(actor))),
        hurry: () => undefined,
        changed: () => Promise.resolve(),
      },
      tickets: {
        issueSocket: () => ({ ticket: 'a-ticket', expiresAt: 1 }),
        readSocket: (ticket) =>
          ticket === 'altered'
            ? undefined
            : {
                ...{ deviceId: DEVICE, epoch: 1, expiresAt: 4e12 },
                spend: () => new Promise((resolve) => void spends.push(resolve)),
              },
      },
    },
  });
  const device = () => ask(port, '/api/devices');
  const refusals = async (why: string): Promise<void> => {
    t.equal((await device()).status, 429, why);
    t.equal((await refusedSocket(t, port)).status, 429, `by token: ${why}`);
    t.equal((await refusedSocket(t, port, { query: '?ticket=other' })).status, 429, `by ticket: ${why}`);
    t.equal((await refusedSocket(t, port, { query: '?ticket=altered' })).status, 401, 'the ticket is checked first');
    t.equal((await ask(port, '/api/devices', { token: tokenOf({ forged: true }) })).status, 401, 'and so is the token');
  };
  const call = device();
  await until('the load of the tenant', () => loads.length === 1);
  await refusals('a call waits');
  t.equal(loads.length + spends.length, 1, 'refused callers cause no query');
  loads[0]?.();
  t.equal((await call).status, 200);
  const upgrade = openSocket(t, port, { query: '?ticket=slow' });
  await until('the look at the ticket', () => spends.length === 1);
  await refusals('a socket is being opened');
  t.equal(loads.length + spends.length, 2, 'refused callers cause no query');
  spends[0]?.(false);
  t.match(await upgrade, { status: 401 });
  const last = socketOf(t, port);
  await until('the load of the tenant', () => loads.length === 2);
  loads[1]?.();
  await last;
});

t.test('HTTP-14 WS-20: a server that stops waits for calls and upgrades that await their admission', async (t) => {
  const limiter = slowLimiter();
  let redeem: ((first: boolean) => void) | undefined;
  const { port, front } = await frontOf(t, {
    services: {
      ...limiter,
      tickets: {
        issueSocket: () => ({ ticket: 'a-ticket', expiresAt: 1 }),
        readSocket: () => ({
          ...{ deviceId: DEVICE, epoch: 1, expiresAt: 4e12 },
          spend: () => new Promise((resolve) => (redeem = resolve)),
        }),
      },
    },
  });
  const call = stranger(port);
  const upgrade = openSocket(t, port, { query: '?ticket=slow' });
  await until('a wait of each kind', () => limiter.asked.length === 1 && redeem !== undefined);
  let stopped = false;
  const stop = front.close(1_000).then(() => (stopped = true));
  for (let turns = 0; turns < 10; turns++) await turn();
  t.notOk(stopped);
  limiter.answer();
  t.equal((await call).status, 200);
  t.notOk(stopped);
  redeem?.(true);
  t.match(await upgrade, { status: 503 }, 'no socket is opened any more');
  await soon(stop, 'the end of the server');
});

t.test('PAIR-07: a call that would be held is answered at once while the server stops', async (t) => {
  const limiter = slowLimiter();
  const { port, front } = await frontOf(t, {
    services: {
      ...limiter,
      pairing: {
        ...STUBS.pairing,
        // Ends only when the call is given up.
        fetchNpk: (_tenant, _body, gone) =>
          new Promise((resolve) => gone.addEventListener('abort', () => resolve('pending'))),
      },
    },
  });
  const pubkey = Buffer.alloc(32, 7).toString('base64url');
  const body = {
    code: 'one two three four five six',
    host: 'x',
    pubkey,
    name: 'Phone',
    glyph: 'phone',
    attestation: pubkey,
  };
  const text = JSON.stringify(body);
  const slow = await raw(
    t,
    port,
    `POST /api/devices/pair-fetch-npk HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${text.length}\r\n\r\n`,
  );
  const other = stranger(port);
  await until('stranger 1 in the wait', () => limiter.asked.length === 1);
  const stop = front.close(1_000);
  await turn();
  slow.socket.write(text);
  t.equal(await slow.status(), 202, 'pending');
  limiter.answer();
  t.equal((await other).status, 200);
  await soon(stop, 'the end of the server');
});

const ORIGIN = 'https://app.example';
const PAGE = { type: 'text/html', hash: 'one', cache: 'no-cache', bytes: Buffer.from('<p>page</p>') };
const SETUP: FrontSetup = { config: { corsOrigins: [ORIGIN] }, services: { docs: () => PAGE } };

const request = (line: string, ...headers: string[]): string =>
  [`${line} HTTP/1.1`, 'Host: x', ...headers, '', ''].join('\r\n');
const PREFLIGHT = ['OPTIONS /api/items', `Origin: ${ORIGIN}`, 'Access-Control-Request-Method: POST'] as const;
const KEPT_PAGE = ['GET /docs', 'If-None-Match: "one"'] as const;
const POST = `${request('POST /api/ws-ticket', `Authorization: Bearer ${tokenOf()}`, 'Content-Type: application/json', 'Content-Length: 2')}{}`;
const CHUNKED = 'Transfer-Encoding: chunked';

const statuses = ({ got }: Raw): string[] =>
  [...got.matchAll(/HTTP\/1\.1 (\d{3}) /g)].map(([, status]) => status ?? '');

/** The heads of the replies that have no body. */
const emptyHeads = ({ got }: Raw): string[] =>
  got
    .split(/(?=HTTP\/1\.1 )/)
    .filter((reply) => /^HTTP\/1\.1 (204|304) /.test(reply))
    .map((reply) => reply.slice(0, reply.indexOf('\r\n\r\n')));

/** Sends `pair` thirty times on one connection: all at once, then each after the reply to the one before. */
async function thirtyTimes(t: Test, pair: readonly string[], expected: readonly string[]): Promise<void> {
  const { port } = await frontOf(t, SETUP);
  const all = Array.from({ length: 30 }, () => pair).flat();
  const wanted = Array.from({ length: 30 }, () => expected).flat();
  const atOnce = await raw(t, port, all.join(''));
  await atOnce.until(() => atOnce.closed || statuses(atOnce).length === wanted.length);
  t.same(statuses(atOnce), wanted, 'sent without waiting');
  const inTurn = await raw(t, port, '');
  for (const [n, text] of all.entries()) {
    inTurn.socket.write(text);
    await inTurn.until(() => inTurn.closed || statuses(inTurn).length > n);
  }
  t.same(statuses(inTurn), wanted, 'sent one after the other');
  const empty = emptyHeads(inTurn);
  t.same(
    empty.filter((head) => /\r\n(content-length|transfer-encoding|connection):/i.test(head)),
    [],
  );
}

t.test('HTTP-16: a preflight is 204 without a length, and its connection takes the next request', async (t) => {
  await thirtyTimes(t, [request(...PREFLIGHT), POST], ['204', '200']);
});

t.test('HTTP-16: a page that the client already has is 304, and its connection takes the next request', async (t) => {
  await thirtyTimes(t, [request(...KEPT_PAGE), POST], ['304', '200']);
  await thirtyTimes(t, [request('HEAD /docs', 'If-None-Match: "one"'), POST], ['304', '200']);
});

t.test('HTTP-16: HEAD has the length of GET, and its connection takes the next request', async (t) => {
  const { port } = await frontOf(t, SETUP);
  for (const path of ['/docs', '/api/health', '/api/me', '/api/nothing']) {
    const got = await ask(port, path);
    const head = await ask(port, path, { method: 'HEAD' });
    t.same([head.status, head.headers['content-length'], head.text], [got.status, got.headers['content-length'], '']);
  }
  await thirtyTimes(t, [request('HEAD /docs'), request('GET /docs')], ['200', '200']);
});

t.test('HTTP-16: where the client requests `Connection: close`, an empty reply closes the connection', async (t) => {
  const { port } = await frontOf(t, SETUP);
  for (const [line, ...headers] of [PREFLIGHT, KEPT_PAGE]) {
    const connection = await raw(t, port, request(line, ...headers, 'Connection: close'));
    await connection.until(() => connection.closed);
    t.match(connection.got, /^HTTP\/1\.1 (204|304) /);
    t.notMatch(connection.got, /\r\ncontent-length:/i);
  }
});

t.test(
  'HTTP-16: where the connection is cut after the reply, there is a body, and what follows is not run',
  async (t) => {
    const { port, actor } = await frontOf(t, SETUP);
    const smuggled = request('DELETE /api/items/01ARZ3NDEKTSV4RRFFQ69G5FAV', `Authorization: Bearer ${tokenOf()}`);
    for (const [line, ...headers] of [PREFLIGHT, KEPT_PAGE]) {
      const alone = await raw(t, port, `${request(line, ...headers, CHUNKED)}0\r\n\r\n`);
      await alone.until(() => alone.closed);
      t.match(alone.got, /^HTTP\/1\.1 200 /);
      t.match(alone.got, /\r\ncontent-length: \d{1,3}\r\n/i);
      const more = await raw(t, port, `${request(line, ...headers, CHUNKED)}0\r\n\r\n${smuggled}`);
      await more.until(() => more.closed);
      t.ok(statuses(more).length <= 1, 'at most one reply');
    }
    t.equal(actor.version, 0, 'nothing was written');
  },
);

t.test('HTTP-16: while the server stops, an empty reply carries `Connection: close`', async (t) => {
  const listings: (() => void)[] = [];
  const items = { page: () => new Promise<never>((_, reject) => listings.push(() => reject(new Error('stopped')))) };
  const { port, front } = await frontOf(t, { ...SETUP, services: { ...SETUP.services, items } });
  const [preflight, page] = [await raw(t, port, ''), await raw(t, port, '')];
  const listing = ask(port, '/api/items');
  await until('a call is under way', () => listings.length === 1);
  const stopped = front.close(60_000);
  // The connections are already open, and none is cut before the calls under way are answered.
  preflight.socket.write(request(...PREFLIGHT));
  page.socket.write(request(...KEPT_PAGE));
  await preflight.until(() => preflight.closed);
  await page.until(() => page.closed);
  for (const { got } of [preflight, page]) t.match(got, /^HTTP\/1\.1 (204|304) [^]*\r\nconnection: close\r\n/i);
  for (const end of listings) end();
  t.equal((await listing).status, 500);
  await stopped;
});

/** What one connection gets for these bytes. */
async function answerTo(t: Test, port: number, bytes: string): Promise<Raw> {
  const connection = await raw(t, port, bytes);
  await connection.until(() => connection.closed || statuses(connection).length > 0);
  return connection;
}

t.test('HTTP-18 ERR-01: the HTTP library itself refuses what it cannot read, in HTML', async (t) => {
  const { port, lines } = await frontOf(t);
  const html = async (name: string, bytes: string, status: string): Promise<void> => {
    const connection = await answerTo(t, port, bytes);
    await connection.until(() => connection.closed);
    t.match(connection.got, new RegExp(`^HTTP/1\\.1 ${status} [^]*\r\nConnection: close\r\n\r\n<h1>`), name);
  };
  const get = 'GET /api/health HTTP/1.1\r\nHost: x\r\n';
  await html('no Host', 'GET /api/health HTTP/1.1\r\nX: y\r\n\r\n', '400');
  await html('a length that is no number', `${get}Content-Length: x\r\n\r\n`, '400');
  await html('a length of twenty digits', `${get}Content-Length: 99999999999999999999\r\n\r\n`, '400');
  await html('a length beside an encoding', `${get}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n`, '400');
  for (const version of ['HTTP/1.0', 'HTTP/2.0', 'HTTP/1.2'])
    await html(version, `GET /api/health ${version}\r\nHost: x\r\n\r\n`, '505');
  await html('another server', 'GET http://x/api/health HTTP/1.1\r\nHost: x\r\n\r\n', '505');
  await html('a star', 'OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n', '505');
  await html('half a head of 9,000 bytes', `${get}X: ${'x'.repeat(9_000)}`, '431');
  t.same(lines, [], 'none of it reaches our code');
});

t.test('HTTP-18: a head of 8,000 bytes is read, in one piece and in two', async (t) => {
  const { port } = await frontOf(t);
  const head = `GET /api/health HTTP/1.1\r\nHost: x\r\nX: ${'x'.repeat(7_950)}\r\n`;
  t.match((await answerTo(t, port, `${head}\r\n`)).got, /^HTTP\/1\.1 200 /);
  const connection = await raw(t, port, head);
  // Answered after the first half was read: it was written before.
  await ask(port, '/api/health');
  connection.socket.write('\r\n');
  await connection.until(() => connection.closed || statuses(connection).length > 0);
  t.match(connection.got, /^HTTP\/1\.1 200 /);
});

t.test('HTTP-02 HTTP-18 ERR-01: bad framing that reaches our code is refused in JSON', async (t) => {
  const { port } = await frontOf(t);
  for (const headers of ['Host: y', 'Content-Length: 2\r\nContent-Length: 2', 'Transfer-Encoding: gzip']) {
    const { got } = await answerTo(t, port, `GET /api/health HTTP/1.1\r\nHost: x\r\n${headers}\r\n\r\n`);
    const isHtml = headers === 'Host: y' && HAS_NEWER_LIBRARY;
    t.match(got, isHtml ? /^HTTP\/1\.1 400 [^]*<h1>/ : /^HTTP\/1\.1 400 [^]*"code":"validation"/, headers);
  }
  const expected = await raw(t, port, request('POST /api/ws-ticket', 'Expect: 100-continue', 'Content-Length: 2'));
  await expected.until(() => expected.got.includes('"unauthorized"'));
  t.match(expected.got, /^HTTP\/1\.1 (100 Continue\r\n\r\nHTTP\/1\.1 )?401 /, 'a client that expects 100 Continue');
});

t.test('HTTP-19: a query of more than 4,096 characters is refused, however it is written', async (t) => {
  const { port } = await frontOf(t);
  const outcome = async (query: string): Promise<unknown> => {
    const { status, error } = await ask(port, `/api/items?${query}`);
    return status === 200 ? 200 : [error['code'], error['message']];
  };
  t.equal(await outcome(`x=${'a'.repeat(4_094)}`), 200);
  t.equal(await outcome('&'.repeat(4_096)), 200);
  // Parsed, `bin_id` would make the request B, whose code is another.
  const bin = `bin_id=inbox&since=0&x=${'a'.repeat(4_096)}`;
  for (const long of [`x=${'a'.repeat(4_095)}`, '&'.repeat(7_500), bin, '%'.repeat(7_500)])
    t.same(await outcome(long), ['validation', 'query: must be at most 4096 characters'], long.slice(0, 8));
});

t.test('HTTP-20 HTTP-04: every path answers every method, on one connection', async (t) => {
  const { port } = await frontOf(t, SETUP);
  const connection = await raw(t, port, '');
  let asked = 0;
  for (const path of new Set(ROWS.map((row) => row.path))) {
    const own: string[] = ROWS.filter((row) => row.path === path).map(({ method }) => method);
    if (own.includes('GET')) own.push('HEAD');
    let ofGet = '';
    for (const method of ['GET', 'HEAD', 'OPTIONS', 'TRACE', 'PATCH', 'PROPFIND', 'get']) {
      connection.got = '';
      connection.socket.write(request(`${method} ${path.replaceAll(/:[a-z]+/g, 'x')}`, `X-N: ${asked}`));
      await connection.until(() => connection.closed || /\r\n\r\n/.test(connection.got));
      const [, status = ''] = /^HTTP\/1\.1 (\d{3})/.exec(connection.got) ?? [];
      t.match(status, own.includes(method.toUpperCase()) ? /^(200|40[014])$/ : /^405$/, `${method} ${path}`);
      const [, length = ''] = /\r\ncontent-length: (\d+)/i.exec(connection.got) ?? [];
      const body = (): string => connection.got.slice(connection.got.indexOf('\r\n\r\n') + 4);
      if (method === 'HEAD') t.equal(body(), '');
      else await connection.until(() => connection.closed || body().length >= Number(length));
      if (method === 'GET') ofGet = status;
      if (method === 'HEAD') t.equal(status, ofGet, `HEAD ${path} as GET`);
      const [, allow = ''] = /\r\nallow: (.+)\r\n/i.exec(connection.got) ?? [];
      t.same(allow.split(', ').sort(), status === '405' ? own.toSorted() : [''], `${method} ${path}: Allow`);
      asked++;
    }
  }
  t.notOk(connection.closed, `${asked} requests on one connection`);
});
