/** What `service-load` does not do for servers, agents and coordinators that want more of it than a run. */
import { connect, createServer, type Socket } from 'node:net';
import t from 'tap';
import { sealItem } from '../src/crypto/item.js';
import { checkDeleteTag } from '../src/crypto/item-tag.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { decodeBase64 } from '../src/protocol/base64.js';
import { writeBody } from '../src/sdk/wire.js';
import { itemsAbove, sumOf } from '../src/load/audit.js';
import { Channel } from '../src/load/channel.js';
import { Cleaner } from '../src/load/cleaning.js';
import { Coordinator } from '../src/load/coordinator.js';
import type { FleetTenant } from '../src/load/fleet.js';
import { Ledger, nowUs } from '../src/load/ledger.js';
import { Meter } from '../src/load/meter.js';
import type { Crew, News, Order } from '../src/load/orders.js';
import { SealedPool } from '../src/load/pool.js';
import { AgentListener } from '../src/load/remote-crew.js';
import { LoadWorker } from '../src/load/worker.js';
import { Writer } from '../src/load/writer.js';
import { newId } from './support/client.js';
import { until } from './support/events.js';
import { answering, load, SECRET } from './support/load-program.js';
import { fleetTenant, PLAN } from './support/load-plan.js';
import { openFor } from './support/loopback-server.js';

const NOTHING = (): undefined => undefined;

/** An item as a server lists it. */
function rowIn(tenant: FleetTenant, binId: string, version: number): ReturnType<typeof writeBody> & { id: string } {
  const head = { id: newId(), binId, type: 'text', ts: 1_700_000_000_000 } as const;
  const sealed = sealItem(nodeSodium, { ...head, payload: { text: 'x' } }, tenant);
  const stored = { version, senderDevice: tenant.devices[0]?.id, deletedAt: null };
  return { ...writeBody({ ...head, ...sealed, ifVersion: null }), ...stored };
}

t.test('LOAD-21: no delete is signed for an item that a server only claims to be in the bin of the run', async (t) => {
  const tenant = fleetTenant({ host: undefined, slug: undefined, binId: 'load-mine' });
  const [own, other] = [rowIn(tenant, 'load-mine', 1), rowIn(tenant, 'inbox', 2)];
  const unsigned = { ...rowIn(tenant, 'load-mine', 2), payloadEnc: { ...own.payloadEnc, sig: undefined } };
  for (const listed of [other, { ...other, binId: 'load-mine' }, unsigned]) {
    const deleted: string[] = [];
    const { target } = await answering(t, (request, reply) => {
      let body = '';
      request.on('data', (chunk: Buffer) => (body += chunk.toString()));
      request.on('end', () => {
        if (request.method === 'DELETE') deleted.push(`${request.url ?? ''} ${body}`);
        const bins = [{ id: 'load-mine' }];
        reply.end(JSON.stringify({ bins, items: [own, listed], nextSince: 2, hasMore: false }));
      });
    });
    const cleaner = new Cleaner({ sodium: nodeSodium, target, tenant });
    await t.rejects(cleaner.removeBin('load-mine'), { name: 'ProtocolError', message: new RegExp(listed.id) });
    t.equal(deleted.length, 1, 'only that of the run is deleted');
    const [path = '', body = ''] = deleted[0]?.split(' ') ?? [];
    t.equal(path, `/api/items/${own.id}`);
    const sig = decodeBase64((JSON.parse(body) as { sig: string }).sig) ?? null;
    t.doesNotThrow(() => checkDeleteTag(nodeSodium, tenant.masterKey, { id: own.id, sig }));
  }
});

