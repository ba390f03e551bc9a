/** Devices on durable stores against a real server: a damaged store is rebuilt, a full disk loses nothing. */
import { join } from 'node:path';
import { ClassicLevel } from 'classic-level';
import t from 'tap';
import { createStore, LevelStore } from '../src/sdk/store/level-store.js';
import { openNodeStore } from '../src/sdk/store/node-store.js';
import { StoreError } from '../src/sdk/store/error.js';
import { TestClock } from './support/clock.js';
import { next, note, refusal, shows, wiretap, world } from './support/client-world.js';
import { until } from './support/events.js';
import { FlakyLevel } from './support/flaky-level.js';
import { temporaryFolder } from './support/postgres.js';

t.setTimeout(180_000);

/** Waits until exactly `changes` own changes are stored. */
async function settled(store: LevelStore, changes: number): Promise<void> {
  await until(`${changes} stored changes`, async () => (await store.pending()).length === changes);
}

t.test('STORE-10 STORE-11: a damaged store is refilled by replay, and carried-over changes are sent', async (t) => {
  const all = await world(t);
  const { first } = all;
  await first.device.connect();
  const second = await all.pair();
  second.device.close();
  const identity = second.identity();
  const folder = join(await temporaryFolder(t), 'store');
  const before = await openNodeStore(folder, identity);
  const tap = wiretap(new TestClock());
  const one = await all.open(identity, { tap, store: before.store });
  await one.device.pull();
  const own = await one.device.put(note('mine'));
  const theirs = await first.device.put(note('theirs'));
  await one.device.pull();
  // The server is unreachable from here on, so that writes wait.
  tap.twist = () => {
    throw new TypeError('unreachable');
  };
  const waiting = one.device.put({ ...note('mine, edited'), id: own.id });
  waiting.catch(() => undefined);
  const added = one.device.put(note('new'));
  added.catch(() => undefined);
  await settled(before.store, 2);
  one.device.close();
  await before.store.close();

  const level = new ClassicLevel<string, Uint8Array>(join(folder, 'current'), { valueEncoding: 'view' });
  await level.del(`e${theirs.id}`);
  await level.close();
  const after = await openNodeStore(folder, identity);
  t.match(after.repair, { carried: 2, lost: 0 });
  const again = await all.open(identity, { store: after.store });
  t.match(await again.device.list(), [{ pending: true }, { pending: true }], 'own changes are shown at once');
  const caughtUp = next(again, 'caught_up');
  await again.device.connect();
  t.match(await caughtUp, { complete: true });
  await shows(first, own.id, ({ payload }) => payload?.['text'] === 'mine, edited');
  await settled(after.store, 0);
  const texts = (await again.device.list()).map(({ payload }) => payload?.['text']);
  t.same(texts.sort(), ['mine, edited', 'new', 'theirs']);
  t.same(again.problems, []);
  again.device.close();
  await after.store.close();
});

t.test('STORE-12: a device with a full disk reports it, loses nothing, and continues when there is room', async (t) => {
  const all = await world(t);
  const { first } = all;
  const level = new FlakyLevel();
  const identity = first.identity();
  await createStore(level, { owner: identity, batches: 0, changes: [] });
  const store = await LevelStore.open(level, identity, { reopen: level.reopen });
  const client = await all.open(identity, { store });
  const other = await all.pair();
  await client.device.connect();
  await other.device.connect();
  const kept = await client.device.put(note('kept'));

  level.weather = 'unknown';
  const failed = await refusal(client.device.put(note('refused')));
  t.ok(failed instanceof StoreError && failed.code === 'full', String(failed));
  const problem = next(client, 'problem', ({ error }) => error instanceof StoreError);
  const arrived = await other.device.put(note('from elsewhere'));
  t.match(await problem, { error: { code: 'full' } }, 'the frame that could not be stored is reported');
  t.match(await client.device.get(kept.id), { payload: { text: 'kept' } }, 'reading continues');
  t.equal(await client.device.get(arrived.id), undefined, 'an item that is not stored is not shown');

  level.weather = 'fine';
  t.match(await shows(client, arrived.id), { payload: { text: 'from elsewhere' } }, 'the item is delivered again');
  const { id: last } = await client.device.put(note('afterwards'));
  const texts = (await client.device.list()).map(({ payload }) => payload?.['text']);
  t.same(texts.sort(), ['afterwards', 'from elsewhere', 'kept'], 'the refused item is not there');
  await shows(other, last);
  t.same((await other.device.list()).length, 3);
});
