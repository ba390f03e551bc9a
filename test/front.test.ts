/**
 * The front over HTTP, with stubs behind it: framing, routes, rates, bodies; and what it keeps about callers: sockets by
 * ticket, when a device was seen, verified tokens.
 */
import { once } from 'node:events';
import { connect } from 'node:net';
import t from 'tap';
import { ROWS } from '../src/server/app/route-table.js';
import { ServiceError } from '../src/protocol/errors.js';
import { until } from './support/events.js';
import { ask, DEVICE, frontOf, ITEM, OTHER_DEVICE, tokenOf, writeA, type HttpAsk, verify } from './support/front.js';
import { raw, refusedSocket, socketOf } from './support/front-sockets.js';

const post = (over: HttpAsk = {}): HttpAsk => ({ method: 'POST', ...over });
const head = (path: string, lines: string): string => `POST ${path} HTTP/1.1\r\nHost: x\r\n${lines}\r\n`;

t.test('a second server on a port fails to start instead of sharing its connections', async (t) => {
  const { port } = await frontOf(t);
  await t.rejects(frontOf(t, { config: { port } }), { message: /in use/ });
});

t.test('HTTP-01 HTTP-02 ERR-09: framing that a proxy could read differently is refused before the route', async (t) => {
  const { port, actor } = await frontOf(t);
  const cases: [name: string, request: string][] = [
    ['two lengths', head('/api/items', 'Content-Length: 3\r\nContent-Length: 3\r\n') + 'abc'],
    ['an empty length', head('/api/items', 'Content-Length: \r\n')],
    ['a signed length', head('/api/items', 'Content-Length: +3\r\n') + 'abc'],
    ['a length of zeros', head('/api/items', 'Content-Length: 00\r\n')],
    ['a length with leading zeros', head('/api/items', 'Content-Length: 03\r\n') + 'abc'],
    ['a list of lengths', head('/api/items', 'Content-Length: 3, 3\r\n') + 'abc'],
    ['another encoding', head('/api/items', 'Transfer-Encoding: xchunked\r\n') + '0\r\n\r\n'],
    [
      'two encodings',
      head('/api/items', 'Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n') + '0\r\n\r\n',
    ],
    ['both', head('/api/items', 'Content-Length: 3\r\nTransfer-Encoding: chunked\r\n') + '0\r\n\r\n'],
    ['two hosts', head('/api/items', 'Host: y\r\nContent-Length: 0\r\n')],
    ['on an unknown path', head('/nowhere', 'Host: y\r\nContent-Length: 0\r\n')],
    [
      'at the upgrade',
      'GET /ws HTTP/1.1\r\nHost: x\r\nHost: y\r\nUpgrade: websocket\r\n' +
        'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n',
    ],
  ];
  for (const [name, request] of cases) {
    const connection = await raw(t, port, request);
    t.equal(await connection.status(), 400, name);
    await connection.until(() => connection.closed);
    t.pass(`${name}: closed`);
  }
  t.equal(actor.writes.length, 0);
});

t.test('HTTP-22: what follows a chunked body is never run as a request', async (t) => {
  const { port, lines } = await frontOf(t);
  const chunked = head('/api/ws-ticket', `Authorization: Bearer ${tokenOf()}\r\nTransfer-Encoding: chunked\r\n`);
  const smuggled = 'GET /api/me HTTP/1.1\r\nHost: x\r\n\r\n';
  const connection = await raw(t, port, `${chunked}0\r\n${smuggled}\r\n`);
  await connection.until(() => connection.closed);
  t.equal(connection.got, '', 'the connection is dropped');
  const doubled = head('/api/items', 'Content-Length: 0\r\nContent-Length: 9\r\n');
  const second = await raw(t, port, doubled + smuggled);
  await second.until(() => second.closed);
  t.equal(lines.filter((line) => line['path'] === '/api/me').length, 0);
  const alone = await raw(t, port, `${chunked}0\r\n\r\n`);
  t.equal(await alone.status(), 200, 'a chunked body alone is accepted');
  await alone.until(() => alone.closed);
});

