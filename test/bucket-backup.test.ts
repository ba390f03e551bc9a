/**
 * The list of a bucket's objects in a backup, and its comparison with the bucket after a restore, on both kinds of
 * bucket.
 */
import { createHash, randomBytes } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import t, { type Test } from 'tap';
import { ulid } from 'ulid';
import { readObjectList, verifyArchive } from '../src/server/admin/backup/archive.js';
import type { ListedObject } from '../src/server/admin/backup/manifest.js';
import { EXIT } from '../src/terminal/terminal.js';
import { admin, type Admin } from './support/admin.js';
import { blobItem, uploaded } from './support/blobs.js';
import { Ceph, cephMissing } from './support/ceph.js';
import { newServiceAccount } from './support/gcs-server.js';
import { gcsBucket, s3Bucket, type BucketUnderTest } from './support/object-stores.js';
import { temporaryFolder, testDatabase } from './support/postgres.js';
import { Scene } from './support/scene.js';
import { runSql, TOKEN_SECRET } from './support/server.js';

const PREFIX = 'of/the-tests';

interface Kind {
  readonly store: 'gcs' | 's3';
  readonly newBucket: (t: Test) => Promise<BucketUnderTest>;
  readonly credentials: Readonly<Record<string, string>>;
  /** The checksum that the store reports for these bytes. */
  readonly checksum: (bytes: Buffer) => Readonly<Record<string, unknown>>;
}

interface Setting {
  readonly bucket: BucketUnderTest;
  readonly scene: Scene;
  /** On the server's database. */
  readonly here: Admin;
  /** On an empty database, with the same bucket. */
  readonly there: Admin;
  readonly emptyUrl: string;
  readonly folder: string;
}

async function setUp(t: Test, { newBucket, credentials }: Kind): Promise<Setting> {
  const bucket = await newBucket(t);
  const env = { ...bucket.env, STORAGE_PREFIX: PREFIX };
  const scene = await Scene.start(t, { env });
  const { url } = await testDatabase(t, 'empty');
  const program = (DATABASE_URL: string): Promise<Admin> =>
    admin(t, { ...env, ...credentials, DATABASE_URL, TOKEN_SECRET });
  const [here, there] = [await program(scene.server.databaseUrl), await program(url)];
  return { bucket, scene, here, there, emptyUrl: url, folder: await temporaryFolder(t) };
}

/** Uploads these bytes; with `item`, an item names them. Returns the ref. */
async function put({ scene }: Setting, bytes: Buffer, item = true): Promise<string> {
  const ref = await uploaded(scene.wire, scene.first, bytes);
  if (!item) return ref;
  const { status } = await scene.wire.post('/items', blobItem('a', scene.ids, ref), scene.as('a'));
  if (status !== 200) throw new Error(`the item was refused: ${status}`);
  return ref;
}

async function listIn(file: string): Promise<ListedObject[]> {
  const manifest = await verifyArchive(file, () => undefined);
  const found: ListedObject[] = [];
  for await (const objects of readObjectList(file, manifest)) found.push(...objects);
  return found;
}

