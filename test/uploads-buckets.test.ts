/** Uploads that continue where they stopped, with blobs in a bucket: S3 multipart, and Google's sessions. */
import { createHash, randomBytes } from 'node:crypto';
import t, { type Test } from 'tap';
import { Reaper } from '../src/server/blobs/reaper.js';
import { blobItem, downloadUrl, openRequest, send } from './support/blobs.js';
import { never } from './support/blob-stage.js';
import { Ceph, cephMissing } from './support/ceph.js';
import { ShiftedClock } from './support/clock.js';
import { newServiceAccount } from './support/gcs-server.js';
import { gcsBucket, s3Bucket, type BucketUnderTest } from './support/object-stores.js';
import { poolOf } from './support/postgres.js';
import { Scene } from './support/scene.js';
import { askStanding, begun, PART, put, sendRest, standing, type Part } from './support/uploads.js';

const MIB = 1024 * 1024;
const DAY_MS = 24 * 3_600_000;
const PREFIX = 'of/the-tests';
const sha = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');

interface Setting {
  readonly bucket: BucketUnderTest;
  readonly scene: Scene;
  readonly clock: ShiftedClock;
  readonly reaper: Reaper;
  readonly used: () => Promise<number>;
}

/** `kept`: the bytes that the store keeps of a first part of 5 MiB of which 3 MiB arrived. */
function rules(t: Test, newBucket: (t: Test) => Promise<BucketUnderTest>, kept: number): void {
  const setUp = async (t: Test): Promise<Setting> => {
    const bucket = await newBucket(t);
    const clock = new ShiftedClock();
    const scene = await Scene.start(t, {
      clock,
      env: { ...bucket.env, STORAGE_PREFIX: PREFIX, TOKEN_TTL_DAYS: '300', MAX_BLOB_SIZE_MB: '100' },
    });
    const pool = poolOf(t, scene.server.databaseUrl);
    const reaper = new Reaper(bucket.open({ prefix: PREFIX }), pool, scene.server.databaseUrl, clock);
    const used = async (): Promise<number> => (await scene.me()).number('server.storageUsedBytes');
    return { bucket, scene, clock, reaper, used };
  };

  t.test('OBJ-23: an upload goes part by part into the bucket; the item that names it completes it', async (t) => {
    const { scene, bucket } = await setUp(t);
    const { wire, first, second } = scene;
    const whole = randomBytes(11 * MIB + 7);
    const at = await begun(wire, first, whole.length);
    t.equal(at.parts.length, 3);
    const item = blobItem('a', scene.ids, at.blobRef);
    for (const part of at.parts) {
      t.notOk(part.url.includes(String(scene.server.port)), 'the URL does not lead to the server');
      t.equal(
        (await wire.post('/items', item, scene.as('a'))).outcome,
        '400 blob_not_found',
        'an item cannot name it before its end',
      );
      t.equal((await put(part, whole)).status, 200);
    }
    t.equal((await wire.post('/items', item, scene.as('a'))).status, 200);
    t.equal(sha((await send('GET', await downloadUrl(wire, second, at.blobRef))).bytes), sha(whole));
    t.match(await standing(wire, first, at.blobRef), { offset: whole.length, parts: [] });
    t.equal(await bucket.openUploads(), 0);
    t.strictSame(await scene.server.sql('SELECT count(*)::int AS n FROM blobs WHERE session IS NOT NULL'), [{ n: 0 }]);
    const log = JSON.stringify([scene.server.logs, bucket.logs]);
    t.notMatch(
      log,
      /Signature=|Bearer|X-Amz-|X-Goog-|upload_id|uploadId/,
      'no signature, token or session is in the log',
    );
  });

  t.test('OBJ-24: an upload that was cut off continues with what the bucket keeps', async (t) => {
    const { scene } = await setUp(t);
    const { wire, first } = scene;
    const whole = randomBytes(12 * MIB);
    const at = await begun(wire, first, whole.length);
    const [one] = at.parts;
    if (one === undefined) throw new Error('no part');
    const { sent, reply } = openRequest('PUT', one.url, one.headers);
    await new Promise<void>((resolve) => sent.write(whole.subarray(0, 3 * MIB), () => resolve()));
    let now = await standing(wire, first, at.blobRef);
    while (now.offset < kept) now = await standing(wire, first, at.blobRef);
    sent.destroy();
    await t.rejects(reply);
    t.equal(now.offset, kept);
    t.strictSame([now.parts[0]?.from, now.parts[0]?.size], [kept, PART - kept]);
    await sendRest(wire, first, now, whole);
    t.equal(sha((await send('GET', await downloadUrl(wire, first, at.blobRef))).bytes), sha(whole));
  });

  t.test('OBJ-24: concurrent completions of an upload all succeed, also after its last part came twice', async (t) => {
    const { scene } = await setUp(t);
    const { wire, first } = scene;
    const whole = randomBytes(6 * MIB);
    const at = await begun(wire, first, whole.length);
    for (const part of at.parts) await put(part, whole);
    const [, last] = at.parts;
    if (last === undefined) throw new Error('no last part');
    await put(last, whole);
    const item = blobItem('a', scene.ids, at.blobRef);
    const ends = await Promise.all([
      ...Array.from({ length: 5 }, () => askStanding(wire, first, at.blobRef)),
      wire.post('/items', item, scene.as('a')),
    ]);
    t.strictSame(
      ends.map(({ status }) => status),
      ends.map(() => 200),
    );
    t.equal(sha((await send('GET', await downloadUrl(wire, first, at.blobRef))).bytes), sha(whole));
  });

  t.test('OBJ-25: an upload that is given up, or not continued for a day, leaves nothing in the bucket', async (t) => {
    const { scene, bucket, clock, reaper, used } = await setUp(t);
    const { wire, first } = scene;
    const whole = randomBytes(6 * MIB);
    const before = await used();
    const one = await begun(wire, first, whole.length);
    const two = await begun(wire, first, whole.length);
    for (const { parts } of [one, two]) await put(parts[0] as Part, whole);
    t.equal(await bucket.openUploads(), 2);
    await wire.delete(`/uploads/${one.blobRef}`, scene.as('a'));
    t.equal(await bucket.openUploads(), 1);
    const late = await put(one.parts[1] as Part, whole).catch(() => undefined);
    t.ok(late === undefined || late.status === 404, 'no further part is accepted');
    clock.advance(DAY_MS + 1);
    t.match(await reaper.releaseExpired(never), { done: 1, refused: 0 });
    t.equal(await bucket.openUploads(), 0);
    t.equal(await used(), before);
    t.strictSame(await scene.server.sql('SELECT * FROM discrepancies()'), []);
  });

  t.test('OBJ-25: an upload that the bucket has forgotten is no longer open, and its room is free', async (t) => {
    const { scene, bucket, used } = await setUp(t);
    const { wire, first } = scene;
    const before = await used();
    const at = await begun(wire, first, 6 * MIB);
    await bucket.forget();
    t.equal((await askStanding(wire, first, at.blobRef)).outcome, '404 blob_not_found');
    t.equal(await used(), before);
  });

  t.test('OBJ-26: while the bucket is unreachable no upload is begun, nothing is reserved or lost', async (t) => {
    const { scene, bucket, used, reaper } = await setUp(t);
    const { wire, first } = scene;
    const whole = randomBytes(6 * MIB);
    const before = await used();
    const at = await begun(wire, first, whole.length);
    await put(at.parts[0] as Part, whole);
    await bucket.down();
    const refused = await wire.post('/uploads', { contentLength: 6 * MIB }, scene.as('a'));
    t.equal(refused.outcome, '503 storage_unavailable');
    t.equal(await used(), before + whole.length, 'no room is reserved');
    t.equal((await askStanding(wire, first, at.blobRef)).outcome, '503 storage_unavailable');
    const given = await begun(wire, first, whole.length).catch(() => undefined);
    t.equal(given, undefined);
    t.equal((await wire.delete(`/uploads/${at.blobRef}`, scene.as('a'))).outcome, '503 storage_unavailable');
    await bucket.up();
    t.equal((await askStanding(wire, first, at.blobRef)).outcome, '404 blob_not_found', 'the upload was given up');
    t.match(await reaper.removeUnused(never), { done: 1 }, 'the nightly job removes the rest');
    t.equal(await bucket.openUploads(), 0);
    t.equal(await used(), before);
  });
}

t.test('Google', async (t) => {
  const account = await newServiceAccount(t);
  process.env['GOOGLE_APPLICATION_CREDENTIALS'] = account.keyFile;
  rules(t, (t) => gcsBucket(t, account), 3 * MIB);
});

t.test('S3', { skip: cephMissing }, async (t) => {
  const ceph = await Ceph.start(t);
  const user = await ceph.newUser();
  process.env['AWS_ACCESS_KEY_ID'] = user.accessKeyId;
  process.env['AWS_SECRET_ACCESS_KEY'] = user.secretAccessKey;
  rules(t, (t) => s3Bucket(t, ceph, user), 0);
});
