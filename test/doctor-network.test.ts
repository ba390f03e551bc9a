/** The network checks of `doctor`: name, port, certificate, proxy, clock. Each fault is produced for real. */
import { execFile } from 'node:child_process';
import { createServer as createHttp } from 'node:http';
import { createServer as createTls } from 'node:https';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { promisify } from 'node:util';
import t from 'tap';
import type { Platform } from '../src/sdk/platform.js';
import { EXIT } from '../src/terminal/terminal.js';
import { newIdentity } from './support/client.js';
import { wiretap, world, type World } from './support/client-world.js';
import { ShiftedClock, TestClock } from './support/clock.js';
import { examined, HttpProxy } from './support/doctor.js';
import { freePort } from './support/free-port.js';
import { openFor } from './support/loopback-server.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';
import { databaseDown } from './support/server.js';
import { fakeTerminal } from './support/vault-context.js';

const run = promisify(execFile);

const at = (serverUrl: string) => newIdentity({ serverUrl });

/** The first device of a world, at another address. */
const moved = ({ first }: World, serverUrl: string) => ({ ...first.identity(), serverUrl });

t.test('DOCTOR-06: a closed port, an unknown name and a silent server are distinguished', async (t) => {
  const closed = await examined(t, { identity: at(`http://127.0.0.1:${await freePort()}`) });
  t.match(closed.of('connection'), [{ status: 'problem', what: /refuses the connection/, do: /running/ }]);
  t.equal(closed.exit, EXIT.failure);
  t.same(closed.notChecked, ['server', 'token', 'devices', 'upgrade', 'idle', 'web', 'completeness', 'pending']);
  t.match(closed.of('store'), [{ status: 'ok' }], 'local checks run all the same');

  const unknown = await examined(t, { identity: at('https://no-such-server.invalid') });
  t.match(unknown.of('dns'), [{ status: 'problem', what: /no-such-server\.invalid/, do: /online/ }]);
  t.same(unknown.of('connection'), []);

  const mute = createServer(() => undefined);
  const clock = new TestClock();
  // The first connection only checks that the port is open; the second carries a request.
  const seen = new Promise<void>((resolve) => mute.on('connection', (socket) => socket.once('data', () => resolve())));
  const identity = at(`http://127.0.0.1:${await openFor(t, mute)}`);
  mute.on('connection', (socket) => t.teardown(() => socket.destroy()));
  const asking = examined(t, { identity, platform: { ...wiretap().platform, clock, fetch } });
  await seen;
  clock.advance(15_000);
  t.match((await asking).of('server'), [{ status: 'problem', what: /no answer/ }]);
});

t.test('DOCTOR-05: plain http to another machine is a problem, to this one it is not', async (t) => {
  const far = await examined(t, { identity: at('http://no-such-server.invalid') });
  t.match(far.of('address'), [{ status: 'problem', what: /plain http/, do: /TLS/ }]);
  for (const near of ['http://127.0.0.1:1', 'http://localhost:1', 'http://[::1]:1'])
    t.match((await examined(t, { identity: at(near) })).of('address'), [{ status: 'ok' }], near);
});

/** A self-signed certificate; an `expired` one has an end date in the past. */
async function certificate(t: WithTeardown, name: string, expired: boolean): Promise<{ key: Buffer; cert: Buffer }> {
  const folder = await temporaryFolder(t);
  const [key, request, cert] = ['key.pem', 'request.pem', 'cert.pem'].map((file) => join(folder, file)) as [
    string,
    string,
    string,
  ];
  const subject = ['-subj', `/CN=${name}`, '-addext', `subjectAltName=DNS:${name}`];
  await run('openssl', ['req', '-newkey', 'rsa:2048', '-nodes', '-keyout', key, '-out', request, ...subject]);
  // Only `openssl ca` accepts dates in the past.
  const config = join(folder, 'ca.cnf');
  const lines = [
    '[ca]',
    'default_ca=d',
    '[d]',
    `new_certs_dir=${folder}`,
    `database=${folder}/index`,
    `serial=${folder}/serial`,
  ];
  const policy = ['default_md=sha256', 'policy=p', 'copy_extensions=copy', '[p]', 'commonName=supplied'];
  const { writeFile } = await import('node:fs/promises');
  await writeFile(config, [...lines, ...policy, ''].join('\n'));
  await writeFile(join(folder, 'index'), '');
  await writeFile(join(folder, 'serial'), '01\n');
  const dates = ['-startdate', '20200101000000Z', '-enddate', expired ? '20210101000000Z' : '20990101000000Z'];
  await run('openssl', [
    'ca',
    '-batch',
    '-selfsign',
    '-config',
    config,
    '-keyfile',
    key,
    '-in',
    request,
    '-out',
    cert,
    '-notext',
    ...dates,
  ]);
  return { key: await readFile(key), cert: await readFile(cert) };
}

