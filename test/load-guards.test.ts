/** What `service-load` must not do, whatever existed before, and whatever servers, agents and coordinators send. */
import { once } from 'node:events';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { connect, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { mock } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import t from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { TenantAudit, sumOf } from '../src/load/audit.js';
import { Channel } from '../src/load/channel.js';
import { Coordinator } from '../src/load/coordinator.js';
import { removeTenant } from '../src/load/fleet.js';
import { forEach } from '../src/protocol/for-each.js';
import { Histogram } from '../src/load/histogram.js';
import { Ledger, nowUs } from '../src/load/ledger.js';
import { Meter } from '../src/load/meter.js';
import { Peer, type Crew, type Order } from '../src/load/orders.js';
import { SealedPool } from '../src/load/pool.js';
import { AgentListener } from '../src/load/remote-crew.js';
import { reportOf, Timeline } from '../src/load/report.js';
import { withRetries, Refused } from '../src/load/target.js';
import { LoadWorker } from '../src/load/worker.js';
import { Writer } from '../src/load/writer.js';
import { RELEASE } from '../src/root.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';
import { freePort } from './support/free-port.js';
import { hosted } from './support/hosted.js';
import { answering, load, SECRET } from './support/load-program.js';
import { fleetTenant, listOfDevices, PLAN, testTenant, urlOf } from './support/load-plan.js';
import { openFor } from './support/loopback-server.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';
import { ADMIN_TOKEN, runServer } from './support/server.js';

const NOTHING = (): undefined => undefined;
const SHARE = { part: 0, parts: 1 };

t.test('LOAD-11: a bin of the name that existed before stays, and the run does not begin', async (t) => {
  const server = await runServer(t);
  const program = await load(t);
  const { list, token } = await listOfDevices(program, server);
  await server.wire.post('/bins', { id: 'load-mine', slug: 'load-mine' }, { token });
  const args = ['run', '--url', urlOf(server), '--device-list', list, '--out', join(program.folder, 'mine')];
  const { code, stderr } = await program.call(...args, '--name', 'mine', '--processes', '1', '--seconds', '1');
  t.equal(code, 4, stderr);
  t.match(stderr, /conflict/);
  const { bins } = (await server.wire.get('/bins', { token })).body as { bins: { id: string }[] };
  t.same(bins.map(({ id }) => id).sort(), ['inbox', 'load-mine']);
});

t.test('LOAD-11: tenants of an earlier run of the same name stay, and the run does not begin', async (t) => {
  const server = await hosted(t);
  const program = await load(t);
  await testTenant(server, 'load-twin-0-1');
  const args = ['run', '--url', urlOf(server), '--name', 'twin', '--out', join(program.folder, 'twin')];
  const { code, stderr } = await program.call(...args, '--tenants', '2', '--seconds', '1');
  t.match({ code, stderr }, { code: 2, stderr: /tenants of a run load-twin already exist/ });
  t.same(await server.sql('SELECT slug FROM tenants'), [{ slug: 'load-twin-0-1' }]);
});

/** A listener on this machine; gives its port and the first connection. */
async function listening(t: WithTeardown): Promise<{ port: number; first: Promise<Socket> }> {
  const server = createServer();
  const first = new Promise<Socket>((resolve) => server.once('connection', resolve));
  return { port: await openFor(t, server), first };
}

t.test('LOAD-12: an order that is invalid, out of bounds or about foreign names ends the agent', async (t) => {
  const server = await hosted(t);
  const program = await load(t);
  await testTenant(server, 'mine-0-0');
  const url = urlOf(server);
  const plan = { ...PLAN, url };
  const prepare = (more: object): object => ({
    phase: 'prepare',
    share: { part: 0, parts: 1 },
    plan: { ...plan, ...more },
  });
  const orders: unknown[] = [
    ...[
      null,
      { phase: 'burn' },
      { phase: 'prepare', plan: null },
      { phase: 'prepare', plan, share: { part: -1, parts: 0 } },
    ],
    ...[
      prepare({ name: 'mine' }),
      prepare({ name: 'load-../mine' }),
      prepare({ tenants: 10_001 }),
      prepare({ rate: 1e9 }),
    ],
    ...[prepare({ size: '768' }), prepare({ storms: [{ at: 1, share: 2 }] })],
  ];
  for (const order of orders) {
    const { port, first } = await listening(t);
    const args = ['--join', `127.0.0.1:${port}`, '--url', url, '--processes', '1'];
    const ended = program.call('agent', ...args);
    const heard: unknown[] = [];
    const onMessage = (message: unknown): undefined => void heard.push(message);
    new Channel(await first, { role: 'c', secret: SECRET, onMessage, onEnd: () => undefined }).send(order);
    const { code, stderr } = await ended;
    t.match({ code, stderr }, { code: 4, stderr: /it sent an invalid order/ }, JSON.stringify(order).slice(-90));
    t.same(heard, [{ joins: 1 }], 'the agent began nothing');
  }
  t.same(await server.sql('SELECT slug FROM tenants'), [{ slug: 'mine-0-0' }]);
});

t.test('LOAD-12: an invalid message about a run ends the agent’s connection', async (t) => {
  const told: unknown[] = [];
  const onNews = (one: unknown): void => void told.push(one);
  const listener = new AgentListener({ secret: SECRET, wanted: 5, onNews, onNote: () => undefined });
  const port = await listener.listen({ host: '127.0.0.1', port: 0 });
  t.teardown(() => listener.close());
  const counts = { second: 0, sockets: 1, opened: 1, lost: 0, done: 0, pushed: 0, errors: {} };
  const news: unknown[] = [
    ...[null, { news: 'other' }, { news: 'tick', part: 0, tick: null }, { news: 'failed', phase: 'write', text: 5 }],
    { news: 'tick', part: 0, tick: { ...counts, errors: { '429': '<img>' }, timed: { connect: [], push: [] } } },
    { news: 'result', result: { part: 0 } },
  ];
  const agents = news.map((one, at) => {
    const socket = connect({ host: '127.0.0.1', port });
    const ended = new Promise<void>((resolve) => socket.once('close', () => resolve()));
    const agent = new Channel(socket, {
      role: 'a',
      secret: SECRET,
      onMessage: () => undefined,
      onEnd: () => undefined,
    });
    // An agent that sends an invalid number of processes does not join.
    agent.send({ joins: at === 0 ? 257 : 1 });
    return { agent, one, ended };
  });
  await listener.allJoined(new AbortController().signal);
  for (const { agent, one, ended } of agents) {
    agent.send(one);
    await ended;
  }
  t.same(told, []);
  t.equal(listener.crews.length, 5);
  for (const crew of listener.crews)
    await t.rejects(crew.perform({ phase: 'connect' }), /sent an invalid progress message/);
});

t.test('LOAD-12: an agent that leaves before all have joined makes room for another', async (t) => {
  const notes: string[] = [];
  const onNote = (text: string): void => void notes.push(text);
  const listener = new AgentListener({ secret: SECRET, wanted: 2, onNews: NOTHING, onNote });
  const port = await listener.listen({ host: '127.0.0.1', port: 0 });
  const joins = (): Channel => {
    const ends = { onMessage: NOTHING, onEnd: NOTHING };
    const agent = new Channel(connect({ host: '127.0.0.1', port }), { role: 'a', secret: SECRET, ...ends });
    agent.send({ joins: 1 });
    return agent;
  };
  const first = joins();
  while (listener.crews.length === 0) await turn();
  first.end();
  while (listener.crews.length > 0) await turn();
  const others = [joins(), joins()];
  t.equal((await listener.allJoined(new AbortController().signal)).length, 2);
  t.match(
    notes.filter((note) => /left|was rejected/.test(note)),
    [/has left/],
  );
  for (const agent of others) agent.end();
  const idle = connect({ host: '127.0.0.1', port });
  await once(idle, 'connect');
  idle.resume();
  listener.close();
  await once(idle, 'close');
});

t.test('LOAD-13: a coordinator keeps at most 32 connections that have not shown the secret', async (t) => {
  const listener = new AgentListener({ secret: SECRET, wanted: 2, onNews: NOTHING, onNote: NOTHING });
  const port = await listener.listen({ host: '127.0.0.1', port: 0 });
  const sockets = Array.from({ length: 50 }, () => connect({ host: '127.0.0.1', port }).on('error', NOTHING));
  t.teardown(() => {
    for (const socket of sockets) socket.destroy();
    listener.close();
  });
  let closed = 0;
  for (const socket of sockets) socket.resume().on('close', () => closed++);
  await until('18 closes', () => closed >= 18);
  t.equal(closed, 18, 'all connections but 32 are closed');
  const agent = new Channel(connect({ host: '127.0.0.1', port }), {
    ...{ role: 'a', secret: SECRET, onMessage: NOTHING, onEnd: NOTHING },
  });
  agent.send({ joins: 1 });
  await until('the agent with the secret', () => listener.crews.length > 0);
  await until('the oldest connection makes room for it', () => closed > 18);
  // Accepted after it, without the agent among the 32: had another been closed, it would have been before.
  const last = connect({ host: '127.0.0.1', port }).on('error', NOTHING);
  t.teardown(() => last.destroy());
  await until('it is connected', () => !last.connecting);
  t.equal(closed, 19, 'and no other connection is closed');
  agent.end();
});

t.test(
  'LOAD-13: an agent is lost after 20 s of silence, a connection without the secret 20 s after it opened',
  async (t) => {
    const clock = new TestClock();
    const agentOf = async (): Promise<{ theirs: Socket; ours: Socket; messages: unknown[]; end: Promise<string> }> => {
      const { port, first } = await listening(t);
      const theirs = connect({ host: '127.0.0.1', port });
      theirs.on('error', NOTHING);
      const ours = await first;
      const messages: unknown[] = [];
      const onMessage = (message: unknown): undefined => void messages.push(message);
      const end = new Promise<string>((onEnd) => {
        new Channel(ours, { role: 'c', secret: SECRET, onMessage, onEnd }, clock);
      });
      return { theirs, ours, messages, end };
    };
    const unknown = await agentOf();
    unknown.theirs.write(`${'0'.repeat(32)}\nx`);
    await until('its bytes', () => unknown.ours.bytesRead >= 34);
    clock.advance(19_999);
    t.notOk(unknown.ours.destroyed);
    unknown.theirs.write('x');
    await until('one more byte', () => unknown.ours.bytesRead >= 35);
    clock.advance(1);
    t.ok(unknown.ours.destroyed);
    unknown.ours.destroy();
    t.equal(await unknown.end, 'nothing was received for 20 s');
    const known = await agentOf();
    const ends = { onMessage: NOTHING, onEnd: NOTHING };
    const channel = new Channel(known.theirs, { role: 'a', secret: SECRET, ...ends }, new TestClock());
    for (const wanted of [1, 2]) {
      channel.send({ wanted });
      await until('the message', () => known.messages.length >= wanted);
      clock.advance(15_000);
      t.notOk(known.ours.destroyed);
    }
    clock.advance(5_000);
    t.ok(known.ours.destroyed);
    known.ours.destroy();
    t.equal(await known.end, 'nothing was received for 20 s', 'pings of this side do not extend the time');
  },
);

t.test('LOAD-12: the first order may be long, for example with 20,000 addresses', async (t) => {
  const { port, first } = await listening(t);
  const from = Array.from({ length: 20_000 }, (_, at) => `10.0.${at >> 8}.${at & 255}`);
  const got = new Promise<unknown>((resolve, reject) => {
    const onMessage = (message: unknown): undefined => {
      resolve(message);
      return undefined;
    };
    const onEnd = (text: string): void => reject(new Error(text));
    new Channel(connect({ host: '127.0.0.1', port }), { role: 'a', secret: SECRET, onMessage, onEnd });
  });
  const channel = new Channel(await first, { role: 'c', secret: SECRET, onMessage: NOTHING, onEnd: NOTHING });
  channel.send({ from });
  t.same(await got, { from });
  channel.end();
});

t.test('LOAD-14: a blob that differs from what was uploaded is a difference of the audit', async (t) => {
  const folder = await temporaryFolder(t);
  const server = await hosted(t, { env: { DATA_DIR: folder } });
  const plan = { ...PLAN, url: urlOf(server), rate: 30, mix: { 'blob-put': 1, 'blob-get': 1 } };
  const access = { adminToken: ADMIN_TOKEN };
  const worker = await LoadWorker.open({ plan, share: SHARE, access, onTick: NOTHING });
  await worker.prepare();
  await worker.connect();
  await worker.write();
  const blobs = (await readdir(folder, { recursive: true })).filter((name) => name.endsWith('.bin'));
  t.ok(blobs.length > 0);
  for (const name of blobs) {
    const bytes = await readFile(join(folder, name));
    bytes[bytes.length - 1] = (bytes.at(-1) ?? 0) ^ 1;
    await writeFile(join(folder, name), bytes);
  }
  await worker.write();
  const { audit } = await worker.finish();
  t.match(audit.examples.join('\n'), /the blob of \S+ is not what was uploaded/);
  t.same(await worker.remove(), []);
});

const reported = (results: Parameters<typeof reportOf>[0]['results']) =>
  reportOf({
    plan: PLAN,
    at: 0,
    load: RELEASE,
    server: null,
    results,
    timeline: new Timeline(),
    lostParts: [],
    left: [],
  });
const PART = {
  ...{ part: 0, tenants: 1, sockets: 1, totals: new Meter().totals, storms: [], audit: sumOf([]) },
  client: { rate: PLAN.rate, cpu: 0, loopDelayP99Ms: 0, starved: 0 },
};

t.test('LOAD-15: a run that was due to do less than planned is not trusted', (t) => {
  t.same(reported([PART]).doubts, []);
  const { doubts, trusted } = reported([{ ...PART, client: { ...PART.client, rate: PLAN.rate / 2 } }]);
  t.match({ doubts, trusted }, { doubts: [/^Of 60 operations\/s only 30.0 were assigned to/], trusted: false });
  t.end();
});

t.test('LOAD-15: the rate is divided among processes by the tenants that they have', async (t) => {
  const plan = { ...PLAN, url: urlOf(await hosted(t)), tenants: 3, rate: 60 };
  const rates: number[] = [];
  for (const part of [0, 1]) {
    const share = { part, parts: 2 };
    const worker = await LoadWorker.open({ plan, share, access: { adminToken: ADMIN_TOKEN }, onTick: NOTHING });
    await worker.prepare();
    rates.push(worker['rate']);
    t.same(await worker.remove(), []);
  }
  t.same(rates, [20, 40]);
});

t.test('LOAD-16: requests are repeated a bounded number of times', async (t) => {
  let removals = 0;
  const { target } = await answering(t, (request, reply) => {
    if (request.method === 'DELETE') removals++;
    reply.end('{"removed":false}');
  });
  await t.rejects(removeTenant(target, 'load-x-0-0', 'token'), { code: 'not_removed_yet' });
  t.equal(removals, 1_000);
  const asked: number[] = [];
  const gone = withRetries(
    () => {
      asked.push(1);
      return Promise.reject(new Refused('ECONNREFUSED', 0));
    },
    { attempts: 2 },
  );
  await t.rejects(gone, { code: 'ECONNREFUSED' });
  t.equal(asked.length, 2);
  mock.timers.enable({ apis: ['setTimeout'] });
  t.teardown(() => mock.timers.reset());
  const over = new AbortController();
  const busy = withRetries(
    () => {
      asked.push(2);
      return Promise.reject(new Refused('unavailable', 503, 3_600_000));
    },
    { attempts: 2, signal: over.signal },
  );
  const refused = t.rejects(busy, { code: 'unavailable' });
  await turn();
  mock.timers.tick(30_000);
  await turn();
  t.equal(asked.length, 4, 'a server that asks for an hour gets half a minute');
  over.abort();
  await refused;
});

t.test('LOAD-16: an audit repeats its requests, and does not count to the head one by one', async (t) => {
  let asked = 0;
  let headVersion = 0;
  const { target } = await answering(t, (request, reply) => {
    reply.statusCode = asked++ % 2 === 0 ? 503 : 200;
    reply.end(
      JSON.stringify(request.url === '/api/me' ? { headVersion } : { items: [], nextSince: 0, hasMore: false }),
    );
  });
  const audited = () =>
    new TenantAudit({ sodium: nodeSodium, target, tenant: fleetTenant(), ledger: new Ledger(0), receivers: [] }).run();
  t.equal((await audited()).faults, 0);
  t.equal(asked, 4);
  headVersion = Number.MAX_SAFE_INTEGER;
  t.match((await audited()).examples, [/^a: 9007199254740991 versions belong to no change, among them 1, 2, 3, 4, 5$/]);
});

t.test('LOAD-17: what could not be removed is named, and a later removal tries it again', async (t) => {
  const server = await hosted(t);
  const plan = { ...PLAN, url: urlOf(server), rate: 0, tenants: 2 };
  const access = { adminToken: ADMIN_TOKEN };
  const worker = await LoadWorker.open({ plan, share: SHARE, access, onTick: NOTHING });
  await worker.prepare();
  access.adminToken = `${ADMIN_TOKEN}x`;
  t.same((await worker.remove()).sort(), ['load-plan-0-0: forbidden', 'load-plan-0-1: forbidden']);
  access.adminToken = ADMIN_TOKEN;
  t.same(await worker.remove(), []);
  t.same(await server.sql('SELECT slug FROM tenants'), []);
  await testTenant(server, 'load-plan-0-0');
  t.same(await worker.remove(), []);
  t.same(
    await server.sql('SELECT slug FROM tenants'),
    [{ slug: 'load-plan-0-0' }],
    'a later tenant of a removed name stays',
  );
  const ran: string[] = [];
  const crew: Crew = {
    ...{ name: 'a crew', processes: 1, end: NOTHING },
    perform: ({ phase }) => {
      ran.push(phase);
      if (phase === 'prepare') return Promise.reject(new Error('it cannot begin'));
      coordinator.onNews({ news: 'left', left: ['load-plan: conflict'] });
      return Promise.resolve();
    },
  };
  const { signal } = new AbortController();
  const coordinator = new Coordinator({ plan, load: RELEASE, adminToken: undefined, signal });
  await t.rejects(coordinator.run([crew]), /cannot begin/);
  t.same([ran, coordinator.left], [['prepare', 'remove'], ['load-plan: conflict']]);
});

t.test('LOAD-01: a run that is interrupted before it has begun makes nothing', async (t) => {
  const ran: string[] = [];
  const crew: Crew = {
    name: 'a crew',
    processes: 1,
    end: NOTHING,
    perform: async ({ phase }) => void ran.push(phase),
  };
  const plan = { ...PLAN, url: 'http://127.0.0.1:1' };
  const coordinator = new Coordinator({ plan, load: RELEASE, adminToken: undefined, signal: AbortSignal.abort() });
  await t.rejects(coordinator.run([crew]), { name: 'AbortError' });
  t.same(ran, []);
});

t.test('LOAD-17: writing ends before the removal begins', async (t) => {
  const server = await runServer(t, { env: { RATE_WRITE_PER_S: '1000' } });
  const program = await load(t);
  const { list, token } = await listOfDevices(program, server);
  const plan = { ...PLAN, url: urlOf(server), seconds: 10, rate: 400 };
  const access = { deviceList: await readFile(list, 'utf8') };
  const worker = await LoadWorker.open({ plan, share: SHARE, access, onTick: NOTHING });
  await worker.prepare();
  await worker.connect();
  const writing = worker.write();
  while ((await server.sql('SELECT 1 FROM items LIMIT 1')).length === 0);
  t.same(await worker.remove(), []);
  await writing;
  const { bins } = (await server.wire.get('/bins', { token })).body as { bins: { id: string }[] };
  t.same(
    bins.map(({ id }) => id),
    ['inbox'],
  );
  t.same(await server.sql('SELECT 1 FROM items WHERE deleted_at IS NULL'), []);
});

t.test('LOAD-17: the outcome of a superseded order is ignored, and work under way is waited for', async (t) => {
  const sent: Order[] = [];
  const peer = new Peer('it', 1, { onNews: NOTHING, send: (order) => void sent.push(order), end: NOTHING });
  const overtaken = t.rejects(peer.perform({ phase: 'write' }), /it: interrupted/);
  let removed = false;
  const removing = Promise.all([peer.perform({ phase: 'remove' }), peer.perform({ phase: 'remove' })]).then(() => {
    removed = true;
  });
  await overtaken;
  peer.receive({ news: 'done', phase: 'write' });
  await turn();
  t.notOk(removed);
  peer.receive({ news: 'done', phase: 'remove' });
  await removing;
  t.same(sent, [{ phase: 'write' }, { phase: 'remove' }], 'no order is sent twice at once');
  const done: number[] = [];
  const work = async (at: number): Promise<void> => {
    if (at === 0) throw new Error('the first');
    await turn();
    done.push(at);
  };
  await t.rejects(forEach([0, 1, 2, 3, 4, 5, 6, 7, 8], work, 3), /the first/);
  t.same(done, [1, 2]);
});

t.test('LOAD-18: the twelve words are printed before the server has them, and no error quotes a list', async (t) => {
  const program = await load(t, { BOOTSTRAP_TOKEN: 'not-the-one-of-the-server' });
  const server = await runServer(t, { env: { BOOTSTRAP_TOKEN: 'the-token-of-the-server' } });
  const out = join(program.folder, 'none.json');
  const made = await program.call('devices', '--url', urlOf(server), '--out', out);
  t.not(made.code, 0);
  t.match(made.stdout, /^(?:[a-z]+ ){11}[a-z]+$/m);
  const asJson = await program.call('--json', 'devices', '--url', urlOf(server), '--out', out);
  t.match(JSON.parse(asJson.stdout), { phrase: /^(?:[a-z]+ ){11}[a-z]+$/ });
  const list = join(program.folder, 'list.json');
  for (const text of ['KEYKEYKEY {', '{"format":"service-load-devices","tenants":[{KEYKEYKEY']) {
    await writeFile(list, text, { mode: 0o600 });
    const at = ['--url', urlOf(server), '--device-list', list];
    const cleaned = await program.call('clean', ...at, '--name', 'x');
    t.match(cleaned, { code: 2, stderr: /this is not a list made by `service-load devices`/ });
    const ran = await program.call('run', ...at, '--out', join(program.folder, 'run'), '--processes', '1');
    t.match(ran, { code: 4, stderr: /this is not a list made by `service-load devices`/ });
    t.notMatch(cleaned.stderr + ran.stderr, /KEY/);
  }
});

t.test('LOAD-19: text that an agent sends cannot control a terminal', async (t) => {
  const program = await load(t, { ADMIN_TOKEN: '' });
  const { url } = await answering(t, (_, reply) => void reply.end('{}'));
  const port = await freePort();
  const args = ['--url', url, '--agents', '1', '--listen', `127.0.0.1:${port}`, '--name', 'evil'];
  const ended = program.run(...args);
  const evil = '\u001b[2J\u202egone';
  const dialled = async (): Promise<Socket> => {
    for (;;) {
      const socket = connect({ host: '127.0.0.1', port });
      const there = await new Promise<boolean>((resolve) => {
        socket.once('connect', () => resolve(true)).once('error', () => resolve(false));
      });
      if (there) return socket;
    }
  };
  const channel: Channel = new Channel(await dialled(), {
    ...{ role: 'a', secret: SECRET, onEnd: NOTHING },
    onMessage: (message) => {
      const { phase } = message as Order;
      const audit = { ...sumOf([]), faults: 1, examples: [evil] };
      const totals = { ...PART.totals, errors: { [evil]: 2 } };
      if (phase === 'finish') channel.send({ news: 'result', result: { ...PART, totals, audit } });
      if (phase === 'remove') channel.send({ news: 'left', left: [evil] });
      channel.send({ news: 'done', phase });
      return undefined;
    },
  });
  channel.send({ joins: 1 });
  const { code, stdout, stderr, report } = await ended;
  t.equal(code, 1);
  t.same(report.left, [evil]);
  t.match(stdout, /error <U\+001B>\[2J<U\+202E>gone: 2/);
  t.match(stderr, /Not removed: <U\+001B>/);
  t.notMatch(stdout + stderr, /[\u001b\u202e]/);
});

t.test(
  'LOAD-20 LOAD-06: a write that waits counts once, from when it was due; a bucket named blobs is accessed',
  async (t) => {
    const bucket: string[] = [];
    const store = await answering(t, (request, reply) => {
      bucket.push(`${request.method ?? ''} ${request.url ?? ''}`);
      request.resume().on('end', () => reply.end());
    });
    let version = 0;
    const asked: string[] = [];
    const { target, url } = await answering(t, (request, reply) => {
      asked.push(`${request.method ?? ''} ${request.url ?? ''}`);
      const room = { blobRef: 'R.bin', url: `${store.url}/blobs/T/R.bin?X-Amz-Signature=0`, headers: {} };
      reply.end(JSON.stringify(request.url === '/api/items' ? { version: ++version } : room));
    });
    const tenant = fleetTenant();
    const places = [{ tenant, ledger: new Ledger(0) }];
    const pool = new SealedPool([tenant], PLAN, 1);
    t.teardown(() => pool.end());
    for (const kind of ['insert', 'blob-put'] as const) {
      const mix = { [kind]: 1 };
      const plan = { ...PLAN, url, mix };
      const stopped = new AbortController().signal;
      const meter = new Meter();
      const options = { plan, sodium: nodeSodium, target, meter, places, pool, measured: () => true, stopped };
      const writer = new Writer(options);
      writer.begin(nowUs() - 5_000_000);
      await writer.done();
      const { errors, timed, answers } = meter.totals;
      t.same(errors, {});
      for (const times of [timed.lag, timed.answer, answers[kind]])
        t.ok(Histogram.of(times).quantile(0.5) >= 4_900_000, 'timed from when it was due, five seconds before');
    }
    t.equal(pool.starved, 1);
    t.same(bucket, ['PUT /blobs/T/R.bin?X-Amz-Signature=0']);
    t.same(asked, ['POST /api/items', 'POST /api/blobs/upload-url', 'POST /api/items']);
  },
);
