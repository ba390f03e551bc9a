/**
 * The client's local copy: what the ordered stream may and may not do to it, missing items, which are fetched or reported,
 * and a damaged store, which is rebuilt.
 */
import { join } from 'node:path';
import { ClassicLevel } from 'classic-level';
import t from 'tap';
import { FRESH, MemoryStore, unversioned } from '../src/sdk/store/store.js';
import { Emitter, type DeviceEvents, type EventName } from '../src/sdk/events.js';
import { ItemReader } from '../src/sdk/item-reader.js';
import { Outbox } from '../src/sdk/outbox.js';
import { Replica, stopsReading } from '../src/sdk/replica.js';
import type { Change } from '../src/sdk/wire.js';
import { makeItemTag } from '../src/crypto/item-tag.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { LiveItem } from '../src/protocol/item.js';
import { createStore, LevelStore } from '../src/sdk/store/level-store.js';
import { openNodeStore } from '../src/sdk/store/node-store.js';
import { StoreError } from '../src/sdk/store/error.js';
import { deleteTag, newId, newIdentity, sealedRow } from './support/client.js';
import { TestClock } from './support/clock.js';
import { next, note, refusal, shows, wiretap, world, type Client } from './support/client-world.js';
import { until } from './support/events.js';
import { FlakyLevel } from './support/flaky-level.js';
import { temporaryFolder } from './support/postgres.js';

t.setTimeout(180_000);

async function replica(me = newIdentity(), fetchNext?: (since: number) => Promise<Change | undefined>) {
  const store = new MemoryStore();
  const outbox = await Outbox.load(store, new TestClock());
  const told: { name: EventName; event: DeviceEvents[EventName] }[] = [];
  const emitter = new Emitter((error) => {
    throw error;
  });
  const names: EventName[] = ['item', 'delete', 'quarantined', 'untagged_delete', 'reset'];
  for (const name of names) emitter.on(name, (event) => told.push({ name, event }));
  const options = {
    store,
    outbox,
    sodium: nodeSodium,
    reader: { masterKey: me.masterKey, device: { id: me.deviceId, keys: me.keys } },
    emit: emitter.emit,
    fetchNext: fetchNext ?? (() => Promise.reject(new Error('nothing to fetch'))),
  };
  return { replica: new Replica(options), options, store, outbox, me, told };
}

const arrives = (item: LiveItem): Change => ({ kind: 'item', id: item.id, version: item.version, item });
const summary = (version: number, itemCount: number, versionSum: number) => ({
  version,
  epoch: 'e',
  itemCount,
  versionSum,
});

t.test(
  'STORE-15: what a killed program left acknowledged and delivered leaves the outbox when the stream has caught up',
  async (t) => {
    const world = await replica();
    const made = ['delivered', 'not yet', 'not acknowledged'].map(() => {
      const row = sealedRow(world.me, { version: 0 });
      return { row, ...world.outbox.add({ kind: 'write', id: row.id, base: 0, row, rewrap: false }) };
    });
    await Promise.all(made.map(async ({ stored }) => stored));
    const [delivered, undelivered, unsent] = made.map(({ pending }) => pending);
    if (!delivered || !undelivered || !unsent) throw new Error('no changes');
    await world.outbox.acknowledged(delivered, 5, () => false);
    await world.outbox.acknowledged(undelivered, 6, () => false);
    // As by a program that was killed when it had stored the acknowledgement of a change whose frame came before.
    const row = { ...(made[0]?.row ?? sealedRow(world.me, { version: 0 })), version: 5 };
    await world.store.apply({ entries: [{ id: row.id, version: 5, state: 'live', row }] });
    const outbox = await Outbox.load(world.store, new TestClock());
    const again = new Replica({ ...world.options, outbox });
    await again.settle(summary(5, 1, 5));
    t.strictSame(outbox.ids().toSorted(), [undelivered.id, unsent.id].toSorted());
    t.equal((await world.store.pending()).length, 2, 'also in the store');
  },
);

