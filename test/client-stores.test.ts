/** What every store of the client guarantees: one suite for all of them (the client library). */
import fc from 'fast-check';
import t from 'tap';
import { ClassicLevel } from 'classic-level';
import { createStore, LevelStore, type Level } from '../src/sdk/store/level-store.js';
import { STATE_KEY } from '../src/sdk/store/records.js';
import { StoreError } from '../src/sdk/store/error.js';
import { headOfEntry, type Batch } from '../src/sdk/store/store.js';
import { settle } from './support/client.js';
import { inLongRun } from './support/long.js';
import { temporaryFolder } from './support/postgres.js';
import { allOf, anyBatch, idOf, KINDS, live, memoryLevel, OWNER, plain, stateOf, write } from './support/stores.js';

t.setTimeout(120_000);

const byId = (one: { readonly id: string }, other: { readonly id: string }): number => (one.id < other.id ? -1 : 1);

for (const kind of KINDS) {
  t.test(`STORE-01: ${kind.name}: a batch takes effect as a whole, and persists across reopening`, async (t) => {
    const bench = await kind.make(t);
    t.same(await stateOf(bench.store), {
      cursor: { since: 0, epoch: null },
      held: { itemCount: 0, versionSum: 0 },
      pending: [],
      entries: [],
    });
    // A byte order mark at the start of a text is part of it.
    const epoch = '\ufeffe';
    await bench.store.apply({
      entries: [live('A', 3), live('B', 4), { id: 'C', version: 5, state: 'deleted', tagged: true, kept: null }],
      cursor: { since: 5, epoch },
      pending: [write(2, 'D'), write(1, 'A', 3), write(3, 'D', null)],
    });
    await bench.store.apply({ done: [3, 77], entries: [live('B', 6)] });
    const before = await stateOf(bench.store);
    t.match(before, { cursor: { since: 5, epoch }, held: { itemCount: 2, versionSum: 9 } });
    t.same(
      (await bench.store.pending()).map(({ seq }) => seq),
      [1, 2],
    );
    t.match(await bench.store.get('C'), { state: 'deleted' });
    t.equal(await bench.store.get('nobody'), undefined);
    await bench.reopen();
    t.same(await stateOf(bench.store), before);
  });

  t.test(`STORE-02: ${kind.name}: calls take effect in the order in which they are made`, async (t) => {
    const { store } = await kind.make(t);
    const seen = await Promise.all([
      store.get('A'),
      store.held(),
      store.apply({ entries: [live('A', 1)], cursor: { since: 1, epoch: null } }),
      store.get('A'),
      store.cursor(),
      store.apply({ entries: [live('A', 2)], cursor: { since: 2, epoch: null }, pending: [write(1, 'A')] }),
      store.get('A'),
      store.pending(),
      store.held(),
      store.apply({ done: [1] }),
      store.pending(),
    ]);
    const [none, nothing, , first, cursor, , second, pending, held, , left] = seen;
    t.equal(none, undefined, 'a read called before the batch sees nothing of it');
    t.same(nothing, { itemCount: 0, versionSum: 0 });
    t.match(first, { version: 1 });
    t.same(cursor, { since: 1, epoch: null });
    t.match(second, { version: 2 });
    t.equal(pending.length, 1);
    t.same(held, { itemCount: 1, versionSum: 2 });
    t.same(left, []);
  });

  t.test(`STORE-22: ${kind.name}: the heads match the entries whenever they are requested`, async (t) => {
    const bench = await kind.make(t);
    const same = async (what: string): Promise<void> => {
      const { store } = bench;
      const listed = (await allOf(store)).flatMap((entry) => headOfEntry(entry) ?? []);
      const heads = (await store.heads?.()) ?? new Map(listed.map((head) => [head.id, head]));
      t.same([...heads.values()].sort(byId), listed.sort(byId), what);
      t.same(
        [...heads.keys()],
        [...heads.values()].map(({ id }) => id),
      );
    };
    await same('nothing');
    await bench.store.apply({ entries: [live('A', 1), live('B', 2), live('C', 3)], pending: [write(1, 'D')] });
    await same('some');
    await bench.reopen();
    await same('as the check at opening found them');
    await bench.reopen();
    await bench.store.apply({
      entries: [live('A', 4), { id: 'B', version: 5, state: 'deleted', tagged: true, kept: null }],
    });
    await bench.store.apply({ entries: [live('E', 6)] });
    await same('changed since');
    await bench.reopen();
    await bench.store.apply({ forgetVersions: true, entries: [live('F', 1)] });
    await same('without their versions');
  });

  t.test(`STORE-03: ${kind.name}: versions are forgotten in one step, contents stay`, async (t) => {
    const bench = await kind.make(t);
    await bench.store.apply({ entries: [live('A', 1), live('B', 2)] });
    const before = await bench.store.get('A');
    await bench.store.apply({ forgetVersions: true, cursor: { since: 0, epoch: 'new' }, entries: [live('C', 9)] });
    t.same(await bench.store.held(), { itemCount: 1, versionSum: 9 });
    t.same(plain(await bench.store.get('A')), plain({ ...before, version: 0 }));
    await bench.store.apply({ entries: [live('A', 10)] });
    t.same(await bench.store.held(), { itemCount: 2, versionSum: 19 });
    await bench.reopen();
    t.same(await bench.store.held(), { itemCount: 2, versionSum: 19 });
    t.match(await bench.store.get('B'), { version: 0, state: 'live' });
  });

  t.test(`STORE-04: ${kind.name}: entries are iterated while others are changed`, async (t) => {
    const { store } = await kind.make(t);
    const total = 600;
    const ids = Array.from({ length: total }, (_, n) => idOf(n));
    await store.apply({ entries: ids.map((id, n) => live(id, n + 1)) });
    const seen: string[] = [];
    for await (const entry of store.entries()) {
      seen.push(entry.id);
      if (seen.length % 100 === 0) await store.apply({ entries: [live(entry.id, 10_000 + seen.length)] });
    }
    t.same(seen.sort(), ids, 'each once, and writes do not wait for the end of the iteration');
    for await (const _ of store.entries()) break;
    t.equal((await allOf(store)).length, total, 'an iteration that was left early disturbs no other');
  });
}