function rules(t: Test, kind: Kind): void {
  t.test("BACKUP-10: a backup lists the objects with the store's checksums, by listing alone", async (t) => {
    const setting = await setUp(t, kind);
    const { bucket, scene, here, folder } = setting;
    const all = [randomBytes(70_000), randomBytes(1), randomBytes(3000)];
    const refs: string[] = [];
    for (const bytes of all) refs.push(await put(setting, bytes));
    await bucket.place(`${PREFIX}/notes.txt`, randomBytes(10));
    await bucket.place(`elsewhere/${scene.server.tenantId}/${ulid()}.bin`, randomBytes(10));
    const file = join(folder, 'backup.tar.gz');
    const before = bucket.calls();
    const made = await here.json('backup', file);
    const about = { store: kind.store, bucket: bucket.bucket, prefix: PREFIX, count: 3, size: 73_001 };
    t.match(made, { code: EXIT.ok, data: { objects: about } }, made.stderr);
    t.equal(bucket.calls() - before, 1, 'one page is listed, and no object is read');
    const list = await listIn(file);
    t.match(
      new Map(list.map((object) => [object.ref, object])),
      new Map(
        refs.map((ref, at) => {
          const bytes = all[at] ?? Buffer.alloc(0);
          const { tenantId } = scene.server;
          return [ref, { tenantId, ref, size: bytes.length, checksum: kind.checksum(bytes) }];
        }),
      ),
    );
    t.equal(list.length, 3);
    t.match(await (await admin(t, {})).json('verify', file), { code: EXIT.ok, data: { objects: about } });
    const told = await (await admin(t, {})).plain('verify', file);
    t.match(told.stdout, /list of 3 objects \(71\.3 KiB\) of the (S3|Google) bucket/);
    const manifest = await verifyArchive(file, () => undefined);
    t.match(manifest.objects?.parts, [{ name: 'objects/000000', sha256: /^[0-9a-f]{64}$/ }]);
  });

  t.test('BACKUP-11: a restore reports what was removed, altered and added since the backup', async (t) => {
    const setting = await setUp(t, kind);
    const { bucket, scene, here, there, folder } = setting;
    const { tenantId } = scene.server;
    const whole = randomBytes(500);
    const kept = await put(setting, randomBytes(100));
    const gone = await put(setting, whole);
    const longer = await put(setting, randomBytes(300));
    const altered = await put(setting, randomBytes(400));
    const loose = await put(setting, randomBytes(200), false);
    const file = join(folder, 'backup.tar.gz');
    t.equal((await here.json('backup', file)).code, EXIT.ok);
    const same = await there.json('restore', file);
    const nothing = { missing: 0, otherSize: 0, otherChecksum: 0, sizeOnly: 0, added: 0, examples: [] };
    t.match(same, { code: EXIT.ok, data: { items: 4, objects: { listed: 5, same: 5, ...nothing } } }, same.stderr);

    const store = bucket.open({ prefix: PREFIX });
    const at = (ref: string): string => `${PREFIX}/${tenantId}/${ref}`;
    for (const ref of [gone, loose]) await store.remove({ tenantId, ref });
    await bucket.place(at(longer), randomBytes(301));
    await bucket.place(at(altered), randomBytes(400));
    await bucket.place(at(`${ulid()}.bin`), randomBytes(50));
    const found = await there.json('restore', file, '--force', '--yes');
    const counts = { listed: 5, same: 1, missing: 2, missingNamed: 1, otherSize: 1, otherChecksum: 1, added: 1 };
    t.match(found, { code: EXIT.untrusted, data: { items: 4, newEpoch: true, objects: counts } }, found.stderr);
    t.match(
      (found.data['objects'] as { examples: unknown }).examples,
      [
        { ref: gone, difference: 'missing', itemId: /./ },
        { ref: loose, difference: 'missing', itemId: null },
        { ref: longer, difference: 'size', listed: /^300 bytes/, found: /^301 bytes/ },
        { ref: altered, difference: 'checksum', listed: /^400 bytes, /, found: /^400 bytes, / },
      ].sort((a, b) => (a.difference === 'missing' || b.difference === 'missing' ? 0 : a.ref < b.ref ? -1 : 1)),
    );

    const told = await there.plain('restore', file, '--force', '--yes');
    t.equal(told.code, EXIT.untrusted);
    for (const words of [
      /list of 5 objects .*: 1 of them are as listed/,
      /2 objects missing \(items name 1; the others are not needed\)/,
      /1 object with another size/,
      /1 object with another checksum: the bytes were changed/,
      /1 object added since: not a difference/,
    ]) {
      t.match(told.stdout, words);
    }
    for (const ref of [gone, loose, longer, altered]) t.match(told.stdout, ref);
    t.notMatch(told.stdout, kept);
  });

  t.test('BACKUP-12: while the bucket is away a backup fails, and a restore is whole but not compared', async (t) => {
    const setting = await setUp(t, kind);
    const { bucket, here, there, emptyUrl, folder } = setting;
    await put(setting, randomBytes(100));
    const file = join(folder, 'backup.tar.gz');
    t.equal((await here.json('backup', file)).code, EXIT.ok);
    await bucket.down();
    const failed = await here.json('backup', join(folder, 'second.tar.gz'));
    const error = { code: 'storage_unavailable', message: /blob store/, hint: /--no-objects/ };
    t.match(failed, { code: EXIT.unavailable, error });
    t.same(await readdir(folder), ['backup.tar.gz'], 'no other file is left');
    const without = await here.json('backup', join(folder, 'second.tar.gz'), '--no-objects');
    t.equal(without.code, EXIT.ok, without.stderr);
    t.equal(without.data['objects'], undefined);
    t.match(without.stderr, /Not in it: the blobs in the bucket, and the list of them/);
    const restored = await there.json('restore', file);
    t.match(restored, { code: EXIT.unavailable, data: { items: 1, objects: { failed: /cannot be listed/ } } });
    t.match(await runSql(emptyUrl, 'SELECT count(*)::integer AS n FROM items'), [{ n: 1 }], 'the rows are restored');
    const told = await there.plain('restore', file, '--force', '--yes');
    t.match(told.stdout, /Restored: 1 tenant.*was not compared: the blob store cannot be listed/s);
    await bucket.up();
    const unlisted = await there.json('restore', join(folder, 'second.tar.gz'), '--force', '--yes');
    t.equal(unlisted.code, EXIT.ok, 'without a list nothing is compared');
    t.equal(unlisted.data['objects'], undefined);
  });
}

const md5 = (bytes: Buffer, form: 'hex' | 'base64'): string => createHash('md5').update(bytes).digest(form);

t.test('Google', async (t) => {
  const account = await newServiceAccount(t);
  process.env['GOOGLE_APPLICATION_CREDENTIALS'] = account.keyFile;
  rules(t, {
    store: 'gcs',
    newBucket: (t) => gcsBucket(t, account),
    credentials: { GOOGLE_APPLICATION_CREDENTIALS: account.keyFile },
    checksum: (bytes) => ({ md5: md5(bytes, 'base64'), crc32c: /^[A-Za-z0-9+/]{6}==$/ }),
  });
});

t.test('S3', { skip: cephMissing }, async (t) => {
  const ceph = await Ceph.start(t);
  const user = await ceph.newUser();
  const credentials = { AWS_ACCESS_KEY_ID: user.accessKeyId, AWS_SECRET_ACCESS_KEY: user.secretAccessKey };
  Object.assign(process.env, credentials);
  const newBucket = (t: Test): Promise<BucketUnderTest> => s3Bucket(t, ceph, user);
  rules(t, { store: 's3', newBucket, credentials, checksum: (bytes) => ({ etag: md5(bytes, 'hex') }) });
});
