/** A store that refuses some blobs for ever (rights, a lock on the object): no other blob waits for them. */
import { randomBytes } from 'node:crypto';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { blobJobs, type Refused } from '../src/server/app/blobs.js';
import { admin } from './support/admin.js';
import { never, stageOf, type Stage } from './support/blob-stage.js';
import { askUpload, uploaded, uploadOf } from './support/blobs.js';

const MINUTE_MS = 60_000;
const DAY_MS = 24 * 60 * MINUTE_MS;

/** Inserts blobs whose items are gone, each a byte large, the first the oldest; returns their refs. */
async function orphans({ scene: { server } }: Stage, count: number): Promise<string[]> {
  const rows = await server.sql(
    `INSERT INTO blobs (tenant_id, ref, size, state, created_at)
      SELECT $1, '01ARZ3NDEKTSV4RRFF' || lpad(n::text, 8, '0') || '.bin', 1, 'orphan', n
      FROM generate_series(1, $2) n RETURNING ref`,
    [server.tenantId, count],
  );
  await server.sql('UPDATE tenants SET storage_bytes = storage_bytes + $2 WHERE id = $1', [server.tenantId, count]);
  return rows.map(({ ref }) => String(ref)).sort();
}

t.test('BLOB-46: blobs that can never be removed delay no others, in a run and from run to run', async (t) => {
  const stage = await stageOf(t);
  const refs = await orphans(stage, 1_250);
  for (const ref of refs.slice(0, 1_150)) stage.store.locked.add(ref);
  const left = async (): Promise<number> =>
    Number((await stage.scene.server.sql('SELECT count(*)::int AS n FROM blobs'))[0]?.['n']);
  const first = await stage.reaper.removeUnused(never);
  t.match(
    first,
    { done: 0, refused: 1_000, fault: { error: 'storage_unavailable' } },
    'a run ends after so many refusals',
  );
  stage.clock.advance(DAY_MS);
  const second = await stage.reaper.removeUnused(never);
  t.equal(second.done, 100, 'the next run begins with blobs that were not tried yet');
  t.ok(second.refused >= 1_000 && second.refused < 1_100);
  t.equal(await left(), 1_150);
  await stage.sound();
  stage.clock.advance(DAY_MS);
  stage.store.locked.clear();
  t.match(await stage.reaper.removeUnused(never), { done: 1_150, refused: 0, fault: undefined }, 'none is forgotten');
  t.equal(await stage.used(), 0);
  await stage.sound();
});

t.test('BLOB-46: a blob that was tried while the clock was ahead is not left for years', async (t) => {
  const stage = await stageOf(t);
  const [ref = ''] = await orphans(stage, 1);
  stage.store.locked.add(ref);
  stage.clock.advance(365 * DAY_MS);
  t.match(await stage.reaper.removeUnused(never), { done: 0, refused: 1 });
  stage.clock.advance(-365 * DAY_MS);
  stage.store.locked.clear();
  t.equal(await stage.removed(), 1);
});

t.test('BLOB-46 BLOB-23: expired uploads are released though the store refuses to report on others', async (t) => {
  const stage = await stageOf(t, { STORAGE_CAP_BYTES: '10000' });
  const { wire, first } = stage.scene;
  for (let n = 0; n < 9; n++) stage.store.locked.add((await uploadOf(wire, first, { size: 1_000 })).blobRef);
  await uploadOf(wire, first, { size: 900 });
  t.equal((await askUpload(wire, first, { size: 500 })).outcome, '413 storage_cap_exceeded');
  stage.clock.advance(16 * MINUTE_MS);
  t.match(await stage.reaper.releaseExpired(never), { done: 1, refused: 9, fault: { error: 'storage_unavailable' } });
  t.equal(await stage.used(), 9_000, 'uploads that the store did not report on still count');
  t.equal((await askUpload(wire, first, { size: 500 })).outcome, '200');
  await stage.sound();
});

t.test(
  'BLOB-46: strays that cannot be removed are reported, and missing blobs are looked for all the same',
  async (t) => {
    const stage = await stageOf(t);
    const lost = await stage.item(20);
    await rm(join(stage.folder, lost.ref));
    const stray = await uploaded(stage.scene.wire, stage.scene.first, randomBytes(10));
    await stage.scene.server.sql(
      'WITH gone AS (DELETE FROM blobs WHERE ref = $1) UPDATE tenants SET storage_bytes = storage_bytes - 10',
      [stray],
    );
    stage.store.broken = true;
    stage.clock.advance(2 * DAY_MS);
    const found = await stage.reaper.compare(true, never);
    t.match(found, {
      strays: 1,
      done: 0,
      refused: 1,
      fault: { error: 'storage_unavailable' },
      missing: 1,
      whole: true,
    });
    stage.store.broken = false;
    t.match(await stage.reaper.compare(true, never), { strays: 1, done: 1, refused: 0, missing: 1 });
    t.match(await stage.reaper.compare(true, never), { strays: 0 });
  },
);

t.test('BLOB-46: a store that is entirely unreachable ends a run at once', async (t) => {
  const stage = await stageOf(t);
  await orphans(stage, 300);
  stage.store.away = true;
  await t.rejects(stage.reaper.removeUnused(never), { name: 'ServiceError', error: 'storage_unavailable' });
  t.ok(stage.store.calls < 20, `the run ends early: ${stage.store.calls} calls`);
  stage.store.away = false;
  t.equal(await stage.removed(), 300);
  await stage.sound();
});

t.test('BLOB-46: a run that is aborted sends the store no request', async (t) => {
  const stage = await stageOf(t);
  await orphans(stage, 300);
  const stopped = new AbortController();
  stopped.abort();
  t.match(await stage.reaper.removeUnused(stopped.signal), { done: 0 });
  t.equal(stage.store.calls, 0);
});

t.test('BLOB-46: a nightly run reports refusals once; purge and verify report how many are left', async (t) => {
  const stage = await stageOf(t);
  const refs = await orphans(stage, 130);
  // A folder where the file should be: removing a file fails on it, for root too.
  for (const ref of refs.slice(0, 120)) await mkdir(join(stage.folder, ref), { recursive: true });
  await writeFile(join(stage.folder, refs[125] ?? ''), 'x');
  const told: Refused[] = [];
  const watch = { onRefused: (refused: Refused) => void told.push(refused), onCompared: () => undefined };
  for (const job of blobJobs(stage.reaper, watch)) await job.batch(never);
  t.match(told, [{ job: 'remove blobs without use', refused: 120 }]);
  t.equal(told.length, 1);
  const operator = await admin(t, stage.env);
  const purged = await operator.json('purge');
  t.match(purged.data, { refusedBlobs: [{ job: 'remove blobs without use', objects: 120, why: /EISDIR|directory/i }] });
  const plain = await operator.plain('purge');
  t.match(plain.stdout, /^remove blobs without use: the store refused 120 blobs \(/m);
  const verified = await operator.json('verify');
  t.match(verified, { code: EXIT.ok, data: { blobs: { unremoved: { count: 120, bytes: 120 }, missing: 0 } } });
  t.match((await operator.plain('verify')).stdout, /^120 blobs \(120 bytes\) without an item could not be removed/m);
  for (const ref of refs.slice(0, 120)) await rm(join(stage.folder, ref), { recursive: true });
  t.match((await operator.json('purge')).data, { refusedBlobs: [] });
  t.match((await operator.json('verify')).data, { blobs: { unremoved: { count: 0 } } });
});
