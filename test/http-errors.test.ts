/** Refusals: the catalogue, the order of checks, framing, routes, methods, sizes, origins. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { CATALOGUE, codeOf, statusOf as statusIn, type ErrorName } from '../src/protocol/errors.js';
import { RELEASE } from '../src/root.js';
import { claimBody, newCode, newId, writeBody } from './support/devices.js';
import { Scene } from './support/scene.js';
import { ADMIN_TOKEN, runServer } from './support/server.js';
import { SHAPES, spelled, type Ask, type Json, type Reply, type Shape } from './support/wire.js';

const scene = await Scene.start(t);
const { wire, first } = scene;

const VALIDATION = { a: '400 validation', b: '400 invalid_payload' } as const;

/** The table of the page Errors: '<status> <code>', in A and, where it differs, in B. */
const TABLE = `
400 validation / 400 invalid_payload
400 item_too_large
400 unknown_type
400 pair_expired
400 pair_invalid
400 blob_not_found
400 webhook_invalid
401 unauthorized / 401 missing_token
401 unauthorized / 401 invalid_token
401 expired_token
402 payment_required
403 device_revoked
403 tenant_suspended
403 forbidden
403 password_required
403 password_invalid
403 url_invalid
404 not_found
404 item_not_found
404 blob_not_found
404 bin_not_found
404 tenant_not_found
404 device_not_found
405 method_not_allowed
410 bootstrap_already_done / 409 bootstrap_already_done
409 conflict / 409 version_conflict
409 conflict / 409 slug_taken
409 conflict
409 device_exists
409 last_device
409 device_limit
409 upload_offset
413 blob_too_large
413 storage_cap_exceeded
413 payload_too_large
416 range_invalid
429 rate_limited
500 internal
503 storage_unavailable
503 unavailable`
  .trim()
  .split('\n')
  .map((line) => line.split(' / '));

const inTable = (outcome: string, shape: Shape): boolean =>
  TABLE.some(([a, b]) => outcome === (shape === 'a' ? a : (b ?? a)));

t.test('ERR-03: the catalogue has every code once, with its status', (t) => {
  const ours = (Object.keys(CATALOGUE) as ErrorName[]).map((name) => {
    const [a, b] = (['a', 'b'] as const).map((shape) => `${statusIn(name, shape)} ${codeOf(name, shape)}`);
    return a === b ? `${a}` : `${a} / ${b}`;
  });
  t.same(ours.toSorted(), TABLE.map((line) => line.join(' / ')).toSorted());
  t.equal(new Set(ours).size, ours.length, 'each once');
  t.end();
});

interface Probe {
  readonly method: string;
  readonly path: string;
  readonly body?: unknown;
  readonly ask?: Ask;
}

t.test('ERR-01 ERR-02 ERR-03: every refusal has the same body', async (t) => {
  const token = { token: first.token };
  const item = await scene.written();
  const probes: Probe[] = [
    { method: 'GET', path: '/me' },
    { method: 'GET', path: '/me', ask: { token: 'x' } },
    { method: 'GET', path: '/nothing' },
    { method: 'PUT', path: '/items', ask: token },
    { method: 'POST', path: '/items', body: '{', ask: token },
    { method: 'POST', path: '/items', body: 'x'.repeat(300_000), ask: token },
    { method: 'POST', path: '/items', body: '[]', ask: token },
    { method: 'DELETE', path: `/items/${newId()}`, ask: token },
    { method: 'PATCH', path: '/bins/nowhere', body: '{}', ask: token },
    { method: 'POST', path: '/bins', body: '{"id":"x1","slug":"inbox"}', ask: token },
    { method: 'DELETE', path: '/bins/inbox', ask: token },
    { method: 'PATCH', path: `/devices/${newId()}`, body: '{"name":"x"}', ask: token },
    { method: 'POST', path: '/devices/bootstrap', body: JSON.stringify(spelled('a', claimBody())) },
    { method: 'POST', path: '/devices/bootstrap/restart', ask: { token: 'x' } },
    { method: 'POST', path: '/devices/pair-fetch-epk', body: JSON.stringify({ code: newCode() }) },
    { method: 'POST', path: '/password/verify', body: '{"password":"x"}' },
    {
      method: 'POST',
      path: `/items/${item.id}/reconcile`,
      body: JSON.stringify(spelled('a', { binId: 'x1', version: 99, sig: randomBytes(32) })),
      ask: token,
    },
  ];
  for (const shape of SHAPES) {
    const seen = new Set<string>();
    for (const { method, path, body, ask } of probes) {
      const reply = await wire.ask(method, path, { ...ask, shape, body });
      const what = `${shape} ${method} ${path}: ${reply.outcome}`;
      t.match(reply.headers['content-type'], /^application\/json/, what);
      t.ok(inTable(reply.outcome, shape), what);
      t.match(reply.body, { error: { code: String, message: String } });
      t.equal(reply.at('error.hint'), shape === 'b' ? `/docs/errors#${reply.text('error.code')}` : undefined);
      seen.add(reply.outcome);
    }
    t.ok(seen.size >= 12, `${seen.size} different refusals were seen`);
  }
});

