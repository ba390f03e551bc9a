/** What a client does with a server that sends too much, or the same without end. */
import t from 'tap';
import { DeviceApi } from '../src/sdk/api.js';
import { Device } from '../src/sdk/device.js';
import { ProtocolError } from '../src/sdk/errors.js';
import { Emitter } from '../src/sdk/events.js';
import { Http, type Call } from '../src/sdk/http.js';
import { Outbox } from '../src/sdk/outbox.js';
import { Replica } from '../src/sdk/replica.js';
import { DeviceList } from '../src/sdk/device-list.js';
import { Sender } from '../src/sdk/sender.js';
import { MemoryStore } from '../src/sdk/store/store.js';
import { Sync } from '../src/sdk/sync.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { writeBody } from '../src/sdk/wire.js';
import { toBase64Url } from '../src/protocol/base64.js';
import type { LiveItem } from '../src/protocol/item.js';
import { deleteTag, fakeFetch, fakeSockets, newId, newIdentity, sealedRow, settle } from './support/client.js';
import { TestClock } from './support/clock.js';
import { refusal } from './support/client-world.js';

async function sync(call: Call, store = new MemoryStore(), me = newIdentity()) {
  const clock = new TestClock();
  const api = new DeviceApi(call);
  const { emit } = new Emitter(() => undefined);
  const sodium = nodeSodium;
  const reader = { masterKey: me.masterKey, device: { id: me.deviceId, keys: me.keys } };
  const outbox = await Outbox.load(store, clock);
  const deviceList = new DeviceList({ api, sodium, identity: me, emit, clock });
  const sender = new Sender({ api, outbox, deviceList, sodium, reader, clock, random: () => 0, emit });
  const fetchNext = () => Promise.resolve(undefined);
  const replica = new Replica({ store, outbox, sodium, reader, emit, fetchNext });
  const reconnects: string[] = [];
  const halts: Error[] = [];
  const flows: { listen: (reading: boolean) => unknown } = { listen: () => undefined };
  const made = new Sync({
    api,
    replica,
    store,
    outbox,
    sender,
    emit,
    socket: {
      restart: (reason) => reconnects.push(reason),
      flow: (reading) => flows.listen(reading),
      settled: () => undefined,
    },
    halt: (error) => halts.push(error),
    refresh: () => Promise.resolve(),
  });
  return { sync: made, store, reconnects, halts, flows };
}

/** A row as a listing has it. */
const textOf = (row: LiveItem): Record<string, unknown> => ({
  ...writeBody({ ...row, ifVersion: null }),
  senderDevice: row.senderDevice,
  version: row.version,
  deletedAt: null,
});

const tombstone = (version: number) => ({ id: newId(), binId: 'inbox', version, deletedAt: 1 });

t.test('CLIENT-45: a listing that starts over on every page ends with an error', async (t) => {
  let pages = 0;
  const world = await sync(() => {
    pages++;
    const body = { items: [tombstone(1)], nextSince: 1, hasMore: pages < 1_000, epoch: `e${pages}`, reset: true };
    return Promise.resolve({ status: 200, body });
  });
  t.match(await refusal(world.sync.pull()), { name: 'ProtocolError' });
  t.equal(pages, 2);
});

t.test('CLIENT-45: a listing may start over once, as after a restore of the server', async (t) => {
  let pages = 0;
  const world = await sync(() => {
    pages++;
    const body = { items: [tombstone(pages)], nextSince: pages, hasMore: pages < 3, epoch: 'new', reset: pages === 1 };
    return Promise.resolve({ status: 200, body });
  });
  await world.sync.pull();
  t.same(await world.store.cursor(), { since: 3, epoch: 'new' });
});

t.test('CLIENT-46: frames that arrive too fast to be stored are dropped, and resent from the cursor', async (t) => {
  const store = new MemoryStore();
  const me = newIdentity();
  const world = await sync(() => Promise.reject(new Error('nothing is asked')), store, me);
  let open: () => void = () => undefined;
  const gate = new Promise<void>((resolve) => {
    open = resolve;
  });
  const apply = store.apply.bind(store);
  let applied = 0;
  store.apply = async (batch) => {
    await gate;
    applied += batch.entries?.length ?? 0;
    return apply(batch);
  };
  const send = (version: number): void => {
    const id = newId();
    world.sync.receive({ kind: 'change', change: { kind: 'delete', id, version, sig: deleteTag(me, id) } });
  };
  for (let version = 1; version <= 20_000; version++) {
    send(version);
    if (version % 1_000 === 0) await settle();
  }
  t.same(world.reconnects, ['frames come faster than they can be stored'], 'the connection is restarted once');
  open();
  const { since } = await world.sync.begin();
  t.ok(since > 0 && since < 8_000 && since === applied, 'the cursor is at the last stored frame');
  send(since + 1);
  await settle();
  t.equal((await world.sync.begin()).since, since + 1, 'the next connection continues there');
});

