/** Parts of a blob, tags, HEAD and other origins (RFC 9110). */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { partOf } from '../src/server/http/streams.js';
import { downloadUrl, openRequest, send, uploaded, uploadOf, type BytesReply } from './support/blobs.js';
import { Scene } from './support/scene.js';

const ORIGIN = 'https://app.example.com';
const scene = await Scene.start(t, { env: { CORS_ORIGINS: ORIGIN } });
const { wire, first } = scene;
const SIZE = 700_000;
const bytes = randomBytes(SIZE);
const ref = await uploaded(wire, first, bytes);
const url = await downloadUrl(wire, first, ref);
const get = (headers: Readonly<Record<string, string>>): Promise<BytesReply> => send('GET', url, { headers });

t.test('BLOB-11: a range names a part, lies outside the blob, or means the whole blob', (t) => {
  const file = { size: 100, etag: '"e"' };
  const cases: readonly (readonly [string, ReturnType<typeof partOf>])[] = [
    ['bytes=0-0', { start: 0, end: 1 }],
    ['bytes=10-19', { start: 10, end: 20 }],
    ['Bytes = 10 - 19', { start: 10, end: 20 }],
    ['bytes=90-', { start: 90, end: 100 }],
    ['bytes=90-1000', { start: 90, end: 100 }],
    ['bytes=-1', { start: 99, end: 100 }],
    ['bytes=-1000', { start: 0, end: 100 }],
    ['bytes=100-', 'outside'],
    ['bytes=100-200', 'outside'],
    ['bytes=-0', 'outside'],
    ['bytes=9999999999999999-', 'outside'],
    ['bytes=20-10', 'whole'],
    ['bytes=-', 'whole'],
    ['bytes=a-b', 'whole'],
    ['bytes=0-1,5-6', 'whole'],
    ['lines=0-1', 'whole'],
    ['', 'whole'],
  ];
  for (const [range, part] of cases) t.same(partOf({ range, ifRange: '' }, file), part, range);
  t.same(partOf({ range: 'bytes=0-0', ifRange: '"e"' }, file), { start: 0, end: 1 });
  t.equal(partOf({ range: 'bytes=0-0', ifRange: '"other"' }, file), 'whole');
  t.equal(partOf({ range: 'bytes=0-0', ifRange: 'W/"e"' }, file), 'whole', 'a weak tag gives the whole blob');
  t.equal(partOf({ range: 'bytes=0-0', ifRange: 'Sat, 21 Nov 2026 10:00:00 GMT' }, file), 'whole');
  t.end();
});

t.test('BLOB-11: a range is 206 with those bytes, one outside the blob is 416', async (t) => {
  const ranges: readonly (readonly [string, number, number])[] = [
    ['bytes=0-0', 0, 1],
    ['bytes=100-199', 100, 200],
    ['bytes=262143-262144', 262_143, 262_145],
    [`bytes=${SIZE - 5}-`, SIZE - 5, SIZE],
    ['bytes=-7', SIZE - 7, SIZE],
    ['bytes=1-', 1, SIZE],
  ];
  for (const [range, start, end] of ranges) {
    const reply = await get({ range });
    t.equal(reply.status, 206, range);
    t.equal(reply.headers['content-range'], `bytes ${start}-${end - 1}/${SIZE}`);
    t.equal(reply.headers['content-length'], String(end - start));
    t.ok(reply.bytes.equals(bytes.subarray(start, end)), range);
  }
  const outside = await get({ range: `bytes=${SIZE}-` });
  t.equal(outside.outcome, '416 range_invalid');
  t.equal(outside.headers['content-range'], `bytes */${SIZE}`);
  for (const range of ['bytes=5-1', 'bytes=0-1,3-4', 'pages=1-2']) {
    const reply = await get({ range });
    t.equal(reply.status, 200, range);
    t.equal(reply.bytes.length, SIZE);
  }
});

t.test('BLOB-11: a download that was cut off resumes where it stopped', async (t) => {
  const whole = await get({});
  const { etag } = whole.headers;
  t.match(etag, /^"[0-9A-Z]{26}\.bin"$/);
  const rest = await get({ range: 'bytes=1000-', 'if-range': String(etag) });
  t.equal(rest.status, 206);
  t.ok(Buffer.concat([bytes.subarray(0, 1_000), rest.bytes]).equals(bytes));
  t.equal(
    (await get({ range: 'bytes=1000-', 'if-range': '"another"' })).status,
    200,
    'the tag of another blob gives the whole blob',
  );
});

