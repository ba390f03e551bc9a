/** Clients of a server that fails temporarily, loses items, restores an old backup, or revokes a device. */
import t from 'tap';
import { StoreError } from '../src/sdk/store/error.js';
import { MemoryStore, type Batch } from '../src/sdk/store/store.js';
import { TestClock } from './support/clock.js';
import { sealedRow } from './support/client.js';
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
        if (url.endsWith('/items') && lost++ === 0) throw new TypeError('connection reset');
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
    second.tap.bend = (frame) => (frame['type'] === 'item' && swallowed++ === 0 ? null : frame);
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
    tap.bend = (frame) =>
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