t.test('STORE-02: a batch waits for reads that were called before it, however slow they are', async (t) => {
  const inner = memoryLevel();
  let open: () => void = () => undefined;
  const gate = new Promise<void>((resolve) => {
    open = resolve;
  });
  const level: Level = {
    close: () => inner.close(),
    // The state's record is read at opening, which must not wait.
    get: async (key) => {
      if (key !== STATE_KEY) await gate;
      return inner.get(key);
    },
    getMany: (keys) => inner.getMany(keys),
    iterator: (options) => inner.iterator(options),
    batch: (operations, options) => inner.batch(operations, options),
  };
  await createStore(level, { owner: OWNER, batches: 0, changes: [] });
  const store = await LevelStore.open(level, OWNER);
  const early = store.get('A');
  const applied = store.apply({ entries: [live('A', 1)] });
  await settle();
  open();
  t.equal(await early, undefined);
  await applied;
  t.match(await store.get('A'), { version: 1 });
});

t.test('STORE-05: any series of batches gives the same result in all stores, also after reopening', async (t) => {
  const runs = [
    { kinds: KINDS.slice(0, 2), numRuns: inLongRun(50, 150) },
    { kinds: KINDS, numRuns: inLongRun(5, 15) },
  ];
  for (const { kinds, numRuns } of runs) {
    await fc.assert(
      fc.asyncProperty(fc.array(anyBatch, { maxLength: 12 }), fc.nat(12), async (batches: Batch[], reopenAt) => {
        const benches = await Promise.all(kinds.map((kind) => kind.make(t)));
        for (const [at, batch] of batches.entries()) {
          await Promise.all(benches.map(({ store }) => store.apply(batch)));
          if (at === reopenAt) await Promise.all(benches.map((bench) => bench.reopen()));
        }
        await Promise.all(benches.map((bench) => bench.reopen()));
        const [expected, ...others] = await Promise.all(benches.map(({ store }) => stateOf(store)));
        await Promise.all(benches.map((bench) => bench.close()));
        for (const other of others) t.strictSame(other, expected);
        return true;
      }),
      { numRuns },
    );
  }
});

