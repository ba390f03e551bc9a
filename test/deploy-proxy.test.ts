/** The example proxies in front of a real server: certificates, live pushes, client addresses, logs. */
import { once } from 'node:events';
import { createServer, request } from 'node:http';
import t, { type Test } from 'tap';
import { claim, join as joinDevice, mustWrite, newItem } from './support/devices.js';
import { freePort } from './support/free-port.js';
import { BASE, MULTI, wireAt } from './support/hosted.js';
import { openFor } from './support/loopback-server.js';
import type { WithTeardown } from './support/postgres.js';
import {
  askThrough,
  certificateOf,
  liveThrough,
  missing,
  startCaddy,
  startNginx,
  untilLogged,
  type Proxy,
  type ProxyOptions,
} from './support/proxies.js';
import { runServer, type Running } from './support/server.js';
import type { Reply } from './support/wire.js';

const ANNA = `anna.${BASE}`;
const ORIGIN = 'https://app.example';

/** A hosted server, and a proxy in front of it. */
interface Behind {
  readonly server: Running;
  readonly proxy: Proxy;
}

type Start = (t: WithTeardown, options: ProxyOptions) => Promise<Proxy>;

/** Tests have more names than Caddy gets certificates for in two minutes. */
const manyNames: readonly [string, string] = ['burst 5', 'burst 100'];

const caddyWith =
  (...changes: readonly (readonly [string, string])[]): Start =>
  async (t, options) =>
    startCaddy(t, { ...options, file: 'Caddyfile.multi-2.6', changes });

/** It waits for a server no longer than an answer takes. */
const multiCaddy = caddyWith(manyNames, ['lb_try_duration 10s', 'lb_try_duration 100ms']);
/** It waits for the next check of the servers. */
const patientCaddy = caddyWith(manyNames);

async function behind(t: WithTeardown, start: Start): Promise<Behind> {
  const server = await runServer(t, { env: { ...MULTI, CORS_ORIGINS: ORIGIN } });
  return { server, proxy: await start(t, { domain: BASE, servers: [server.port] }) };
}

const signUp = async (proxy: Proxy, subdomain: string, forged: string): Promise<Reply> =>
  askThrough(proxy, BASE, '/api/signup', {
    body: { email: 'me@example.com', subdomain },
    headers: { 'x-forwarded-for': forged },
  });

/** The tenant anna with two devices, one of them live through the proxy while the other writes. Returns its secrets. */
async function pushesArrive(t: Test, { server, proxy }: Behind): Promise<{ ticket: string; token: string }> {
  const signedUp = await signUp(proxy, 'anna', '203.0.113.1');
  t.equal(signedUp.at('url'), `https://${ANNA}`);
  const wire = wireAt(t, server.port, ANNA);
  const first = await claim(wire, { claimToken: signedUp.text('claimToken') });
  const second = await joinDevice(wire, first);
  t.match((await certificateOf(proxy, ANNA)).subjectaltname, BASE);
  const me = await askThrough(proxy, ANNA, '/api/me', { token: second.token });
  t.equal(me.at('device.id'), second.id);
  t.match(me.headers['strict-transport-security'], 'max-age=');
  const opened = await askThrough(proxy, ANNA, '/api/ws-ticket', { token: second.token, body: {} });
  const ticket = opened.text('ticket');
  const frames = await liveThrough(t, proxy, { host: ANNA, ticket });
  for (let n = 0; n < 3; n++) {
    const item = newItem([first.id, second.id]);
    await mustWrite(wire, first, item);
    // Not the last frame: the change of the join may be pushed after it.
    await frames.until((all) => all.some((frame) => JSON.stringify(frame).includes(item.id)));
  }
  return { ticket, token: second.token };
}

/** No query is in the log, whether the server is there or away. */
async function logsNoQuery(t: Test, { server, proxy }: Behind, secrets: readonly string[]): Promise<void> {
  for (const secret of secrets) await askThrough(proxy, ANNA, `/api/before?token=${secret}`);
  await server.stop();
  for (const secret of secrets) {
    const away = await askThrough(proxy, ANNA, `/api/away?token=${secret}`, {
      headers: { referer: `https://${ANNA}/?token=${secret}` },
    });
    t.match(String(away.status), /^50[234]$/, 'the server is away');
  }
  for (const path of ['/ws', '/api/before', '/api/away']) await untilLogged(proxy, path);
  const log = await proxy.logged();
  for (const secret of secrets) t.notOk(log.includes(secret), 'not in the log');
  t.notMatch(log, /(ticket|token)=/);
}