t.test(
  'HTTP-23: a long body that is refused costs neither the reply nor the next request, and is dropped',
  async (t) => {
    const { port, lines } = await frontOf(t);
    const token = `Authorization: Bearer ${tokenOf()}\r\n`;
    // Requests as its content: none of them is run.
    const body = Buffer.alloc(16 * 1024 * 1024, 'GET /api/me HTTP/1.1\r\nHost: x\r\n\r\n');
    const cases: [path: string, lines: string, status: number][] = [
      ['/nowhere', '', 404],
      ['/api/items', '', 401],
      ['/api/items', token, 413],
    ];
    const endless = await raw(t, port, head('/nowhere', 'Content-Length: 100000000000\r\n'));
    for (const [path, more, status] of cases) {
      const connection = await raw(t, port, head(path, `${more}Content-Length: ${body.length}\r\n`));
      await new Promise((resolve) => connection.socket.write(body, resolve));
      t.equal(await connection.status(), status, path);
      t.match(connection.got, /\r\nconnection: close\r\n/);
      connection.got = '';
      connection.socket.write('GET /api/health HTTP/1.1\r\nHost: x\r\n\r\n');
      t.equal(await connection.status(), 200, 'the next request');
    }
    t.equal(lines.filter((line) => line['path'] === '/api/me').length, 0);
    // However it goes on: the library closes it after ten seconds.
    const more = setInterval(() => endless.socket.write(body.subarray(0, 64 * 1024)), 200);
    t.teardown(() => clearInterval(more));
    await endless.until(() => endless.closed);
    t.match(endless.got, /^HTTP\/1\.1 404 /);
  },
);

t.test('HTTP-03 HTTP-04 HTTP-15 ERR-10: an unknown path is 404, a wrong method 405, before the token', async (t) => {
  const { port } = await frontOf(t);
  for (const path of ['/nowhere', '/api', '/api/', '/api/items/', '/api/items/a/b', '/api/signup', '/api/tls-check']) {
    const reply = await ask(port, path, { token: null });
    t.equal(reply.status, 404, path);
    t.equal(reply.error['code'], 'not_found');
  }
  const wrong = await ask(port, '/api/items', { method: 'PUT', token: null });
  t.equal(wrong.status, 405);
  t.equal(wrong.error['code'], 'method_not_allowed');
  t.equal(wrong.headers['allow'], 'POST, GET, HEAD');
  t.equal((await ask(port, '/api/items/batch', { method: 'DELETE' })).headers['allow'], 'POST');
  t.equal((await ask(port, `/api/items/${ITEM}`)).headers['allow'], 'DELETE');
  t.equal((await ask(port, '/api/items', { method: 'OPTIONS', token: null })).status, 405);
  t.equal((await ask(port, '/ws', { token: null })).error['code'], 'not_found', 'without an upgrade there is no route');
});

t.test('TOKEN-01 TOKEN-23: every route requires a token unless the table says `none`', async (t) => {
  const { port } = await frontOf(t);
  t.ok(ROWS.length > 30);
  for (const { method, path, auth } of ROWS) {
    const reply = await ask(port, path.replace(':id', ITEM), {
      method,
      token: null,
      body: method === 'GET' ? undefined : {},
    });
    if (auth === 'none') t.not(reply.status, 401, `${method} ${path}`);
    else t.equal(reply.status, 401, `${method} ${path}`);
  }
});

t.test('HTTP-14: HEAD is GET without a body', async (t) => {
  const { port } = await frontOf(t);
  const reply = await ask(port, '/api/health', { method: 'HEAD' });
  t.equal(reply.status, 200);
  t.equal(reply.text, '');
  t.ok(Number(reply.headers['content-length']) > 10);
  t.equal((await ask(port, '/nowhere', { method: 'HEAD' })).status, 404);
});