t.test('LOAD-11 LOAD-17: a tenant that may have been made is removed, one that was there before stays', async (t) => {
  const name = 'load-plan-0-0';
  for (const [outcome, before] of [
    ['cut', false],
    ['broken', false],
    ['unreadable', false],
    ['taken', false], // by another run, after the names were listed
    ['broken', true],
  ] as const) {
    const there = new Set(before ? [name] : []);
    const { url } = await answering(t, (request, reply) => {
      request.resume();
      if (request.method === 'GET') return reply.end(JSON.stringify({ tenants: [...there].map((slug) => ({ slug })) }));
      if (request.method === 'DELETE')
        return reply.end(JSON.stringify({ removed: there.delete(request.url?.split('/').at(-1) ?? '') }));
      there.add(name);
      reply.statusCode = { cut: 503, broken: 503, unreadable: 200, taken: 409 }[outcome];
      if (outcome === 'cut') return request.socket.destroy();
      return reply.end(JSON.stringify({ error: { code: outcome } }));
    });
    const access = { adminToken: 'token' };
    const share = { part: 0, parts: 1 };
    const worker = await LoadWorker.open({ plan: { ...PLAN, url }, share, access, onTick: NOTHING });
    await t.rejects(worker.prepare(), outcome);
    t.same(await worker.remove(), []);
    t.same([...there], before || outcome === 'taken' ? [name] : [], outcome);
  }
});

t.test('LOAD-11 LOAD-17: a bin that may have been made is removed, one that another made stays', async (t) => {
  const tenant = fleetTenant();
  const devices = tenant.devices.map(({ id, token, publicKey }) => {
    return { id, token, publicKey: Buffer.from(publicKey).toString('base64url') };
  });
  const listed = { host: null, masterKey: Buffer.from(tenant.masterKey).toString('base64url'), devices };
  const deviceList = JSON.stringify({ format: 'service-load-devices', version: 1, tenants: [listed] });
  const conflict = JSON.stringify({ error: { code: 'conflict' } });
  for (const [outcome, prepares, stays] of [
    ['cut', true, false],
    ['cut, then broken', false, false],
    ['broken', false, false],
    ['taken meanwhile', false, true],
  ] as const) {
    const there = new Set<string>();
    let asked = 0;
    const { url } = await answering(t, (request, reply) => {
      request.resume();
      const bins = [...there].map((id) => ({ id }));
      if (request.method === 'DELETE') there.delete(request.url?.split('/').at(-1) ?? '');
      if (request.method !== 'POST')
        return reply.end(JSON.stringify({ headVersion: 0, bins, items: [], nextSince: 0, hasMore: false }));
      reply.statusCode = asked++ > 0 || outcome === 'taken meanwhile' ? 409 : 500;
      there.add(PLAN.name);
      if (asked === 1 && outcome.startsWith('cut')) return request.socket.destroy();
      if (outcome === 'cut, then broken') reply.statusCode = 500;
      return reply.end(reply.statusCode === 409 ? conflict : '{}');
    });
    const share = { part: 0, parts: 1 };
    const plan = { ...PLAN, url, rate: 0 };
    const worker = await LoadWorker.open({ plan, share, access: { deviceList }, onTick: NOTHING });
    const prepared = await worker.prepare().then(
      () => true,
      () => false,
    );
    t.equal(prepared, prepares, outcome);
    t.same(await worker.remove(), []);
    t.same([...there], stays ? [PLAN.name] : [], outcome);
  }
});

t.test('LOAD-12: a phase that is ordered again ends the agent', async (t) => {
  const program = await load(t);
  const server = createServer();
  const first = new Promise<Socket>((resolve) => server.once('connection', resolve));
  const port = await openFor(t, server);
  const url = 'http://127.0.0.1:9';
  const ended = program.call('agent', '--join', `127.0.0.1:${port}`, '--url', url, '--processes', '1');
  const heard: unknown[] = [];
  const phases = ['connect', 'write', 'connect'] as const;
  let next = 0;
  const channel: Channel = new Channel(await first, {
    ...{ role: 'c', secret: SECRET, onEnd: NOTHING },
    onMessage: (message) => {
      heard.push(message);
      const phase = phases[next++];
      if (phase !== undefined) channel.send({ phase } satisfies Order);
      return undefined;
    },
  });
  t.match(await ended, { code: 4, stderr: /it sent an invalid order/ });
  t.same(heard, [{ joins: 1 }, { news: 'done', phase: 'connect' }, { news: 'done', phase: 'write' }]);
});

