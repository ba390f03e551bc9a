/**
 * Clients of a server that fails temporarily, loses items, restores an old backup, revokes a device, or sends too much, or
 * the same without end.
 */
import t from 'tap';
import { StoreError } from '../src/sdk/store/error.js';
import { MemoryStore, type Batch } from '../src/sdk/store/store.js';
import { DeviceApi } from '../src/sdk/api.js';
import { Device } from '../src/sdk/device.js';
import { Emitter } from '../src/sdk/events.js';
import type { Call } from '../src/sdk/http.js';
import { Outbox } from '../src/sdk/outbox.js';
import { Replica } from '../src/sdk/replica.js';
import { DeviceList } from '../src/sdk/device-list.js';
import { Sender } from '../src/sdk/sender.js';
import { Sync } from '../src/sdk/sync.js';
import { moveTag } from '../src/crypto/item.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { writeBody } from '../src/sdk/wire.js';
import { toBase64Url } from '../src/protocol/base64.js';
import type { LiveItem } from '../src/protocol/item.js';
import { TestClock } from './support/clock.js';
import { sealedRow, deleteTag, fakeFetch, fakeSockets, newId, newIdentity, settle } from './support/client.js';
import { next, note, refusal, shows, wiretap, world, writes, type Client } from './support/client-world.js';
import { hurried, NO_TRAFFIC } from './support/hurried.js';

