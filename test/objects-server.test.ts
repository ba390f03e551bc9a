/** A server with its blobs in a bucket: from the upload URL to the bytes on another device, and a failing bucket. */
import { createHash, randomBytes } from 'node:crypto';
import t, { type Test } from 'tap';
import { ulid } from 'ulid';
import { Reaper, type Comparison } from '../src/server/blobs/reaper.js';
import { blobItem, downloadUrl, send, uploaded, uploadOf } from './support/blobs.js';
import { Ceph, cephMissing } from './support/ceph.js';
import { ShiftedClock } from './support/clock.js';
import { writeBody } from './support/devices.js';
import { newServiceAccount } from './support/gcs-server.js';
import { gcsBucket, s3Bucket, type BucketUnderTest } from './support/object-stores.js';
import { poolOf } from './support/postgres.js';
import { Scene } from './support/scene.js';
import { SHAPES } from './support/wire.js';

const HOUR_MS = 3_600_000;
const PREFIX = 'of/the-tests';
const sha = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');

interface Setting {
  readonly bucket: BucketUnderTest;
  readonly scene: Scene;
}

function rules(t: Test, newBucket: (t: Test) => Promise<BucketUnderTest>): void {
  const setUp = async (t: Test): Promise<Setting> => {
    const bucket = await newBucket(t);
    return { bucket, scene: await Scene.start(t, { env: { ...bucket.env, STORAGE_PREFIX: PREFIX } }) };
  };

  t.test('OBJ-20: a blob that one device uploads to the bucket another one downloads, in both shapes', async (t) => {
    const { scene, bucket } = await setUp(t);
    const { wire, first, second } = scene;
    for (const shape of SHAPES) {
      const bytes = randomBytes(200_000);
      const { url, headers, blobRef } = await uploadOf(wire, first, { size: bytes.length, type: 'image/png', shape });
      t.notOk(url.includes(String(scene.server.port)), 'the upload does not go through the server');
      const item = blobItem(shape, scene.ids, blobRef);
      t.equal(
        (await wire.post('/items', item, scene.as(shape))).outcome,
        '400 blob_not_found',
        'the item is refused before the upload',
      );
      t.equal((await send('PUT', url, { headers, body: bytes })).status, 200);
      t.equal((await wire.post('/items', item, scene.as(shape))).status, 200, 'the item is accepted after the upload');
      const got = await send('GET', await downloadUrl(wire, second, blobRef));
      t.equal(sha(got.bytes), sha(bytes));
    }
    const found = [];
    for await (const page of bucket.open({ prefix: PREFIX }).list()) found.push(...page);
    t.equal(found.length, 2);
    t.ok(
      found.every(({ tenantId }) => tenantId === scene.server.tenantId),
      'the objects are in the folder of the tenant',
    );
  });

  t.test('OBJ-20: an object of another size than declared is blob_not_found, also in a batch', async (t) => {
    const { scene, bucket } = await setUp(t);
    const { wire, first } = scene;
    const { blobRef } = await uploadOf(wire, first, { size: 1000 });
    const item = blobItem('a', scene.ids, blobRef);
    for (const size of [1001, 999]) {
      await bucket.place(`${PREFIX}/${scene.server.tenantId}/${blobRef}`, randomBytes(size));
      t.equal((await wire.post('/items', item, scene.as('a'))).outcome, '400 blob_not_found', `${size} bytes`);
    }
    const whole = blobItem('a', scene.ids, await uploaded(wire, first, randomBytes(50)));
    const batch = await wire.post('/items/batch', { items: [item, whole] }, scene.as('a'));
    t.match(batch.body, { results: [{ error: { code: 'blob_not_found' } }, { version: Number }] });
    t.equal((await wire.get(`/blobs/${blobRef}/url`, scene.as('a'))).outcome, '404 blob_not_found');
  });

  t.test('OBJ-21: while the bucket is away a write that needs it is 503, a stored one sent again is not', async (t) => {
    const { scene, bucket } = await setUp(t);
    const { wire, first } = scene;
    const stored = blobItem('a', scene.ids, await uploaded(wire, first, randomBytes(50)));
    t.equal((await wire.post('/items', stored, scene.as('a'))).status, 200);
    const item = blobItem('a', scene.ids, await uploaded(wire, first, randomBytes(70)));
    for (const fail of ['down', 'broken'] as const) {
      if (fail === 'down') await bucket.down();
      else bucket.trouble(() => ({ status: 503 }));
      const refused = await wire.post('/items', item, scene.as('a'));
      t.equal(refused.outcome, '503 storage_unavailable', fail);
      t.match(refused.headers, { 'retry-after': /^[1-9]\d*$/ });
      const batch = await wire.post('/items/batch', { items: [writeBody('a', scene.item()), item] }, scene.as('a'));
      t.match(
        batch.body,
        { results: [{ version: Number }, { error: { code: 'storage_unavailable' } }] },
        'only the write that needs the bucket fails',
      );
      t.equal(
        (await wire.post('/items', stored, scene.as('a'))).status,
        200,
        'a stored write sent again needs no bucket',
      );
      t.match((await uploadOf(wire, first, { size: 10 })).url, /^http/, 'URLs are signed while the bucket is away');
      if (fail === 'down') await bucket.up();
      bucket.trouble(undefined);
    }
    t.equal(
      (await wire.post('/items', item, scene.as('a'))).status,
      200,
      'the same write succeeds once the bucket is back',
    );
    const causes = scene.server.logs.filter((line) => JSON.stringify(line).includes('StoreFault'));
    t.ok(causes.length > 0, 'the log has the cause');
    t.notMatch(JSON.stringify(scene.server.logs), /Signature=|Bearer|X-Amz-|X-Goog-/);
  });

  t.test(
    'OBJ-22: the nightly job removes what no item needs, finds what is missing, and waits for an unreachable bucket',
    async (t) => {
      const { scene, bucket } = await setUp(t);
      const { wire, first, server } = scene;
      const store = bucket.open({ prefix: PREFIX });
      const clock = new ShiftedClock();
      const pool = poolOf(t, server.databaseUrl);
      const reaper = new Reaper(store, pool, server.databaseUrl, clock);
      const night = async (): Promise<Comparison> => {
        const never = new AbortController().signal;
        await reaper.releaseExpired(never);
        await reaper.removeUnused(never);
        return reaper.compare(true, never);
      };
      const refs = async (): Promise<string[]> => {
        const found = [];
        for await (const page of store.list()) found.push(...page);
        return found.map(({ ref }) => ref).sort();
      };
      const kept = await uploaded(wire, first, randomBytes(100));
      t.equal((await wire.post('/items', blobItem('a', scene.ids, kept), scene.as('a'))).status, 200);
      const loose = await uploaded(wire, first, randomBytes(200));
      await uploadOf(wire, first, { size: 300 });
      const stray = `${ulid()}.bin`;
      await bucket.place(`${PREFIX}/${server.tenantId}/${stray}`, randomBytes(10));
      await bucket.place(`${PREFIX}/notes.txt`, randomBytes(10));
      await night();
      t.same(await refs(), [kept, loose, stray].sort(), 'nothing is old enough');
      // The first night finds the upload that the server did not see, the second one that no item took it.
      clock.advance(25 * HOUR_MS);
      const doomed = blobItem('a', scene.ids, await uploaded(wire, first, randomBytes(400)));
      t.equal((await wire.post('/items', doomed, scene.as('a'))).status, 200);
      t.equal((await wire.delete(`/items/${String(doomed['id'])}`, scene.as('a'))).status, 200);
      const rows = async (): Promise<unknown> => server.sql('SELECT ref, size FROM blobs ORDER BY ref');
      const before = [await rows(), await refs()];
      await bucket.down();
      const never = new AbortController().signal;
      const parts = [reaper.releaseExpired(never), reaper.removeUnused(never), reaper.compare(true, never)];
      for (const end of await Promise.allSettled<unknown>(parts))
        t.match(end, { status: 'rejected', reason: { message: /unreachable/ } });
      await bucket.up();
      t.same([await rows(), await refs()], before, 'nothing was removed or forgotten meanwhile');
      await night();
      clock.advance(25 * HOUR_MS);
      await night();
      t.same(await refs(), [kept]);
      t.equal(
        (await scene.me()).number('server.storageUsedBytes') < 600,
        true,
        'only the kept blob counts towards storage',
      );
      t.strictSame(await server.sql('SELECT * FROM discrepancies()'), []);
      await store.remove({ tenantId: server.tenantId, ref: kept });
      t.match(await night(), { missing: 1, examples: [{ ref: kept }] });
    },
  );
}

t.test('Google', async (t) => {
  const account = await newServiceAccount(t);
  process.env['GOOGLE_APPLICATION_CREDENTIALS'] = account.keyFile;
  rules(t, (t) => gcsBucket(t, account));
});

t.test('S3', { skip: cephMissing }, async (t) => {
  const ceph = await Ceph.start(t);
  const user = await ceph.newUser();
  process.env['AWS_ACCESS_KEY_ID'] = user.accessKeyId;
  process.env['AWS_SECRET_ACCESS_KEY'] = user.secretAccessKey;
  rules(t, (t) => s3Bucket(t, ceph, user));
});