t.test('ERR-04 ERR-06 ERR-07: bodies that are not JSON objects, and other content types, are refused', async (t) => {
  const token = { token: first.token };
  const good = (shape: Shape): string => JSON.stringify(spelled(shape, writeBody(shape, scene.item())));
  for (const shape of SHAPES) {
    for (const body of [
      '',
      '{',
      '{}}',
      '[]',
      'null',
      '"x"',
      '7',
      'true',
      'undefined',
      "{'a':1}",
      '{"a":1,}',
      '\uFEFF{}',
      '{"a":NaN}',
      Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d]),
    ]) {
      t.equal((await wire.post('/items', body, { ...token, shape })).outcome, VALIDATION[shape], JSON.stringify(body));
    }
    for (const type of [
      'text/plain',
      'application/x-www-form-urlencoded',
      'multipart/form-data; boundary=x',
      'application/jsonp',
      'application/json; charset=latin1',
      '',
    ]) {
      const reply = await wire.post('/items', good(shape), { ...token, shape, headers: { 'content-type': type } });
      t.equal(reply.outcome, VALIDATION[shape], `content type '${type}'`);
    }
    for (const type of ['application/json', 'application/json; charset=utf-8', 'Application/JSON;charset=UTF-8']) {
      t.equal(
        (await wire.post('/items', good(shape), { ...token, shape, headers: { 'content-type': type } })).outcome,
        '200',
        type,
      );
    }
  }
});

const rawRequest = (lines: readonly string[], body = ''): string => `${lines.join('\r\n')}\r\n\r\n${body}`;
const statusOf = (text: string): number => Number(/^HTTP\/1\.1 (\d{3})/.exec(text)?.[1]);

