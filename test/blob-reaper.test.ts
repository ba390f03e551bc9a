/** Which blobs are removed when, what counts until then, and a store that refuses some for ever: no other waits. */
import { randomBytes } from 'node:crypto';
import { mkdir, readdir, rm, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ulid } from 'ulid';
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { blobJobs, type Refused } from '../src/server/app/blobs.js';
import { TemporaryTable } from '../src/server/storage/query.js';
import { never, stageOf, type Stage } from './support/blob-stage.js';
import { askUpload, blobItem, downloadUrl, send, uploaded, uploadOf } from './support/blobs.js';
import { newId } from './support/devices.js';
import { admin } from './support/admin.js';
import { until } from './support/events.js';
import { poolOf, testDatabase } from './support/postgres.js';

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const MINUTE_MS = 60_000;

t.test('BLOB-20: an upload that no item names is removed after 24 hours, not before', async (t) => {
  const stage = await stageOf(t);
  const taken = await stage.item(1_000);
  const before = await stage.used();
  const loose = await uploaded(stage.scene.wire, stage.scene.first, randomBytes(500));
  t.equal(await stage.used(), before + 500);
  stage.clock.advance(DAY_MS - MINUTE_MS);
  t.equal(await stage.removed(), 0);
  t.strictSame(await stage.files(), [taken.ref, loose].sort());
  stage.clock.advance(2 * MINUTE_MS);
  t.equal(await stage.removed(), 1);
  t.equal(await stage.removed(), 0);
  t.strictSame(await stage.files(), [taken.ref], 'the blob that an item names stays');
  t.equal(await stage.used(), before);
  await stage.sound();
});

t.test('BLOB-59: an upload that the server did not see may be named for a day from its end', async (t) => {
  const stage = await stageOf(t);
  const { blobRef } = await uploadOf(stage.scene.wire, stage.scene.first, { size: 100 });
  stage.clock.advance(2 * HOUR_MS);
  await mkdir(stage.folder, { recursive: true });
  await writeFile(join(stage.folder, blobRef), randomBytes(100));
  const end = new Date(stage.clock.now());
  await utimes(join(stage.folder, blobRef), end, end);
  t.equal(await stage.released(), 1);
  stage.clock.advance(DAY_MS - MINUTE_MS);
  t.equal(await stage.removed(), 0);
  stage.clock.advance(2 * MINUTE_MS);
  t.equal(await stage.removed(), 1);
  await stage.sound();
});

t.test('BLOB-21: the blob of a deleted or replaced item counts until it is removed, and is freed once', async (t) => {
  const stage = await stageOf(t);
  const { wire, first, ids } = stage.scene;
  const start = await stage.used();
  const doomed = await stage.item(1_000);
  const edited = await stage.item(2_000);
  await wire.delete(`/items/${String(doomed.body['id'])}`, stage.scene.as('a'));
  const next = await uploaded(wire, first, randomBytes(3_000));
  const replacement = { ...blobItem('a', ids, next), id: edited.body['id'], ts: Number(edited.body['ts']) + 1 };
  t.equal((await wire.post('/items', replacement, stage.scene.as('a'))).status, 200);
  t.ok((await stage.used()) >= start + 6_000, 'all three blobs count');
  t.equal((await wire.get(`/blobs/${edited.ref}/url`, stage.scene.as('a'))).outcome, '404 blob_not_found');
  await stage.sound();
  stage.store.broken = true;
  t.match(await stage.reaper.removeUnused(never), { done: 0, refused: 2, fault: { error: 'storage_unavailable' } });
  t.equal((await stage.files()).length, 3, 'blobs that cannot be removed stay, and count');
  t.ok((await stage.used()) >= start + 6_000);
  stage.store.broken = false;
  // Two runs at once: each blob is freed once all the same.
  await Promise.all([stage.removed(), stage.removed()]);
  t.strictSame(await stage.files(), [next]);
  await stage.sound();
  await wire.delete(`/items/${String(edited.body['id'])}`, stage.scene.as('a'));
  t.equal(await stage.removed(), 1);
  t.equal(await stage.used(), start);
  await stage.sound();
});

