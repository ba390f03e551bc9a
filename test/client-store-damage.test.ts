/** Damaged local stores are detected, set aside and rebuilt; unsent changes are carried over (the client library). */
import t from 'tap';
import { cp, mkdir, readdir, rm, stat, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ClassicLevel } from 'classic-level';
import { crc32, encodeState, FORMAT, STATE_KEY } from '../src/sdk/store/records.js';
import { openNodeStore } from '../src/sdk/store/node-store.js';
import { databaseFiles, flip } from './support/harm.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';
import { codeOf, idOf, live, OWNER, plain, stateOf, write } from './support/stores.js';

t.setTimeout(240_000);

const ENTRIES = 400;

/** A closed store with entries and three own changes. Tables hold most of it if `compacted`, else its log all of it. */
async function filled(t: WithTeardown, { compacted }: { readonly compacted: boolean }): Promise<string> {
  const folder = join(await temporaryFolder(t), 'store');
  const { store } = await openNodeStore(folder, OWNER);
  const gone = { id: 'gone', version: 1, state: 'deleted' as const, tagged: true, kept: null };
  await store.apply({ entries: [gone], pending: [write(1, 'X'), write(2, 'Y'), write(3, 'Y', null)] });
  for (let n = 0; n < ENTRIES; n += 50) {
    const entries = Array.from({ length: 50 }, (_, at) => live(idOf(n + at), n + at + 1, 500));
    await store.apply({ entries, cursor: { since: n + 50, epoch: 'e' } });
  }
  await store.close();
  if (compacted) await withLevel(folder, (level) => level.compactRange('', '~'));
  return folder;
}

async function withLevel(
  folder: string,
  work: (level: ClassicLevel<string, Uint8Array>) => Promise<unknown>,
): Promise<void> {
  const level = new ClassicLevel<string, Uint8Array>(join(folder, 'current'), { valueEncoding: 'view' });
  await level.open();
  await work(level);
  await level.close();
}

const damages: readonly {
  readonly name: string;
  readonly compacted: boolean;
  readonly harm: (folder: string) => Promise<unknown>;
}[] = [
  {
    name: 'an entry is gone',
    compacted: true,
    harm: (folder) => withLevel(folder, (level) => level.del(`e${idOf(7)}`)),
  },
  {
    name: 'a deletion is gone',
    compacted: true,
    harm: (folder) => withLevel(folder, (level) => level.del('egone')),
  },
  {
    name: 'an own change is gone',
    compacted: true,
    harm: (folder) => withLevel(folder, (level) => level.del('o0000000000000001')),
  },
  {
    name: 'an entry has another bit',
    compacted: true,
    harm: (folder) =>
      withLevel(folder, async (level) => {
        const record = Uint8Array.from((await level.get(`e${idOf(7)}`)) ?? []);
        record[30] = (record[30] ?? 0) ^ 1;
        await level.put(`e${idOf(7)}`, record);
      }),
  },
  {
    name: 'an entry stands under the key of another',
    compacted: true,
    harm: (folder) =>
      withLevel(folder, async (level) =>
        level.put(`e${idOf(7)}`, (await level.get(`e${idOf(8)}`)) ?? new Uint8Array()),
      ),
  },
  {
    name: 'something else is in it',
    compacted: true,
    harm: (folder) => withLevel(folder, (level) => level.put('zz', new Uint8Array(3))),
  },
  { name: 'the state is gone', compacted: true, harm: (folder) => withLevel(folder, (level) => level.del(STATE_KEY)) },
  {
    name: 'the sums are wrong',
    compacted: true,
    harm: (folder) =>
      withLevel(folder, (level) =>
        level.put(
          STATE_KEY,
          encodeState({
            owner: OWNER,
            batches: 9,
            generation: 0,
            cursor: { since: 400, epoch: 'e' },
            itemCount: 399,
            versionSum: 1,
            entries: { count: 401, sum: 1 },
            changes: { count: 3, sum: 1 },
            uploads: { count: 0, sum: 0 },
          }),
        ),
      ),
  },
  {
    name: 'CURRENT is garbage',
    compacted: true,
    harm: (folder) => writeFile(join(folder, 'current', 'CURRENT'), 'xx'),
  },
  {
    name: 'the manifest is gone',
    compacted: true,
    harm: async (folder) => rm((await databaseFiles(folder, /^MANIFEST/))[0] ?? ''),
  },
  {
    name: 'the manifest is cut off',
    compacted: true,
    harm: async (folder) => truncate((await databaseFiles(folder, /^MANIFEST/))[0] ?? '', 20),
  },
  {
    name: 'a table is cut off',
    compacted: true,
    harm: async (folder) => truncate((await databaseFiles(folder, /ldb$/))[0] ?? '', 9_000),
  },
  {
    name: 'a table has another bit',
    compacted: true,
    harm: async (folder) => flip((await databaseFiles(folder, /ldb$/))[0] ?? '', 0.4),
  },
  {
    name: 'the log has another bit',
    compacted: false,
    harm: async (folder) => flip((await databaseFiles(folder, /log$/))[0] ?? '', 0.5),
  },
  {
    name: 'the log is cut off',
    compacted: false,
    harm: async (folder) => truncate((await databaseFiles(folder, /log$/))[0] ?? '', 60_000),
  },
  {
    name: 'the log is empty',
    compacted: false,
    harm: async (folder) => truncate((await databaseFiles(folder, /log$/))[0] ?? '', 0),
  },
];