async function tlsServer(t: WithTeardown, name: string, expired: boolean): Promise<string> {
  const server = createTls(await certificate(t, name, expired), (_, response) => response.end());
  return `https://localhost:${await openFor(t, server)}`;
}

t.test('DOCTOR-07: each fault of a certificate is reported separately', async (t) => {
  const selfSigned = (await examined(t, { identity: at(await tlsServer(t, 'localhost', false)) })).of('tls');
  t.match(selfSigned, [{ status: 'problem', what: /signed by itself/, do: /NODE_EXTRA_CA_CERTS/ }]);
  t.equal(selfSigned.length, 1);
  const expired = await examined(t, { identity: at(await tlsServer(t, 'localhost', true)) });
  t.match(expired.of('tls')[0], { status: 'problem', what: /expired \d+ days ago/, do: /Renew/ });
  t.same(expired.of('server'), [], 'the server check is not run');
  const wrong = (await examined(t, { identity: at(await tlsServer(t, 'other.test', false)) })).of('tls');
  t.match(
    wrong.find(({ what }) => what.includes('not for')),
    { status: 'problem', what: /not for localhost but for .*other\.test/ },
  );
  const plain = createHttp((_, response) => response.end('hello'));
  const noTls = await examined(t, { identity: at(`https://localhost:${await openFor(t, plain)}`) });
  t.match(noTls.of('tls'), [{ status: 'problem', what: /does not speak TLS/, do: /http server/ }]);
});

t.test('DOCTOR-08: another site, a wrong path, a redirect, a proxy and another vault are distinguished', async (t) => {
  const made = await world(t);
  const proxy = await HttpProxy.before(t, made.server.port);
  const look = async (status: number, headers: Record<string, string> = {}, url = proxy.url): Promise<string> => {
    proxy.answer = (_, response) => {
      response.writeHead(status, headers).end('<html>');
      return true;
    };
    const [found, ...more] = (await examined(t, { identity: moved(made, url) })).of('server');
    t.equal(found?.status, 'problem');
    t.equal(more.length, 0);
    return `${found?.what ?? ''} ${found?.do ?? ''}`;
  };
  t.match(await look(200), /not this service.*another site/);
  t.match(await look(404, {}, `${proxy.url}/sync`), /not this service.*\/sync right.*\/sync\/api/);
  t.match(await look(301, { location: 'https://elsewhere.test/' }), /redirects to https:\/\/elsewhere\.test/);
  t.match(await look(502), /proxy answers \(502\)/);
  t.match(await look(401), /asks for a login/);
  t.match(await look(503), /not ready/);
  proxy.answer = () => false;
  const other = await examined(t, { identity: { ...moved(made, proxy.url), tenantId: '01JAB0TENANT00000000000000' } });
  t.match(other.of('server'), [{ status: 'problem', what: /a different vault/, do: /recover/ }]);
});

t.test('DOCTOR-08: a database that is down is reported', async (t) => {
  const made = await world(t);
  const up = await databaseDown(made.server.databaseUrl);
  const found = await examined(t, { identity: moved(made, made.url) });
  t.match(found.of('server'), [{ status: 'problem', what: /its database is down/, do: /PostgreSQL/ }]);
  await up();
});

