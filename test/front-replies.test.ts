/** How the front handles requests and replies, with stubs behind it: shapes, pages, batches, errors, logs. */
import { once } from 'node:events';
import t from 'tap';
import { ServiceError, unavailable } from '../src/protocol/errors.js';
import { ask, DEVICE, frontOf, ITEM, liveItem, refusing, STUBS, tokenOf, writeA, writeB } from './support/front.js';
import { until } from './support/events.js';
import { raw } from './support/front-sockets.js';

const head = (path: string, lines: string): string => `POST ${path} HTTP/1.1\r\nHost: x\r\n${lines}\r\n`;

t.test(
  'SHAPE-01 SHAPE-02 SHAPE-03 SHAPE-04 SHAPE-05 SHAPE-06 SHAPE-07 SHAPE-13 LIST-09: the shape of a request',
  async (t) => {
    const { port, actor } = await frontOf(t);
    const send = (body: unknown, query = '', headers: Record<string, string> = {}) =>
      ask(port, `/api/items${query}`, { body, headers });
    t.same(Object.keys((await send(writeA())).json), ['id', 'version']);
    t.same(Object.keys((await send(writeB())).json), ['id', 'version', 'server_ts']);
    t.same(actor.writes[0]?.write, actor.writes[1]?.write, 'both shapes mean the same write');
    const { bin_id: binId, ...rest } = writeB();
    const camel = { ...rest, binId, wrapped: [{ deviceId: DEVICE, key: Buffer.alloc(80, 3).toString('base64') }] };
    t.equal((await send(camel, '?shape=b')).status, 200, 'B takes either spelling');
    t.equal((await send({ ...writeB(), binId: 'x' }, '?shape=b')).status, 400, 'but not both at once');
    t.equal((await send(writeB(), '?shape=a')).error['code'], 'validation', 'the query decides');
    t.equal((await send(writeA(), '', { 'x-wire-shape': 'b' })).error['code'], 'invalid_payload', 'the header decides');
    t.equal((await send(writeA(), '?shape=a', { 'x-wire-shape': 'b' })).status, 200, 'the query precedes the header');
    const mixed = await send({ ...writeA(), ct: 'x' });
    t.equal(mixed.error['code'], 'invalid_payload');
    t.match(mixed.error['hint'], '/docs/errors#invalid_payload');
    t.equal((await send({})).error['code'], 'validation');
    t.equal((await ask(port, '/api/items?bin_id=')).error['code'], 'invalid_payload');
    for (const query of ['?shape=c', '?shape=', '?shape=a&shape=a', '?shape=A', '?x=%zz']) {
      t.equal((await ask(port, `/api/items${query}`)).status, 400, query);
    }
    t.equal((await ask(port, '/api/items', { headers: { 'x-wire-shape': 'z' } })).status, 400);
    const b = await frontOf(t, { config: { wireShape: 'b' } });
    t.equal((await ask(b.port, '/api/me', { token: null })).error['code'], 'missing_token');
  },
);

t.test('LIST-02 LIST-03 LIST-04 LIST-05 LIST-06 LIST-07 LIST-08: each parameter of a page is checked', async (t) => {
  const { port, pages } = await frontOf(t);
  const code = async (query: string) => (await ask(port, `/api/items?${query}`)).status;
  t.equal(await code(''), 200);
  t.match(pages.at(-1), { since: 0, limit: 500 });
  t.equal(await code('shape=b&since=0'), 200);
  t.match(pages.at(-1), { since: 0, limit: 200 });
  t.equal(await code('limit=5000&unknown=&unknown='), 200);
  t.match(pages.at(-1), { limit: 1_000 });
  t.equal(await code(`limit=${'9'.repeat(400)}`), 200);
  t.equal(await code('bin_id=inbox&since=0'), 200);
  t.match(pages.at(-1), { binId: 'inbox' });
  t.equal(await code('shape=b'), 400, 'B requires since');
  for (const bad of [
    'limit=0',
    'limit=-1',
    'limit=1.5',
    'limit=x',
    'limit=',
    'limit',
    'limit=1&limit=2',
    'limit=1e2',
  ]) {
    t.equal(await code(bad), 400, bad);
  }
  for (const bad of [
    'since=-1',
    'since=1.0',
    'since=',
    'since=0&since=0',
    'since=9007199254740992',
    'epoch=',
    'since=%31%zz',
  ]) {
    t.equal(await code(bad), 400, bad);
  }
});

