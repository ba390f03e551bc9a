/** `service-load` against real servers: small runs, what their audits detect, and the test tenants. */
import { readFileSync } from 'node:fs';
import { stat } from 'node:fs/promises';
import { createServer } from 'node:http';
import { join } from 'node:path';
import type { Command } from 'commander';
import fc from 'fast-check';
import t from 'tap';
import { WebSocketServer } from 'ws';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { TenantAudit, type Received } from '../src/load/audit.js';
import { Histogram } from '../src/load/histogram.js';
import { Ledger, nowUs } from '../src/load/ledger.js';
import { Meter } from '../src/load/meter.js';
import { confirmedUrl } from '../src/load/options.js';
import { loadProgramOf } from '../src/load/program.js';
import { Receiver } from '../src/load/receiver.js';
import type { Report } from '../src/load/report.js';
import { pageOf } from '../src/load/report-page.js';
import { Target } from '../src/load/target.js';
import { LoadWorker } from '../src/load/worker.js';
import { DOCS_FOLDER } from '../src/root.js';
import { HOSTED_ROWS } from '../src/server/app/route-table.js';
import { spawnCli } from './support/cli.js';
import { newId } from './support/client.js';
import { until } from './support/events.js';
import { BASE, hosted, MULTI, wireAt } from './support/hosted.js';
import { deviceBody, PLAN, testTenant, urlOf } from './support/load-plan.js';
import { load, PROGRAM, SECRET } from './support/load-program.js';
import { openFor } from './support/loopback-server.js';
import { family } from './support/own-postgres.js';
import { ADMIN_TOKEN, runServer } from './support/server.js';
import { fakeTerminal } from './support/vault-context.js';

const SMALL = ['--tenants', '2', '--devices', '3', '--hold', '0', '--warm-up', '0.5', '--seconds', '2', '--rate', '40'];

t.test('HOST-24 HOST-25: only the operator’s token creates, lists and removes test tenants', async (t) => {
  const server = await hosted(t);
  const { wire } = server;
  const path = '/admin/test-tenants';
  const token = ADMIN_TOKEN;
  const devices = [deviceBody(), deviceBody(), deviceBody()];
  const body = { subdomain: 'load-a', devices };
  t.equal((await wire.ask('POST', path, { body })).outcome, '401 unauthorized');
  t.equal((await wire.ask('POST', path, { body, token: `${token}x` })).outcome, '403 forbidden');
  const made = await wire.ask('POST', path, { body, token });
  t.equal(made.outcome, '200', made.raw);
  const { tokens } = made.body as { tokens: string[] };
  const tenant = server.at('load-a');
  const beside = await runServer(t, { env: MULTI, database: { url: server.databaseUrl } });
  const there = wireAt(t, beside.port, `load-a.${BASE}`);
  t.equal(tokens.length, devices.length);
  for (const [at, own] of tokens.entries()) {
    for (const instance of [tenant, there]) {
      const me = await instance.get('/me', { token: own });
      t.equal((me.at('device') as { id: string }).id, devices[at]?.id, 'a token works on every instance');
    }
  }
  for (const [method, to] of [
    ['GET', path],
    ['DELETE', `${path}/load-a`],
  ] as const) {
    t.equal((await wire.ask(method, to, {})).outcome, '401 unauthorized', `${method} without a token`);
    t.equal((await wire.ask(method, to, { token: `${token}x` })).outcome, '403 forbidden', `${method} with another`);
  }
  t.match((await tenant.ask('GET', path, { token })).body, { tenants: [{ slug: 'load-a' }] }, 'at any host');
  t.equal((await tenant.ask('GET', path, { token: tokens[0] ?? '' })).outcome, '403 forbidden', 'a device’s token');
  const another = { body: { subdomain: 'load-b', devices: [deviceBody()] }, token: tokens[0] ?? '' };
  t.equal((await wire.ask('POST', path, another)).outcome, '403 forbidden', 'nor does it create a tenant');
  t.equal((await wire.ask('POST', path, { body, token })).status, 409, 'the name is taken');
  const twice = { subdomain: 'load-b', devices: [devices[0], devices[0]] };
  t.equal((await wire.ask('POST', path, { body: twice, token })).outcome, '400 validation');
  const low = { subdomain: 'load-b', devices: [{ ...deviceBody(), pubkey: 'A'.repeat(43) }] };
  t.equal((await wire.ask('POST', path, { body: low, token })).outcome, '400 validation');
  t.equal((await server.apex.post('/signup', { email: 'me@example.com', subdomain: 'load-real' })).outcome, '200');
  const listed = await wire.ask('GET', path, { token });
  t.match(listed.body, { tenants: [{ slug: 'load-a' }] });
  t.equal((listed.body as { tenants: unknown[] }).tenants.length, 1, 'a tenant that was signed up is not listed');
  const row = HOSTED_ROWS.find(({ method, path: at }) => method === 'GET' && at === `/api${path}`);
  t.ok((row?.reply ?? 0) > 1_000_000, 'the reply has room for ten thousand tenants');
  t.equal((await wire.ask('DELETE', `${path}/load-real`, { token })).outcome, '404 tenant_not_found');
  t.equal((await wire.ask('DELETE', `${path}/load-a`, { token: tokens[0] ?? '' })).outcome, '403 forbidden');
  t.match((await wire.ask('DELETE', `${path}/load-a`, { token })).body, { removed: true });
  t.equal((await tenant.get('/me', { token: tokens[0] ?? '' })).outcome, '404 tenant_not_found');
  t.equal((await server.sql("SELECT 1 FROM tenants WHERE slug = 'load-real'")).length, 1);
  const single = await runServer(t);
  for (const [method, to] of [
    ['GET', path],
    ['POST', path],
    ['DELETE', `${path}/load-a`],
  ] as const)
    t.equal(
      (await single.wire.ask(method, to, { token, ...(method === 'POST' ? { body } : {}) })).outcome,
      '404 not_found',
      `${method} does not exist in single mode`,
    );
});

