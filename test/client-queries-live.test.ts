/** Live queries of two devices on a real server, one of them on a durable store. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import t from 'tap';
import type { Device } from '../src/sdk/device.js';
import type { ItemView } from '../src/sdk/events.js';
import type { QueryFilter, QueryUpdate } from '../src/sdk/query.js';
import { openNodeStore } from '../src/sdk/store/node-store.js';
import { next, note, refusal, wiretap, world, type Client } from './support/client-world.js';
import { until } from './support/events.js';
import { replayed } from './support/queries.js';

/** A query whose results can be waited for. */
async function followed(device: Device, filter: QueryFilter) {
  const updates: QueryUpdate[] = [];
  let look = (): void => undefined;
  const query = await device.query(filter, (update) => {
    updates.push(update);
    look();
  });
  const until = (fits: (items: readonly ItemView[], total: number) => boolean): Promise<void> =>
    new Promise((resolve) => {
      look = () => {
        if (fits(query.current, updates.at(-1)?.total ?? 0)) resolve();
      };
      look();
    });
  return { query, updates, until };
}

const texts = (items: readonly ItemView[]): unknown[] => items.map(({ payload }) => payload?.['text']);

t.test('live queries on two devices', async (t) => {
  const all = await world(t);
  const { first } = all;
  await first.device.connect();
  await first.device.bins.create('work', { name: 'Work' });
  const paired = await all.pair();
  paired.device.close();
  const folder = await mkdtemp(join(tmpdir(), 'queries-'));
  t.teardown(() => rm(folder, { recursive: true, force: true }));
  let opened = await openNodeStore(folder, paired.identity());
  /** Item writes of the second device wait for this promise. */
  let writable: Promise<unknown> = Promise.resolve();
  const open = (): Promise<Client> => {
    const tap = wiretap();
    const { fetch } = tap.platform;
    Object.assign(tap.platform, {
      fetch: async (url: string, init: RequestInit) => {
        if (init.method === 'POST' && url.endsWith('/items')) await writable;
        return fetch(url, init);
      },
    });
    return all.open(paired.identity(), { tap, store: opened.store });
  };
  let second = await open();
  await second.device.connect();

  await t.test('SDK-01 SDK-04: queries on two devices follow changes of either, and end as `list`', async (t) => {
    const here = await followed(first.device, { binId: 'inbox' });
    const there = await followed(second.device, { binId: 'inbox' });
    const search = await followed(second.device, { text: 'CRÈME', order: 'oldest' });
    const { id } = await first.device.put(note('crème brûlée'));
    await Promise.all([here, there, search].map(({ until }) => until((items) => items.some((item) => item.id === id))));
    const mine = second.device.put(note('from the other side'));
    await here.until((items) => items.length === 2);
    await mine;
    await second.device.put({ ...note('no dessert'), id });
    await Promise.all([
      here.until((items) => items.some((item) => item.payload?.['text'] === 'no dessert')),
      search.until((items) => items.length === 0),
    ]);
    const made = await Promise.all(Array.from({ length: 30 }, (_, at) => first.device.put(note(`creme ${at}`))));
    await there.until((_, total) => total === 32);
    await second.device.move(made[0]?.id ?? '', 'work');
    await first.device.delete(made[1]?.id ?? '');
    await Promise.all([here, there].map(({ until }) => until((_, total) => total === 30)));
    await search.until((_, total) => total === 29);
    for (const { query, updates } of [here, there]) {
      t.same(texts(query.current), texts(await first.device.list({ binId: 'inbox' })));
      t.same(replayed(updates), query.current);
    }
    t.same(texts(here.query.current), texts(there.query.current));
    t.ok(search.query.current.some(({ binId }) => binId === 'work'));
  });

  await t.test(
    'SDK-35: the number of items in each bin is reported at once and after changes on either device',
    async (t) => {
      const told: Record<string, number>[] = [];
      const counting = await second.device.counts((counts) => told.push(Object.fromEntries(counts)));
      const [inbox, work] = await Promise.all(
        ['inbox', 'work'].map(async (binId) => (await second.device.list({ binId })).length),
      );
      const is = (more: number, moved: number) => ({ inbox: (inbox ?? 0) + more, work: (work ?? 0) + moved });
      t.same(told, [is(0, 0)]);
      const { id } = await first.device.put(note('counted'));
      const { id: other } = await first.device.put(note('counted too'));
      await until('two more', () => told.at(-1)?.['inbox'] === is(2, 0).inbox);
      await second.device.move(id, 'work');
      await until('one has moved', () => told.at(-1)?.['work'] === is(1, 1).work);
      t.same(told.at(-1), is(1, 1));
      await first.device.put({ ...note('another text'), id: other });
      await first.device.delete(id);
      await until('one is gone', () => told.at(-1)?.['work'] === work);
      t.same(told.at(-1), is(1, 0));
      counting.close();
      const calls = told.length;
      const gone = next(second, 'delete', (event) => event.id === other);
      await first.device.delete(other);
      await gone;
      t.equal(told.length, calls, 'nothing is reported after the count was closed');
    },
  );

  await t.test('SDK-01: an item made without a connection is shown at once, and after a restart', async (t) => {
    second.device.disconnect();
    const before = await followed(second.device, { text: 'alone' });
    // The reply must not arrive before the query has shown the item.
    writable = before.until((items) => items.length === 1);
    const made = await second.device.put(note('alone'));
    t.match(before.updates.find(({ items }) => items.length === 1)?.items, [{ id: made.id, pending: true }]);
    second.device.close();
    const told = before.updates.length;
    await opened.store.close();
    opened = await openNodeStore(folder, paired.identity());
    second = await open();
    const after = await followed(second.device, { text: 'alone' });
    t.match(after.query.current, [{ id: made.id, payload: { text: 'alone' } }]);
    const caughtUp = next(second, 'caught_up');
    await second.device.connect();
    t.match(await caughtUp, { complete: true });
    t.match(after.query.current, [{ id: made.id, pending: false, version: made.version }]);
    t.equal(before.updates.length, told, 'a closed device reports nothing');
    second.device.close();
    t.equal((await refusal(second.device.query({}, () => undefined))).code, 'closed');
    await opened.store.close();
  });
});