t.test('LIST-15 SHAPE-13: in B a page takes its bin as bin_id or as binId', async (t) => {
  const { port, pages } = await frontOf(t);
  const page = async (query: string) => {
    const { status, error } = await ask(port, `/api/items?since=0&${query}`);
    return status === 200 ? pages.at(-1)?.binId : error['message'];
  };
  t.equal(await page('shape=b&bin_id=inbox'), 'inbox');
  t.equal(await page('shape=b&binId=inbox'), 'inbox');
  t.equal(await page('bin_id=inbox'), 'inbox', 'the name shows B');
  t.match(await page('shape=b&binId='), /must not be empty/);
  t.match(await page('shape=b&binId=a%20b'), /must be 1 to 64/);
  t.match(await page('shape=b&binId=inbox&bin_id=inbox'), /given in both spellings/);
});

t.test('LIST-10 LIST-11 LIST-17 LIST-18 LIST-19: a page returns its cursor or resets it', async (t) => {
  const test = await frontOf(t);
  const rows = [3, 5].map((version) => liveItem(version));
  const get = async (query: string) => (await ask(test.port, `/api/items?${query}`)).json;
  test.page = { rows, more: true, summary: { version: 9, itemCount: 1, versionSum: 5 } };
  t.match(await get('since=1'), { nextSince: 5, hasMore: true, epoch: 'epoch-1', reset: undefined });
  t.match(await get('since=1&shape=b'), { head_version: 5, has_more: true, epoch: 'epoch-1' });
  test.page = { ...test.page, more: false };
  const page = await get('since=1');
  t.match(page, { nextSince: 9, hasMore: false });
  t.same(
    (page['items'] as { version: number }[]).map((row) => row.version),
    [3, 5],
  );
  t.match(await get('since=9&epoch=epoch-1'), { reset: undefined });
  t.equal(test.pages.at(-1)?.since, 9);
  t.match(await get('since=9&epoch=epoch-0'), { reset: true });
  t.equal(test.pages.at(-1)?.since, 0);
  t.match(await get('since=10'), { reset: true, nextSince: 9 });
  t.equal(test.pages.at(-1)?.since, 0);
});

t.test('BATCH-01 BATCH-02 BATCH-04: each write of a batch is judged alone, in order', async (t) => {
  const { port, actor } = await frontOf(t);
  const batch = (items: unknown[]) => ask(port, '/api/items/batch', { body: { items } });
  const other = '01ARZ3NDEKTSV4RRFFQ69G5FAW';
  const reply = await batch([
    writeA(),
    writeA({ id: 'bad' }),
    7,
    { ...writeA(), ct: 'x' },
    writeA({ id: other, type: 'x' }),
    writeA(),
  ]);
  t.equal(reply.status, 200);
  t.match(reply.json['results'], [
    { id: ITEM, version: 1 },
    { id: 'bad', error: { code: 'validation', details: { path: 'id' } } },
    { id: null, error: { code: 'validation', details: { path: 'items[2]' } } },
    { id: ITEM, error: { code: 'validation' } },
    { id: other, error: { code: 'unknown_type' } },
    { id: ITEM, version: 2 },
  ]);
  t.match((await batch([writeB(), writeA()])).json['results'], [
    { version: 3 },
    { error: { code: 'invalid_payload' } },
  ]);
  for (const items of [[], Array(101).fill(writeA()), 'x']) t.equal((await batch(items as unknown[])).status, 400);

  // Of two writes of one id the second is submitted only once the first is answered.
  const order: string[] = [];
  let release = (): void => undefined;
  const first = new Promise<void>((resolve) => (release = resolve));
  actor.submit = (change, deviceId) => {
    const version = order.push(`${change.id} ${String(change.ts)} ${deviceId}`);
    const answer = (): void => change.reply.stored(Object.assign(change, { version }));
    if (version === 1) void first.then(answer);
    else answer();
  };
  const pending = batch([writeA({ ts: 2e12 }), writeA({ ts: 1e12 }), writeA({ id: other })]);
  await until('two changes', () => order.length === 2);
  t.same(order, [`${ITEM} 2000000000000 ${DEVICE}`, `${other} 1700000000000 ${DEVICE}`]);
  release();
  t.match((await pending).json['results'], [{ version: 1 }, { version: 3 }, { version: 2 }]);
});

