/** A log that was damaged after its program was killed, which LevelDB alone would ignore (the client library). */
import { cp, rm, stat, truncate } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { openNodeStore } from '../src/sdk/store/node-store.js';
import type { OpenedStore } from '../src/sdk/store/open.js';
import { databaseFiles, flip } from './support/harm.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';
import { idOf, live, OWNER, write } from './support/stores.js';

t.setTimeout(120_000);

const WRITES = 5;

/** A store as `kill -9` leaves it: everything is in its log, and `expected.json` dates from its opening. */
async function abandoned(t: WithTeardown): Promise<string> {
  const folder = join(await temporaryFolder(t), 'store');
  const { store } = await openNodeStore(folder, OWNER);
  for (let n = 1; n <= WRITES; n++) await store.apply({ entries: [live(idOf(n), n)], pending: [write(n, idOf(n))] });
  const copy = `${folder}-copy`;
  await cp(folder, copy, { recursive: true });
  await store.close();
  return copy;
}

async function harmed(
  t: WithTeardown,
  sound: string,
  harm: (log: string) => Promise<unknown>,
): Promise<{ reason: string | null; items: number; changes: number; lost?: number | null }> {
  const folder = join(await temporaryFolder(t), 'store');
  await cp(sound, folder, { recursive: true });
  const [log = ''] = await databaseFiles(folder, /log$/);
  await harm(log);
  const { store, repair } = await openNodeStore(folder, OWNER);
  const items = (await store.held()).itemCount;
  const changes = (await store.pending()).length;
  await store.close();
  const lost = repair === null ? {} : { lost: repair.lost };
  return { reason: repair?.reason ?? null, items, changes, ...lost };
}

t.test('STORE-18: a flipped bit in a log that was never closed is detected', async (t) => {
  const sound = await abandoned(t);
  t.same(await harmed(t, sound, () => Promise.resolve()), { reason: null, items: WRITES, changes: WRITES });
  for (const share of [0.02, 0.3, 0.6, 0.9, 0.999]) {
    const { reason, items, lost } = await harmed(t, sound, (log) => flip(log, share));
    t.equal(reason, 'a record of its log does not fit its checksum', `at ${share}`);
    t.equal(items, 0);
    t.equal(lost, null, 'it is not said that no change was lost: what came after that record is not known');
  }
});

t.test('STORE-18: nor is it said of a store in an older state than that in which it was closed', async (t) => {
  const folder = join(await temporaryFolder(t), 'store');
  const open = (): Promise<OpenedStore> => openNodeStore(folder, OWNER);
  const { store } = await open();
  const older = `${folder}-older`;
  await cp(folder, older, { recursive: true });
  await store.apply({ pending: [write(1, idOf(1))] });
  await store.close();
  await rm(join(folder, 'current'), { recursive: true });
  await cp(join(older, 'current'), join(folder, 'current'), { recursive: true });
  const again = await open();
  t.match(again.repair, { reason: 'it is an older state than the last one', carried: 0, lost: null });
  await again.store.close();
});

t.test('STORE-18: a write that was cut off when the program ended does not count as damage', async (t) => {
  const sound = await abandoned(t);
  for (const bytes of [1, 6, 300]) {
    const cut = async (log: string): Promise<void> => truncate(log, (await stat(log)).size - bytes);
    t.same(await harmed(t, sound, cut), { reason: null, items: WRITES - 1, changes: WRITES - 1 }, `${bytes} bytes`);
  }
});