t.test('HTTP-01 HTTP-02 ERR-09: framing that a proxy could read differently is 400', async (t) => {
  const bad: readonly (readonly [string, readonly string[], string?])[] = [
    ['another transfer coding', ['Transfer-Encoding: gzip'], '0\r\n\r\n'],
    ['two codings', ['Transfer-Encoding: gzip, chunked'], '0\r\n\r\n'],
    ['an almost chunked', ['Transfer-Encoding: xchunked'], '0\r\n\r\n'],
    ['chunked twice', ['Transfer-Encoding: chunked, chunked'], '0\r\n\r\n'],
    ['a coding alone', ['Transfer-Encoding: identity'], ''],
    ['an empty coding', ['Transfer-Encoding:'], ''],
    ['a coding beside a length', ['Transfer-Encoding: chunked', 'Content-Length: 5'], '0\r\n\r\n'],
    ['a length beside a coding', ['Content-Length: 5', 'Transfer-Encoding: chunked'], '0\r\n\r\n'],
    ['identity beside a length', ['Transfer-Encoding: identity', 'Content-Length: 2'], '{}'],
    ['two codings in two lines', ['Transfer-Encoding: chunked', 'Transfer-Encoding: identity'], '0\r\n\r\n'],
    ['two lengths', ['Content-Length: 2', 'Content-Length: 3'], '{}x'],
    ['a length that is none', ['Content-Length: 2x'], '{}'],
    ['a negative length', ['Content-Length: -1'], ''],
    ['a signed length', ['Content-Length: +2'], '{}'],
  ];
  for (const [what, headers, body = ''] of bad) {
    for (const path of ['/api/health', '/api/items', '/nowhere/at/all']) {
      const text = await wire.raw(rawRequest([`POST ${path} HTTP/1.1`, 'Host: x', ...headers], body));
      t.equal(statusOf(text), 400, `${what} at ${path}`);
      t.equal(text.split('HTTP/1.1 ').length, 2, 'one answer, then the connection is closed');
      if (text.includes('application/json')) t.match(text, /"code":"validation"/);
    }
  }
  const chunked = rawRequest(
    [
      'POST /api/devices/pair-fetch-epk HTTP/1.1',
      'Host: x',
      'Content-Type: application/json',
      'Transfer-Encoding: chunked',
      'Connection: close',
    ],
    `f\r\n{"code":"a b c"\r\n1\r\n}\r\n0\r\n\r\n`,
  );
  t.match(await wire.raw(chunked, (text) => text.includes('pair_invalid')), /pair_invalid/, 'chunked itself is fine');
});

t.test('HTTP-03 HTTP-04 HTTP-15 ERR-10: an unknown path is 404 before the token, another method is 405', async (t) => {
  const paths = [
    '/',
    '/item',
    '/items/',
    '/items/a/b',
    '/items/x/y/z',
    '/devices/x/y',
    '/bins/x/y',
    '/devices/bootstrap/x',
    '/ws',
    '/blobs/x',
    '/..',
    '/%2e%2e/health',
    '/HEALTH',
  ];
  const multi: readonly (readonly [string, string])[] = [
    ['POST', '/signup'],
    ['GET', '/tls-check?domain=x.test'],
    ['POST', '/billing/webhook'],
    ['GET', '/billing/portal'],
    ['POST', '/admin/test-tenants'],
    ['GET', '/admin/test-tenants'],
    ['DELETE', '/admin/test-tenants/x'],
  ];
  for (const shape of SHAPES) {
    for (const token of [undefined, 'nonsense', first.token, ADMIN_TOKEN]) {
      const ask = { shape, ...(token === undefined ? {} : { token }) };
      for (const path of paths) t.equal((await wire.get(path, ask)).outcome, '404 not_found', path);
      for (const [method, path] of multi) t.equal((await wire.ask(method, path, ask)).outcome, '404 not_found', path);
      t.equal((await wire.get('//nothing', ask)).outcome, '404 not_found');
    }
    const methods: readonly (readonly [string, string, readonly string[]])[] = [
      ['/items', 'PUT', ['GET', 'POST']],
      ['/items', 'PATCH', ['GET', 'POST']],
      [`/items/${newId()}`, 'GET', ['DELETE']],
      ['/health', 'POST', ['GET']],
      ['/me', 'DELETE', ['GET']],
      ['/bins/x', 'POST', ['PATCH', 'DELETE']],
      ['/devices/bootstrap', 'GET', ['POST']],
      ['/items/batch', 'GET', ['POST']],
    ];
    for (const [path, method, allowed] of methods) {
      const reply = await wire.ask(method, path, { shape });
      t.equal(reply.outcome, '405 method_not_allowed', `${method} ${path}`);
      const allow = (reply.headers.allow ?? '').split(/, */);
      for (const one of allowed) t.ok(allow.includes(one), `${path} allows ${one}`);
    }
  }
});