t.test('STORE-22: what the check at opening has read is not read again', async (t) => {
  const level = memoryLevel();
  await createStore(level, { owner: OWNER, batches: 0, changes: [] });
  const before = await LevelStore.open(level, OWNER);
  await before.apply({ entries: [live('A', 1), live('B', 2)] });
  await before.close();
  await level.open();
  let scans = 0;
  const iterator = level.iterator.bind(level);
  level.iterator = (options) => {
    scans++;
    return iterator(options);
  };
  const store = await LevelStore.open(level, OWNER);
  t.equal((await store.heads()).size, 2);
  t.equal(scans, 1);
  t.equal((await store.heads()).size, 2);
  t.equal(scans, 2, 'the first caller owns the heads that it got, so they are read anew');
  await store.close();
});

t.test('STORE-17: 50,000 items are opened, iterated and reset in bounded memory', async (t) => {
  const inner = new ClassicLevel<string, Uint8Array>(await temporaryFolder(t), { valueEncoding: 'view' });
  await inner.open();
  t.teardown(() => inner.close());
  let most = 0;
  let written = 0;
  const level: Level = {
    close: () => inner.close(),
    get: (key) => inner.get(key),
    getMany: (keys) => inner.getMany(keys),
    iterator: (options) => {
      const iterator = inner.iterator(options);
      const nextv = async (size: number): Promise<[string, Uint8Array][]> => {
        const records = await iterator.nextv(size);
        most = Math.max(most, records.length);
        return records;
      };
      return { nextv, close: () => iterator.close() };
    },
    batch: (operations, options) => {
      written = operations.length;
      return inner.batch(operations, options);
    },
  };
  await createStore(level, { owner: OWNER, batches: 0, changes: [] });
  const total = 50_000;
  const filling = await LevelStore.open(level, OWNER);
  for (let n = 0; n < total; n += 500) {
    await filling.apply({ entries: Array.from({ length: 500 }, (_, at) => live(idOf(n + at), n + at + 1, 32)) });
  }
  const store = await LevelStore.open(level, OWNER);
  t.same(await store.held(), { itemCount: total, versionSum: (total * (total + 1)) / 2 });
  let seen = 0;
  for await (const _ of store.entries()) seen++;
  t.equal(seen, total);
  t.ok(most <= 256, `${most} records at once`);
  await store.apply({ forgetVersions: true });
  t.equal(written, 1, 'forgetting all versions is one record');
  t.same(await store.held(), { itemCount: 0, versionSum: 0 });
});

for (const kind of KINDS.slice(1)) {
  t.test(`STORE-06: ${kind.name}: closing completes earlier calls, and later ones are refused`, async (t) => {
    const bench = await kind.make(t);
    const { store } = bench;
    const ends: string[] = [];
    const applied = store.apply({ entries: [live('A', 1)] }).then(() => ends.push('applied'));
    const read = store.get('A');
    const closed = bench.close().then(() => ends.push('closed'));
    await Promise.all([applied, closed, bench.close()]);
    t.same(ends, ['applied', 'closed']);
    t.match(await read, { version: 1 });
    for (const late of [store.get('A'), store.apply({}), store.held(), store.pending(), allOf(store)]) {
      const error = await late.then(
        () => undefined,
        (cause: unknown) => cause,
      );
      t.ok(error instanceof StoreError && error.code === 'closed', String(error));
    }
  });
}