t.test('TOKEN-01 TOKEN-02 TOKEN-03 TOKEN-04 TOKEN-05 TOKEN-06 TOKEN-11: bad tokens are refused by kind', async (t) => {
  const { port, actor } = await frontOf(t);
  const code = async (token: string | null, headers: Record<string, string> = {}, shape = 'a') => {
    const reply = await ask(port, `/api/devices?shape=${shape}`, { token, headers });
    return `${reply.status} ${String(reply.error['code'])}`;
  };
  t.match(await code(tokenOf()), '200');
  t.equal(await code(null), '401 unauthorized');
  t.equal(await code(null, {}, 'b'), '401 missing_token');
  t.equal(await code(null, { authorization: 'Basic abc' }, 'b'), '401 missing_token');
  t.equal(await code(tokenOf({ forged: true }), {}, 'b'), '401 invalid_token');
  t.equal(await code('x'.repeat(5_000), {}, 'b'), '401 invalid_token');
  t.equal(await code(tokenOf({ deviceId: OTHER_DEVICE }), {}, 'b'), '401 invalid_token', 'unknown device');
  t.equal(await code(tokenOf({ tenantId: 'another' }), {}, 'b'), '401 invalid_token');
  t.equal(await code(tokenOf({ expiresAt: 1 })), '401 expired_token');
  t.equal(await code(tokenOf({ expiresAt: 1, forged: true })), '401 unauthorized');
  t.match(await code(null, { authorization: `bEARER  ${tokenOf()}` }), '200');
  actor.admit(DEVICE, 2);
  t.equal(await code(tokenOf()), '403 device_revoked', 'the token has an older epoch');
  actor.admit(DEVICE, 2, true);
  t.equal(await code(tokenOf({ epoch: 2 })), '403 device_revoked');
});

t.test('PAIR-23 TOKEN-03: an unknown device is looked up in the database before it is refused', async (t) => {
  let reads = 0;
  const test = await frontOf(t, {
    services: {
      tenants: {
        actors: new Map(),
        get: () => Promise.resolve(test.actor),
        hurry: () => undefined,
        changed: () => {
          reads++;
          if (reads === 2) test.actor.admit(OTHER_DEVICE);
          return Promise.resolve();
        },
      },
    },
  });
  const token = tokenOf({ deviceId: OTHER_DEVICE });
  t.equal((await ask(test.port, '/api/devices', { token })).status, 401);
  t.equal(reads, 1);
  // The next look-up waits, so that the retries of a wiped device do not load the database.
  const waiting = ask(test.port, '/api/devices', { token });
  const sharing = ask(test.port, '/api/devices', { token });
  t.equal((await ask(test.port, '/api/devices')).status, 200, 'other devices do not wait');
  t.equal(reads, 1);
  await until('both wait', () => test.clock.waiting === 2);
  test.clock.advance(250);
  t.same([(await waiting).status, (await sharing).status], [200, 200]);
  t.equal(reads, 2, 'one look-up for both');
});

t.test('TOKEN-24 TOKEN-25: a wrong admin token is forbidden, and where it is unset every token is', async (t) => {
  const path = '/api/devices/bootstrap/restart';
  const { port } = await frontOf(t);
  t.equal((await ask(port, path, post({ token: 'admin-token' }))).status, 200);
  t.equal((await ask(port, path, post({ token: 'admin-tokem' }))).error['code'], 'forbidden');
  t.equal((await ask(port, path, post())).error['code'], 'forbidden', "a device's token");
  t.equal((await ask(port, path, post({ token: null }))).status, 401);
  const unset = await frontOf(t, { config: { adminToken: null } });
  for (const token of [null, 'admin-token', 'null']) {
    t.equal((await ask(unset.port, path, post({ token }))).error['code'], 'forbidden', String(token));
  }
});

t.test('ERR-11 ERR-12 RATE-03 RATE-04 RATE-07: the token is checked before rate and body', async (t) => {
  const { port, clock } = await frontOf(t, { config: { rateReadPerS: 2, rateWritePerS: 1 } });
  const write = (body: unknown = writeA(), token = tokenOf()) => ask(port, '/api/items', { body, token });
  t.equal((await write('{bad')).status, 400);
  const limited = await write('{bad');
  t.equal(limited.status, 429);
  t.equal(limited.headers['retry-after'], '1');
  t.ok(limited.headers['x-request-id']);
  t.equal((await write('{bad', tokenOf({ forged: true }))).status, 401);
  t.equal((await ask(port, `/api/items/${ITEM}`, { method: 'DELETE' })).status, 429, 'a delete is a write');
  t.equal((await ask(port, '/api/items/batch', { body: { items: [writeA()] } })).status, 429);
  t.equal((await ask(port, '/api/items')).status, 200);
  t.equal((await ask(port, '/api/bins', { body: { id: 'x' } })).status, 200, 'other calls are reads');
  t.equal((await ask(port, '/api/me')).status, 429);
  clock.advance(1_000);
  t.equal((await write()).status, 200);
});