t.test('LOAD-01 LOAD-10: a run in two processes, with a storm, reports and leaves nothing behind', async (t) => {
  const server = await hosted(t);
  const program = await load(t);
  const mix = 'insert=50,replace=15,delete=10,list=10,blob-put=10,blob-get=5';
  const args = [
    '--url',
    urlOf(server),
    ...SMALL,
    // Longer than an answer takes on a busy machine: only an acknowledged item can be replaced.
    '--seconds',
    '4',
    '--mix',
    mix,
    '--storm',
    '1,0.5',
    '--processes',
    '2',
    '--name',
    'test',
  ];
  const { code, report, page, stdout } = await program.run(...args, '--from', '127.0.1.1-2', '--blob-size', '70000');
  t.equal(code, 0, stdout);
  t.same(report.audit.examples, []);
  t.equal(report.audit.faults, 0);
  t.equal(report.sockets, 6);
  t.ok(report.audit.acknowledged > 40, `${report.audit.acknowledged} acknowledged`);
  t.ok(report.audit.received >= report.audit.acknowledged, 'other devices receive each change');
  t.ok(report.latency.push.count > 0 && report.latency.push.p50 <= report.latency.push.p99);
  t.equal(report.latency.connect.count, 6);
  for (const kind of ['insert', 'replace', 'list', 'blob-put'] as const) t.ok(report.counts.done[kind] > 0, kind);
  t.equal(report.storms[0]?.cut, report.storms[0]?.back);
  t.equal(report.server?.version, report.load.version);
  t.same(await server.sql("SELECT slug FROM tenants WHERE email = 'test-tenant'"), [], 'no test tenant is left');
  t.equal((await server.sql('SELECT count(*)::int AS n FROM items'))[0]?.['n'], 0);
  t.notOk(page.includes(ADMIN_TOKEN) || JSON.stringify(report).includes(ADMIN_TOKEN));
  const mode = (await stat(join(program.folder, 'run-1.json'))).mode & 0o777;
  t.equal(mode, 0o600);
  const again = await program.call('run', '--out', join(program.folder, 'run-1'), '--url', urlOf(server));
  t.match(again, { code: 2, stderr: /already exists/ }, 'a report is not replaced');
});