t.test(
  'CLIENT-31: what the old history acknowledged is sent again, however high the versions of the new one are',
  async (t) => {
    const world = await replica();
    const row = sealedRow(world.me, { version: 0 });
    const { pending, stored } = world.outbox.add({ kind: 'write', id: row.id, base: 0, row, rewrap: false });
    await stored;
    await world.outbox.acknowledged(pending, 10, () => false);
    await world.replica.reset('f');
    // The item as the backup had it, which was restored into a history with higher versions.
    const older = { ...sealedRow(world.me, { version: 21 }), id: row.id };
    await world.replica.apply([arrives(older)]);
    await world.replica.settle({ ...summary(21, 1, 21), epoch: 'f' });
    await world.outbox.rebase();
    t.match(world.outbox.unsent(), [{ id: row.id, base: 21, version: null }]);
    t.match(await world.store.pending(), [{ id: row.id, base: 21, version: null }]);
  },
);

t.test('CLIENT-63: a late reply to a change that a state which does not open has replaced is believed', async (t) => {
  for (const good of [undefined, 4, 5]) {
    const world = await replica();
    const before = sealedRow(world.me, { version: 3, ts: 1_000 });
    await world.replica.apply([arrives(before)]);
    const { id } = before;
    const row = sealedRow(world.me, { version: 0, ts: 2_000, id });
    const { pending, stored } = world.outbox.add({ kind: 'write', id, base: 3, row, rewrap: false });
    await stored;
    // Of another device, where the stream gave the version of the reply or a later one to its state.
    if (good !== undefined) await world.replica.apply([arrives(sealedRow(world.me, { version: good, ts: 1_500, id }))]);
    await world.replica.apply([arrives(sealedRow(newIdentity(), { version: 6, ts: 3_000, id }))]);
    t.match(await world.store.get(id), { state: 'quarantined', version: 6 });
    const isBelieved = await world.outbox.mayBecome(pending, 4);
    t.equal(isBelieved, good === undefined, 'not where the stream contradicts it');
    if (!isBelieved) continue;
    await world.outbox.acknowledged(pending, 4, () => false);
    const items = new ItemReader({ ...world.options, onProblem: (error) => t.fail(error) });
    t.match(await items.kept(id), { ts: 2_000 }, 'the change is the last good state');
    const acknowledged = world.outbox.unconfirmed();
    await world.replica.settle(summary(6, 1, 6));
    t.same(await world.store.pending(), []);
    t.same(await world.outbox.resend(acknowledged), [], 'it is not missing either');
    t.match(await world.store.get(id), { state: 'quarantined', kept: { ts: 2_000 } });
  }
});

t.test(
  'LIAR-122: an older state that is stored while the reply to a change is read does not make it vanish',
  async (t) => {
    const world = await replica();
    const before = sealedRow(world.me, { version: 3, ts: 1_000 });
    await world.replica.apply([arrives(before)]);
    const row = { ...sealedRow(world.me, { version: 0, ts: 2_000 }), id: before.id };
    const { pending, stored } = world.outbox.add({ kind: 'write', id: row.id, base: 3, row, rewrap: false });
    await stored;
    const { store } = world;
    const apply = store.apply.bind(store);
    // The frame was judged before the reply is known, and its state is readable after that.
    store.apply = async (batch) => {
      store.apply = apply;
      await world.outbox.acknowledged(pending, 4, () => false);
      return apply(batch);
    };
    await world.replica.apply([arrives({ ...before, version: 5 })]);
    await world.replica.settle(summary(5, 1, 5));
    t.match(await store.pending(), [{ id: row.id, version: 4 }], 'the change stays');
    t.same(await world.outbox.resend(world.outbox.unconfirmed()), [row.id], 'and is sent again');
    t.match(world.outbox.unsent(), [{ id: row.id, base: 5, version: null }]);
  },
);

t.test('LIAR-128: what a state that does not verify replaces is the change acknowledged after it', async (t) => {
  const states: readonly ((row: LiveItem, own: LiveItem) => Change)[] = [
    ({ id }) => ({ kind: 'delete', id, version: 4, sig: null }),
    (_, own) => arrives({ ...own, version: 4, master: null, inline: own.inline && { ...own.inline, keys: new Map() } }),
  ];
  for (const state of states) {
    const world = await replica();
    const before = sealedRow(world.me, { version: 3, ts: 1_000 });
    await world.replica.apply([arrives(before)]);
    const row = sealedRow(world.me, { id: before.id, version: 0, ts: 2_000 });
    const { pending, stored } = world.outbox.add({ kind: 'write', id: row.id, base: 3, row, rewrap: false });
    await stored;
    await world.replica.apply([state(before, row)]);
    await world.outbox.acknowledged(pending, 4, () => false);
    const reader = new ItemReader({ ...world.options, onProblem: () => undefined });
    t.match(await reader.kept(row.id), { ts: 2_000 });
    await world.replica.settle(summary(4, 0, 0));
    t.same(await world.store.pending(), []);
    t.match(await reader.kept(row.id), { ts: 2_000 }, 'also when the change has left the outbox');
  }
});

