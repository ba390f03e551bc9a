/** A store whose disk is full, read-only, or in use by another process (the client library). */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import t from 'tap';
import { Outbox } from '../src/sdk/outbox.js';
import { createStore, LevelStore } from '../src/sdk/store/level-store.js';
import { openNodeStore } from '../src/sdk/store/node-store.js';
import { MemoryStore, type Batch } from '../src/sdk/store/store.js';
import { TestClock } from './support/clock.js';
import { FlakyLevel, type Weather } from './support/flaky-level.js';
import { inLongRun } from './support/long.js';
import { temporaryFolder } from './support/postgres.js';
import { smallDisk } from './support/small-disk.js';
import { anyBatch, codeOf, idOf, live, OWNER, stateOf, write } from './support/stores.js';

t.setTimeout(120_000);

async function flaky(): Promise<{ readonly level: FlakyLevel; readonly store: LevelStore }> {
  const level = new FlakyLevel();
  await createStore(level, { owner: OWNER, batches: 0, changes: [] });
  return { level, store: await LevelStore.open(level, OWNER, { reopen: level.reopen }) };
}

t.test(
  'STORE-12: a batch without room changes nothing and gets `full`; the store works again when there is room',
  async (t) => {
    for (const weather of ['lost', 'unknown'] as const) {
      const { level, store } = await flaky();
      await store.apply({ entries: [live('A', 1)], pending: [write(1, 'B')] });
      const before = await stateOf(store);
      level.weather = weather;
      t.equal(
        await codeOf(store.apply({ entries: [live('A', 2)], done: [1], cursor: { since: 2, epoch: 'e' } })),
        'full',
      );
      t.equal(await codeOf(store.apply({ entries: [live('C', 3)] })), 'full', 'the next batch too');
      t.strictSame(await stateOf(store), before, 'reading continues');
      level.weather = 'fine';
      await store.apply({ entries: [live('D', 4)] });
      t.equal(level.opened, 1, 'the database was reopened once');
      t.equal(await store.get('C'), undefined);
      t.match(await store.get('A'), { version: 1 }, 'the batch that was reported as failed is not there');
      t.same(await store.held(), { itemCount: 2, versionSum: 5 });
      await store.close();
      await level.open();
      t.same(await (await LevelStore.open(level, OWNER)).held(), { itemCount: 2, versionSum: 5 });
    }
  },
);

t.test('STORE-04 STORE-12: an iteration goes on where the database is opened anew after a failed write', async (t) => {
  const { level, store } = await flaky();
  const ids = Array.from({ length: 1_000 }, (_, n) => idOf(n)).sort();
  await store.apply({ entries: ids.map((id) => live(id, 1)) });
  const fail = async (): Promise<void> => {
    level.weather = 'lost';
    t.equal(await codeOf(store.apply({ entries: [live(idOf(0), 2)] })), 'full');
    level.weather = 'fine';
    await store.apply({ entries: [live(idOf(0), 3)] });
  };
  const seen: string[] = [];
  for await (const { id } of store.entries()) {
    seen.push(id);
    if (seen.length === 1 || seen.length === 300) await fail();
  }
  t.same(seen, ids);
  t.equal(level.opened, 2);
  const iteration = store.entries()[Symbol.asyncIterator]();
  await iteration.next();
  await store.close();
  const rest = async (): Promise<void> => {
    while ((await iteration.next()).done !== true);
  };
  await t.rejects(rest(), { code: 'closed' });
});

t.test('STORE-12: any series of batches and failures leaves exactly the batches that succeeded', async (t) => {
  const step = fc.record({ batch: anyBatch, weather: fc.constantFrom<Weather>('fine', 'fine', 'lost', 'unknown') });
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 15 }), async (steps: { batch: Batch; weather: Weather }[]) => {
      const { level, store } = await flaky();
      const model = new MemoryStore();
      for (const { batch, weather } of steps) {
        level.weather = weather;
        if ((await codeOf(store.apply(batch))) === 'none') await model.apply(batch);
      }
      level.weather = 'fine';
      await store.close();
      await level.open();
      t.strictSame(await stateOf(await LevelStore.open(level, OWNER)), await stateOf(model));
    }),
    { numRuns: inLongRun(50, 150) },
  );
});

const NO_MOUNT = 'this user may not mount a small disk';

