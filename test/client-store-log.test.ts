/** A log that was damaged after its program was killed, which LevelDB alone would ignore (the client library). */
import { cp, stat, truncate } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { openNodeStore } from '../src/sdk/store/node-store.js';
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
): Promise<{ readonly reason: string | null; readonly items: number; readonly changes: number }> {
  const folder = join(await temporaryFolder(t), 'store');
  await cp(sound, folder, { recursive: true });
  const [log = ''] = await databaseFiles(folder, /log$/);
  await harm(log);
  const { store, repair } = await openNodeStore(folder, OWNER);
  const items = (await store.held()).itemCount;
  const changes = (await store.pending()).length;
  await store.close();
  return { reason: repair?.reason ?? null, items, changes };
}

t.test('STORE-18: a flipped bit in a log that was never closed is detected', async (t) => {
  const sound = await abandoned(t);
  t.same(await harmed(t, sound, () => Promise.resolve()), { reason: null, items: WRITES, changes: WRITES });
  for (const share of [0.02, 0.3, 0.6, 0.9, 0.999]) {
    const { reason, items } = await harmed(t, sound, (log) => flip(log, share));
    t.equal(reason, 'a record of its log does not fit its checksum', `at ${share}`);
    t.equal(items, 0);
  }
});

t.test('STORE-18: a write that was cut off when the program ended does not count as damage', async (t) => {
  const sound = await abandoned(t);
  for (const bytes of [1, 6, 300]) {
    const cut = async (log: string): Promise<void> => truncate(log, (await stat(log)).size - bytes);
    t.same(await harmed(t, sound, cut), { reason: null, items: WRITES - 1, changes: WRITES - 1 }, `${bytes} bytes`);
  }
});