t.test('CLIENT-29: applying the same version twice changes nothing', async (t) => {
  const world = await replica();
  const row = sealedRow(world.me, { version: 5 });
  await world.replica.apply([arrives(row), arrives(row)]);
  await world.replica.apply([arrives(row), arrives({ ...row, version: 4, binId: 'other' })]);
  t.equal(world.told.length, 1);
  t.match(world.told[0], { name: 'item', event: { id: row.id, payload: { text: 'text 5' } } });
  t.same(await world.store.cursor(), { since: 5, epoch: null });
  t.match(await world.store.get(row.id), { state: 'live', version: 5, row: { binId: 'inbox' } });
});

t.test('CLIENT-02 CLIENT-03 CLIENT-04: an item that cannot be opened is quarantined with its reason', async (t) => {
  const world = await replica();
  const stranger = newIdentity();
  const base = sealedRow(world.me, { version: 1 });
  const cases: [reason: string, row: LiveItem][] = [
    ['no_sig', { ...base, sig: null }],
    ['bad_sig', { ...base, binId: 'other' }],
    ['bad_sig', { ...base, ts: base.ts + 1 }],
    ['bad_sig', { ...base, type: 'link' }],
    ['bad_sig', sealedRow(stranger, { version: 1 })],
    ['no_key', { ...base, master: null, inline: base.inline && { ...base.inline, keys: new Map() } }],
  ];
  for (const [at, [reason, row]] of cases.entries()) {
    const id = `${reason} ${at}`;
    const fresh = await replica(world.me);
    await fresh.replica.apply([arrives(row)]);
    t.match(fresh.told, [{ name: 'quarantined', event: { reason } }], id);
    t.match(await fresh.replica.settle(summary(1, 1, 1)), { complete: true }, `${id}: it is counted all the same`);
  }
  const byOwnKey = await replica(world.me);
  await byOwnKey.replica.apply([arrives({ ...base, master: null })]);
  t.match(byOwnKey.told, [{ name: 'item', event: { payload: { text: 'text 1' } } }], 'opens through its device key');
  const byMaster = await replica(world.me);
  await byMaster.replica.apply([arrives({ ...base, inline: base.inline && { ...base.inline, keys: new Map() } })]);
  t.match(byMaster.told, [{ name: 'item', event: { payload: { text: 'text 1' } } }], 'opens through the master wrap');
});

t.test('a server cannot bring back an old text or a deleted item under a new version', async (t) => {
  const world = await replica();
  const old = sealedRow(world.me, { version: 1 });
  const next = sealedRow(world.me, { id: old.id, version: 2 });
  await world.replica.apply([arrives(old), arrives(next), arrives({ ...old, version: 3 })]);
  t.match(world.told.at(-1), { name: 'quarantined', event: { reason: 'rolled_back', version: 3 } });
  t.match(await world.store.get(old.id), { state: 'quarantined', kept: { version: 2 } }, 'the last good state is kept');
  await world.replica.apply([{ kind: 'delete', id: old.id, version: 4, sig: deleteTag(world.me, old.id) }]);
  await world.replica.apply([arrives({ ...next, version: 5 })]);
  t.match(world.told.at(-1), { name: 'quarantined', event: { reason: 'resurrected', version: 5 } });
  await world.replica.reset('f');
  await world.replica.apply([arrives({ ...old, version: 1 })]);
  t.match(world.told.at(-1), { name: 'item', event: { version: 1 } }, 'a restored database may be older');
});

t.test('a re-wrap is not reported, a move is', async (t) => {
  const world = await replica();
  const row = sealedRow(world.me, { version: 1 });
  const moved = { ...row, version: 3, binId: 'other' };
  const sig = makeItemTag(nodeSodium, world.me.masterKey, moved);
  await world.replica.apply([arrives(row), arrives({ ...row, version: 2 }), arrives({ ...moved, sig })]);
  t.same(
    world.told.map(({ name, event }) => [name, 'version' in event && event.version]),
    [
      ['item', 1],
      ['item', 3],
    ],
  );
});