/** Signups that each claim another address all count for the real one, which has five an hour. */
async function believesNoClient(t: Test, proxy: Proxy): Promise<void> {
  const outcomes = [];
  // The first of the five was anna's.
  for (let n = 0; n < 5; n++) outcomes.push((await signUp(proxy, `forged-${n}`, `198.51.100.${n}`)).outcome);
  t.same(outcomes, ['200', '200', '200', '200', '429 rate_limited']);
  const { headers } = await askThrough(proxy, BASE, '/api/health', { headers: { 'x-request-id': 'forged' } });
  t.match(headers['x-request-id'], /^(?!forged$)[\w.-]+$/, 'an id of the server');
}

/** Replies without a body leave the proxy's connection to the server fit for the request after them. */
async function emptyRepliesPass(t: Test, proxy: Proxy): Promise<void> {
  const { etag = '' } = (await askThrough(proxy, BASE, '/docs')).headers;
  const outcomes = new Set<string>();
  for (let n = 0; n < 30; n++) {
    const preflight = await askThrough(proxy, ANNA, '/api/devices/reauth/challenge', {
      method: 'OPTIONS',
      headers: { origin: ORIGIN, 'access-control-request-method': 'POST' },
    });
    const post = await askThrough(proxy, ANNA, '/api/ws-ticket', { body: {}, headers: { origin: ORIGIN } });
    const page = await askThrough(proxy, BASE, '/docs', { headers: { 'if-none-match': etag } });
    const get = await askThrough(proxy, ANNA, '/api/health');
    outcomes.add([preflight, post, page, get].map((reply) => reply.outcome).join(', '));
    t.equal(preflight.headers['access-control-allow-origin'], ORIGIN);
  }
  t.same([...outcomes], ['204, 401 unauthorized, 304, 200']);
}

/** Plain HTTP is redirected to HTTPS. */
async function redirects(t: Test, proxy: Proxy): Promise<void> {
  const [status, location] = await new Promise<[number | undefined, string | undefined]>((resolve, reject) => {
    const options = { host: '127.0.0.1', port: proxy.httpPort, path: '/x', headers: { host: ANNA }, agent: false };
    request(options, (reply) => {
      reply.resume();
      resolve([reply.statusCode, reply.headers.location]);
    })
      .on('error', reject)
      .end();
  });
  t.match(String(status), /^30[18]$/);
  t.match(location, /^https:\/\/anna\.sync\.test(:\d+)?\/x$/);
}

t.test('DEPLOY-02 DEPLOY-03 DEPLOY-04 DEPLOY-05 HTTP-17: behind Caddy', { skip: missing('caddy') }, async (t) => {
  const all = await behind(t, multiCaddy);
  const { proxy } = all;
  t.match((await certificateOf(proxy, BASE)).subjectaltname, `DNS:${BASE}`);
  for (const host of [ANNA, 'nobody.sync.test', 'a.b.sync.test', 'evil.example'])
    await t.rejects(certificateOf(proxy, host), { code: /ERR_SSL|ECONNRESET|EPROTO/ }, `${host} belongs to no tenant`);
  const secrets = await pushesArrive(t, all);
  t.equal((await certificateOf(proxy, ANNA)).subjectaltname, `DNS:${ANNA}`, 'a certificate of its own');
  await t.rejects(certificateOf(proxy, 'nobody.sync.test'), 'still');
  await emptyRepliesPass(t, proxy);
  await believesNoClient(t, proxy);
  await redirects(t, proxy);
  await logsNoQuery(t, all, Object.values(secrets));
});

t.test(
  'DEPLOY-06 DEPLOY-04 DEPLOY-05 HTTP-17: nginx in front of a tenant: pushes arrive, and no query is logged',
  { skip: missing('nginx') || missing('openssl') },
  async (t) => {
    const all = await behind(t, startNginx);
    const secrets = await pushesArrive(t, all);
    await emptyRepliesPass(t, all.proxy);
    await believesNoClient(t, all.proxy);
    await redirects(t, all.proxy);
    await logsNoQuery(t, all, Object.values(secrets));
  },
);