t.test('LOAD-02: an acknowledged item that is not stored, or not as it was written, is reported', async (t) => {
  const server = await hosted(t);
  const share = { part: 0, parts: 1 };
  const plan = { ...PLAN, url: urlOf(server) };
  const worker = await LoadWorker.open({ plan, share, access: { adminToken: ADMIN_TOKEN }, onTick: () => undefined });
  await worker.prepare();
  await worker.connect();
  await worker.write();
  await server.sql('DELETE FROM items WHERE version = 3');
  await server.sql("UPDATE items SET ct = ct || '\\x00'::bytea WHERE version = 5");
  const { audit } = await worker.finish();
  t.ok(audit.faults >= 2, audit.examples.join('\n'));
  t.match(audit.examples.join('\n'), /was acknowledged as version 3, and is not stored/);
  t.match(audit.examples.join('\n'), /is stored and does not open/);
  t.same(await worker.remove(), []);
});

t.test('LOAD-03: what a socket missed, or got as another change, is reported', async (t) => {
  const server = await hosted(t);
  const share = { part: 0, parts: 1 };
  const plan = { ...PLAN, url: urlOf(server), mix: { insert: 2, replace: 1 } };
  const worker = await LoadWorker.open({ plan, share, access: { adminToken: ADMIN_TOKEN }, onTick: () => undefined });
  await worker.prepare();
  await worker.connect();
  await worker.write();
  const { target, places } = worker;
  const [place] = places;
  if (place === undefined) throw new Error('no tenant');
  const { tenant, ledger, receivers } = place;
  const found = async (change: (of: Received) => Partial<Received>): Promise<string> => {
    const [first, ...rest] = receivers;
    if (first === undefined) throw new Error('no socket');
    const changed: Received = {
      ...{ versions: first.versions, entries: first.entries, unexpected: first.unexpected, live: first.live },
      ...change(first),
    };
    const parts = { sodium: nodeSodium, target, tenant, ledger, receivers: [changed, ...rest] };
    return (await new TenantAudit(parts).run()).examples.join('\n');
  };
  t.equal(await found(() => ({})), '');
  const without = (list: readonly number[], at: number): number[] => list.filter((_, place) => place !== at);
  // The last one is of an item that nothing has replaced since.
  const last = (receivers[0]?.versions.length ?? 0) - 1;
  const lost = await found(({ versions, entries }) => ({
    versions: without(versions, last),
    entries: without(entries, last),
  }));
  t.match(lost, /socket of device 1 missed version \d+/);
  const other = await found(({ entries }) => ({ entries: entries.map((entry) => entry + 1) }));
  t.match(other, /which is (?:of no change|[0-9A-Z]{26})/);
  t.match(await found(() => ({ unexpected: ['version 4 after 5'] })), /got version 4 after 5/);
  t.match(await found(() => ({ live: false })), /was not open at the end/);
  t.same((await worker.finish()).audit.faults, 0);
  t.same(await worker.remove(), []);
});