t.test('a delete without a valid tag hides the item, keeps its content and is reported', async (t) => {
  const world = await replica();
  const rows = [1, 2, 3].map((version) => sealedRow(world.me, { version }));
  const [tagged, untagged, forged] = rows.map((row) => row.id) as [string, string, string];
  await world.replica.apply(rows.map(arrives));
  await world.replica.apply([
    { kind: 'delete', id: tagged, version: 4, sig: deleteTag(world.me, tagged) },
    { kind: 'delete', id: untagged, version: 5, sig: null },
    { kind: 'delete', id: forged, version: 6, sig: deleteTag(world.me, tagged) },
    { kind: 'delete', id: newId(), version: 7, sig: null },
  ]);
  const warnings = world.told.filter(({ name }) => name === 'untagged_delete').map(({ event }) => event);
  t.same(warnings, [
    { id: untagged, version: 5, reason: 'no_sig' },
    { id: forged, version: 6, reason: 'bad_sig' },
  ]);
  t.equal(world.told.filter(({ name }) => name === 'delete').length, 3, 'no event for an unknown item');
  t.match(await world.store.get(tagged), { state: 'deleted', kept: null });
  t.match(await world.store.get(untagged), { state: 'deleted', kept: { id: untagged } });
  t.match(await world.replica.settle(summary(7, 0, 0)), { complete: true });
});

t.test('CLIENT-30: a count or a version sum that does not match is detected', async (t) => {
  const world = await replica();
  await world.replica.apply([1, 2, 4].map((version) => arrives(sealedRow(world.me, { version }))));
  t.match(await world.replica.settle(summary(4, 3, 7)), { complete: true });
  t.match(await world.replica.settle(summary(4, 4, 7)), { complete: false });
  t.match(await world.replica.settle(summary(4, 3, 8)), { complete: false });
  t.match(await world.replica.settle(summary(9, 4, 16)), { complete: false });
  t.equal((await world.store.cursor()).since, 4, 'the cursor does not pass over missing versions');
  t.equal(await world.replica.settle({ ...summary(4, 3, 7), epoch: 'f' }), undefined, 'a new epoch without a reset');
});

t.test('CLIENT-31: a reset forgets all versions and keeps the items', async (t) => {
  const world = await replica();
  const rows = [1, 2].map((version) => sealedRow(world.me, { version }));
  await world.replica.apply(rows.map(arrives));
  await world.replica.settle(summary(2, 2, 3));
  await world.replica.reset('f');
  t.same(await world.store.cursor(), { since: 0, epoch: 'f', reset: true });
  t.same(await world.store.held(), { itemCount: 0, versionSum: 0 });
  await world.replica.apply([arrives({ ...(rows[0] as LiveItem), version: 1 })]);
  t.match(await world.replica.settle({ ...summary(1, 1, 1), epoch: 'f' }), { complete: true });
  t.same(await unversioned(world.store), [rows[1]?.id], 'items that the new history lacks are known');
  await world.replica.apply([arrives(sealedRow(newIdentity(), { version: 2 }))]);
  await world.replica.reset('g');
  t.same(
    (await unversioned(world.store)).toSorted(),
    rows.map(({ id }) => id).toSorted(),
    'none that a server made is among them: it cannot be written again, and would stop the others',
  );
});

t.test(
  'CLIENT-27 CLIENT-28: the cursor moves on the ack of an own write, whichever of reply and ack is first',
  async (t) => {
    for (const order of ['reply first', 'ack first']) {
      const world = await replica();
      const row = sealedRow(world.me, { version: 0 });
      const { pending, stored } = world.outbox.add({ kind: 'write', id: row.id, base: 0, row, rewrap: false });
      await stored;
      const reply = Promise.resolve().then(() => world.outbox.acknowledged(pending, 8, () => false));
      world.outbox.sending(row.id, reply);
      if (order === 'reply first') {
        await reply;
        t.same(await world.store.cursor(), FRESH, `${order}: the reply does not move the cursor`);
        t.equal((await world.outbox.look(row.id)).own?.version, 8);
      }
      const other = sealedRow(world.me, { version: 7 });
      await world.replica.apply([arrives(other), { kind: 'ack', id: row.id, version: 8 }]);
      t.same(await world.store.cursor(), { since: 8, epoch: null }, `${order}: the ack does`);
      t.match(await world.store.get(row.id), { state: 'live', version: 8 });
      t.same(world.outbox.ids(), [], `${order}: and the outbox is empty`);
      t.match(await world.replica.settle(summary(8, 2, 15)), { complete: true });
    }
  },
);