t.test('BLOB-22: an item that is written while the reaper runs has its blob, or is refused', async (t) => {
  const stage = await stageOf(t);
  const { wire, first, ids } = stage.scene;
  const refs: string[] = [];
  for (let n = 0; n < 24; n++) refs.push(await uploaded(wire, first, randomBytes(100)));
  stage.clock.advance(DAY_MS + MINUTE_MS);
  const writes = refs.map((ref) => wire.post('/items', blobItem('a', ids, ref), stage.scene.as('a')));
  const reaping = (async () => {
    while ((await stage.removed()) > 0);
  })();
  const replies = await Promise.all(writes);
  await reaping;
  const files = await stage.files();
  replies.forEach((reply, at) => {
    const ref = refs[at] ?? '';
    if (reply.status === 200) t.ok(files.includes(ref), 'an accepted item has its blob');
    else t.equal(reply.outcome, '400 blob_not_found');
  });
  await stage.removed();
  t.equal((await stage.files()).length, replies.filter(({ status }) => status === 200).length);
  await stage.sound();
});

t.test('BLOB-23: the room of an upload that never arrived is released, at once where it is needed', async (t) => {
  const stage = await stageOf(t, { STORAGE_CAP_BYTES: '10000' });
  const { wire, first } = stage.scene;
  const ask = async (size: number): Promise<string> => (await askUpload(wire, first, { size })).outcome;
  const lost = await uploadOf(wire, first, { size: 6_000 });
  t.equal(await ask(6_000), '413 storage_cap_exceeded');
  stage.clock.advance(14 * MINUTE_MS);
  t.equal(await ask(6_000), '413 storage_cap_exceeded', 'its URL is still valid');
  t.equal(await stage.released(), 0);
  stage.clock.advance(2 * MINUTE_MS);
  t.equal(await ask(6_000), '200', 'its URL has expired');
  const late = await send('PUT', lost.url, { headers: lost.headers, body: randomBytes(6_000) });
  t.equal(late.outcome, '403 url_invalid');
  await stage.sound();
  stage.clock.advance(20 * MINUTE_MS);
  t.equal(await stage.released(), 1, 'the reaper releases the second one');
  t.equal(await stage.used(), 0);
  await stage.sound();
});

t.test('BLOB-07 BLOB-23: an upload that the server did not see stays, and an item may name it', async (t) => {
  const stage = await stageOf(t);
  const { wire, first, ids } = stage.scene;
  const whole = await uploadOf(wire, first, { size: 100 });
  const short = await uploadOf(wire, first, { size: 100 });
  const early = await uploadOf(wire, first, { size: 100 });
  await mkdir(stage.folder, { recursive: true });
  // As in a bucket: the server does not see these uploads.
  await writeFile(join(stage.folder, whole.blobRef), randomBytes(100));
  await writeFile(join(stage.folder, short.blobRef), randomBytes(99));
  await writeFile(join(stage.folder, early.blobRef), randomBytes(100));
  const write = async (ref: string): Promise<string> =>
    (await wire.post('/items', blobItem('a', ids, ref), stage.scene.as('a'))).outcome;
  t.equal(await write(early.blobRef), '200', 'the write settles the reservation');
  t.equal(await write(short.blobRef), '400 blob_not_found', 'an object of another size is refused');
  stage.clock.advance(16 * MINUTE_MS);
  await stage.released();
  t.strictSame(await stage.files(), [whole.blobRef, early.blobRef].sort(), 'the object of another size is removed');
  t.equal(await write(whole.blobRef), '200');
  const url = await downloadUrl(wire, first, whole.blobRef);
  t.equal((await send('GET', url)).bytes.length, 100);
  stage.clock.advance(6 * MINUTE_MS);
  t.equal((await send('GET', url)).outcome, '403 url_invalid', 'the URL has expired');
  await stage.sound();
});