t.test('STORE-12: LevelDB on a full disk gets `full`, keeps what was stored, and recovers with room', async (t) => {
  const disk = await smallDisk(t, '4m');
  if (disk === undefined) return t.comment(NO_MOUNT);
  const { store } = await openNodeStore(join(disk, 'store'), OWNER);
  const answered: string[] = [];
  let failure = 'none';
  for (let n = 0; n < 500 && failure === 'none'; n++) {
    failure = await codeOf(store.apply({ entries: [live(idOf(n), n + 1, 20_000)] }));
    if (failure === 'none') answered.push(idOf(n));
  }
  t.equal(failure, 'full');
  t.ok(answered.length > 10, `${answered.length} batches fitted`);
  t.equal(await codeOf(store.apply({ pending: [write(1, 'B')] })), 'full', 'the disk is still full');
  t.match(await store.get(answered[0] ?? ''), { version: 1 }, 'reading continues');
  t.equal(spawnSync('mount', ['-o', 'remount,size=64m', disk]).status, 0);
  await store.apply({ pending: [write(2, 'C')] });
  for (const id of answered) if ((await store.get(id)) === undefined) t.fail(`${id} is lost`);
  t.same((await store.held()).itemCount, answered.length);
  await store.close();
  const again = await openNodeStore(join(disk, 'store'), OWNER);
  t.equal(again.repair, null, 'nothing is damaged');
  t.same((await again.store.held()).itemCount, answered.length);
  t.match(await again.store.pending(), [{ seq: 2 }]);
  await again.store.close();
});

t.test('STORE-12: opening on a full or read-only disk gets `full` or `read_only`, and loses nothing', async (t) => {
  const disk = await smallDisk(t, '4m');
  if (disk === undefined) return t.comment(NO_MOUNT);
  const folder = join(disk, 'store');
  const { store } = await openNodeStore(folder, OWNER);
  await store.apply({ pending: [write(1, 'B')] });
  await store.close();
  const filler = join(disk, 'filler');
  await writeFile(filler, Buffer.alloc(8 * 1024 * 1024)).catch(() => undefined);
  t.equal(await codeOf(openNodeStore(folder, OWNER)), 'full');
  await rm(filler);
  t.equal(spawnSync('mount', ['-o', 'remount,ro', disk]).status, 0);
  t.equal(await codeOf(openNodeStore(folder, OWNER)), 'read_only');
  t.equal(spawnSync('mount', ['-o', 'remount,rw', disk]).status, 0);
  const again = await openNodeStore(folder, OWNER);
  t.equal(again.repair, null);
  t.match(await again.store.pending(), [{ seq: 1 }]);
  await again.store.close();
});

t.test('STORE-13: a second process gets `locked` until the first one closes the store or ends', async (t) => {
  const folder = join(await temporaryFolder(t), 'store');
  const script = `
    const { openNodeStore } = await import(process.argv[1]);
    const open = () => openNodeStore(process.argv[2], { tenantId: 'tenant', deviceId: '${OWNER.deviceId}' });
    let opened = await open();
    console.log('open');
    for await (const _ of process.stdin) {
      if (opened === undefined) opened = await open();
      else opened = await opened.store.close();
      console.log('done');
    }`;
  const module = new URL('../src/sdk/store/node-store.js', import.meta.url).href;
  const args = ['--input-type=module', '-e', script, module, folder];
  const child = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  t.teardown(() => child.kill('SIGKILL'));
  await once(child.stdout, 'data');
  t.equal(await codeOf(openNodeStore(folder, OWNER)), 'locked');
  t.equal((await stat(folder)).mode & 0o777, 0o700);
  /** Closes the store in the other process, which lives on, or opens it there again. */
  const turn = async (): Promise<unknown> => {
    const done = once(child.stdout, 'data');
    child.stdin.write('turn\n');
    return done;
  };
  await turn();
  await (await openNodeStore(folder, OWNER)).store.close();
  await turn();
  t.equal(await codeOf(openNodeStore(folder, OWNER)), 'locked', 'it was free while the first one had closed it');
  child.kill('SIGKILL');
  await once(child, 'close');
  const { store, repair } = await openNodeStore(folder, OWNER);
  t.equal(repair, null);
  t.equal(await codeOf(openNodeStore(folder, OWNER)), 'locked', 'within one process too');
  await store.close();
  await (await openNodeStore(folder, OWNER)).store.close();
});

t.test(
  'CLIENT-69: where a batch of the outbox fails, memory is as before, but for what has changed meanwhile',
  async (t) => {
    const store = new MemoryStore();
    const [passed, kept, gone] = [write(1, 'A'), write(2, 'B'), write(3, 'C')];
    await store.apply({ pending: [passed, kept, gone] });
    const outbox = await Outbox.load(store, new TestClock());
    let fail: (error: Error) => void = () => undefined;
    const { apply } = store;
    store.apply = () => new Promise<void>((_, reject) => (fail = reject));
    const change = outbox.replace(
      [passed, kept].map((own) => ({ ...own, version: own.seq })),
      [gone],
    );
    t.same([...outbox.unconfirmed()], [passed.seq, kept.seq]);
    store.apply = apply;
    // The stream passes one of them.
    await outbox.replace([], [passed]);
    fail(new Error('the disk is full'));
    await t.rejects(change, { message: 'the disk is full' });
    t.same(outbox.all(), [kept, gone], 'as a restart finds it');
    t.same(outbox.all(), await store.pending());
    t.notOk(outbox.isCertain(kept), 'it will be sent again');
  },
);
