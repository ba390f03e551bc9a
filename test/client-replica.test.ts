/** The client's local copy: what the ordered stream may and may not do to it. */
import t from 'tap';
import { FRESH, MemoryStore, unversioned } from '../src/sdk/store/store.js';
import { Emitter, type DeviceEvents, type EventName } from '../src/sdk/events.js';
import { Outbox } from '../src/sdk/outbox.js';
import { Replica } from '../src/sdk/replica.js';
import type { Change } from '../src/sdk/wire.js';
import { makeItemTag } from '../src/crypto/item-tag.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { LiveItem } from '../src/protocol/item.js';
import { deleteTag, newId, newIdentity, sealedRow } from './support/client.js';
import { TestClock } from './support/clock.js';

async function replica(me = newIdentity(), fetchNext?: (since: number) => Promise<Change | undefined>) {
  const store = new MemoryStore();
  const outbox = await Outbox.load(store, new TestClock());
  const told: { name: EventName; event: DeviceEvents[EventName] }[] = [];
  const emitter = new Emitter((error) => {
    throw error;
  });
  const names: EventName[] = ['item', 'delete', 'quarantined', 'untagged_delete', 'reset'];
  for (const name of names) emitter.on(name, (event) => told.push({ name, event }));
  const made = new Replica({
    store,
    outbox,
    sodium: nodeSodium,
    reader: { masterKey: me.masterKey, device: { id: me.deviceId, keys: me.keys } },
    emit: emitter.emit,
    fetchNext: fetchNext ?? (() => Promise.reject(new Error('nothing to fetch'))),
  });
  return { replica: made, store, outbox, me, told };
}

const arrives = (item: LiveItem): Change => ({ kind: 'item', id: item.id, version: item.version, item });
const summary = (version: number, itemCount: number, versionSum: number) => ({
  version,
  epoch: 'e',
  itemCount,
  versionSum,
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
  t.same(await world.store.cursor(), { since: 0, epoch: 'f' });
  t.same(await world.store.held(), { itemCount: 0, versionSum: 0 });
  await world.replica.apply([arrives({ ...(rows[0] as LiveItem), version: 1 })]);
  t.match(await world.replica.settle({ ...summary(1, 1, 1), epoch: 'f' }), { complete: true });
  t.same(await unversioned(world.store), [rows[1]?.id], 'items that the new history lacks are known');
});

t.test(
  'CLIENT-27 CLIENT-28: the cursor moves on the ack of an own write, whichever of reply and ack is first',
  async (t) => {
    for (const order of ['reply first', 'ack first']) {
      const world = await replica();
      const row = sealedRow(world.me, { version: 0 });
      const { pending, stored } = world.outbox.add({ kind: 'write', id: row.id, base: 0, row, rewrap: false });
      await stored;
      const reply = Promise.resolve().then(() => world.outbox.acknowledged(pending, 8));
      world.outbox.sending(row.id, reply);
      if (order === 'reply first') {
        await reply;
        t.same(await world.store.cursor(), FRESH, `${order}: the reply does not move the cursor`);
        t.equal(world.outbox.newest(row.id, undefined)?.version, 8);
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