t.test('a server that fails temporarily or loses items', async (t) => {
  const all = await world(t);
  const { first } = all;
  await first.device.connect();

  await t.test('an unsent write waits in the outbox, is shown, survives a restart, and is sent later', async (t) => {
    const store = new MemoryStore();
    const clock = new TestClock();
    const tap = wiretap(clock);
    let down = false;
    const { fetch } = tap.platform;
    const platform = {
      ...tap.platform,
      fetch: async (url: string, init: RequestInit) => {
        if (down) throw new TypeError('unreachable');
        return fetch(url, init);
      },
    };
    const client = await all.open(first.identity(), { tap: { ...tap, platform }, store });
    await client.device.devices.list();
    down = true;
    const error = await refusal(hurried(clock, NO_TRAFFIC, client.device.put(note('queued'))));
    t.equal(error.code, 'queued');
    t.match(await client.device.list(), [{ payload: { text: 'queued' }, pending: true, version: 0 }]);
    client.device.close();
    const later = await all.open(first.identity(), { store });
    t.match(await later.device.list(), [{ payload: { text: 'queued' }, pending: true }], 'after a restart too');
    const sent = next(later, 'sent');
    await later.device.pull();
    const { id } = await sent;
    t.match(await later.device.list(), [{ id, payload: { text: 'queued' }, pending: false }]);
    t.match(
      await shows(first, id),
      { payload: { text: 'queued' } },
      'another program of the device gets it by the ack',
    );
  });

  await t.test('a write whose reply is lost is stored once', async (t) => {
    const tap = wiretap();
    let lost = 0;
    const fetching = tap.platform.fetch;
    const platform = {
      ...tap.platform,
      fetch: async (url: string, init: RequestInit) => {
        const response = await fetching(url, init);
        if (init.method === 'POST' && /\/items(\?|$)/.test(url) && lost++ === 0)
          throw new TypeError('connection reset');
        return response;
      },
    };
    const client = await all.open(first.identity(), { tap: { ...tap, platform } });
    await client.device.connect();
    const { id, version } = await client.device.put(note('once'));
    client.device.disconnect();
    const caughtUp = next(client, 'caught_up');
    await client.device.connect();
    t.match(await caughtUp, { version, complete: true });
    t.match(await client.device.get(id), { version, pending: false });
  });

  await t.test('CLIENT-30: an item that is missing from the stream is detected and fetched', async (t) => {
    const second = await all.pair();
    await second.device.connect();
    let swallowed = 0;
    second.tap.alterFrame = (frame) => (frame['type'] === 'item' && swallowed++ === 0 ? null : frame);
    const { id } = await first.device.put(note('swallowed'));
    const { id: following } = await first.device.put(note('not swallowed'));
    await shows(second, following);
    t.equal(await second.device.get(id), undefined);
    second.device.disconnect();
    const caughtUp = next(second, 'caught_up');
    await second.device.connect();
    t.match(await caughtUp, { complete: true });
    t.match(await second.device.get(id), { payload: { text: 'swallowed' } });
    t.ok(
      second.tap.calls.some(({ path }) => path.startsWith('/items?since=0')),
      'by reading everything again',
    );
  });

  await t.test('CLIENT-30: an item that cannot be fetched is reported as missing', async (t) => {
    const tap = wiretap();
    const second = await all.open(first.identity(), { tap });
    tap.alterFrame = (frame) =>
      frame['type'] === 'caught_up' ? { ...frame, itemCount: Number(frame['itemCount']) + 1 } : frame;
    const missing = next(second, 'missing');
    const caughtUp = next(second, 'caught_up');
    await second.device.connect();
    const { expected, held } = await missing;
    t.equal(expected.itemCount, held.itemCount + 1);
    t.match(await caughtUp, { complete: false });
  });

  await t.test(
    'CLIENT-31: in a new epoch everything is read again, and an item that the server lost can be republished',
    async (t) => {
      const store = new MemoryStore();
      const second = await all.open(first.identity(), { store });
      await second.device.connect();
      const count = (await second.device.list()).length;
      second.device.disconnect();
      const { row } = await lostRow(second, store);
      await store.apply({ cursor: { since: (await store.cursor()).since, epoch: 'another history' } });
      const reset = next(second, 'reset');
      const orphaned = next(second, 'orphaned');
      const caughtUp = next(second, 'caught_up');
      await second.device.connect();
      await reset;
      t.same((await orphaned).ids, [row]);
      t.match(await caughtUp, { complete: true });
      t.equal((await second.device.list()).length, count + 1);
      t.equal((await refusal(second.device.discard(second.device.id))).code, 'unknown_item');
      t.type((await second.device.republish(row)).version, 'number');
      t.equal((await refusal(second.device.discard(row))).code, 'unknown_item', 'the server has the item again');
      const fresh = await all.open(first.identity());
      await fresh.device.pull();
      t.match(await fresh.device.get(row), { payload: { text: 'lost by the server' } });
    },
  );

  await t.test('CLIENT-33: bins and devices are read again after each caught_up', async (t) => {
    const client = await all.open(first.identity());
    const bins = next(client, 'bins', ({ reason }) => reason === 'caught_up');
    const devices = next(client, 'devices');
    await client.device.connect();
    t.match(await bins, { bins: [{ id: 'inbox' }] });
    t.ok((await devices).devices.length >= 2);
    const asked = client.tap.calls.filter(({ path }) => path === '/bins' || path === '/devices');
    t.equal(asked.length, 2);
    const changed = next(client, 'bins', ({ bins: all }) => all.some((bin) => bin.label?.name === 'News'));
    await first.device.bins.create('news', { name: 'News' });
    t.match(await changed, { reason: 'changed' });
    client.device.disconnect();
    const again = [next(client, 'bins', ({ reason }) => reason === 'caught_up'), next(client, 'devices')];
    client.tap.calls.length = 0;
    await client.device.connect();
    await Promise.all(again);
    for (const asked of ['/bins', '/devices'])
      t.ok(
        client.tap.calls.some(({ path }) => path === asked),
        asked,
      );
  });
});

/** An item in a device's store that the server has never had, as after the restore of an old backup. */
async function lostRow(client: Client, store: MemoryStore): Promise<{ readonly row: string }> {
  const row = sealedRow(client.identity(), { version: 1_000_000, payload: { text: 'lost by the server' } });
  await store.apply({ entries: [{ id: row.id, version: row.version, state: 'live', row }] });
  return { row: row.id };
}