t.test('STORE-10 STORE-11: a damaged store is detected and set aside, and unsent changes carried over', async (t) => {
  for (const { name, compacted, harm } of damages) {
    const folder = await filled(t, { compacted });
    await harm(folder);
    const { store, repair } = await openNodeStore(folder, OWNER);
    t.comment(`${name}: ${JSON.stringify(repair)?.slice(0, 200)}`);
    t.not(repair, null, `${name}: the damage is detected`);
    t.ok((await stat(repair?.setAside ?? '')).isDirectory(), `${name}: the damaged store is kept`);
    const changes = await store.pending();
    t.equal(changes.length, repair?.carried, `${name}: as many changes as were reported`);
    t.same(await store.cursor(), { since: 0, epoch: null }, `${name}: everything is read again`);
    t.same(await store.held(), { itemCount: 0, versionSum: 0 });
    // What was in an emptied file, or in the damaged bytes themselves, cannot be recovered.
    if (!/^the log|^a table|^an own/.test(name)) {
      const expected = [write(1, 'X'), write(2, 'Y'), write(3, 'Y', null)];
      t.strictSame(plain(changes), plain(expected), `${name}: nothing was lost`);
    }
    await store.apply({ entries: [live('A', 1)], pending: [write(4, 'Z')] });
    const state = await stateOf(store);
    await store.close();
    const again = await openNodeStore(folder, OWNER);
    t.equal(again.repair, null, `${name}: the new store is sound`);
    t.strictSame(await stateOf(again.store), state);
    await again.store.close();
  }
});

t.test('STORE-10 STORE-11: a bit flipped in one of the largest files never yields false data', async (t) => {
  for (const compacted of [true, false]) {
    const sound = await filled(t, { compacted });
    const opened = await openNodeStore(sound, OWNER);
    const truth = JSON.stringify(await stateOf(opened.store));
    const entries = new Set(
      ((await stateOf(opened.store)) as { entries: unknown[] }).entries.map((one) => JSON.stringify(one)),
    );
    // Without what a change is based on: that goes where its predecessor cannot be read.
    const asWritten = (change: object): string => JSON.stringify({ ...change, base: null });
    const changes = new Set(((await stateOf(opened.store)) as { pending: object[] }).pending.map(asWritten));
    await opened.store.close();
    let found = 0;
    for (let at = 0; at < 24; at++) {
      const folder = join(await temporaryFolder(t), 'store');
      await cp(sound, folder, { recursive: true });
      const files = await databaseFiles(folder, /ldb$|log$|^MANIFEST|^CURRENT/);
      const biggest = (await Promise.all(files.map(async (path) => ({ path, size: (await stat(path)).size })))).sort(
        (one, other) => other.size - one.size,
      );
      await flip(biggest[at % Math.min(3, biggest.length)]?.path ?? '', ((at * 7919) % 1000) / 1000);
      const { store, repair } = await openNodeStore(folder, OWNER);
      const state = (await stateOf(store)) as { entries: unknown[]; pending: object[] };
      if (repair === null) t.equal(JSON.stringify(state), truth, 'the flipped bit had no effect');
      else {
        found++;
        if (state.entries.some((one) => !entries.has(JSON.stringify(one)))) t.fail('an entry that never existed');
        if (state.pending.some((change) => !changes.has(asWritten(change)))) t.fail('a change that never existed');
      }
      await store.close();
    }
    t.ok(found > 5, `${found} of 24 flips had an effect, and were detected`);
  }
});