t.test('ERR-13 ERR-14 LOG-04: causes of errors are only in the log, under the id of the reply', async (t) => {
  const { port, actor, lines } = await frontOf(t);
  actor.refuse = () => Promise.reject(Object.assign(new Error('table is gone'), { detail: 'row with secrets' }));
  const broken = await ask(port, '/api/items', { body: writeA() });
  t.equal(broken.status, 500);
  t.equal(broken.error['code'], 'internal');
  t.notMatch(broken.text, 'table');
  const line = lines.find((entry) => entry.level === 'error');
  t.equal(line?.['requestId'], broken.headers['x-request-id']);
  t.match(JSON.stringify(line), 'table is gone');
  t.notMatch(JSON.stringify(line), 'row with secrets');

  actor.refuse = () => Promise.reject(unavailable('the database is out of reach'));
  const down = await ask(port, '/api/items', { body: writeA() });
  t.equal(down.status, 503);
  t.equal(down.error['code'], 'unavailable');
  t.equal(down.headers['retry-after'], '2');
  const warning = lines.find((entry) => entry.level === 'warn');
  t.equal(warning?.['requestId'], down.headers['x-request-id']);
  t.match(JSON.stringify(warning), 'the database is out of reach');

  const inBatch = await ask(port, '/api/items/batch', { body: { items: [writeA()] } });
  t.match(inBatch.json['results'], [{ id: ITEM, error: { code: 'unavailable' } }]);
  actor.refuse = refusing('version_conflict');
  t.equal((await ask(port, '/api/items', { body: writeA() })).status, 409);
});

t.test('LOG-06: at most 50 refusals a second are logged, and the next line counts the others', async (t) => {
  const { port, actor, lines, clock } = await frontOf(t);
  actor.refuse = () => Promise.reject(unavailable('the database is out of reach'));
  const refused = () => lines.filter(({ message }) => message === 'request refused');
  for (let n = 0; n < 60; n++) t.equal((await ask(port, '/api/items', { body: writeA() })).status, 503);
  t.equal(refused().length, 50);
  clock.advance(1_000);
  t.equal((await ask(port, '/api/items', { body: writeA() })).status, 503);
  t.equal(refused().length, 51);
  t.equal(refused().at(-1)?.['leftOut'], 10);
});

t.test('LOG-01 LOG-02 LOG-03: one line per request, without anything secret', async (t) => {
  const { port, lines } = await frontOf(t);
  const reply = await ask(port, '/api/items?note=query-secret', { body: writeA({ note: 'body-secret' }) });
  await ask(port, '/api/path-secret', { method: 'POST', body: { code: 'body-secret' } });
  t.equal(lines.length, 2);
  t.match(lines[0], {
    level: 'debug',
    requestId: reply.headers['x-request-id'],
    method: 'POST',
    path: '/api/items',
    status: 200,
    ms: Number,
    deviceId: DEVICE,
  });
  const log = JSON.stringify(lines);
  for (const secret of ['secret', tokenOf(), 'Bearer']) t.notOk(log.includes(secret), secret);
});

