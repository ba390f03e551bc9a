/** Blobs in a backup, and back out of it (src/server/admin/backup). */
import { randomBytes } from 'node:crypto';
import { mkdir, readFile, readdir, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { admin } from './support/admin.js';
import { blobItem, downloadUrl, send, uploaded } from './support/blobs.js';
import { newId } from './support/devices.js';
import { temporaryFolder, testDatabase } from './support/postgres.js';
import { Scene } from './support/scene.js';
import { runServer } from './support/server.js';

t.test('BLOB-29: blobs are backed up and restored byte for byte', async (t) => {
  const [from, to, folder] = [await temporaryFolder(t), await temporaryFolder(t), await temporaryFolder(t)];
  const scene = await Scene.start(t, { env: { DATA_DIR: from } });
  const { wire, first, ids, server } = scene;
  const all = [randomBytes(1_000_000), randomBytes(1), randomBytes(70_000)];
  const refs: string[] = [];
  for (const bytes of all) {
    const ref = await uploaded(wire, first, bytes);
    t.equal((await wire.post('/items', blobItem('a', ids, ref), scene.as('a'))).status, 200);
    refs.push(ref);
  }
  const file = join(folder, 'backup.tar.gz');
  const here = await admin(t, { DATABASE_URL: server.databaseUrl, DATA_DIR: from });
  const made = await here.json('backup', file);
  t.equal(made.code, EXIT.ok, made.stderr);
  t.match(await here.json('verify'), { code: EXIT.ok, data: { blobs: { objects: 3, strays: 0, missing: 0 } } });
  t.match(await here.json('verify', file), { code: EXIT.ok, data: { whole: true } });

  const bytes = await readFile(file);
  const bad = join(folder, 'bad.tar.gz');
  // The middle of the file lies in the first blob: random bytes do not compress.
  const half = bytes.length >> 1;
  await writeFile(bad, Buffer.concat([bytes.subarray(0, half), Buffer.from('damage'), bytes.subarray(half + 6)]));
  const fresh = await testDatabase(t, 'empty');
  const there = await admin(t, { DATABASE_URL: fresh.url, DATA_DIR: to });
  t.match(await there.json('restore', bad), { code: EXIT.untrusted, error: { code: 'damaged' } });
  t.strictSame(await readdir(to), [], 'the folder is untouched');
  const bucket = await admin(t, { DATABASE_URL: fresh.url, DATA_DIR: to, STORAGE_KIND: 's3', S3_BUCKET: 'bucket' });
  t.match(await bucket.json('restore', file), { code: EXIT.refused, error: { code: 'storage' } });
  // The remains of a blob on a broken disk are replaced.
  const folderOfTenant = join(to, 'blobs', server.tenantId);
  await mkdir(folderOfTenant, { recursive: true });
  await writeFile(join(folderOfTenant, refs[0] ?? ''), '');
  const done = await there.json('restore', file);
  t.match(done, { code: EXIT.ok, data: { items: 3, blobs: 3 } }, done.stderr);

  const restored = await runServer(t, { database: fresh, env: { DATA_DIR: to } });
  for (const [at, ref] of refs.entries()) {
    const got = await send('GET', await downloadUrl(restored.wire, first, ref));
    t.ok(all[at]?.equals(got.bytes), ref);
  }
  t.match(await there.json('verify'), { code: EXIT.ok, data: { blobs: { objects: 3, strays: 0, missing: 0 } } });
});

t.test(
  'BLOB-24 BLOB-29 OPER-14: verify names missing blobs and counts objects without a blob, and changes nothing; a backup warns',
  async (t) => {
    const dataDir = await temporaryFolder(t);
    const scene = await Scene.start(t, { env: { DATA_DIR: dataDir } });
    const { wire, first, ids, server } = scene;
    const ref = await uploaded(wire, first, randomBytes(20));
    const body = blobItem('a', ids, ref);
    t.equal((await wire.post('/items', body, scene.as('a'))).status, 200);
    const folder = join(dataDir, 'blobs', server.tenantId);
    const stray = `${newId()}.bin`;
    await rename(join(folder, ref), join(folder, stray));
    const call = await admin(t, { DATABASE_URL: server.databaseUrl, DATA_DIR: dataDir });
    const backup = await call.json('backup', join(await temporaryFolder(t), 'backup.tar.gz'));
    t.match(backup, { code: EXIT.ok, data: { missingBlobs: 1 } });
    t.match(backup.stderr, /Warning: not in .*: 1 blob that items need\. `service-admin verify` names them/);
    const missing = { missing: 1, examples: [{ tenantId: server.tenantId, ref, size: 20, itemId: body['id'] }] };
    const found = await call.json('verify');
    t.match(found, {
      code: EXIT.untrusted,
      data: { discrepancies: [], blobs: { objects: 1, strays: 1, strayBytes: 20, ...missing } },
    });
    const { stdout } = await call.plain('verify');
    for (const told of [
      /1 object .* without a blob/,
      /1 blob missing in the store:/,
      new RegExp(`${ref} +20 +${String(body['id'])}`),
    ])
      t.match(stdout, told);
    t.same(await readdir(folder), [stray], 'nothing was changed');
    await rename(join(folder, stray), join(folder, ref));
    t.match(await call.json('verify'), { code: EXIT.ok, data: { blobs: { objects: 1, strays: 0, missing: 0 } } });
  },
);