t.test('DOCTOR-09: a wrong clock is reported with its offset, excluding the network delay', async (t) => {
  const made = await world(t);
  const proxy = await HttpProxy.before(t, made.server.port);
  const status = async (shift: number): Promise<{ status?: string; what?: string }> => {
    proxy.headers = () => ({ date: new Date(Date.now() + shift).toUTCString() });
    return (await examined(t, { identity: moved(made, proxy.url) })).of('clock')[0] ?? {};
  };
  t.match(await status(0), { status: 'ok' });
  t.match(await status(-45_000), { status: 'warning', what: /about 4[3-7] s ahead of/, do: /NTP/ });
  t.match(await status(3_600_000), { status: 'problem', what: /about 60 minutes behind/ });

  const clock = new ShiftedClock();
  clock.advance(600_000);
  const noDate = await examined(t, { identity: moved(made, made.url), platform: wiretap(clock).platform });
  t.match(
    noDate.of('clock'),
    [{ status: 'problem', what: /about 10 minutes ahead/ }],
    'without a Date header the offset comes from the ticket',
  );

  const slow = new ShiftedClock();
  const delayed: Platform['fetch'] = async (url, init) => {
    const answer = await fetch(url, init);
    slow.advance(80_000);
    return answer;
  };
  const late = await examined(t, {
    identity: moved(made, made.url),
    platform: { ...wiretap(slow).platform, fetch: delayed },
  });
  t.match(late.of('clock'), [{ status: 'ok' }], 'an answer that takes long is no sign of a wrong clock');
});

/** A wire on which the first pings are answered, and the others are not; each of those waits as long as there is patience. */
function answering(pings: number) {
  const clock = new TestClock();
  const tap = wiretap(clock);
  let left = pings;
  tap.alterFrame = (frame) => {
    if (frame['type'] !== 'pong' || left-- > 0) return frame;
    setImmediate(() => clock.advance(15_000));
    return null;
  };
  const terminal = fakeTerminal({ json: true });
  terminal.onStep = (text) => {
    if (text.startsWith('Holding')) setImmediate(() => clock.advance(120_000));
  };
  return { platform: tap.platform, terminal, idle: 120 };
}

t.test('DOCTOR-12: a proxy that refuses the upgrade, cuts it, or lets nothing through is reported', async (t) => {
  const made = await world(t);
  const proxy = await HttpProxy.before(t, made.server.port);
  const identity = moved(made, proxy.url);
  proxy.upgrade = (socket) => socket.end('HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n') !== undefined;
  const refused = await examined(t, { identity });
  t.match(refused.of('upgrade'), [{ status: 'problem', what: /answer was 403/, do: /Upgrade/ }]);
  t.same(refused.notChecked, ['idle', 'completeness', 'pending']);
  proxy.upgrade = (socket) => socket.destroy() !== undefined;
  t.match((await examined(t, { identity })).of('upgrade'), [{ status: 'problem', what: /it was cut/ }]);
  let asked: () => void = () => undefined;
  const waiting = new Promise<void>((resolve) => (asked = resolve));
  proxy.upgrade = () => {
    asked();
    return true;
  };
  const test = new TestClock();
  const silent = examined(t, { identity, platform: { ...wiretap().platform, clock: test } });
  await waiting;
  test.advance(15_000);
  t.match((await silent).of('upgrade'), [{ status: 'problem', what: /no answer came/ }]);
  const mute = await examined(t, { identity: made.first.identity(), ...answering(0) });
  t.match(mute.of('upgrade'), [{ status: 'problem', what: /opens, but nothing comes through/ }]);
  t.same(mute.of('idle'), []);
});

t.test('DOCTOR-13: an idle connection that is cut is reported with the length of the silence before', async (t) => {
  const made = await world(t);
  const proxy = await HttpProxy.before(t, made.server.port);
  const clock = new TestClock();
  const platform = { ...wiretap().platform, clock };
  const terminal = fakeTerminal({ json: true });
  terminal.onStep = (text) => {
    if (!text.startsWith('Holding')) return;
    setImmediate(() => {
      clock.advance(20_000);
      proxy.cut();
    });
  };
  const found = await examined(t, { identity: moved(made, proxy.url), platform, terminal, idle: 120 });
  t.match(found.of('idle'), [
    { status: 'problem', what: /cut after 20 s of silence.*sends something every 30 s/, do: /above 60 s.*below 20 s/ },
  ]);
  const whole = fakeTerminal({ json: true });
  whole.onStep = (text) => {
    if (text.startsWith('Holding')) setImmediate(() => clock.advance(120_000));
  };
  const lived = await examined(t, { identity: moved(made, proxy.url), platform, terminal: whole, idle: 120 });
  t.match(lived.of('idle'), [{ status: 'ok', what: /lived for the 2 minutes/ }]);
  const lost = await examined(t, { identity: made.first.identity(), ...answering(1) });
  t.match(lost.of('upgrade'), [{ status: 'ok' }]);
  t.match(
    lost.of('idle'),
    [{ status: 'problem', what: /cut after 2 minutes of silence/ }],
    'nobody says that it is cut',
  );
});