/** Path of a request that its server cuts off without a reply, as it does with an upload that stops. */
const CUT = '/cut';

/** Answers every request but `CUT` with its name, as a server that is ready. */
async function named(t: WithTeardown, name: string): Promise<{ port: number; stop: () => Promise<void> }> {
  const server = createServer((asked, reply) => {
    if (asked.url === CUT) asked.socket.destroy();
    else reply.end(JSON.stringify({ name }));
  });
  const port = await openFor(t, server);
  const stop = async (): Promise<void> => {
    server.close();
    server.closeAllConnections();
    await once(server, 'close');
  };
  return { port, stop };
}

/** Each host name leads to one of two servers, both have some, and when one is away its names lead to the other. */
async function staysTogether(t: Test, start: Start): Promise<void> {
  const [first, second] = [await named(t, 'first'), await named(t, 'second')];
  const proxy = await start(t, { domain: BASE, servers: [first.port, second.port] });
  const serverOf = async (host: string): Promise<string> => (await askThrough(proxy, host, '/api/me')).text('name');
  const found = new Map<string, string>();
  // Which host has which server depends on the ports; forty hosts of one server alone would be a fault.
  for (let n = 0; n < 40 && new Set(found.values()).size < 2; n++) {
    const host = `tenant-${n}.${BASE}`;
    found.set(host, await serverOf(host));
  }
  t.same([...new Set(found.values())].toSorted(), ['first', 'second'], 'both servers have tenants');
  for (let n = 0; n < 5; n++)
    for (const [host, name] of found) t.equal(await serverOf(host), name, 'always the same server');
  await second.stop();
  for (const host of found.keys()) t.equal(await serverOf(host), 'first', 'the server that is left has all');
}

t.test('DEPLOY-21: behind Caddy the devices of a tenant share a server', { skip: missing('caddy') }, async (t) =>
  staysTogether(t, patientCaddy),
);

t.test(
  'DEPLOY-21: behind nginx the devices of a tenant share a server',
  { skip: missing('nginx') || missing('openssl') },
  async (t) => staysTogether(t, startNginx),
);

/** Requests that both servers cut off take neither of them away from the others. */
async function sparesOthers(t: Test, start: Start): Promise<void> {
  const ports = [(await named(t, 'first')).port, (await named(t, 'second')).port];
  const proxy = await start(t, { domain: BASE, servers: ports });
  const hosts = Array.from({ length: 8 }, (_, n) => `tenant-${n}.${BASE}`);
  const outcomes = async (path: string): Promise<string[]> => {
    const all = [];
    for (const host of hosts) all.push(String((await askThrough(proxy, host, path, { body: {} })).status));
    return [...new Set(all)];
  };
  t.same(await outcomes('/api/items'), ['200']);
  t.same(await outcomes(CUT), ['502']);
  t.same(await outcomes('/api/items'), ['200'], 'at once');
}

t.test('DEPLOY-22: behind Caddy a request that is cut off harms no other', { skip: missing('caddy') }, async (t) =>
  sparesOthers(t, multiCaddy),
);

t.test(
  'DEPLOY-22: behind nginx a request that is cut off harms no other',
  { skip: missing('nginx') || missing('openssl') },
  async (t) => sparesOthers(t, startNginx),
);

t.test('DEPLOY-12: Caddy skips a dead server, or waits for its return', { skip: missing('caddy') }, async (t) => {
  // A fixed port, since one that the system assigned cannot be reused at once.
  const [dead, port] = [await freePort(), await freePort()];
  const env = { PORT: String(port) };
  const first = await runServer(t, { env });
  const file = 'Caddyfile.single';
  const proxy = await startCaddy(t, { domain: BASE, servers: [dead, port], file });
  const status = async (): Promise<string> => (await askThrough(proxy, BASE, '/api/service/status')).outcome;
  for (let n = 0; n < 5; n++) t.equal(await status(), '200', 'the server that runs answers');
  await t.rejects(certificateOf(proxy, 'evil.example'), 'one name, one certificate');

  await first.stop();
  let answered = false;
  const waiting = status().finally(() => (answered = true));
  await untilLogged(proxy, `127.0.0.1:${port}: connect: connection refused`);
  t.notOk(answered, 'the request waits');
  await runServer(t, { database: { url: first.databaseUrl }, env });
  t.equal(await waiting, '200', 'until the server is back');
});
