/** Blobs through the example proxies: larger than other bodies may be, unchanged, by https URLs. */
import { randomBytes } from 'node:crypto';
import t, { type Test } from 'tap';
import { claim } from './support/devices.js';
import { askThrough, missing, startCaddy, startNginx, type Proxy } from './support/proxies.js';
import { runServer, type Running } from './support/server.js';

const BASE = 'sync.test';

async function blobsPass(t: Test, server: Running, proxy: Proxy): Promise<void> {
  const { token } = await claim(server.wire);
  // Text, so that the answer can be read as such; 3 MiB is more than any other body may have.
  const body = Buffer.from(randomBytes(1.5 * 1024 * 1024).toString('hex'));
  const wish = { contentLength: body.length, contentType: 'text/plain' };
  const given = await askThrough(proxy, BASE, '/api/blobs/upload-url', { method: 'POST', token, body: wish });
  t.equal(given.outcome, '200', given.raw);
  const at = (url: string): string => url.slice(new URL(url).origin.length);
  t.equal(new URL(given.text('url')).origin, `https://${BASE}`, 'the URL has the proxy’s origin');
  const headers = given.at('headers') as Record<string, string>;
  const put = await askThrough(proxy, BASE, at(given.text('url')), { method: 'PUT', body, headers });
  t.equal(put.outcome, '200', put.raw);
  const asked = await askThrough(proxy, BASE, `/api/blobs/${given.text('blobRef')}/url`, { token });
  const got = await askThrough(proxy, BASE, at(asked.text('url')));
  t.equal(got.status, 200);
  t.ok(got.raw === body.toString(), 'the bytes are unchanged');
  const part = await askThrough(proxy, BASE, at(asked.text('url')), { headers: { range: 'bytes=5-8' } });
  t.equal(part.status, 206);
  t.equal(part.raw, body.toString('latin1', 5, 9));
  const log = await proxy.logged();
  t.notOk(log.includes(new URL(given.text('url')).searchParams.get('sig') ?? ''), 'no signature in the log');
}

t.test('BLOB-28: large blobs pass Caddy unchanged', { skip: missing('caddy') }, async (t) => {
  const server = await runServer(t);
  await blobsPass(t, server, await startCaddy(t, { domain: BASE, servers: [server.port], file: 'Caddyfile.single' }));
});

t.test('BLOB-28: large blobs pass nginx unchanged', { skip: missing('nginx') || missing('openssl') }, async (t) => {
  const server = await runServer(t);
  await blobsPass(t, server, await startNginx(t, { domain: BASE, servers: [server.port] }));
});