t.test('ERR-17: the state of the tenant is checked after the token and before the rate', async (t) => {
  const taken: string[] = [];
  const { port, actor } = await frontOf(t, {
    config: { rateReadPerS: 1, rateWritePerS: 1 },
    services: {
      addressLimits: { guess: () => Promise.resolve(), take: (purpose) => Promise.resolve(void taken.push(purpose)) },
    },
  });
  const code = async (path: string, options: HttpAsk = {}) => (await ask(port, path, options)).error['code'];
  for (const [state, refusal] of [
    ['inactive', 'payment_required'],
    ['suspended', 'tenant_suspended'],
  ] as const) {
    actor.state = state;
    for (let round = 0; round < 3; round++) t.equal(await code('/api/items', { body: '{bad' }), refusal);
    t.equal(await code('/api/items', { body: '{bad', token: tokenOf({ forged: true }) }), 'unauthorized');
  }
  actor.state = 'pending';
  for (let round = 0; round < 3; round++) {
    t.equal(await code('/api/items'), 'payment_required');
    t.equal((await refusedSocket(t, port)).error['code'], 'payment_required');
    t.equal(await code('/api/devices/pair-fetch-epk', { body: '{bad', token: null }), 'payment_required');
  }
  t.same(taken, [], 'no attempt counts against an address');
  actor.state = 'active';
  t.equal((await ask(port, '/api/items', { body: writeA() })).status, 200, 'refused calls consumed no write');
  t.equal((await ask(port, '/api/items')).status, 200, 'nor a read');
  t.equal((await refusedSocket(t, port)).error['code'], 'rate_limited', 'an upgrade counts as a read');
});

t.test('HTTP-12 RATE-09 RATE-11 RATE-12: pairing, password and challenge calls count against an address', async (t) => {
  const taken: string[] = [];
  const { port } = await frontOf(t, {
    services: {
      addressLimits: {
        guess: () => Promise.resolve(),
        take: (purpose, address) => {
          taken.push(`${purpose} ${address}`);
          const refused = new ServiceError('rate_limited', undefined, undefined, 7);
          return address === '9.9.9.9' ? Promise.reject(refused) : Promise.resolve();
        },
      },
    },
  });
  const call = (path: string, from: string) =>
    ask(port, path, { body: {}, token: null, headers: { 'x-forwarded-for': from } });
  await call('/api/devices/pair-fetch-epk', '2001:db8::1');
  await call('/api/password/verify', '1.2.3.4');
  await call('/api/devices/recover/challenge', '1.2.3.4');
  await call('/api/devices/reauth/challenge', '1.2.3.4');
  await call('/api/devices/pair-fetch-npk', '1.2.3.4');
  t.same(taken, ['pair 20010db800000000/64', 'password 1.2.3.4', 'challenge 1.2.3.4', 'challenge 1.2.3.4']);
  const lines =
    'X-Forwarded-For: 9.9.9.9\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 10.0.0.1\r\nContent-Length: 0\r\n';
  t.equal(await (await raw(t, port, head('/api/devices/pair-fetch-epk', lines))).status(), 400);
  t.equal(taken.at(-1), 'pair 1.2.3.4', 'several header lines count as one list');
  const limited = await call('/api/devices/pair-fetch-epk', '9.9.9.9');
  t.equal(limited.status, 429);
  t.equal(limited.headers['retry-after'], '7');
});

t.test('BILL-14: a suspended tenant may read, an inactive one may not, but sees /me, health and status', async (t) => {
  const { port, actor } = await frontOf(t);
  const code = async (path: string, options: HttpAsk = {}) => (await ask(port, path, options)).error['code'] ?? 200;
  actor.state = 'suspended';
  t.equal(await code('/api/items'), 200);
  t.equal(await code('/api/items', { body: writeA() }), 'tenant_suspended');
  t.match((await ask(port, '/api/items', { body: writeA() })).error['message'], /^The tenant is suspended/);
  t.equal(await code('/api/bins', { body: { id: 'x' } }), 'tenant_suspended');
  t.equal(await code('/api/devices'), 200);
  actor.state = 'inactive';
  t.equal(await code('/api/items'), 'payment_required');
  t.equal(await code('/api/me'), 200);
  t.equal(await code('/api/health', { token: null }), 200);
  t.equal(await code('/api/service/status', { token: null }), 200);
  t.equal(await code('/api/password/exists', { token: null }), 'payment_required');
});

