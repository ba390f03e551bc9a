/** The web app as a server serves it: files, encodings, policy, and where it is not served. */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { request, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { brotliDecompressSync, gunzipSync } from 'node:zlib';
import t from 'tap';
import type { WebRelease } from '../src/protocol/web-app.js';
import { WEB_FOLDER } from '../src/root.js';
import { openWebApp } from '../src/server/app/built.js';
import { openBucket } from '../src/server/app/object-store.js';
import { readConfig } from '../src/server/config/config.js';
import type { WebApp } from '../src/server/http/ports.js';
import { CHROMIUM, startBrowser } from './support/browser.js';
import { until } from './support/events.js';
import { raw } from './support/front-sockets.js';
import { frontOf } from './support/front.js';
import { BASE, billed } from './support/hosted.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';
import { runServer } from './support/server.js';

const release = JSON.parse(await readFile(join(WEB_FOLDER, 'assets.json'), 'utf8')) as WebRelease;
const MIB = 1024 * 1024;
const HTML = { accept: 'text/html,application/xhtml+xml' };

interface Got {
  readonly status: number;
  readonly headers: IncomingMessage['headers'];
  readonly bytes: Buffer;
}

/** One request on a connection of its own, its body as bytes. */
async function get(port: number, path: string, headers: Record<string, string> = {}, method = 'GET'): Promise<Got> {
  const sent = request({ host: '127.0.0.1', port, path, method, headers, agent: false });
  sent.end();
  const [reply] = (await once(sent, 'response')) as [IncomingMessage];
  return { status: reply.statusCode ?? 0, headers: reply.headers, bytes: await buffer(reply) };
}

const hashOf = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('base64url');

async function serving(t: WithTeardown, blobOrigin?: string): Promise<number> {
  const web = await openWebApp(WEB_FOLDER, blobOrigin);
  return (await frontOf(t, { services: { web } })).port;
}

t.test('WEB-01: GET / is the web app for browsers, and a few lines of text for other clients', async (t) => {
  const port = await serving(t);
  const page = await get(port, '/', HTML);
  t.same([page.status, page.headers['content-type']], [200, 'text/html; charset=utf-8']);
  t.match(page.headers.vary, /^accept, accept-encoding$/);
  t.match(page.bytes.toString(), /<script type="module" src="\/web\/page\.[\w-]{20}\.js">/);
  for (const headers of [{ accept: '*/*' }, { accept: '' }]) {
    const text = await get(port, '/', headers);
    t.same(
      [text.status, text.headers['content-type'], text.headers.vary],
      [200, 'text/plain; charset=utf-8', 'accept'],
    );
    t.match(text.bytes.toString(), /^service 9\.9\.9.*\n.*web app.*\n.*\/api/);
  }
});

t.test('WEB-02: each file is served whole in each accepted encoding, with an entity tag for each', async (t) => {
  const port = await serving(t);
  for (const asset of release.assets) {
    const { path } = asset;
    const plain = await get(port, path, HTML);
    t.equal(hashOf(plain.bytes), asset.sha256, path);
    t.equal(plain.headers['content-encoding'], undefined);
    const tags = new Set([plain.headers.etag]);
    for (const [takes, coding, unpack] of [
      ['gzip, deflate, br, zstd', 'br', brotliDecompressSync],
      ['gzip', 'gzip', gunzipSync],
      ['br;q=0, gzip;q=0.5', 'gzip', gunzipSync],
      ['*', 'br', brotliDecompressSync],
    ] as const) {
      const packed = await get(port, path, { ...HTML, 'accept-encoding': takes });
      if (path.endsWith('.png')) {
        t.same([packed.headers['content-encoding'], packed.headers.etag], [undefined, plain.headers.etag], path);
        continue;
      }
      t.equal(packed.headers['content-encoding'], coding, `${path}: ${takes}`);
      t.match(packed.headers.vary, /accept-encoding/);
      t.equal(hashOf(unpack(packed.bytes)), asset.sha256, `${path}: ${takes}`);
      tags.add(packed.headers.etag);
    }
    t.equal(tags.size, path.endsWith('.png') ? 1 : 3, `${path}: ${[...tags].join(' ')}`);
    for (const refused of ['identity', 'br;q=0, *;q=0', 'zstd'])
      t.equal((await get(port, path, { ...HTML, 'accept-encoding': refused })).headers['content-encoding'], undefined);
  }
});

t.test('WEB-02: a file is complete even where its connection is closed after it', async (t) => {
  const port = await serving(t);
  const file = await readFile(join(WEB_FOLDER, 'sw.js'), 'latin1');
  const connection = await raw(
    t,
    port,
    'GET /sw.js HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
  );
  await connection.until(() => connection.closed);
  t.equal(connection.got.slice(connection.got.indexOf('\r\n\r\n') + 4), file);
});

t.test('WEB-03: files with a hash in their names are cached for a year, the rest is revalidated', async (t) => {
  const port = await serving(t);
  for (const { path, bytes } of release.assets) {
    const whole = await get(port, path, HTML);
    const cache = path.startsWith('/web/') ? 'public, max-age=31536000, immutable' : 'no-cache';
    t.equal(whole.headers['cache-control'], cache, path);
    const tag = { ...HTML, 'if-none-match': String(whole.headers.etag) };
    const again = await get(port, path, tag);
    t.same([again.status, again.bytes.length, again.headers['cache-control']], [304, 0, cache], path);
    t.same([again.headers.etag, again.headers.vary], [whole.headers.etag, whole.headers.vary]);
    if (!path.endsWith('.png')) {
      const other = await get(port, path, { ...tag, 'accept-encoding': 'br' });
      t.equal(other.status, 200, 'the tag of another encoding does not match');
    }
    const head = await get(port, path, HTML, 'HEAD');
    t.same([head.status, head.headers['content-length'], head.bytes.length], [200, String(bytes), 0], path);
  }
  const packed = release.assets.flatMap(({ path }) => [`${path}.br`, `${path}.gz`]);
  for (const path of [
    '/web/page.js',
    '/web/share',
    '/web/',
    '/web/..%2fassets.json',
    '/assets.json',
    '/index.html',
    ...packed,
  ])
    t.equal((await get(port, path, HTML)).status, 404, path);
});

t.test('WEB-04: the policy allows nothing external but the sockets of the host and the bucket', async (t) => {
  const local = await serving(t);
  const bucket = await serving(t, 'https://blobs.example');
  const policy = async (port: number, path: string, host: string): Promise<string> =>
    String((await get(port, path, { ...HTML, host })).headers['content-security-policy']);
  const parts = (reached: string): string[] => [
    "default-src 'none'",
    "script-src 'self' 'wasm-unsafe-eval'",
    "style-src 'self'",
    "img-src 'self' blob: data:",
    "media-src 'self' blob:",
    "font-src 'self'",
    `connect-src 'self'${reached}`,
    "frame-src 'self' blob:",
    "worker-src 'self'",
    "manifest-src 'self'",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    'trusted-types service-web',
  ];
  const engine = release.assets.find(({ path }) => path.startsWith('/web/engine.'))?.path ?? '';
  const sockets = ' ws://a.example:8443 wss://a.example:8443';
  for (const path of ['/', engine, '/sw.js']) {
    t.same((await policy(local, path, 'a.example:8443')).split('; '), parts(sockets), path);
    t.same((await policy(bucket, path, 'a.example:8443')).split('; '), parts(`${sockets} https://blobs.example`), path);
  }
  for (const host of ["a;script-src 'unsafe-inline'", "a 'unsafe-eval'", '*', 'a,b'])
    t.same((await policy(local, '/', host)).split('; '), parts(''), host);
});

t.test('WEB-05: the web app’s files are restricted to their origin and name the features they use', async (t) => {
  const port = await serving(t);
  for (const { path } of release.assets) {
    const { headers } = await get(port, path, HTML);
    t.equal(headers['cross-origin-opener-policy'], 'same-origin', path);
    t.equal(headers['cross-origin-resource-policy'], 'same-origin');
    t.equal(headers['x-content-type-options'], 'nosniff');
    t.equal(headers['referrer-policy'], 'no-referrer');
    t.match(headers['content-security-policy'], /; frame-ancestors 'none'(;|$)/, 'no page may frame it');
    const permissions = String(headers['permissions-policy']);
    for (const used of ['camera', 'clipboard-write', 'publickey-credentials-get'])
      t.ok(permissions.includes(`${used}=(self)`), used);
    for (const off of ['geolocation', 'microphone', 'usb', 'clipboard-read', 'payment'])
      t.ok(permissions.includes(`${off}=()`), off);
  }
});

t.test('WEB-06: a share that reaches the server is refused, and its body is not read', async (t) => {
  const port = await serving(t);
  // The body never comes: a server that read it would wait for it.
  const head = 'Host: x\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000\r\n\r\n';
  const connection = await raw(t, port, `POST /web/share HTTP/1.1\r\n${head}`);
  await connection.until(() => connection.got.includes('\r\n\r\n'));
  t.match(connection.got, /^HTTP\/1\.1 405 /);
  t.match(connection.got, /\r\nallow: GET, HEAD\r\n/i);
});

t.test('WEB-07: with WEB_APP=off GET / is lines of text, and no file of the web app is served', async (t) => {
  const off = await runServer(t, { env: { WEB_APP: 'off' } });
  const text = await get(off.port, '/', HTML);
  t.same([text.status, text.headers['content-type']], [200, 'text/plain; charset=utf-8']);
  t.notMatch(text.bytes.toString(), /web app/);
  for (const { path } of release.assets) if (path !== '/') t.equal((await get(off.port, path, HTML)).status, 404, path);
  const on = await runServer(t);
  t.match((await get(on.port, '/', HTML)).headers['content-type'], 'text/html');
  t.equal(await openWebApp(await temporaryFolder(t), undefined), undefined, 'without a build there is no web app');
});

t.test(
  'WEB-08: a hosted service has signup at its apex, in the web app’s style, and the web app at other hosts',
  async (t) => {
    const server = await billed(t);
    const at = (host: string, path = '/'): Promise<Got> => get(server.port, path, { ...HTML, host });
    const apex = await at(BASE);
    t.match(apex.bytes.toString(), /<form method="post" action="\/signup"/);
    const [, style = ''] = /<link rel="stylesheet" href="([^"]+)">/.exec(apex.bytes.toString()) ?? [];
    t.match(apex.headers['content-security-policy'], /^default-src 'none'; style-src 'self'; /);
    t.equal((await at(BASE, style)).headers['content-type'], 'text/css; charset=utf-8');
    t.match((await at(`anna.${BASE}`)).bytes.toString(), /<meta name="engine"/);

    const form = { headers: { 'content-type': 'application/x-www-form-urlencoded', 'x-forwarded-for': '192.0.2.9' } };
    const paying = await server.apex.ask('POST', '//signup', {
      ...form,
      body: 'email=a%40example.com&subdomain=berta',
    });
    t.match(paying.raw, /<link rel="stylesheet" href="\/web\/style\./);
  },
);

