/** Live queries over the local copy: their updates, the order of these, their cost; and those of two real devices. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import t from 'tap';
import type { ItemView } from '../src/sdk/events.js';
import {
  changesBetween,
  Matches,
  newestFirst,
  planOf,
  type QueryUpdate,
  found,
  fold,
  searchedText,
  SEARCHED,
  wordsOf,
  type QueryFilter,
} from '../src/sdk/query.js';
import { QUERIES_MAX } from '../src/sdk/live-query-index.js';
import { MemoryStore, type Head } from '../src/sdk/store/store.js';
import type { Change } from '../src/sdk/wire.js';
import { moveTag } from '../src/crypto/item.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { CONTENT_TYPES, type LiveItem } from '../src/protocol/item.js';
import type { Device } from '../src/sdk/device.js';
import { openNodeStore } from '../src/sdk/store/node-store.js';
import { deleteTag, sealedRow, settle } from './support/client.js';
import { refusal, next, note, wiretap, world, type Client } from './support/client-world.js';
import { replayed, shelf } from './support/queries.js';
import { until } from './support/events.js';

const arrives = (item: LiveItem): Change => ({ kind: 'item', id: item.id, version: item.version, item });
const head = (id: number, ts: number): Head => ({
  ...{ id: String(id), binId: 'inbox', type: 'text', ts, version: 1, pending: false, tag: null },
});

const texts = (items: readonly ItemView[]): unknown[] => items.map(({ payload }) => payload?.['text']);

t.test('SDK-01 SDK-03: a query gives its result at once, then an update per batch and own change', async (t) => {
  const world = await shelf();
  const rows = [world.row(), world.row(), world.row()];
  await world.replica.apply(rows.map(arrives));
  const updates: QueryUpdate[] = [];
  const query = await world.shelf.query({ limit: 4 }, (update) => updates.push(update));
  t.same(texts(updates[0]?.items ?? []), ['text 3', 'text 2', 'text 1'], 'before it resolves');
  t.same(
    updates[0]?.changes.map(({ kind }) => kind),
    ['added', 'added', 'added'],
  );
  await world.replica.apply([world.row(), world.row(), world.row()].map(arrives));
  await settle();
  t.equal(updates.length, 2, 'three items, one batch, one update');
  t.same(texts(query.current), ['text 6', 'text 5', 'text 4', 'text 3'], 'as many as the limit');
  t.equal(updates[1]?.total, 6);
  const mine = sealedRow(world.me, { version: 0, ts: 2_000_000_000_000, payload: { text: 'mine' } });
  const pending = await world.own({ kind: 'write', id: mine.id, base: 0, row: mine, rewrap: false });
  await settle();
  t.match(query.current[0], { payload: { text: 'mine' }, pending: true, version: 0 });
  await world.outbox.acknowledged(pending, 7, () => false);
  await settle();
  t.match(query.current[0], { payload: { text: 'mine' }, pending: false, version: 7 });
  const told = updates.length;
  await world.replica.apply([{ kind: 'ack', id: mine.id, version: 7 }]);
  await settle();
  t.equal(updates.length, told, 'the stream confirms what is already shown: no update');
  t.same(texts((await world.library.list()).slice(0, 4)), texts(query.current), 'the same as `list`');
  t.same(replayed(updates), query.current);
});

t.test('SDK-04: a query follows moves, deletes, replaces, quarantine, reset and own deletes', async (t) => {
  const world = await shelf();
  const [moved, gone, changed, forged, lost] = [world.row(), world.row(), world.row(), world.row(), world.row()];
  await world.replica.apply([moved, gone, changed, forged, lost].map(arrives));
  const updates: QueryUpdate[] = [];
  const query = await world.shelf.query({ binId: 'inbox', order: 'oldest' }, (update) => updates.push(update));
  const elsewhere = await world.shelf.query({ binId: 'work' }, () => undefined);
  t.same(texts(query.current), ['text 1', 'text 2', 'text 3', 'text 4', 'text 5']);
  const sig = moveTag(nodeSodium, moved, { binId: 'work', masterKey: world.me.masterKey });
  await world.replica.apply([arrives({ ...moved, version: world.version(), binId: 'work', sig })]);
  await settle();
  t.same(texts(query.current), ['text 2', 'text 3', 'text 4', 'text 5']);
  t.equal(elsewhere.current.length, 1);
  const tag = deleteTag(world.me, gone.id);
  await world.replica.apply([{ kind: 'delete', id: gone.id, version: world.version(), sig: tag }]);
  const newer = world.row({ id: changed.id, payload: { text: 'changed' } });
  await world.replica.apply([arrives(newer)]);
  await settle();
  t.same(texts(query.current), ['text 4', 'text 5', 'changed'], 'with its later ts the changed item moves to the end');
  await world.replica.apply([arrives({ ...forged, version: world.version(), binId: 'inbox', ts: forged.ts + 1 })]);
  await settle();
  t.same(texts(query.current), ['text 5', 'changed'], 'an item that does not verify is not shown');
  await world.replica.reset('another');
  await settle();
  t.same(
    query.current.map(({ version }) => version),
    [0, 0],
    'after a reset no version is known, and all items stay readable',
  );
  await world.replica.apply([arrives({ ...newer, version: 1 })]);
  await settle();
  t.same(
    query.current.map(({ version }) => version),
    [0, 1],
    'the new history gives the item a version again',
  );
  await world.own({ kind: 'delete', id: lost.id, base: 0, sig: deleteTag(world.me, lost.id) });
  await settle();
  t.same(texts(query.current), ['changed'], 'an own delete is shown before it is sent');
  t.same(replayed(updates), query.current);
  t.same(world.problems, []);
});

t.test('SDK-02: the changes of an update, applied in order to the last result, give the new one', (t) => {
  const view = (id: number, version: number): ItemView => ({
    ...{ id: String(id), binId: 'inbox', type: 'text', ts: id, senderDevice: 'd', version },
    ...{ pending: false, payload: null, blob: null },
  });
  const lists = fc.array(fc.uniqueArray(fc.tuple(fc.nat(8), fc.nat(2)), { selector: ([id]) => id }), {
    minLength: 1,
    maxLength: 6,
  });
  const property = fc.assert.bind(
    null,
    fc.property(lists, (made) => {
      const known = new Map<string, ItemView>();
      const results = made.map((list) =>
        list.map(([id, version]) => {
          const key = `${id} ${version}`;
          known.set(key, known.get(key) ?? view(id, version));
          return known.get(key) ?? view(id, version);
        }),
      );
      const updates = results.map((items, at) => ({
        items,
        offset: 0,
        total: items.length,
        changes: changesBetween(results[at - 1] ?? [], items),
      }));
      const last = results.at(-1) ?? [];
      return replayed(updates).every((item, at) => item === last[at]);
    }),
    {},
  );
  t.doesNotThrow(property);
  t.end();
});

t.test('SDK-04: after any series of changes a query shows what a new one would', async (t) => {
  const world = await shelf();
  const updates: QueryUpdate[] = [];
  const wanted = { text: 'odd', order: 'oldest', limit: 5 } as const;
  const query = await world.shelf.query(wanted, (update) => updates.push(update));
  const known: LiveItem[] = [];
  let seed = 7;
  const chance = (below: number): number => (seed = (seed * 48_271) % 2_147_483_647) % below;
  for (let step = 0; step < 150; step++) {
    const old = known[chance(known.length + 1)];
    const payload = { text: chance(2) === 0 ? `even ${step}` : `odd ${step}` };
    if (old === undefined || chance(3) > 0) {
      const row = world.row({
        payload,
        id: old?.id,
        ts: old === undefined ? undefined : 1_700_000_000_000 + 10 * step,
      });
      known.push(row);
      await world.replica.apply([arrives(row)]);
    } else if (chance(2) === 0) {
      const sig = deleteTag(world.me, old.id);
      await world.replica.apply([{ kind: 'delete', id: old.id, version: world.version(), sig }]);
    } else {
      await world.replica.apply([arrives({ ...old, version: world.version(), sig: null })]);
    }
    if (chance(4) === 0) await settle();
  }
  await settle();
  const anew = await (await shelf(world.store)).library.list();
  t.same(anew, [], 'another master key opens no item');
  const fresh = await world.shelf.query(wanted, () => undefined);
  t.same(query.current, fresh.current);
  t.ok(fresh.current.length > 0);
  t.same(replayed(updates), query.current);
});

t.test(
  'SDK-04: a query shows an item that changed while it was read, and was back before it was read again',
  async (t) => {
    const wrong: string[] = [];
    for (let at = 0; at < 60; at++)
      for (const lasts of [1, 3, 6, 10]) {
        const world = await shelf();
        const row = world.row();
        await world.replica.apply([arrives(row)]);
        const query = await world.shelf.query({}, () => undefined);
        await world.replica.apply([arrives({ ...world.row({ id: row.id }), ts: row.ts + 1 })]);
        for (let turns = at; turns > 0; turns--) await Promise.resolve();
        const deleted = world.own({ kind: 'delete', id: row.id, base: 2, sig: new Uint8Array(32) });
        for (let turns = lasts; turns > 0; turns--) await Promise.resolve();
        const withdrawn = world.outbox.withdraw(row.id);
        await Promise.all([deleted, withdrawn]);
        await settle();
        if (texts(query.current).join() !== texts(await world.library.list()).join()) wrong.push(`${at} ${lasts}`);
      }
    t.same(wrong, []);
  },
);

t.test('SDK-05: each content is decrypted once, whatever the number of queries and frames', async (t) => {
  const world = await shelf();
  await world.replica.apply(Array.from({ length: 300 }, () => arrives(world.row())));
  const plain = await world.shelf.query({ limit: 20 }, () => undefined);
  t.equal(world.counts.opened, 20, 'order, bin and type need no decryption: only what is shown is opened');
  await world.shelf.query({ text: 'text' }, () => undefined);
  t.equal(world.counts.opened, 300, 'a search opens each item once');
  await world.shelf.query({ text: '7', types: ['text'] }, () => undefined);
  await world.shelf.query({ text: 'nowhere' }, () => undefined);
  t.equal(world.counts.opened, 300, 'the next queries reuse the plaintext');
  for (let frame = 0; frame < 50; frame++) {
    await world.replica.apply([arrives(world.row())]);
    await settle();
  }
  t.equal(world.counts.opened, 350, 'fifty frames: fifty items, for four queries together');
  t.equal(plain.current.length, 20);
  await world.replica.reset('another');
  await settle();
  t.equal(world.counts.opened, 350, 'a reset changes no content');
});

t.test('SDK-31: the window of a query moves, and only what enters it is opened', async (t) => {
  const world = await shelf();
  await world.replica.apply(Array.from({ length: 50 }, () => arrives(world.row())));
  const updates: QueryUpdate[] = [];
  const query = await world.shelf.query({ offset: 10, limit: 5 }, (update) => updates.push(update));
  t.same(texts(query.current), ['text 40', 'text 39', 'text 38', 'text 37', 'text 36']);
  t.match(updates, [{ offset: 10, total: 50 }]);
  t.equal(world.counts.opened, 5);
  await query.move({ offset: 12 });
  t.same(texts(query.current), ['text 38', 'text 37', 'text 36', 'text 35', 'text 34']);
  t.match(updates[1], { offset: 12, total: 50, items: query.current });
  t.equal(world.counts.opened, 7, 'two items entered the window');
  await world.replica.apply([arrives(world.row())]);
  await settle();
  t.same(texts(query.current), ['text 39', 'text 38', 'text 37', 'text 36', 'text 35'], 'a new item shifts all by one');
  t.match(updates[2], { offset: 12, total: 51 });
  await query.move({ offset: 49, limit: 9 });
  t.same(texts(query.current), ['text 2', 'text 1'], 'at the end the window has fewer items');
  await query.move({ offset: 1_000_000 });
  t.same(query.current, [], 'beyond the end it has none');
  t.match(updates.at(-1), { offset: 1_000_000, total: 51 });
  t.same(replayed(updates), query.current);
  const told = updates.length;
  await query.move({ offset: 1_000_000 });
  t.equal(updates.length, told, 'the same window causes no update');
  await Promise.all([query.move({ offset: 3, limit: 2 }), query.move({ offset: 4 })]);
  t.same(texts(query.current), ['text 47', 'text 46'], 'the last move counts');
  for (const wrong of [{ offset: -1 }, { offset: 0.5 }, { offset: NaN }, { limit: 0 }, { limit: 5_001 }]) {
    t.ok((await refusal(query.move(wrong))) instanceof RangeError);
    t.ok((await refusal(world.shelf.query(wrong, () => undefined))) instanceof RangeError);
  }
  query.close();
  const before = updates.length;
  await query.move({ offset: 0 });
  t.equal(updates.length, before, 'a closed query receives nothing');
});

t.test('SDK-31: a change among 50,000 items costs a few comparisons', (t) => {
  let compared = 0;
  const matches = new Matches((one, other) => {
    compared++;
    return newestFirst(one, other);
  });
  matches.fill(Array.from({ length: 50_000 }, (_, at) => head(at, at)));
  compared = 0;
  matches.place([{ id: '20000', head: head(20_000, 40_000.5) }]);
  t.ok(compared < 50, `${compared} comparisons`);
  t.match(matches.within({ offset: 9_998, limit: 3 }), [{ ts: 40_001 }, { id: '20000' }, { ts: 40_000 }]);
  t.end();
});

t.test('SDK-04: a query that is opened while a change is being read first gets the whole result', async (t) => {
  const world = await shelf();
  await world.replica.apply(Array.from({ length: 5 }, () => arrives(world.row())));
  const first = await world.shelf.query({}, () => undefined);
  await world.replica.apply([arrives(world.row())]);
  const lengths: number[] = [];
  const second = await world.shelf.query({}, ({ items }) => lengths.push(items.length));
  t.same(lengths, [6]);
  t.same(second.current, first.current);
});

t.test(
  'SDK-06: a closed query receives nothing, the last one frees the index, and their number is bounded',
  async (t) => {
    const world = await shelf();
    await world.replica.apply([arrives(world.row())]);
    let told = 0;
    const all = [];
    for (let made = 0; made < QUERIES_MAX; made++) all.push(await world.shelf.query({}, () => (told += 1)));
    t.equal((await refusal(world.shelf.query({}, () => undefined))).code, 'too_many');
    t.ok((await refusal(world.shelf.query({ limit: 0 }, () => undefined))) instanceof RangeError);
    t.equal(told, QUERIES_MAX);
    for (const query of all) query.close();
    await world.replica.apply([arrives(world.row())]);
    await settle();
    t.equal(told, QUERIES_MAX);
    t.same(world.outbox.dirty.take(), { all: false, ids: [] }, 'no changes are collected without a listener');
    const before = world.counts.opened;
    const again = await world.shelf.query({}, () => undefined);
    t.equal(again.current.length, 2);
    t.equal(world.counts.opened, before + 2, 'the plaintext was released');
  },
);

t.test('SDK-35: counts are closed one by one, even with the same listener, and end with the index', async (t) => {
  const world = await shelf();
  await world.replica.apply([arrives(world.row())]);
  let told = 0;
  const listener = (): void => void (told += 1);
  const first = await world.shelf.counts(listener);
  await world.shelf.counts(listener);
  t.equal(told, 2);
  first.close();
  await world.replica.apply([arrives(world.row())]);
  await settle();
  t.equal(told, 3, 'the other count is reported');
  world.shelf.close();
  await world.replica.apply([arrives(world.row())]);
  await settle();
  t.equal(told, 3);
  t.same(world.outbox.dirty.take(), { all: false, ids: [] }, 'no changes are collected without a listener');
});

t.test(
  'SDK-06: a query that is opened while the last one is closed in the middle of a reading misses nothing',
  async (t) => {
    const world = await shelf();
    await world.replica.apply([arrives(world.row()), arrives(world.row())]);
    const first = await world.shelf.query({}, () => undefined);
    // Everything is being read again when the first query is closed, and a change arrives before the second opens.
    const { entries } = world.store;
    const held: (() => void)[] = [];
    world.store.entries = async function* () {
      yield* entries.call(world.store);
      await new Promise<void>((resolve) => held.push(resolve));
    };
    await world.replica.reset('another');
    const late = world.row();
    await settle();
    first.close();
    await world.replica.apply([arrives(late)]);
    world.store.entries = entries.bind(world.store);
    const opening = world.shelf.query({}, () => undefined);
    await settle();
    for (const go of held) go();
    const second = await opening;
    t.equal(second.current.length, 3);
    t.equal(held.length, 1, 'the first query was in the middle of its reading');
  },
);

t.test('SDK-06: a listener that throws disturbs no other, and a store that fails is read again', async (t) => {
  const store = new MemoryStore();
  const world = await shelf(store);
  await world.shelf.query({}, () => {
    throw new Error('a listener of the program');
  });
  await world.shelf.counts(() => {
    throw new Error('counts');
  });
  const query = await world.shelf.query({}, () => undefined);
  const { get } = store;
  await world.replica.apply([arrives(world.row())]);
  await settle();
  t.equal(query.current.length, 1);
  const thrown = [{ message: 'a listener of the program' }, { message: 'counts' }];
  t.match(world.problems, [...thrown, ...thrown]);
  await world.replica.apply([arrives(world.row())]);
  store.get = () => Promise.reject(new Error('disk failed'));
  await settle();
  t.match(world.problems.at(-1), { message: 'disk failed' });
  store.get = get.bind(store);
  await world.replica.apply([arrives(world.row())]);
  await settle();
  t.equal(query.current.length, 3, 'the items that were missed meanwhile are there too');
});

t.test('SDK-06: a store that failed is read again without another change, ever later while it fails', async (t) => {
  const world = await shelf();
  const query = await world.shelf.query({}, () => undefined);
  const row = world.row();
  await world.store.apply({ entries: [{ id: row.id, version: 1, state: 'live', row }] });
  const get = world.store.get.bind(world.store);
  world.store.get = () => Promise.reject(new Error('disk failed'));
  world.outbox.dirty.mark([row.id]);
  for (const found of [0, 0, 1]) {
    await settle();
    world.clock.advance(500);
    await settle();
    t.equal(query.current.length, found);
    if (world.problems.length === 2) world.store.get = get;
  }
  query.close();
  t.equal(world.clock.waiting, 0);
});

t.test('SDK-07: a search ignores case, accents and width, requires each word somewhere, and skips secrets', (t) => {
  const finds = (text: string, payload: Record<string, unknown>): boolean =>
    found(wordsOf(text), searchedText('text', payload));
  for (const [sought, text] of [
    ['creme brulee', 'Crème Brûlée'],
    ['STRASSE', 'Große Straße'],
    ['οδος', 'ΟΔΟΣ'],
    ['smorrebrod', 'Smørrebrød'],
    ['ｗｉｄｅ', 'wide'],
    ['istanbul', 'İstanbul ıstanbul'],
    ['one  two', 'two, then\none'],
  ] as const) {
    t.ok(finds(sought, { text }), sought);
  }
  t.notOk(finds('one three', { text: 'one two' }));
  t.ok(finds('  ', { text: 'anything' }), 'no words match everything');
  const password = searchedText('password', { service: 'Mail', user: 'Ann', secret: 'hunter2' });
  t.notOk(found(wordsOf('hunter2'), password));
  t.ok(found(wordsOf('MAIL ann'), password));
  t.notOk(finds('5', { text: 5, other: '5' }), 'only strings, and only fields of the table');
  t.same(Object.keys(SEARCHED).sort(), [...CONTENT_TYPES].sort());
  t.equal(fold(fold('Ǻngström ﬁ')), fold('Ǻngström ﬁ'), 'folding twice is the same as folding once');
  t.equal(wordsOf('x '.repeat(100_000)).length, 500, 'the number of words is bounded');
  t.end();
});

t.test('SDK-02: matches stay sorted after any series of placements', (t) => {
  const property = fc.assert.bind(
    null,
    fc.property(fc.array(fc.array(fc.tuple(fc.nat(9), fc.option(fc.nat(4))))), fc.nat(12), (rounds, many) => {
      const matches = new Matches(planOf({}).compare);
      const model = new Map<string, Head>();
      for (const [round, steps] of rounds.entries()) {
        // One round has so many that everything is sorted anew.
        const changes = (round === many ? Array.from({ length: 150 }, () => steps).flat() : steps).map(([id, ts]) => ({
          id: String(id),
          head: ts === null ? undefined : head(id, ts),
        }));
        matches.place(changes);
        for (const { id, head: made } of changes) {
          if (made === undefined) model.delete(id);
          else model.set(id, made);
        }
      }
      const sorted = [...model.values()].sort(newestFirst);
      const shown = matches.within({ offset: 1, limit: 99 });
      return shown.every((entry, at) => entry === sorted[at + 1]) && matches.size === sorted.length;
    }),
    {},
  );
  t.doesNotThrow(property);
  t.end();
});

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
        if (init.method === 'POST' && /\/items(\?|$)/.test(url)) await writable;
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