t.test(
  'BLOB-24: strays are removed after 24 hours, those of unknown tenants never; missing blobs are reported',
  async (t) => {
    const stage = await stageOf(t);
    const kept = await stage.item(10);
    const lost = await stage.item(20);
    const ago = (ms: number): Date => new Date(Date.now() - ms);
    const old = ago(DAY_MS + MINUTE_MS);
    const place = async (tenantId: string, age: Date): Promise<string> => {
      const ref = `${ulid()}.bin`;
      const folder = join(stage.folder, '..', tenantId);
      await mkdir(folder, { recursive: true });
      await writeFile(join(folder, ref), 'stray');
      await utimes(join(folder, ref), age, age);
      return ref;
    };
    const stray = await place(stage.scene.server.tenantId, old);
    const fresh = await place(stage.scene.server.tenantId, ago(DAY_MS - MINUTE_MS));
    const stranger = newId();
    await place(stranger, old);
    await rm(join(stage.folder, lost.ref));
    const told = await stage.reaper.compare(false, never);
    t.match(told, { objects: 4, strays: 3, strayBytes: 15, foreign: 1, missing: 1, whole: true });
    t.match(told.examples, [{ ref: lost.ref, size: 20, itemId: lost.body['id'] }]);
    t.equal((await stage.files()).length, 3, 'nothing is changed');
    const done = await stage.reaper.compare(true, never);
    t.match(done, { strays: 2, foreign: 1, missing: 1 });
    t.strictSame(await stage.files(), [kept.ref, fresh].sort());
    t.notOk((await stage.files()).includes(stray));
    t.equal((await readdir(join(stage.folder, '..', stranger))).length, 1, 'their tenant was never known');
    const stopped = new AbortController();
    stopped.abort();
    t.match(await stage.reaper.compare(true, stopped.signal), { whole: false });
  },
);

t.test('BLOB-24: the next comparison removes the blobs of a deleted tenant', async (t) => {
  const stage = await stageOf(t);
  await stage.item(10);
  const { server } = stage.scene;
  for (let verdict = ''; verdict !== 'gone';) {
    const [row] = await server.sql('SELECT delete_tenant($1, 100, 1) AS verdict', [server.tenantId]);
    verdict = String(row?.['verdict']);
  }
  stage.clock.advance(2 * DAY_MS);
  t.match(await stage.reaper.compare(true, never), { strays: 1, foreign: 0 });
  t.strictSame(await stage.files(), []);
});

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

t.test(
  'BLOB-24: a comparison of millions of objects may take minutes, and ends at once where it is stopped',
  async (t) => {
    class Table extends TemporaryTable {
      static async limit(url: string): Promise<unknown> {
        const table = new Table(await TemporaryTable.create(url, 'tried', 'size bigint'));
        const row = await table.first('SHOW statement_timeout');
        await table.close();
        return row;
      }
    }
    t.strictSame(await Table.limit((await testDatabase(t)).url), { statement_timeout: '10min' });

    const stage = await stageOf(t);
    const { server } = stage.scene;
    // From the listing on, its statements wait.
    const locker = poolOf(t, server.databaseUrl, { size: 1 });
    const list = stage.store.list.bind(stage.store);
    stage.store.list = async function* () {
      await locker.query('BEGIN');
      await locker.query('LOCK TABLE blobs');
      yield* list();
    };
    const stopped = new AbortController();
    const comparing = stage.reaper.compare(true, stopped.signal);
    const waits = `SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'service comparison'
    AND wait_event_type = 'Lock'`;
    await until('a statement that waits', async () => (await server.sql(waits)).length === 1);
    stopped.abort();
    t.match(await comparing, { whole: false });
  },
);