t.test('LOAD-04: another machine is loaded only if its host’s name is given a second time', async (t) => {
  const program = await load(t);
  for (const more of [[], ['--confirm', 'example.com']]) {
    const { code, error } = await program.call('--json', 'run', '--url', 'https://sync.example.org', ...more);
    t.match({ code, error }, { code: 2, error: { code: 'not_confirmed' } });
  }
  const { error } = await program.call('--json', 'clean', '--url', 'http://127.0.0.1.example.org');
  t.match(error, { code: 'not_confirmed' });
  const [url, host] = ['https://sync.example.org', 'sync.example.org'];
  t.equal(await confirmedUrl(fakeTerminal(), url, host), url);
  t.equal(await confirmedUrl(fakeTerminal({ answers: [host] }), url, undefined), url, 'or typed where it is asked for');
  for (const answer of ['yes', 'example.org', ''])
    await t.rejects(confirmedUrl(fakeTerminal({ answers: [answer] }), url, undefined), { code: 'not_confirmed' });
  t.match(await program.call('run', '--url', 'http://user:word@localhost'), { code: 2, stderr: /an origin/ });
  for (const wrong of [
    ['--rate', '-1'],
    ['--tenants', '1e9'],
    ['--mix', 'insert'],
    ['--storm', '5'],
    ['--from', 'x'],
    ['--from', '127.0.1.1-99999999999'],
  ])
    t.equal((await program.call('run', '--url', 'http://localhost:1', ...wrong)).code, 2, wrong.join(' '));
  const without = await load(t, { ADMIN_TOKEN: '' });
  t.match(await without.call('run', '--url', 'http://localhost:1'), {
    code: 2,
    stderr: /there is no ADMIN_TOKEN and no --device-list/,
  });
});

t.test('LOAD-05: percentiles are within 0.8 %, also those of merged histograms', (t) => {
  const values = fc.array(fc.integer({ min: 0, max: 2 ** 32 }), { minLength: 1, maxLength: 300 });
  fc.assert(
    fc.property(values, values, (one, other) => {
      const [first, second] = [new Histogram(), new Histogram()];
      for (const value of one) first.record(value);
      for (const value of other) second.record(value);
      const merged = Histogram.of(first.buckets, second.buckets);
      const sorted = [...one, ...other].sort((a, b) => a - b);
      return [0.01, 0.5, 0.99, 1].every((share) => {
        const exact = sorted[Math.ceil(sorted.length * share) - 1] ?? 0;
        return Math.abs(merged.quantile(share) - exact) <= exact * 0.008 + 0.5;
      });
    }),
  );
  const odd = Histogram.of([-1, 5, 1e9, 2, 3.5, 1, 4, -2, 7, 1]);
  t.equal(odd.count, 1, 'an invalid bucket is not counted');
  t.equal(new Histogram().latency.p99, 0);
  t.end();
});

t.test('LOAD-07 LOAD-15: with a list of devices a run writes into a bin of its own, and removes it', async (t) => {
  const server = await runServer(t);
  const program = await load(t);
  const list = join(program.folder, 'devices.json');
  const made = await program.call('devices', '--url', urlOf(server), '--count', '3', '--out', list);
  t.equal(made.code, 0, made.stderr);
  t.match(made.stdout, /^(?:[a-z]+ ){11}[a-z]+$/m, 'the words are printed');
  t.equal((await stat(list)).mode & 0o777, 0o600);
  const { devices, masterKey } = (
    JSON.parse(readFileSync(list, 'utf8')) as { tenants: { devices: { token: string }[]; masterKey: string }[] }
  ).tenants[0] ?? { devices: [], masterKey: '' };
  t.equal(devices.length, 3);
  const again = await program.call('devices', '--url', urlOf(server), '--out', join(program.folder, 'more.json'));
  t.match(again, { code: 2, stderr: /twelve words/ }, 'a claimed server requires its words');
  const { code, report, page } = await program.run(
    '--url',
    urlOf(server),
    '--device-list',
    list,
    ...SMALL,
    '--processes',
    '2',
  );
  t.equal(code, 0, report.audit.examples.join('\n'));
  t.same(
    report.client.map(({ rate }) => rate),
    [40, 0],
    'LOAD-15: the process that has the one tenant has the whole rate',
  );
  t.notMatch(report.doubts.join(), /were assigned to/);
  t.ok(report.audit.acknowledged > 20);
  const token = devices[0]?.token ?? '';
  for (const text of [page, JSON.stringify(report)]) t.notOk(text.includes(token) || text.includes(masterKey));
  const bins = async (): Promise<string[]> =>
    ((await server.wire.get('/bins', { token })).body as { bins: { id: string }[] }).bins.map(({ id }) => id).sort();
  t.same(await bins(), ['inbox']);
  t.same(await server.sql('SELECT 1 FROM items WHERE deleted_at IS NULL'), []);
  const own = ['load-balancer', 'load-kill', 'load-killed2', 'mine'];
  for (const id of ['load-killed', ...own]) await server.wire.post('/bins', { id, slug: id }, { token });
  const clean = ['clean', '--url', urlOf(server), '--device-list', list];
  t.match(await program.call(...clean), { code: 2, stderr: /--name/ }, 'the run must be named');
  t.same(await bins(), ['inbox', ...own, 'load-killed'].sort());
  t.match(await program.call(...clean, '--name', 'killed'), { code: 0, stdout: /1 bin/ });
  t.same(await bins(), ['inbox', ...own]);
});