t.test('HTTP-05 HTTP-06 BATCH-03: a body over the limit of its endpoint is 413', async (t) => {
  const { port, actor } = await frontOf(t);
  const filled = (size: number): string =>
    JSON.stringify(writeA({ note: '' })).replace('"note":""', (m) =>
      m.replace('""', `"${'x'.repeat(size - JSON.stringify(writeA({ note: '' })).length)}"`),
    );
  t.equal((await ask(port, '/api/items', { body: filled(256 * 1024) })).status, 200);
  const over = await ask(port, '/api/items', { body: filled(256 * 1024 + 1) });
  t.equal(over.status, 413);
  t.equal(over.error['code'], 'payload_too_large');
  t.equal(over.headers['connection'], 'close');
  t.equal((await ask(port, '/api/bins', { body: { id: 'x', pad: 'x'.repeat(64 * 1024) } })).status, 413);
  t.equal((await ask(port, '/api/items/batch', { body: { items: [], pad: 'x'.repeat(1024 * 1024) } })).status, 413);
  t.equal((await ask(port, '/api/items/batch', { body: { items: [writeA()], pad: 'x'.repeat(1e6) } })).status, 200);

  const chunked = head('/api/bins', `Authorization: Bearer ${tokenOf()}\r\nTransfer-Encoding: chunked\r\n`);
  const chunk = `8000\r\n${'x'.repeat(0x8000)}\r\n`;
  const connection = await raw(t, port, `${chunked}${chunk.repeat(3)}0\r\n\r\n`);
  t.equal(await connection.status(), 413, 'in chunks');
  await connection.until(() => connection.closed);

  const declared = await raw(
    t,
    port,
    head('/api/bins', `Authorization: Bearer ${tokenOf()}\r\nContent-Length: 99999999999\r\n`),
  );
  t.equal(await declared.status(), 413, 'refused before anything is read');
  await declared.until(() => declared.closed);
  t.equal(actor.writes.length, 2);
});

t.test('HTTP-14: an unfinished body is refused after 30 s, one in many pieces is accepted', async (t) => {
  const { port, actor, clock } = await frontOf(t);
  const started = head(
    '/api/items',
    `Authorization: Bearer ${tokenOf()}\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n`,
  );
  const gone = connect(port, '127.0.0.1');
  await once(gone, 'connect');
  gone.write(`${started}{"id"`);
  gone.destroy();

  const slow = await raw(t, port, `${started}{`);
  t.equal((await ask(port, '/api/health')).status, 200);
  clock.advance(30_001);
  slow.socket.write('"');
  t.equal(await slow.status(), 400, 'refused after 30 seconds');
  await slow.until(() => slow.closed);
  t.equal(actor.writes.length, 0);
  const pieces = JSON.stringify(writeA()).match(/.{1,100}/g) ?? [];
  const inPieces = await raw(t, port, started.replace('5000', String(pieces.join('').length)));
  for (const piece of pieces) {
    inPieces.socket.write(piece);
    await ask(port, '/api/health');
  }
  t.equal(await inPieces.status(), 200, 'in many pieces');
});

t.test('TOKEN-11: a device that is revoked while its body arrives is refused', async (t) => {
  const { port, actor, lines } = await frontOf(t);
  const text = JSON.stringify(writeA());
  const fields = `Content-Type: application/json\r\nContent-Length: ${text.length}\r\n`;
  const slow = await raw(
    t,
    port,
    head('/api/items', `Authorization: Bearer ${tokenOf()}\r\n${fields}`) + text.slice(0, 9),
  );
  await until('a line after it', async () => {
    await ask(port, '/api/health');
    return lines.some((line) => line['path'] === '/api/health');
  });
  actor.admit(DEVICE, 2, true);
  slow.socket.write(text.slice(9));
  t.equal(await slow.status(), 403);
  t.match(slow.got, /device_revoked/);
  t.equal(actor.writes.length, 0);
});