t.test('ERR-14: a request id is accepted from a trusted proxy only', async (t) => {
  const id = async (port: number, given: string) =>
    (await ask(port, '/api/health', { headers: { 'x-request-id': given } })).headers['x-request-id'];
  const { port } = await frontOf(t);
  t.equal(await id(port, 'proxy-id_1.2'), 'proxy-id_1.2');
  t.not(await id(port, 'has space'), 'has space');
  t.not(await id(port, 'x'.repeat(65)), 'x'.repeat(65));
  t.not(await id(port, ''), await id(port, ''));
  const open = await frontOf(t, { config: { trustedProxies: [] } });
  t.not(await id(open.port, 'mine'), 'mine');
});

t.test('HTTP-07 HTTP-08: a preflight is allowed from a listed origin only', async (t) => {
  const preflight = { origin: 'https://app.example', 'access-control-request-method': 'POST' };
  const closed = await frontOf(t);
  const refused = await ask(closed.port, '/api/items', { method: 'OPTIONS', token: null, headers: preflight });
  t.equal(refused.status, 405);
  t.notOk(refused.headers['access-control-allow-origin']);
  t.notOk((await ask(closed.port, '/api/health', { headers: preflight })).headers['access-control-allow-origin']);

  const { port } = await frontOf(t, { config: { corsOrigins: ['https://app.example'] } });
  const allowed = await ask(port, '/api/items', { method: 'OPTIONS', token: null, headers: preflight });
  t.equal(allowed.status, 204);
  t.match(allowed.headers, {
    'access-control-allow-origin': 'https://app.example',
    'access-control-allow-methods': 'POST, GET, HEAD',
    'access-control-allow-headers': /authorization/,
    vary: 'origin',
  });
  const failed = await ask(port, '/api/items', { token: null, headers: { origin: 'https://app.example' } });
  t.equal(failed.headers['access-control-allow-origin'], 'https://app.example', 'refusals may be read too');
  const stranger = await ask(port, '/api/items', {
    method: 'OPTIONS',
    headers: { ...preflight, origin: 'https://b.example' },
  });
  t.equal(stranger.status, 405);
  t.notOk(stranger.headers['access-control-allow-origin']);
});

t.test(
  'PAIR-07: a held call is answered when decided, ends with its client, and is pending when the server stops',
  async (t) => {
    const signals: AbortSignal[] = [];
    let decide: (result: never) => void = () => undefined;
    const test = await frontOf(t, {
      services: {
        pairing: {
          ...STUBS.pairing,
          fetchNpk: (_tenantId: string, _body: object, gone: AbortSignal) => {
            signals.push(gone);
            return new Promise<never>((resolve) => {
              decide = resolve;
              gone.addEventListener('abort', () => resolve('pending' as never));
            });
          },
        },
      },
    });
    const bytes = Buffer.alloc(32, 1).toString('base64url');
    const body = { code: 'a b c d e f', pubkey: bytes, name: 'Phone', glyph: 'phone', attestation: bytes };
    const held = async () => {
      const before = signals.length;
      const reply = ask(test.port, '/api/devices/pair-fetch-npk', { body, token: null });
      await until('the call', () => signals.length > before);
      return reply;
    };
    const decided = (async () => {
      await until('a call', () => signals.length > 0);
      decide({ token: 'x', wrappedMasterKey: Buffer.from([255, 254]) } as never);
    })();
    t.match(await held(), { status: 200, json: { token: 'x', wrappedMasterKey: '__4' } });
    await decided;

    const text = JSON.stringify(body);
    const gone = await raw(
      t,
      test.port,
      `${head('/api/devices/pair-fetch-npk', `Content-Type: application/json\r\nContent-Length: ${text.length}\r\n`)}${text}`,
    );
    await until('the second call', () => signals.length === 2);
    const aborted = once(signals[1] ?? new AbortController().signal, 'abort');
    gone.socket.destroy();
    await aborted;
    t.pass('the wait ends with its client');

    const atStop = ask(test.port, '/api/devices/pair-fetch-npk', { body, token: null });
    await until('the third call', () => signals.length === 3);
    const stopped = test.front.close(5_000);
    t.match(await atStop, { status: 202, json: { status: 'pending' } });
    await stopped;
  },
);