t.test('LOAD-07: clean removes the tenants that a killed run has left, and no other', async (t) => {
  const server = await hosted(t);
  const program = await load(t);
  // A test tenant of another name, and a tenant of a user with the name of a run's.
  const others = ['load-one-0-1', 'my-load-one-0-0'];
  for (const subdomain of ['load-one-0-0', 'load-one1-0-0', 'load-two-0-0', 'my-load-one-0-0'])
    await testTenant(server, subdomain);
  const signup = { email: 'me@example.com', subdomain: 'load-one-0-1' };
  t.equal((await server.wire.post('/signup', signup, { headers: { host: BASE } })).status, 200);
  const slugs = async (): Promise<unknown[]> =>
    (await server.sql('SELECT slug FROM tenants')).map(({ slug }) => slug).sort();
  t.match(await program.call('clean', '--url', urlOf(server), '--name', 'one'), { code: 0, stdout: /1 tenant/ });
  t.same(await slugs(), ['load-one1-0-0', 'load-two-0-0', ...others].sort(), 'only those of the named run');
  t.match(await program.call('--json', 'clean', '--url', urlOf(server)), { code: 0, stdout: '{"removed":2}\n' });
  t.same(await slugs(), others, 'those of all runs');
});

t.test('LOAD-06 LOAD-09: a socket reconnects no earlier than it may, and is timed from when it was due', async (t) => {
  const hellos: { at: number; since: number }[] = [];
  const http = createServer();
  const sockets = new WebSocketServer({ server: http });
  const port = await openFor(t, http);
  t.teardown(() => sockets.clients.forEach((client) => client.terminate()));
  const meter = new Meter();
  const ledger = new Ledger(0);
  const late = newId();
  ledger.begin(late, 1, nowUs() - 5_000_000);
  const target = new Target(`http://127.0.0.1:${port}`, { connections: 1, from: [] });
  const device = { id: newId(), token: 'token', publicKey: new Uint8Array(32), cert: new Uint8Array(32) };
  const tenant = { host: 'a.sync.test', slug: 'a', masterKey: new Uint8Array(32), devices: [device], binId: 'inbox' };
  const receiver = new Receiver({ target, meter, ledger, tenant, device, measured: () => true, pushes: () => true });
  const twice = new Promise<void>((resolve) => {
    sockets.on('connection', (socket, request) => {
      t.equal(request.headers.host, 'a.sync.test');
      socket.on('message', (data) => {
        hellos.push({ at: nowUs(), since: (JSON.parse((data as Buffer).toString('utf8')) as { since: number }).since });
        if (hellos.length === 2) return resolve();
        for (const odd of ['null', '{', '{"type":"item","id":"x","version":1.5}']) socket.send(odd);
        socket.send(JSON.stringify({ type: 'item', id: newId(), version: 6 }));
        socket.send(JSON.stringify({ type: 'caught_up', version: 6, epoch: 'e', itemCount: 1, versionSum: 6 }));
        socket.send(JSON.stringify({ type: 'item', id: late, version: 7 }));
        socket.close(1013, 'retry-after=2');
      });
    });
  });
  receiver.open(nowUs() - 5_000_000);
  await twice;
  receiver.end();
  const [first, second] = hellos;
  t.ok((second?.at ?? 0) - (first?.at ?? 0) >= 1_990_000, 'the socket waits two seconds');
  t.equal(second?.since, 7, 'the socket resumes from the last version that it saw');
  t.same(receiver.unexpected, [
    'a frame that is not a JSON object',
    'a frame that is not a JSON object',
    'a change without id or version',
  ]);
  for (const series of ['connect', 'caughtUp', 'push'] as const)
    t.ok(
      Histogram.of(meter.totals.timed[series]).quantile(0.5) >= 4_900_000,
      `${series} is timed from when it was due, five seconds before`,
    );
  t.same(meter.totals.errors, { close_1013: 1 });
});