t.test('ERR-04 ERR-05 ERR-06 ERR-07 HTTP-13: a body that is not a JSON object is a schema error', async (t) => {
  const { port } = await frontOf(t);
  const send = (body: string, type = 'application/json') =>
    ask(port, '/api/items', { body, headers: { 'content-type': type } });
  const secret = '{"password":"hunter2"';
  for (const body of [secret, 'null', '[]', '"x"', '1', '{"id":1}', '{}', ' ', '\u{feff}{}', '['.repeat(100_000)]) {
    const reply = await send(body);
    t.equal(reply.status, 400, body.slice(0, 20));
    t.equal(reply.error['code'], 'validation');
    t.type((reply.error['details'] as Record<string, unknown>)['path'], 'string');
    t.notMatch(reply.text, 'hunter2');
  }
  for (const type of [
    'text/plain',
    'application/jsonp',
    'application/json; charset=latin1',
    'application/x-www-form-urlencoded',
  ]) {
    t.match((await send(JSON.stringify(writeA()), type)).error['message'], /content-type/, type);
  }
  for (const type of ['application/json; charset=utf-8', 'application/json;charset="UTF-8"', 'Application/JSON']) {
    t.equal((await send(JSON.stringify(writeA()), type)).status, 200, type);
  }
  const bytes = await raw(
    t,
    port,
    head('/api/items', `Authorization: Bearer ${tokenOf()}\r\nContent-Type: application/json\r\nContent-Length: 4\r\n`),
  );
  bytes.socket.write(Buffer.from([0x7b, 0xff, 0xfe, 0x7d]));
  t.equal(await bytes.status(), 400, 'not UTF-8');
  t.equal((await ask(port, '/api/ws-ticket', post())).status, 200, 'a call that needs no body may omit it');
});

t.test('HTTP-14: calls are answered while their tenant is loaded, and where there is none', async (t) => {
  const { port, actor } = await frontOf(t, { loaded: false });
  t.equal((await ask(port, '/api/items', { body: writeA() })).status, 200);
  t.equal((await ask(port, '/api/items', { body: writeA(), token: tokenOf({ epoch: 0 }) })).status, 403);
  t.equal((await ask(port, '/api/bins', { body: { id: 'x', pad: 'x'.repeat(64 * 1024) } })).status, 413);
  t.equal((await ask(port, '/api/devices')).status, 200);
  t.equal(actor.writes.length, 1);
  const missing = await frontOf(t, {
    services: {
      tenants: {
        actors: new Map(),
        get: () => Promise.resolve(undefined),
        hurry: () => undefined,
        changed: () => Promise.resolve(),
      },
    },
  });
  t.equal((await ask(missing.port, '/api/devices')).error['code'], 'tenant_not_found');
  const noHost = await frontOf(t, { services: { resolveTenant: () => undefined } });
  t.equal(
    (await ask(noHost.port, '/api/devices', { token: null })).error['code'],
    'tenant_not_found',
    'the host is checked before the token',
  );
  t.equal((await refusedSocket(t, noHost.port, { query: '' })).error['code'], 'tenant_not_found', 'at the upgrade too');
  t.equal((await ask(noHost.port, '/api/health', { token: null })).status, 200);
});

t.test('TOKEN-27: a socket opened by ticket closes when the token that requested the ticket expires', async (t) => {
  const { port, clock } = await frontOf(t, {
    services: {
      tickets: {
        issueSocket: () => ({ ticket: 'x', expiresAt: 1 }),
        readSocket: () => ({ deviceId: DEVICE, epoch: 1, expiresAt: ends, spend: () => Promise.resolve(true) }),
      },
    },
  });
  const ends = clock.now() + 45_000;
  const byTicket = await socketOf(t, port, { query: '?ticket=x' });
  const byToken = await socketOf(t, port, { query: `?token=${tokenOf()}` });
  for (const socket of [byTicket, byToken]) await socket.say({ type: 'hello', since: 0 });
  clock.advance(44_000);
  for (const socket of [byTicket, byToken]) await socket.say({ type: 'pong' });
  t.equal(byTicket.closeCode, undefined, 'not before the token expires');
  clock.advance(2_000);
  t.equal(await byTicket.closed(), 4401);
  await byToken.say({ type: 'pong' });
  t.equal(byToken.closeCode, undefined, 'a socket whose token is still valid stays');
});

t.test('TOKEN-27: a ticket carries the expiry and the epoch of the token that requested it', async (t) => {
  const drawn: object[] = [];
  const { port, actor } = await frontOf(t, {
    services: {
      tickets: {
        issueSocket: (right) => {
          drawn.push(right);
          return { ticket: 'x', expiresAt: 1 };
        },
        readSocket: () => undefined,
      },
    },
  });
  actor.admit(DEVICE, 3);
  const token = tokenOf({ epoch: 3, expiresAt: 3e12 });
  t.equal((await ask(port, '/api/ws-ticket', { method: 'POST', token })).status, 200);
  t.match(drawn, [{ deviceId: DEVICE, epoch: 3, expiresAt: 3e12 }]);
});