t.test('WEB-08: the page after signing up has the claim link as a button', async (t) => {
  const env = { TENANT_MODE: 'multi', BASE_DOMAIN: BASE };
  const form = { host: BASE, 'content-type': 'application/x-www-form-urlencoded' };
  const body = 'email=a%40example.com&subdomain=berta';
  const link = new RegExp(`https://berta\\.${BASE}/#claim=[A-Za-z0-9_-]{43}`).source;
  const on = await runServer(t, { env });
  const done = await on.wire.ask('POST', '//signup', { headers: form, body });
  t.match(done.raw, new RegExp(`<a class="button primary wide" href="${link}">Claim it in this browser</a>`));
  t.match(done.raw, new RegExp(`<code>service-device claim &#39;${link}&#39;</code>|service-device claim '${link}'`));
  t.match(done.raw, /<link rel="stylesheet" href="\/web\/style\./);
  const off = await runServer(t, { env: { ...env, WEB_APP: 'off' } });
  const plain = await off.wire.ask('POST', '//signup', { headers: form, body });
  t.match(plain.raw, new RegExp(`<code>${link}</code>`));
  t.notMatch(plain.raw, /in this browser|stylesheet/);
});

t.test('WEB-09: the origin of a bucket is that of its signed URLs', async (t) => {
  const log = { warn: () => undefined };
  const origin = async (settings: Readonly<Record<string, string>>): Promise<string | undefined> => {
    const store = await openBucket(readConfig({ STORAGE_KIND: 's3', ...settings }), log);
    try {
      return await store.origin();
    } finally {
      store.close?.();
    }
  };
  const aws = { S3_BUCKET: 'files', S3_REGION: 'eu-central-1' };
  t.equal(await origin(aws), 'https://files.s3.eu-central-1.amazonaws.com');
  t.equal(await origin({ ...aws, S3_BUCKET: 'my.files' }), 'https://s3.eu-central-1.amazonaws.com');
  t.equal(await origin({ ...aws, S3_FORCE_PATH_STYLE: 'true' }), 'https://s3.eu-central-1.amazonaws.com');
  const minio = { S3_BUCKET: 'files', S3_ENDPOINT: 'http://minio:9000' };
  t.equal(await origin(minio), 'http://minio:9000');
  t.equal(await origin({ ...minio, S3_PUBLIC_ENDPOINT: 'https://blobs.example' }), 'https://blobs.example');
  t.equal(await origin({ ...minio, S3_FORCE_PATH_STYLE: 'false' }), 'http://files.minio:9000');
  const google = { STORAGE_KIND: 'gcs', GCS_BUCKET: 'files' };
  t.equal(await origin(google), 'https://storage.googleapis.com');
  t.equal(await origin({ ...google, GCS_ENDPOINT: 'https://gcs.example/' }), 'https://gcs.example');
});

t.test('WEB-10: a client that does not read a file is charged for it, and cut off after half a minute', async (t) => {
  const bytes = Buffer.alloc(24 * MIB);
  const big: WebApp = {
    file: () => ({ type: 'text/javascript', hash: 'x', cache: 'no-cache', bytes }),
    style: '/web/style.css',
    blobOrigin: undefined,
  };
  const wide = { calls: 64, bodies: 64 * MIB, replies: 16 * 64 * MIB };
  const test = await frontOf(t, { services: { web: big, bounds: { devices: wide, unauthenticated: wide } } });
  const held = (): number => test.front.held()['stranger_replies'] ?? NaN;
  const { socket } = await raw(t, test.port, '');
  socket.pause();
  socket.write('GET /sw.js HTTP/1.1\r\nHost: x\r\n\r\n');
  await until('the reply', () => held() > bytes.length);
  t.ok(held() < bytes.length + MIB, `${held()} bytes are held`);
  test.clock.advance(30_000);
  await until('an empty house', () => held() === 0);
});

t.test(
  'WEB-04 WEB-14: a browser loads the page without an error, caches it, and finds that it can be installed',
  { skip: CHROMIUM === undefined && 'this machine has no Chromium' },
  async (t) => {
    const { port } = await runServer(t);
    const browser = await startBrowser(t, CHROMIUM ?? '');
    const page = await browser.newPage();
    const said: string[] = [];
    page.on('console', (message) => said.push(message.text()));
    page.on('pageerror', (error) => said.push(String(error)));
    await page.goto(`http://localhost:${port}/`, { waitUntil: 'networkidle0' });
    const session = await page.createCDPSession();
    t.same((await session.send('Page.getAppManifest')).errors, []);
    t.same((await session.send('Page.getInstallabilityErrors')).installabilityErrors, []);
    const kept = (): Promise<string[]> =>
      page.evaluate(async () => {
        const registration = await navigator.serviceWorker.getRegistration();
        const [name] = await caches.keys();
        if (registration?.active?.state !== 'activated' || name === undefined) return [];
        return (await (await caches.open(name)).keys()).map(({ url }) => new URL(url).pathname);
      });
    await until('the service worker', async () => (await kept()).length > 0);
    const shell = release.assets.map(({ path }) => path).filter((path) => /^\/$|\.(js|css|wasm|svg)$/.test(path));
    const missing = new Set(shell.filter((path) => path !== '/sw.js'));
    for (const path of await kept()) missing.delete(path);
    const reader = shell.filter((path) => path.startsWith('/web/reader.'));
    t.same([...missing], reader, 'the service worker has cached all files of the app that are not for an import only');
    t.same(said, [], 'nothing is in the console');
  },
);