t.test('LOAD-08: agents form one run; one with a wrong secret is rejected, one that dies is reported', async (t) => {
  const server = await hosted(t);
  const program = await load(t);
  const out = join(program.folder, 'several');
  const env = { ADMIN_TOKEN, LOAD_SECRET: SECRET };
  const through = [process.execPath];
  const url = ['--url', urlOf(server)];
  const options = ['--agents', '2', '--listen', '127.0.0.1:0', '--out', out, '--tenants', '4', '--seconds', '4'];
  const started = { home: program.folder, env, through };
  const run = spawnCli(t, [PROGRAM, 'run', ...url, ...options, '--hold', '0', '--rate', '20'], started);
  const [, port = ''] = await run.seen(/Waiting for 2 agents at 127\.0\.0\.1:(\d+)/);
  const join1 = ['agent', '--join', `127.0.0.1:${port}`, '--processes', '1'];
  const stranger = await load(t, { LOAD_SECRET: 'another secret of the tests' });
  t.match(await stranger.call(...join1, ...url), { code: 4, stderr: /the coordinator is gone/ });
  await run.seen(/was rejected: it has a different secret/);
  const first = spawnCli(t, [PROGRAM, ...join1, ...url], started);
  const second = spawnCli(t, [PROGRAM, ...join1, ...url], started);
  await second.seen(/write \.\.\./);
  await first.seen(/write \.\.\./);
  process.kill(second.pid, 'SIGKILL');
  const { code, stderr, stdout } = await run.ended;
  t.equal(code, 1, stderr);
  t.match(stderr, /A part of the run was lost: agent \d/);
  const { code: ofFirst, stderr: toFirst } = await first.ended;
  t.equal(ofFirst, 0, toFirst);
  const report = JSON.parse(readFileSync(`${out}.json`, 'utf8')) as Report;
  t.equal(report.tenants, 2, stdout);
  t.match(report.lostParts, [/^agent \d/]);
  t.ok(!report.trusted && report.audit.faults === 0 && report.audit.acknowledged > 0);
  t.same(await server.sql("SELECT slug FROM tenants WHERE email = 'test-tenant'"), [], 'no test tenant is left');
});

t.test('LOAD-08: a run of which a process dies ends with what the others have audited', async (t) => {
  const server = await hosted(t);
  const { folder } = await load(t);
  const out = join(folder, 'half');
  const options = ['--tenants', '4', '--processes', '2', '--seconds', '3', '--warm-up', '0', '--hold', '0'];
  const args = ['run', '--url', urlOf(server), ...options, '--rate', '40', '--out', out];
  const run = spawnCli(t, [PROGRAM, ...args], { home: folder, env: { ADMIN_TOKEN }, through: [process.execPath] });
  await until('the first items', async () => (await server.sql('SELECT 1 FROM items LIMIT 1')).length > 0);
  const [, one = 0] = await family(run.pid);
  process.kill(one, 'SIGKILL');
  const { code, stderr } = await run.ended;
  t.equal(code, 1, stderr);
  const report = JSON.parse(readFileSync(`${out}.json`, 'utf8')) as Report;
  t.match(report, { tenants: 2, lostParts: [/it has died/], left: [], audit: { faults: 0 }, trusted: false });
  t.ok(report.audit.acknowledged > 0, 'the other process has written and audited');
  t.same(await server.sql("SELECT 1 FROM tenants WHERE email = 'test-tenant'"), []);
});