t.test('STAT-01 STAT-03 STAT-05 STAT-06 STAT-07 STAT-11: health, status and /me have their fields', async (t) => {
  let down = false;
  const { port } = await frontOf(t, {
    services: {
      bootstrap: {
        ...STUBS.bootstrap,
        claimed: () => (down ? Promise.reject(unavailable()) : Promise.resolve(false)),
      },
    },
  });
  const status = () => ask(port, '/api/service/status', { token: null });
  t.same((await ask(port, '/api/health', { token: null })).json, { ok: true, version: '9.9.9', commit: 'unknown' });
  t.match((await status()).json, {
    ok: true,
    version: '9.9.9',
    mode: 'single',
    claimed: false,
    epoch: 'epoch-1',
    database: 'up',
  });
  down = true;
  const refused = await status();
  t.equal(refused.status, 503);
  t.match(refused.json, { ok: false, database: 'down', error: { code: 'unavailable' } });
  t.ok(Number(refused.headers['retry-after']) >= 1);
  t.match((await ask(port, '/api/me')).json, {
    device: { id: DEVICE, name: 'Laptop', glyph: 'laptop', pairedAt: Number },
    server: {
      version: '9.9.9',
      region: 'test',
      storageUsedBytes: 99,
      storageCapBytes: 0,
      itemCount: 2,
      deviceCount: 3,
      devicesOnline: 1,
      headVersion: 7,
      versionSum: 12,
      epoch: 'epoch-1',
    },
  });
  t.match((await ask(port, '/api/me?shape=b')).json, {
    device: { paired_at: Number },
    server: { head_version: 7, tenant_id: String },
  });
  t.match((await ask(port, '/', { token: null })).text, /^service 9\.9\.9.*\n.*\/api.*\n.*\n$/);
});

t.test('LIST-14: a long page reaches a slow reader whole', async (t) => {
  const test = await frontOf(t);
  const rows = Array.from({ length: 100 }, (_, at) => liveItem(at + 1, Buffer.alloc(60_000, 7)));
  test.page = { rows, more: false, summary: { version: 100, itemCount: 100, versionSum: 1 } };
  const slow = await raw(
    t,
    test.port,
    `GET /api/items HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${tokenOf()}\r\n\r\n`,
  );
  slow.socket.pause();
  await until('its line', () => test.lines.some((line) => line['path'] === '/api/items'));
  slow.socket.resume();
  t.equal(await slow.status(), 200);
  const body = JSON.parse(slow.got.slice(slow.got.indexOf('\r\n\r\n') + 4)) as { items: { version: number }[] };
  t.same(
    body.items.map((row) => row.version),
    rows.map((row) => row.version),
  );
});

t.test('HTTP-14: a write that is refused while its handler is still at work leaves nothing behind', async (t) => {
  const { port, actor, front } = await frontOf(t);
  actor.refuseAtOnce = new ServiceError('unavailable');
  const body = JSON.stringify(writeA());
  const head = `POST /api/items HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${tokenOf()}\r\nContent-Type: application/json\r\n`;
  const chunked = `${head}Transfer-Encoding: chunked\r\n\r\n${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n`;
  const whole = `${head}Content-Length: ${body.length}\r\n\r\n${body}`;
  for (const text of [chunked, whole]) {
    t.equal(await (await raw(t, port, text)).status(), 503);
    await until('an empty house', () => front.calls === 0 && front.held()['device_calls'] === 0);
  }
  await front.settled();
});