t.test('HTTP-05 HTTP-06 BATCH-03 FAIR-12: a body over the limit of its endpoint is 413', async (t) => {
  const token = { token: first.token };
  const padded = (size: number): string => `{"x":"${'x'.repeat(size - 8)}"}`;
  const sizes: readonly (readonly [string, string, number, Ask])[] = [
    ['POST', '/items', 256 * 1024, token],
    ['POST', '/items/batch', 1024 * 1024, token],
    ['POST', '/bins', 64 * 1024, token],
    ['PATCH', '/bins/x', 64 * 1024, token],
    ['DELETE', `/items/${newId()}`, 64 * 1024, token],
    ['POST', `/items/${newId()}/reconcile`, 64 * 1024, token],
    ['POST', '/devices/pair-init', 64 * 1024, token],
    ['POST', '/devices/bootstrap', 64 * 1024, {}],
    ['POST', '/devices/pair-fetch-npk', 8 * 1024, {}],
    ['POST', '/password/verify', 8 * 1024, {}],
  ];
  for (const [method, path, size, ask] of sizes) {
    t.not(
      (await wire.ask(method, path, { ...ask, body: padded(size) })).status,
      413,
      `${method} ${path} takes ${size} bytes`,
    );
    for (const over of [size + 1, size * 3])
      t.equal(
        (await wire.ask(method, path, { ...ask, body: padded(over) })).outcome,
        '413 payload_too_large',
        `${method} ${path} and ${over} bytes`,
      );
    const chunks = `${(size + 1).toString(16)}\r\n${'x'.repeat(size + 1)}\r\n0\r\n\r\n`;
    const headers = [
      `${method} /api${path} HTTP/1.1`,
      'Host: x',
      'Content-Type: application/json',
      'Transfer-Encoding: chunked',
      ...(ask.token === undefined ? [] : [`Authorization: Bearer ${ask.token}`]),
    ];
    t.match(
      await wire.raw(rawRequest(headers, chunks), (text) => text.includes('\r\n\r\n{')),
      /413 [^]*payload_too_large/,
      'also in chunks',
    );
  }
  t.equal((await scene.me()).status, 200);
});

t.test('HTTP-07 HTTP-08: only origins in CORS_ORIGINS are allowed', async (t) => {
  const preflight = async (of: typeof wire, origin: string): Promise<Reply> =>
    of.ask('OPTIONS', '/items', {
      headers: {
        origin,
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'authorization,content-type',
      },
    });
  const allowed = (reply: Reply): unknown => reply.headers['access-control-allow-origin'];
  t.equal(allowed(await preflight(wire, 'https://app.example.com')), undefined);
  for (const path of ['/health', '/me', '/nothing'])
    t.equal(allowed(await wire.get(path, { headers: { origin: 'https://app.example.com' } })), undefined);
  const open = await runServer(t, { env: { CORS_ORIGINS: 'https://app.example.com,https://two.example' } });
  const yes = await preflight(open.wire, 'https://app.example.com');
  t.ok(yes.status >= 200 && yes.status < 300);
  t.equal(allowed(yes), 'https://app.example.com');
  t.match(yes.headers['access-control-allow-methods'], /POST/);
  for (const name of ['authorization', 'content-type', 'x-wire-shape'])
    t.match(yes.headers['access-control-allow-headers']?.toLowerCase(), name);
  t.equal(
    allowed(await open.wire.get('/health', { headers: { origin: 'https://two.example' } })),
    'https://two.example',
  );
  t.equal(
    allowed(await open.wire.get('/me', { headers: { origin: 'https://two.example' } })),
    'https://two.example',
    'a refusal can be read too',
  );
  for (const origin of [
    'https://evil.example',
    'http://app.example.com',
    'https://app.example.com.evil.test',
    'null',
  ]) {
    const no = await preflight(open.wire, origin);
    t.equal(allowed(no), undefined, origin);
    t.equal(allowed(await open.wire.get('/health', { headers: { origin } })), undefined);
  }
});

t.test('STAT-01 TOKEN-23: health answers without a token, for any host', async (t) => {
  for (const shape of SHAPES) {
    const { ok, version, commit, ...rest } = (await wire.get('/health', { shape })).body as Json;
    t.same([ok, rest], [true, {}]);
    t.match(version, /^\d+\.\d+\.\d+/);
    t.equal(commit, RELEASE.commit);
  }
  t.equal((await wire.get('/health', { headers: { host: 'anything.test' } })).status, 200);
});