t.test('LOAD-01: an interrupted run removes what it made', async (t) => {
  const server = await hosted(t);
  const { folder } = await load(t);
  const args = ['run', '--url', urlOf(server), '--tenants', '3', '--out', join(folder, 'cut'), '--seconds', '600'];
  const run = spawnCli(t, [PROGRAM, ...args], { home: folder, env: { ADMIN_TOKEN }, through: [process.execPath] });
  const made = (): Promise<unknown[]> => server.sql("SELECT 1 FROM tenants WHERE email = 'test-tenant'");
  while ((await made()).length < 3);
  run.kill('SIGINT');
  t.equal((await run.ended).code, 130);
  t.same(await made(), []);
});

t.test('LOAD-10: the page refers to nothing external and escapes text; the reference names its fields', async (t) => {
  const latency = { count: 1, mean: 1, p50: 1, p99: 2, p999: 3, max: 3 };
  const evil = '<img src=x onerror=alert(1)>"&';
  const second = {
    second: 0,
    sockets: 1,
    opened: 1,
    lost: 0,
    done: 1,
    pushed: 1,
    errors: {},
    connect: null,
    push: latency,
  };
  const report: Report = {
    ...{ format: 'service-load-report', version: 1, name: 'load-x', url: 'http://localhost', at: 0, plan: PLAN },
    ...{
      load: { version: '1', commit: evil },
      server: { version: evil, commit: evil },
      trusted: false,
      doubts: [evil],
    },
    ...{
      lostParts: [evil],
      tenants: 1,
      sockets: 1,
      perSecond: 1,
      storms: [],
      client: [{ part: 0, rate: 1, cpu: 1, loopDelayP99Ms: 1, starved: 0 }],
      left: [evil],
      seconds: [second, second],
    },
    counts: {
      opened: 1,
      lost: 0,
      pushed: 1,
      done: { insert: 1, replace: 0, delete: 0, list: 0, 'blob-put': 0, 'blob-get': 0 },
    },
    latency: { connect: latency, caughtUp: latency, reconnect: latency, push: latency, answer: latency, lag: latency },
    answers: {
      insert: latency,
      replace: latency,
      delete: latency,
      list: latency,
      'blob-put': latency,
      'blob-get': latency,
    },
    errors: { [evil]: 3 },
    audit: { acknowledged: 1, stored: 1, received: 1, unanswered: 0, foreign: 0, faults: 1, examples: [evil] },
  };
  const page = pageOf(report);
  t.notMatch(page, /<img|<script|<link|<[^>"]*\ssrc=|href=|url\(|@import/);
  t.match(page, /Do not trust these figures/);
  t.match(page, /<title id="push-title">/);
  const reference = readFileSync(join(DOCS_FOLDER, 'load.md'), 'utf8');
  const fields = (value: unknown): string[] =>
    typeof value !== 'object' || value === null || Array.isArray(value) ? [] : Object.keys(value);
  const kinds = new Set(fields(report.answers));
  const storm = { at: 1, cut: 1, back: 1, seconds: 1 } satisfies Report['storms'][number];
  const parts = [report.counts, report.latency, latency, report.audit, second, storm, report.client[0]];
  for (const field of [report, ...parts].flatMap(fields).filter((name) => !kinds.has(name)))
    t.ok(reference.includes(`\`${field}\``), field);
  const leaves = (command: Command): Command[] => command.commands.flatMap((child) => [child, ...leaves(child)]);
  const program = loadProgramOf(() => async () => undefined, '1');
  for (const command of [program, ...leaves(program)])
    for (const { long } of command.options)
      t.ok(reference.includes(`\`${long ?? ''}\``), `${command.name()} ${long ?? ''}`);
  for (const command of leaves(program)) t.ok(reference.includes(`| \`${command.name()}`), command.name());
});