t.test(
  'STORE-11: a change whose predecessor cannot be read is sent as a creation, which overwrites nothing',
  async (t) => {
    const folder = await filled(t, { compacted: true });
    await withLevel(folder, async (level) => {
      const key = 'o0000000000000002';
      const record = Uint8Array.from((await level.get(key)) ?? []);
      record[9] = (record[9] ?? 0) ^ 1;
      await level.put(key, record);
    });
    const { store, repair } = await openNodeStore(folder, OWNER);
    t.match(repair, { carried: 2, lost: 1 });
    t.strictSame(plain(await store.pending()), plain([write(1, 'X'), write(3, 'Y', 0)]));
    await store.close();
  },
);

t.test('STORE-11: a crash while a damaged store is replaced leaves the old store or the new one', async (t) => {
  const folder = await filled(t, { compacted: true });
  const truth = await opening(folder, (state) => state);
  // Before anything was moved: the new store is not used, and is made again when it is needed.
  await cp(join(folder, 'current'), join(folder, 'next'), { recursive: true });
  t.strictSame(await opening(folder, (state) => state), truth);
  // Between the two renames: the new store is whole.
  await rm(join(folder, 'next'), { recursive: true, force: true });
  await cp(join(folder, 'current'), join(folder, 'next'), { recursive: true });
  await rm(join(folder, 'current'), { recursive: true });
  t.strictSame(await opening(folder, (state) => state), truth);
});

async function opening<T>(folder: string, look: (state: unknown) => T): Promise<T> {
  const { store, repair } = await openNodeStore(folder, OWNER);
  if (repair !== null) throw new Error(repair.reason);
  const seen = look(await stateOf(store));
  await store.close();
  return seen;
}

t.test('STORE-10: the last three damaged stores are kept', async (t) => {
  const folder = await filled(t, { compacted: true });
  for (let n = 0; n < 5; n++) {
    await withLevel(folder, (level) => level.put('zz', new Uint8Array(1)));
    await (await openNodeStore(folder, OWNER)).store.close();
  }
  t.equal((await readdir(folder)).filter((name) => name.startsWith('damaged-')).length, 3);
  t.match(await opening(folder, (state) => state), { pending: [{ seq: 1 }, { seq: 2 }, { seq: 3 }] });
});

t.test(
  'STORE-14: the store of another device or tenant, or of a newer program, is refused and left unchanged',
  async (t) => {
    const folder = await filled(t, { compacted: true });
    const truth = await opening(folder, (state) => state);
    t.equal(await codeOf(openNodeStore(folder, { ...OWNER, deviceId: 'another' })), 'other_owner');
    t.equal(await codeOf(openNodeStore(folder, { ...OWNER, tenantId: 'another' })), 'other_owner');
    t.strictSame(await opening(folder, (state) => state), truth);
    await withLevel(folder, async (level) => {
      const state = Uint8Array.from((await level.get(STATE_KEY)) ?? []);
      state[0] = FORMAT + 1;
      const sum = crc32(state.subarray(0, -4), crc32(Buffer.from(STATE_KEY)));
      new DataView(state.buffer).setUint32(state.length - 4, sum);
      await level.put(STATE_KEY, state);
    });
    t.equal(await codeOf(openNodeStore(folder, OWNER)), 'newer_format');
    t.same(
      (await readdir(folder)).filter((name) => name.startsWith('damaged-')),
      [],
    );
  },
);

t.test('STORE-14: nothing is carried over from a damaged store into that of another device', async (t) => {
  const folder = await filled(t, { compacted: true });
  await withLevel(folder, (level) => level.del(STATE_KEY));
  const { store, repair } = await openNodeStore(folder, { ...OWNER, deviceId: 'another' });
  t.match(repair, { carried: 0, lost: null });
  t.same(await store.pending(), []);
  await store.close();
});

t.test('STORE-10: a file in place of the database is set aside too', async (t) => {
  const folder = join(await temporaryFolder(t), 'store');
  await mkdir(folder);
  await writeFile(join(folder, 'current'), 'a file');
  const { store, repair } = await openNodeStore(folder, OWNER);
  t.match(repair, { carried: 0, lost: null });
  await store.close();
});