t.test('DEV-16: a device counts as seen when it calls or opens a socket, and not when it is refused', async (t) => {
  const seen: string[] = [];
  const unasked = (): Promise<never> => Promise.reject(new Error('not asked for'));
  const devices = { patch: unasked, revoke: unasked, list: () => Promise.resolve({ devices: [] }) };
  const { port, actor } = await frontOf(t, {
    services: { devices: { ...devices, touch: (_tenantId, { id }) => void seen.push(id) } },
  });
  t.equal((await ask(port, '/api/devices')).status, 200);
  t.same(seen, [DEVICE], 'by a call');
  await socketOf(t, port);
  t.same(seen, [DEVICE, DEVICE], 'by a socket');
  t.equal((await ask(port, '/api/items', { body: {} })).status, 400);
  t.equal(seen.length, 3, 'by a call whose body is refused');
  actor.admit(DEVICE, 2, true);
  t.equal((await ask(port, '/api/devices')).status, 403);
  t.equal((await refusedSocket(t, port)).status, 403);
  t.equal((await ask(port, '/api/health', { token: null })).status, 200);
  t.equal(seen.length, 3);
});

t.test(
  'ADMIT-10: a tenant is read at once for a request of a device, with others for sockets and for calls without a token',
  async (t) => {
    let hurried = 0;
    const { port, actor } = await frontOf(t, {
      services: {
        tenants: {
          actors: new Map(),
          get: () => Promise.resolve(actor),
          hurry: () => {
            hurried++;
          },
          changed: () => Promise.resolve(),
        },
      },
    });
    t.equal((await ask(port, '/api/devices')).status, 200);
    t.equal(hurried, 1);
    await socketOf(t, port);
    t.equal((await ask(port, '/api/password/exists', { token: null })).status, 200);
    t.equal(hurried, 1);
  },
);

t.test('TOKEN-28: a token is verified once while nothing changes, a forged one each time', async (t) => {
  let looks = 0;
  const verifyToken = (token: string, now: number) => {
    looks++;
    return verify(token, now);
  };
  const { port, actor, clock } = await frontOf(t, { services: { verifyToken } });
  const status = async (token: string): Promise<number> => (await ask(port, '/api/me', { token })).status;
  const token = tokenOf({ expiresAt: clock.now() + 60_000 });
  t.same([await status(token), await status(token), await status(token), looks], [200, 200, 200, 1]);
  const forged = tokenOf({ forged: true });
  t.same([await status(forged), await status(forged), looks], [401, 401, 3]);
  // Valid tokens of the same device: a bounded number is remembered, those that came last.
  for (let n = 0; n < 300; n++) await status(tokenOf({ expiresAt: clock.now() + 70_000 + n }));
  const before = looks;
  t.same([await status(token), looks - before], [200, 1], 'newer tokens displaced it');
  const padded = async (n: number): Promise<number> =>
    (await ask(port, '/api/me', { token: null, headers: { authorization: `Bearer${' '.repeat(300 + n)}${token}` } }))
      .status;
  // As many as are remembered: one more would displace all of them.
  for (let n = 0; n < 210; n++) await status(tokenOf({ expiresAt: clock.now() + 80_000 + n }));
  const known = looks;
  t.same([await padded(0), await status(token), looks - known], [200, 200, 1], 'blanks before a token displace none');
  actor.admit(DEVICE, 2);
  t.equal(await status(token), 403, 'the epoch of the device has changed');
  actor.admit(DEVICE, 1);
  t.equal(await status(token), 200);
  clock.advance(60_000);
  t.equal(await status(token), 401, 'a remembered token expires too');
});

t.test('TOKEN-28: an actor that has not been compared for long remembers no caller', async (t) => {
  const { port, actor } = await frontOf(t);
  t.equal((await ask(port, '/api/me')).status, 200);
  actor.current = false;
  let reads = 0;
  actor.device = () => {
    reads++;
    return undefined;
  };
  t.equal((await ask(port, '/api/me')).status, 401, 'the device is looked up again');
  t.ok(reads > 0);
});