t.test('CLIENT-28: on an ack for a write by another program of this device the content is fetched', async (t) => {
  const me = newIdentity();
  const row = sealedRow(me, { version: 4 });
  const asked: number[] = [];
  const world = await replica(me, (since) => {
    asked.push(since);
    return Promise.resolve(arrives(row));
  });
  await world.replica.apply([{ kind: 'ack', id: row.id, version: 4 }]);
  t.same(asked, [3]);
  t.match(world.told, [{ name: 'item', event: { id: row.id, payload: { text: 'text 4' } } }]);
});

const listings = (client: Client): number => client.tap.calls.filter(({ path }) => path.includes('since=0')).length;

t.test('completeness over a socket', async (t) => {
  const all = await world(t);
  const { first } = all;
  await first.device.connect();

  await t.test('SDK-09: items lost from the stream are fetched, and reported by id and version', async (t) => {
    const second = await all.pair();
    const { id: kept } = await first.device.put(note('kept'));
    const { id: removed } = await first.device.put(note('removed'));
    await second.device.connect();
    const repaired: DeviceEvents['repaired'][] = [];
    second.device.on('repaired', (event) => repaired.push(event));
    // One new item, one new state and one delete are swallowed.
    let swallowed = 0;
    second.tap.alterFrame = (frame) => {
      if (!['item', 'delete'].includes(String(frame['type']))) return frame;
      swallowed++;
      return null;
    };
    const fresh = await first.device.put(note('swallowed'));
    const before = (await second.device.get(kept))?.version;
    const changed = await first.device.put({ ...note('changed'), id: kept });
    const gone = await first.device.delete(removed);
    // A reply may be faster than the push to the other device.
    await until('the three frames', () => swallowed === 3);
    second.tap.alterFrame = (frame) => frame;
    const { id: last } = await first.device.put(note('not swallowed'));
    await shows(second, last);
    t.equal(await second.device.get(fresh.id), undefined);
    second.device.disconnect();
    const caughtUp = next(second, 'caught_up');
    await second.device.connect();
    t.match(await caughtUp, { complete: true });
    t.equal(repaired.length, 1);
    t.equal(repaired[0]?.count, 3);
    t.same(
      new Set(repaired[0]?.items.map((item) => JSON.stringify(item))),
      new Set([
        JSON.stringify({ id: fresh.id, version: fresh.version, held: null }),
        JSON.stringify({ id: kept, version: changed.version, held: before }),
        JSON.stringify({
          id: removed,
          version: gone.version,
          held: repaired[0]?.items.find(({ id }) => id === removed)?.held ?? -1,
        }),
      ]),
    );
    t.match(await second.device.get(fresh.id), { payload: { text: 'swallowed' } });
    t.match(await second.device.get(kept), { payload: { text: 'changed' } });
    t.equal(await second.device.get(removed), undefined);
  });

  await t.test('SDK-10: an item that cannot be fetched is reported by version, several by count and sum', async (t) => {
    for (const hidden of [1, 2]) {
      const tap = wiretap();
      const client = await all.open(first.identity(), { tap });
      tap.alterFrame = (frame) =>
        frame['type'] === 'caught_up'
          ? {
              ...frame,
              itemCount: Number(frame['itemCount']) + hidden,
              versionSum: Number(frame['versionSum']) + 1_000 * hidden,
            }
          : frame;
      const missing = next(client, 'missing');
      const caughtUp = next(client, 'caught_up');
      await client.device.connect();
      t.match(await missing, {
        lacking: { itemCount: hidden, versionSum: 1_000 * hidden },
        named: hidden === 1 ? [{ id: null, version: 1_000 }] : [],
      });
      t.same((await missing).named.length, hidden === 1 ? 1 : 0);
      t.match(await caughtUp, { complete: false });
      t.match(await client.device.status(), { missing: await missing, caughtUp: { complete: false } });
      const asked = listings(client);
      client.device.disconnect();
      const again = next(client, 'missing');
      await client.device.connect();
      await again;
      t.equal(listings(client), asked, 'the same gap does not cause everything to be read again at each connection');
      tap.alterFrame = (frame) => frame;
      client.device.disconnect();
      await client.device.connect();
      t.match(await client.device.status(), { missing: null, caughtUp: { complete: true } });
      client.device.close();
    }
  });

  await t.test('SDK-10: an item that the server lost is reported by id and version, and stays readable', async (t) => {
    const store = new MemoryStore();
    const client = await all.open(first.identity(), { store });
    await client.device.connect();
    client.device.disconnect();
    const row = sealedRow(client.identity(), { version: 1, payload: { text: 'lost by the server' } });
    await store.apply({ entries: [{ id: row.id, version: 1, state: 'live', row }] });
    const missing = next(client, 'missing');
    await client.device.connect();
    t.match(await missing, { unlisted: [row.id], named: [{ id: row.id, version: 1 }] });
    t.match(await client.device.get(row.id), { payload: { text: 'lost by the server' } });
    t.same((await client.device.status()).orphaned, [row.id]);
  });
});