t.test('BLOB-12: HEAD gives size and tag without a body; a known tag is 304', async (t) => {
  const head = await send('HEAD', url, { headers: { range: 'bytes=0-1' } });
  t.equal(head.status, 200);
  t.equal(head.bytes.length, 0);
  t.match(head.headers, { 'content-length': String(SIZE), 'accept-ranges': 'bytes', etag: `"${ref}"` });
  for (const tag of [`"${ref}"`, `W/"${ref}"`, `"x", "${ref}"`, '*']) {
    const reply = await get({ 'if-none-match': tag });
    t.equal(reply.status, 304, tag);
    t.equal(reply.bytes.length, 0);
  }
  t.equal((await get({ 'if-none-match': '"x"' })).status, 200);
  t.equal((await send('POST', url)).outcome, '405 method_not_allowed');
  t.equal((await send('POST', url)).headers['allow'], 'PUT, GET, HEAD');
});

t.test('BLOB-13: browsers of CORS_ORIGINS may upload and download', async (t) => {
  const { url: target, headers } = await uploadOf(wire, first, { size: 9, type: 'image/png' });
  const { sent, reply } = openRequest('OPTIONS', target, {
    origin: ORIGIN,
    'access-control-request-method': 'PUT',
    'access-control-request-headers': 'content-type',
  });
  sent.end();
  const preflight = await reply;
  t.equal(preflight.status, 204);
  t.equal(preflight.headers['access-control-allow-origin'], ORIGIN);
  t.match(preflight.headers['access-control-allow-methods'], /\bPUT\b/);
  for (const name of ['content-type', 'range', 'if-range'])
    t.ok(preflight.headers['access-control-allow-headers']?.split(', ').includes(name), name);
  const put = await send('PUT', target, { headers: { ...headers, origin: ORIGIN }, body: randomBytes(9) });
  t.equal(put.outcome, '200');
  t.equal(put.headers['access-control-allow-origin'], ORIGIN);
  const got = await get({ origin: ORIGIN, range: 'bytes=0-1' });
  t.equal(got.headers['access-control-allow-origin'], ORIGIN);
  for (const name of ['etag', 'content-range', 'accept-ranges'])
    t.ok(got.headers['access-control-expose-headers']?.split(', ').includes(name), name);
  const evil = 'https://evil.example';
  t.equal((await get({ origin: evil })).headers['access-control-allow-origin'], undefined);
  const asked = await send('OPTIONS', target, { headers: { origin: evil, 'access-control-request-method': 'PUT' } });
  t.equal(asked.headers['access-control-allow-origin'], undefined);
});

t.test('ERR-01 ERR-02 SHAPE-09: a signed URL is refused in the named shape, with the usual body', async (t) => {
  const altered = url.replace(/sig=../, 'sig=AA');
  for (const [target, headers, hint] of [
    [altered, {}, undefined],
    [`${altered}&shape=b`, {}, '/docs/errors#url_invalid'],
    [altered, { 'x-wire-shape': 'b' }, '/docs/errors#url_invalid'],
  ] as const) {
    const reply = await send('GET', target, { headers });
    t.equal(reply.outcome, '403 url_invalid');
    const { error } = JSON.parse(reply.bytes.toString()) as { error: Record<string, unknown> };
    t.type(error['message'], 'string');
    t.equal(error['hint'], hint);
  }
  t.equal((await send('GET', `${url}&shape=b`)).status, 200, 'the signature does not cover the shape');
});

t.test('BLOB-03: a URL has the scheme and the host that clients use', async (t) => {
  const ask = async (headers: Readonly<Record<string, string>>): Promise<string> => {
    const reply = await wire.get(`/blobs/${ref}/url`, { token: first.token, headers });
    return new URL(reply.text('url')).origin;
  };
  t.equal(await ask({ host: 'sync.example.com' }), 'http://sync.example.com');
  t.equal(await ask({ host: 'sync.example.com', 'x-forwarded-proto': 'https' }), 'https://sync.example.com');
  t.equal(await ask({ host: 'sync.example.com', 'x-forwarded-proto': 'gopher' }), 'http://sync.example.com');
  const named = await Scene.start(t, {
    env: { PUBLIC_URL: 'https://files.example.com/base', DOMAIN: 'sync.example.org', TRUSTED_PROXIES: 'none' },
  });
  const given = await uploadOf(named.wire, named.first, { size: 1 });
  t.match(given.url, /^https:\/\/files\.example\.com\/base\/blobs\//, 'PUBLIC_URL is used before DOMAIN');
  const domain = await Scene.start(t, { env: { DOMAIN: 'sync.example.org' } });
  t.match((await uploadOf(domain.wire, domain.first, { size: 1 })).url, /^https:\/\/sync\.example\.org\/blobs\//);
  const distrustful = await Scene.start(t, { env: { TRUSTED_PROXIES: 'none' } });
  const own = await distrustful.wire.post(
    '/blobs/upload-url',
    { contentLength: 1, contentType: 'a/b' },
    { token: distrustful.first.token, headers: { 'x-forwarded-proto': 'https' } },
  );
  t.equal(new URL(own.text('url')).protocol, 'http:', 'an untrusted peer does not decide the scheme');
});