t.test('LOAD-12: an agent that reports on the part of another is lost', async (t) => {
  const told: News[] = [];
  const onNews = (news: News): void => void told.push(news);
  const listener = new AgentListener({ secret: SECRET, wanted: 2, onNews, onNote: NOTHING });
  const port = await listener.listen({ host: '127.0.0.1', port: 0 });
  t.teardown(() => listener.close());
  const joined = async (processes: number): Promise<Channel> => {
    const ends = { onMessage: NOTHING, onEnd: NOTHING };
    const agent = new Channel(connect({ host: '127.0.0.1', port }), { role: 'a', secret: SECRET, ...ends });
    const before = listener.crews.length;
    agent.send({ joins: processes });
    await until('the agent', () => listener.crews.length > before);
    return agent;
  };
  const [one, other] = [await joined(2), await joined(1)];
  const [crew, beside] = await listener.allJoined(new AbortController().signal);
  const counts = { second: 0, sockets: 1, opened: 1, lost: 0, done: 0, pushed: 0, errors: {} };
  const tick = (part: number): News => ({
    news: 'tick',
    part,
    tick: { ...counts, timed: { connect: [], push: [] } },
  });
  const ends = (peer: Crew | undefined, part: number): Promise<unknown> => {
    const order: Order = { phase: 'prepare', plan: PLAN, share: { part, parts: 3 } };
    return t.rejects(peer?.perform(order) ?? Promise.resolve(), /it sent an invalid progress message/);
  };
  const [lost, apart] = [ends(crew, 0), ends(beside, 2)];
  for (const part of [0, 1, 2]) one.send(tick(part));
  await lost;
  for (const part of [2, 1]) other.send(tick(part));
  await apart;
  t.same(told, [tick(0), tick(1), tick(2)]);
});

t.test('LOAD-22: blobs are sent to and read from addresses, and with headers, that clients accept too', async (t) => {
  const bucket: unknown[] = [];
  const store = await answering(t, (request, reply) => {
    bucket.push([request.headers['x-amz-acl'], request.headers.cookie]);
    request.resume().on('end', () => reply.end());
  });
  let room = {};
  const { target, url } = await answering(t, (request, reply) => {
    reply.end(JSON.stringify(request.url === '/api/items' ? { version: 1 } : { blobRef: 'R.bin', ...room }));
  });
  const tenant = fleetTenant({ host: undefined, slug: undefined, binId: 'load-mine' });
  const pool = new SealedPool([tenant], PLAN, 1);
  t.teardown(() => pool.end());
  const perform = async (kind: 'blob-put' | 'blob-get', named: object): Promise<unknown> => {
    room = named;
    const meter = new Meter();
    const stopped = new AbortController().signal;
    const plan = { ...PLAN, url, mix: { [kind]: 1 } };
    const ledger = new Ledger(0);
    const entry = ledger.begin(newId(), 1, nowUs());
    entry.blob = { ref: 'R.bin', hash: '' };
    ledger.acknowledge(entry, 7, { device: 0, deletes: false });
    const places = [{ tenant, ledger }];
    const writer = new Writer({ plan, sodium: nodeSodium, target, meter, places, pool, measured: () => true, stopped });
    writer.begin(nowUs());
    await writer.done();
    return meter.totals.errors;
  };
  t.same(await perform('blob-put', { url: `${store.url}/b`, headers: { 'x-amz-acl': 'private' } }), {});
  t.same(bucket.splice(0), [['private', undefined]]);
  await perform('blob-get', { url: `${store.url}/b` });
  t.same(bucket.splice(0), [[undefined, undefined]], 'a blob is read there');
  const refused = [
    { url: `${store.url}/b`, headers: { cookie: 'session=1' } },
    { url: `${store.url}/b`, headers: { 'x-amz-acl': 7 } },
    { url: store.url.replace('//', '//user:word@'), headers: {} },
    { url: 'data:text/plain,x', headers: {} },
  ];
  for (const one of refused) t.same(await perform('blob-put', one), { client_fault: 1 }, JSON.stringify(one));
  for (const one of refused.slice(2)) t.same(await perform('blob-get', one), { client_fault: 1 }, JSON.stringify(one));
  t.same(bucket, []);
});