t.test('CLIENT-54: frames being processed are bounded by their size too', async (t) => {
  const store = new MemoryStore();
  const world = await sync(() => Promise.reject(new Error('nothing is asked')), store);
  const flows: boolean[] = [];
  world.flows.listen = (reading) => flows.push(reading);
  let open: () => void = () => undefined;
  const gate = new Promise<void>((resolve) => {
    open = resolve;
  });
  const apply = store.apply.bind(store);
  store.apply = async (batch) => {
    await gate;
    return apply(batch);
  };
  const send = (version: number): void =>
    world.sync.receive({ kind: 'change', change: { kind: 'delete', id: newId(), version, sig: null } }, 1024 * 1024);
  send(1);
  await settle();
  for (let version = 2; version <= 16; version++) send(version);
  t.same(flows, [], 'reading continues while 15 MiB wait');
  send(17);
  t.same(flows, [false], 'reading stops at 16 MiB');
  for (let version = 18; version <= 64; version++) send(version);
  t.same(world.reconnects, [], 'a browser cannot stop reading: its frames are still accepted');
  for (let version = 65; version <= 100; version++) send(version);
  t.same(world.reconnects, ['frames come faster than they can be stored'], 'up to 64 MiB');
  open();
  const { since } = await world.sync.begin();
  send(since + 1);
  await settle();
  t.equal((await world.sync.begin()).since, since + 1, 'and the next connection has room again');
});

t.test('CLIENT-53: of rows that no tag backs only the head is kept, up to a bound', async (t) => {
  const me = newIdentity();
  const good = [1, 2, 3].map((version) => sealedRow(me, { version, ts: version }));
  const forged = sealedRow(newIdentity(), { version: 4 });
  let pages = 0;
  // The rows are made as they are listed: nothing but the client may hold on to them.
  const call: Call = ({ query }) => {
    pages++;
    const since = Number(query?.['since']);
    const rows = since === 0 ? good.map(textOf) : [];
    for (let version = since + rows.length + 1; rows.length < 1_000; version++)
      rows.push({ ...textOf(forged), id: newId(), version });
    return Promise.resolve({ status: 200, body: { items: rows, nextSince: since + 1_000, hasMore: true, epoch: 'e' } });
  };
  const world = await sync(call, new MemoryStore(), me);
  t.match(await refusal(world.sync.pull()), { name: 'ProtocolError', code: 'quarantine_full' });
  t.equal(pages, 21, 'reading stops with the page that exceeds 20,000');
  t.match(world.halts, [{ code: 'quarantine_full' }]);
  let quarantined = 0;
  for await (const entry of world.store.entries()) {
    if (entry.state !== 'quarantined') continue;
    quarantined++;
    if (entry.row?.inline !== null) t.fail('the content of a row without a valid tag was kept');
  }
  t.ok(quarantined > 19_000 && quarantined <= 20_000, `${quarantined}`);
  for (const { id } of good) t.match(await world.store.get(id), { state: 'live' });
  t.match(await refusal(world.sync.pull()), { code: 'quarantine_full' }, 'the next listing is refused too');
});

t.test('CLIENT-53: an honest replay has no bound: 150,000 tagged deletes and an item are read', async (t) => {
  const me = newIdentity();
  const row = sealedRow(me, { version: 1 });
  const deletes = 150_000;
  const call: Call = ({ query }) => {
    const since = Number(query?.['since']);
    const items = Array.from({ length: 1_000 }, (_, at) => {
      const id = newId();
      return { ...tombstone(since + at + 1), id, sig: toBase64Url(deleteTag(me, id)) };
    });
    const hasMore = since + 1_000 < deletes;
    const last = { ...textOf(row), version: since + 1_001 };
    const body = {
      items: hasMore ? items : [...items, last],
      nextSince: since + 1_000 + Number(!hasMore),
      hasMore,
      epoch: 'e',
    };
    return Promise.resolve({ status: 200, body });
  };
  const world = await sync(call, new MemoryStore(), me);
  await world.sync.pull();
  t.match(await world.store.get(row.id), { state: 'live' });
  t.same(world.halts, []);
});

t.test('CLIENT-46: an endless reply is cancelled', async (t) => {
  let chunks = 0;
  let cancelled = false;
  const fetch = () => {
    const body = new ReadableStream<Uint8Array>({
      pull: (controller) => {
        chunks++;
        controller.enqueue(new Uint8Array(1024 * 1024).fill(0x20));
      },
      cancel: () => {
        cancelled = true;
      },
    });
    return Promise.resolve(new Response(body));
  };
  const http = new Http({ baseUrl: 'http://server.test', fetch, clock: new TestClock(), random: () => 0 });
  await t.rejects(http.send({ method: 'GET', path: '/me', repeatable: true }), ProtocolError);
  t.ok(chunks <= 20 && cancelled, `${chunks} MiB were read`);
});

t.test('two calls of `connect` share one connection, both reject when it ends, and may be repeated', async (t) => {
  const { port, connections } = fakeSockets();
  const { fetch } = fakeFetch(() => ({ body: { ticket: 'ticket' } }));
  const platform = { sodium: nodeSodium, fetch, sockets: port, clock: new TestClock(), random: () => 0 };
  const device = await Device.open({ platform, identity: newIdentity(), onProblem: () => undefined });
  const ended: (string | undefined)[] = [];
  const connect = (): void => void refusal(device.connect()).then((error) => ended.push(error.code));
  connect();
  connect();
  await settle();
  t.equal(connections.length, 1);
  device.disconnect();
  await settle();
  t.same(ended, ['closed', 'closed']);
  connect();
  await settle();
  t.equal(connections.length, 2);
  device.close();
  await settle();
  t.same(ended, ['closed', 'closed', 'closed']);
});