t.test('a revoked device stops, and gets no more keys', async (t) => {
  const all = await world(t);
  const { first } = all;
  await first.device.connect();
  const second = await all.pair();
  await second.device.connect();
  const revoked = next(second, 'revoked');
  await first.device.revoke(second.device.id);
  t.same(await revoked, { deviceId: second.device.id });
  t.equal((await refusal(second.device.put(note('no')))).code, 'revoked');
  t.throws(() => second.device.pull(), { code: 'revoked' });
  const again = await all.open(second.identity());
  t.equal((await refusal(again.device.connect())).code, 'revoked', 'a device opened anew is refused too');
  const { id } = await first.device.put(note('after'));
  const sealed = Object.keys(
    (writes(first).find((body) => body['id'] === id)?.['payloadEnc'] as { keys: object }).keys,
  );
  t.same(sealed, [first.device.id]);
});

t.test(
  "SDK-34: a sign-out succeeds even where the device's socket announces it before the reply arrives",
  async (t) => {
    const all = await world(t);
    const tap = wiretap();
    const { fetch } = tap.platform;
    let told: Promise<unknown> = Promise.resolve();
    const platform: typeof tap.platform = {
      ...tap.platform,
      fetch: async (url, init) => {
        const reply = await fetch(url, init);
        if (url.endsWith('/revoke')) await told;
        init.signal?.throwIfAborted();
        return reply;
      },
    };
    const second = await all.pair('Second', { ...tap, platform });
    await second.device.connect();
    told = next(second, 'revoked');
    await second.device.revoke(second.device.id);
    t.equal((await refusal(second.device.put(note('no')))).code, 'revoked');
  },
);

t.test('SDK-26: a device that is closed while a frame is being applied reports no failure', async (t) => {
  const all = await world(t);
  await all.first.device.connect();
  const second = await all.pair();
  let entered: () => void = () => undefined;
  const applying = new Promise<void>((resolve) => (entered = resolve));
  let release: () => void = () => undefined;
  const closed = new Promise<void>((resolve) => (release = resolve));
  let gone = false;
  /** A store that is closed while a frame is being applied to it. */
  class Closing extends MemoryStore {
    override async apply(batch: Batch): Promise<void> {
      if (batch.entries?.some(({ state }) => state === 'live') === true) {
        entered();
        await closed;
      }
      if (gone) throw new StoreError('closed', 'the store is closed');
      await super.apply(batch);
    }
  }
  const client = await all.open(second.identity(), { store: new Closing() });
  await client.device.connect();
  await all.first.device.put(note('one'));
  await applying;
  client.device.close();
  gone = true;
  release();
  // The rest of the frame is processed in turns of the event loop that cannot be awaited from outside.
  for (let turns = 0; turns < 50; turns++) await new Promise((resolve) => setImmediate(resolve));
  t.same(client.problems, []);
});