t.test('LOAD-23: what an agent reports is kept within bounds', async (t) => {
  const load = { version: '1', commit: 'unknown' };
  const { signal } = new AbortController();
  const coordinator = new Coordinator({ plan: PLAN, load, adminToken: undefined, signal });
  const left = Array.from({ length: 6_000 }, () => 'x'.repeat(1_000));
  for (let times = 0; times < 3; times++) coordinator.onNews({ news: 'left', left });
  t.equal(coordinator.left.length, 10_000);
  t.ok(coordinator.left.every((text) => text.length === 500));
  const errors = { ['e'.repeat(1_000_000)]: 1 };
  const counts = { second: 0, sockets: 1, opened: 1, lost: 0, done: 0, pushed: 0, errors };
  coordinator.onNews({ news: 'tick', part: 0, tick: { ...counts, timed: { connect: [], push: [] } } });
  t.strictSame(coordinator.timeline.seconds[0]?.errors, { ['e'.repeat(100)]: 1 });
  const junk = 'x'.repeat(1_000_000);
  const buckets = Array.from({ length: 100_000 }, (_, n) => n);
  const { totals } = new Meter();
  const storm = { at: 1, cut: 1, back: 1, seconds: 1, junk };
  const result = {
    ...{ part: 0, tenants: 1, sockets: 1, junk },
    totals: { ...totals, junk, errors, timed: { ...totals.timed, push: buckets } },
    storms: Array.from({ length: 10 }, () => storm),
    client: { rate: 1, cpu: 1, loopDelayP99Ms: 1, starved: 0, junk },
    audit: { ...sumOf([]), faults: 1_000, examples: Array.from({ length: 1_000 }, () => junk), junk },
  };
  coordinator.onNews({ news: 'result', result });
  const [kept] = [...coordinator['results'].values()];
  t.match(kept, {
    part: 0,
    tenants: 1,
    audit: { faults: 1_000 },
    client: { rate: 1 },
    totals: { errors: { ['e'.repeat(100)]: 1 } },
  });
  t.ok(JSON.stringify(kept).length < 100_000, `${JSON.stringify(kept).length} characters of a result`);
  const notes: string[] = [];
  const onNote = (text: string): void => void notes.push(text);
  const listener = new AgentListener({ secret: SECRET, wanted: 1, onNews: NOTHING, onNote });
  const port = await listener.listen({ host: '127.0.0.1', port: 0 });
  t.teardown(() => listener.close());
  const ended = new Promise<string>((resolve) => {
    const ends = { onMessage: NOTHING, onEnd: resolve };
    const agent = new Channel(connect({ host: '127.0.0.1', port }), { role: 'a', secret: SECRET, ...ends });
    agent.send({ joins: 1 });
    agent.send({ news: 'left', left: ['x'.repeat(5 * 1024 * 1024)] });
  });
  await ended;
  await until('the note', () => notes.some((text) => text.includes('a line that is too long')));
});

t.test('LOAD-23: a line that is too long is refused also where its end is there already', async (t) => {
  const server = createServer();
  const accepted = new Promise<Socket>((resolve) => server.once('connection', resolve));
  const other = connect({ host: '127.0.0.1', port: await openFor(t, server) });
  t.teardown(() => other.destroy());
  const one = await accepted;
  const got: unknown[] = [];
  const ended = new Promise<string>((resolve) => {
    const onMessage = (message: unknown): undefined => void got.push(message);
    const channel = new Channel(one, { role: 'c', secret: SECRET, onMessage, onEnd: resolve });
    t.teardown(() => channel.end());
  });
  // The whole line in one piece, before its sender has shown the secret.
  other.write(`${'0'.repeat(32)}\n${'x'.repeat(5_000)}\n`);
  t.equal(await ended, 'a line that is too long');
  t.same(got, []);
});

t.test('LOAD-16: a listing that a server never ends is given up', async (t) => {
  for (const items of [[], [{}]]) {
    let pages = 0;
    const rows = itemsAbove(0, () => Promise.resolve({ items, nextSince: ++pages, hasMore: pages < 100_000 }));
    const all = async (): Promise<void> => {
      for await (const row of rows) if (row === undefined) t.fail('no row');
    };
    await t.rejects(all(), { code: 'bad_listing' });
  }
});
