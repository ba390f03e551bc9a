/** Refusals: the catalogue, the order of checks, framing, routes, methods, sizes, origins. */
import t from 'tap';
import { CATALOGUE, codeOf, statusOf as statusIn, type ErrorName } from '../src/protocol/errors.js';
import { RELEASE } from '../src/root.js';
import { Scene } from './support/scene.js';
import { runServer } from './support/server.js';
import { SHAPES, type Json, type Reply } from './support/wire.js';

const scene = await Scene.start(t);
const { wire } = scene;

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
409 epoch_mismatch
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

t.test('ERR-03: the catalogue has every code once, with its status', (t) => {
  const ours = (Object.keys(CATALOGUE) as ErrorName[]).map((name) => {
    const [a, b] = (['a', 'b'] as const).map((shape) => `${statusIn(name, shape)} ${codeOf(name, shape)}`);
    return a === b ? `${a}` : `${a} / ${b}`;
  });
  t.same(ours.toSorted(), TABLE.map((line) => line.join(' / ')).toSorted());
  t.equal(new Set(ours).size, ours.length, 'each once');
  t.end();
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