async function sync(call: Call, store = new MemoryStore(), me = newIdentity()) {
  const clock = new TestClock();
  const api = new DeviceApi(call);
  const emitter = new Emitter(() => undefined);
  const [{ emit }, sodium] = [emitter, nodeSodium];
  const reader = { masterKey: me.masterKey, device: { id: me.deviceId, keys: me.keys } };
  const outbox = await Outbox.load(store, clock);
  const deviceList = new DeviceList({ api, sodium, identity: me, emit, clock });
  const base = { api, store, outbox, deviceList, sodium, reader, clock, random: () => 0, emit };
  const sender = new Sender({ ...base, epoch: () => Promise.resolve(null), catchUp: () => Promise.resolve() });
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
  return { sync: made, store, outbox, emitter, reconnects, halts, flows };
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

t.test('CLIENT-45: a connection whose frames wait is read on after a listing shows another history', async (t) => {
  const store = new MemoryStore();
  await store.apply({ cursor: { since: 1, epoch: 'old' } });
  let pages = 0;
  const world = await sync(() => {
    pages++;
    const body = { items: [tombstone(pages)], nextSince: pages, hasMore: pages < 2, epoch: 'new', reset: pages === 1 };
    return Promise.resolve({ status: 200, body });
  }, store);
  const flows: unknown[] = [];
  world.flows.listen = (reading) => flows.push(reading);
  const pulled = world.sync.pull();
  const change = { kind: 'ack', id: newId(), version: 2 } as const;
  for (let frames = 0; frames < 2_000; frames++) world.sync.receive({ kind: 'change', change });
  await pulled;
  t.same(world.reconnects, ['a listing showed another history']);
  await world.sync.begin();
  t.same([flows[0], flows.at(-1)], [false, true], 'reading was paused, and is not on the next connection');
});

t.test(
  'CLIENT-31: the next run of a program ends the replay of a reset that the end of this one cut off',
  async (t) => {
    const me = newIdentity();
    const store = new MemoryStore();
    const [edited, lost, last] = [7, 8, 3].map((version) => sealedRow(me, { version, ts: version }));
    if (!edited || !lost || !last) throw new Error('no rows');
    const row = { ...sealedRow(me, { version: 0, ts: 9 }), id: edited.id };
    await store.apply({
      entries: [edited, lost].map((one) => ({ id: one.id, version: one.version, state: 'live', row: one })),
      pending: [{ kind: 'write', seq: 1, id: row.id, base: 7, version: null, row, rewrap: false }],
      cursor: { since: 8, epoch: 'old' },
    });
    const pages = [
      { items: [{ ...textOf(edited), version: 2 }], nextSince: 2, hasMore: true, epoch: 'new', reset: true },
      undefined,
      { items: [textOf(last)], nextSince: 3, hasMore: false, epoch: 'new' },
    ];
    const call: Call = () => {
      const body = pages.shift();
      return body === undefined ? Promise.reject(new Error('the end')) : Promise.resolve({ status: 200, body });
    };
    await refusal((await sync(call, store, me)).sync.pull());
    const { fetch, requests } = fakeFetch(() => new Error('no server'));
    const platform = {
      sodium: nodeSodium,
      fetch,
      sockets: fakeSockets().port,
      clock: new TestClock(),
      random: () => 0,
    };
    const device = await Device.open({ platform, identity: me, store, onProblem: () => undefined });
    device.release();
    await settle();
    t.same(requests, [], 'nothing is sent on a base of the old history');
    device.close();
    const next = await sync(call, store, me);
    const orphaned: unknown[] = [];
    next.emitter.on('orphaned', ({ ids }) => orphaned.push(ids));
    await next.sync.pull();
    t.same(orphaned, [[lost.id]]);
    t.match(next.outbox.all(), [{ id: edited.id, base: 2, version: null }]);
    t.same(await store.cursor(), { since: 3, epoch: 'new' });
  },
);

t.test('CLIENT-31: a move of a content that the new history lacks is not sent, and reported', async (t) => {
  const me = newIdentity();
  const store = new MemoryStore();
  const [older, other] = [3, 4].map((version) => sealedRow(me, { version, ts: version }));
  if (!older || !other) throw new Error('no rows');
  const newer = sealedRow(me, { id: older.id, version: 7, ts: 7 });
  const moved = (row: LiveItem): LiveItem => ({
    ...{ ...row, binId: 'elsewhere' },
    sig: moveTag(nodeSodium, row, { binId: 'elsewhere', masterKey: me.masterKey }),
  });
  await store.apply({
    entries: [newer, other].map((row) => ({ id: row.id, version: row.version, state: 'live', row })),
    pending: [newer, other].map((row, at) => ({
      ...{ kind: 'move', seq: at + 1, id: row.id, base: row.version, version: null, row: moved(row) },
    })),
    cursor: { since: 7, epoch: 'old' },
  });
  const body = { items: [textOf(older), textOf(other)], nextSince: 4, hasMore: false, epoch: 'new', reset: true };
  const call: Call = ({ path }) =>
    path === '/items' ? Promise.resolve({ status: 200, body }) : Promise.reject(new Error('not yet'));
  const world = await sync(call, store, me);
  const rejected: unknown[] = [];
  world.emitter.on('rejected', ({ row }) => rejected.push([row?.id, row?.binId]));
  await world.sync.pull();
  t.same(rejected, [[newer.id, 'elsewhere']]);
  t.match(world.outbox.all(), [{ id: other.id, base: 4 }], 'the tag of the other still holds');
});

t.test('LIAR-35: an item that is not listed any more is reported before the next `caught_up`', async (t) => {
  const me = newIdentity();
  const [hidden, shown] = [1, 2].map((version) => sealedRow(me, { version, ts: version }));
  if (!hidden || !shown) throw new Error('no rows');
  const store = new MemoryStore();
  await store.apply({
    entries: [hidden, shown].map((row) => ({ id: row.id, version: row.version, state: 'live', row })),
    cursor: { since: 2, epoch: 'e' },
  });
  const body = { items: [textOf(shown)], nextSince: 2, hasMore: false, epoch: 'e' };
  const world = await sync(() => Promise.resolve({ status: 200, body }), store, me);
  const missing: unknown[] = [];
  world.emitter.on('missing', ({ unlisted }) => missing.push(unlisted));
  world.sync.receive({ kind: 'caught_up', at: { version: 2, epoch: 'e', itemCount: 1, versionSum: 2 } });
  await settle();
  t.equal(world.reconnects.length, 1);
  t.same(missing, [[hidden.id]]);
});

t.test('CLIENT-31: a change made before the replay of a cut off reset ends waits; its caller is told', async (t) => {
  const identity = newIdentity();
  const store = new MemoryStore();
  const row = sealedRow(identity, { version: 7 });
  await store.apply({
    entries: [{ id: row.id, version: 0, state: 'live', row }],
    cursor: { since: 0, epoch: 'new', reset: true },
  });
  const { fetch, requests } = fakeFetch(() => new Error('no server'));
  const clock = new TestClock();
  const platform = { sodium: nodeSodium, fetch, sockets: fakeSockets().port, clock, random: () => 0 };
  const device = await Device.open({ platform, identity, store, onProblem: () => undefined });
  t.teardown(() => device.close());
  for (const binId of ['one', 'two']) {
    const change = refusal(device.move(row.id, binId));
    await settle();
    clock.advance(20_000);
    t.match(await change, { name: 'QueuedError', id: row.id });
  }
  const sent = requests.filter(({ method }) => method !== 'GET');
  t.same(sent, [], 'nothing is sent on a base of the old history');
  const versions = (await store.pending()).map(({ version }) => version);
  t.same(versions, [null, null]);
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

t.test('CLIENT-53: a listing of one delete under ever newer versions ends', async (t) => {
  const me = newIdentity();
  const id = newId();
  const gone = { ...tombstone(0), id, sig: toBase64Url(deleteTag(me, id)) };
  let rows = 0;
  const call: Call = ({ query }) => {
    const since = Number(query?.['since']);
    const items = Array.from({ length: 2_000 }, (_, at) => ({ ...gone, version: since + at + 1 }));
    rows += items.length;
    // Ends by itself, so that the test does too.
    const hasMore = rows < 300_000;
    return Promise.resolve({ status: 200, body: { items, nextSince: since + 2_000, hasMore, epoch: 'e' } });
  };
  const world = await sync(call, new MemoryStore(), me);
  const held = { id, version: 2 ** 40, state: 'deleted', tagged: true, kept: null } as const;
  await world.store.apply({ entries: [held], cursor: { since: 2 ** 40, epoch: 'e' } });
  t.match(await refusal(world.sync.resync()), { code: 'endless_replay' });
  t.match(world.halts, [{ code: 'endless_replay' }]);
});