t.test('completeness over HTTP', async (t) => {
  const all = await world(t);
  const { first } = all;
  const made: { readonly id: string; readonly version: number }[] = [];
  for (const text of ['one', 'two', 'three']) made.push(await first.device.put(note(text)));

  await t.test('SDK-11: the check without a socket fetches and reports what a listing left out', async (t) => {
    const client = await all.open(first.identity());
    client.tap.alterReply = ({ path }, answer) =>
      path.startsWith('/items?') ? { ...answer, items: (answer['items'] as object[]).slice(1) } : undefined;
    await client.device.pull();
    t.equal((await client.device.list()).length, 2);
    const missing = next(client, 'missing');
    t.equal(await client.device.check(), false);
    t.match(await missing, { named: [{ id: null, version: made[0]?.version }] });
    client.tap.alterReply = () => undefined;
    const repaired = next(client, 'repaired');
    t.equal(await client.device.check(), true);
    t.match(await repaired, { count: 1, items: [{ id: made[0]?.id, version: made[0]?.version, held: null }] });
    t.equal((await client.device.list()).length, 3);
    const fresh = await all.open(first.identity());
    t.equal(await fresh.device.check(), true);
    t.equal(listings(fresh), 1, 'nothing is read twice where nothing is missing');
  });

  await t.test('SDK-12: a damaged item is reported, disturbs no other, and is repaired by resync', async (t) => {
    const store = new MemoryStore();
    const client = await all.open(first.identity(), { store });
    await client.device.pull();
    const id = made[1]?.id ?? '';
    const entry = await store.get(id);
    if (entry?.state !== 'live' || entry.row.inline === null) throw new Error('the item is here');
    const ct = nodeSodium.random(entry.row.inline.ct.length);
    const damaged = { ...entry.row, inline: { ...entry.row.inline, ct } };
    await store.apply({ entries: [{ ...entry, row: damaged }] });
    t.match(await refusal(client.device.get(id)), { code: 'damaged_item', message: /resync/ });
    t.equal((await client.device.list()).length, 2);
    const shown = await client.device.query({}, () => undefined);
    t.equal(shown.current.length, 2);
    t.match(client.problems, [{ code: 'damaged_item' }, { code: 'damaged_item' }]);
    await client.device.resync();
    t.match(await client.device.get(id), { payload: { text: 'two' } });
    t.same(await client.device.hidden(), [], 'the true row is not quarantined as an old one');
  });
});

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
  tap.alterRequest = () => {
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

t.test(
  'CLIENT-53: versions whose sum no history reaches stop the reading, and nothing that was held is lost',
  async (t) => {
    const world = await replica();
    const head = { version: 2 ** 40, state: 'quarantined', reason: 'no_sig', row: null, kept: null } as const;
    await world.store.apply({ entries: Array.from({ length: 8_190 }, () => ({ ...head, id: newId() })) });
    const row = sealedRow(world.me, { version: 2 ** 40 });
    await world.replica.apply([arrives(row)]);
    const before = await world.store.held();
    const further = sealedRow(world.me, { version: 2 ** 40 });
    const error = await refusal(world.replica.applyListed([arrives(further)], null));
    t.match(error, { code: 'bad_sum' });
    t.ok(stopsReading(error));
    t.same(await world.store.held(), before);
    t.match(await world.store.get(row.id), { state: 'live' });
  },
);
