/** Uploads and downloads that go wrong: aborted, slow, too many, on a full disk, in a killed process. */
import { randomBytes } from 'node:crypto';
import fileSystem, { mkdir, readdir, readFile, rm, statfs, utimes, writeFile } from 'node:fs/promises';
import { syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import t, { type Test } from 'tap';
import { ulid } from 'ulid';
import { LocalStore } from '../src/server/blobs/objects/local.js';
import { blobItem, downloadUrl, openRequest, send, uploaded, uploadOf } from './support/blobs.js';
import { claim } from './support/devices.js';
import { Events, soon, until } from './support/events.js';
import { frontOf, STUBS, TENANT } from './support/front.js';
import { temporaryFolder, testDatabase } from './support/postgres.js';
import { Scene } from './support/scene.js';
import { spawnServer } from './support/server.js';
import { smallDisk } from './support/small-disk.js';
import { TestClock } from './support/clock.js';

const filesIn = async (folder: string): Promise<string[]> =>
  (await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => []))
    .filter((entry) => entry.isFile())
    .map(({ name }) => name);

async function sceneWith(t: Test): Promise<{ scene: Scene; blobs: string }> {
  const dataDir = await temporaryFolder(t);
  return { scene: await Scene.start(t, { env: { DATA_DIR: dataDir } }), blobs: join(dataDir, 'blobs') };
}

t.test('BLOB-15: an upload that is cut off leaves nothing, and its URL may be retried', async (t) => {
  const { scene, blobs } = await sceneWith(t);
  const bytes = randomBytes(300_000);
  const { url, headers } = await uploadOf(scene.wire, scene.first, { size: bytes.length });
  const { sent, reply } = openRequest('PUT', url, headers);
  sent.write(bytes.subarray(0, 100_000));
  await until('the file', async () => (await filesIn(blobs)).length === 1);
  sent.destroy();
  await t.rejects(reply);
  await until('nothing is left', async () => (await filesIn(blobs)).length === 0);
  t.equal((await send('PUT', url, { headers, body: bytes })).outcome, '200');
});

t.test('BLOB-15: a second PUT of the same URL ends the first, whose client may be gone unnoticed', async (t) => {
  const { scene, blobs } = await sceneWith(t);
  const bytes = randomBytes(300_000);
  const { url, headers, blobRef } = await uploadOf(scene.wire, scene.first, { size: bytes.length });
  const stale = openRequest('PUT', url, headers);
  stale.sent.write(randomBytes(1_000));
  await until('the file', async () => (await filesIn(blobs)).length === 1);
  t.equal((await send('PUT', url, { headers, body: bytes })).outcome, '200');
  await t.rejects(stale.reply);
  const got = await send('GET', await downloadUrl(scene.wire, scene.first, blobRef));
  t.ok(got.bytes.equals(bytes), 'the bytes are those of the second PUT');
  await until('one file is left', async () => (await filesIn(blobs)).length === 1);
});

t.test(
  'BLOB-16: a killed server leaves no partial file once it has started again, one elsewhere after two minutes',
  async (t) => {
    const database = await testDatabase(t);
    const dataDir = join(await temporaryFolder(t), 'data');
    const child = await spawnServer(t, { database, dataDir });
    const device = await claim(child.wire);
    const { url, headers } = await uploadOf(child.wire, device, { size: 300_000 });
    const { sent, reply } = openRequest('PUT', url, headers);
    sent.write(randomBytes(100_000));
    await until('the file', async () => (await filesIn(join(dataDir, 'blobs'))).length === 1);
    await child.end('SIGKILL');
    await t.rejects(reply);
    const uploads = join(dataDir, 'blobs', 'uploads');
    const [partial = '', ...more] = await filesIn(uploads);
    t.same([partial !== '', more], [true, []], 'the partial file is still there');
    // Of a process that lives, and of another container, whose processes are not visible here.
    const living = partial.replace(/(?<=^[^.]+\.)\d+/, String(process.pid));
    const elsewhere = partial.replace(/^[^.]+/, 'elsewhere');
    const silent = partial.replace(/^[^.]+/, 'elsewhere-too');
    for (const name of [living, elsewhere, silent]) await writeFile(join(uploads, name), 'x');
    const before = Date.now() / 1_000 - 121;
    await utimes(join(uploads, silent), before, before);
    const again = await spawnServer(t, { database, dataDir });
    await until('they are swept', async () => {
      const left = await filesIn(uploads);
      return !left.includes(partial) && !left.includes(silent);
    });
    const target = url.replace(/^http:\/\/[^/]+/, `http://127.0.0.1:${again.port}`);
    t.equal((await send('PUT', target, { headers, body: randomBytes(300_000) })).outcome, '200', 'the URL stays valid');
    t.same((await filesIn(uploads)).sort(), [living, elsewhere].sort(), 'uploads that may still be under way are kept');
  },
);

t.test('BLOB-17 BLOB-56: a file system without hard links keeps blobs too, each once', async (t) => {
  const { link } = fileSystem;
  const replace = (by: typeof link): void => {
    Reflect.set(fileSystem, 'link', by);
    syncBuiltinESMExports();
  };
  t.teardown(() => replace(link));
  replace(() => Promise.reject(Object.assign(new Error('no links'), { code: 'EOPNOTSUPP' })));
  const folder = await temporaryFolder(t);
  const store = new LocalStore(folder, 'unused');
  const newName = (): { tenantId: string; ref: string } => ({ tenantId: ulid(), ref: `${ulid()}.bin` });
  const name = newName();
  const commit = async (bytes: Buffer): Promise<boolean> => {
    const draft = await store.create(name);
    await draft.write(bytes);
    return draft.commit().finally(() => draft.discard());
  };
  const bytes = randomBytes(1_000);
  t.equal(await commit(bytes), true);
  t.equal(await commit(randomBytes(1_000)), false, 'the first one stays');
  t.ok(bytes.equals(await readFile(join(folder, name.tenantId, name.ref))));
  const inParts = newName();
  const part = await store.openPart(inParts, 0);
  await part?.write(bytes, 0);
  await part?.close();
  t.strictSame(await Promise.all([store.finish(inParts, 1_000), store.finish(inParts, 1_000)]), [true, true]);
  t.strictSame((await filesIn(folder)).sort(), [name.ref, inParts.ref].sort());
});

t.test('BLOB-17: a full disk is storage_unavailable, without a partial file', async (t) => {
  const dataDir = await smallDisk(t, '1m');
  if (dataDir === undefined) return t.comment('skipped: no file system can be mounted here');
  const scene = await Scene.start(t, { env: { DATA_DIR: dataDir } });
  const large = await uploadOf(scene.wire, scene.first, { size: 1_500_000 });
  const refused = await send('PUT', large.url, { headers: large.headers, body: randomBytes(1_500_000) });
  t.equal(refused.outcome, '503 storage_unavailable');
  t.ok(Number(refused.headers['retry-after']) >= 1);
  t.strictSame(await filesIn(join(dataDir, 'blobs')), []);
  await uploaded(scene.wire, scene.first, randomBytes(200_000));
  const logged = JSON.stringify(scene.server.logs.filter(({ msg }) => msg === 'request refused'));
  t.match(logged, 'ENOSPC', 'the cause is in the log');
  t.notMatch(logged, new URL(large.url).searchParams.get('sig') ?? '', 'the signature is not in the log');
});

t.test('BLOB-17: uploads leave a twentieth of the disk free, on which the database may be', async (t) => {
  const dataDir = await smallDisk(t, '40m');
  if (dataDir === undefined) return t.comment('skipped: no file system can be mounted here');
  const { wire, first } = await Scene.start(t, { env: { DATA_DIR: dataDir } });
  const bytes = randomBytes(3_000_000);
  const outcomes: string[] = [];
  while (outcomes.length < 20 && outcomes.at(-1) !== '503 storage_unavailable') {
    const { url, headers } = await uploadOf(wire, first, { size: bytes.length });
    const { outcome, bytes: body } = await send('PUT', url, { headers, body: bytes });
    outcomes.push(outcome);
    if (outcome !== '200') t.match(body.toString(), /"The disk of the blob store is full."/);
  }
  t.equal(outcomes.at(-1), '503 storage_unavailable');
  const { bavail, blocks } = await statfs(dataDir);
  t.ok(bavail >= blocks / 20, `${bavail} of ${blocks} blocks are free`);
  t.ok(outcomes.length > 10, 'and use the rest');
});

t.test('BLOB-17: a blob that is not in the folder is no_blob, and the log says once what that may mean', async (t) => {
  const { scene, blobs } = await sceneWith(t);
  const { wire, first, server } = scene;
  const refs = [await uploaded(wire, first, randomBytes(10)), await uploaded(wire, first, randomBytes(10))];
  for (const ref of refs) await rm(join(blobs, server.tenantId, ref));
  for (const ref of refs)
    t.equal((await send('GET', await downloadUrl(wire, first, ref))).outcome, '404 blob_not_found');
  const told = server.logs.filter((line) => /not the folder of the other servers/.test(JSON.stringify(line)));
  t.equal(told.length, 1);
});

t.test(
  'BLOB-17: a store that cannot be reached is storage_unavailable, and a stored write needs no store',
  async (t) => {
    const { scene, blobs } = await sceneWith(t);
    const ref = await uploaded(scene.wire, scene.first, randomBytes(10));
    const body = blobItem('a', scene.ids, ref);
    t.equal((await scene.wire.post('/items', body, scene.as('a'))).status, 200);
    const reserved = await uploadOf(scene.wire, scene.first, { size: 10 });
    const own = join(blobs, scene.server.tenantId);
    await rm(own, { recursive: true });
    await writeFile(own, 'not a folder');
    t.equal((await scene.wire.post('/items', body, scene.as('a'))).status, 200, 'a retry needs no store');
    const sent = await send('PUT', reserved.url, { headers: reserved.headers, body: randomBytes(10) });
    t.equal(sent.outcome, '503 storage_unavailable');
    t.strictSame(await filesIn(join(blobs, 'uploads')), [], 'an upload leaves no partial file');
    const asked = await scene.wire.post('/items', blobItem('a', scene.ids, reserved.blobRef), scene.as('a'));
    t.equal(asked.outcome, '503 storage_unavailable');
    const batch = await scene.wire.post(
      '/items/batch',
      { items: [blobItem('a', scene.ids, reserved.blobRef), body] },
      scene.as('a'),
    );
    t.equal(batch.at('results.0.error.code'), 'storage_unavailable');
    t.equal(batch.at('results.1.id'), body['id']);
    const got = await send('GET', await downloadUrl(scene.wire, scene.first, ref));
    t.equal(got.outcome, '503 storage_unavailable');
    await rm(own);
    await mkdir(own);
    t.equal((await send('GET', await downloadUrl(scene.wire, scene.first, ref))).outcome, '404 blob_not_found');
  },
);

t.test('BLOB-18: a tenant has at most 16 transfers at once; more are 429 with Retry-After', async (t) => {
  const { scene, blobs } = await sceneWith(t);
  const given = await Promise.all(Array.from({ length: 17 }, () => uploadOf(scene.wire, scene.first, { size: 1_000 })));
  const open = given.slice(0, 16).map(({ url, headers }) => {
    const request = openRequest('PUT', url, headers);
    request.sent.write(Buffer.alloc(500));
    return request;
  });
  await until('all are under way', async () => (await filesIn(blobs)).length === 16);
  const last = given[16];
  if (last === undefined) throw new Error('17 were asked for');
  const more = (): ReturnType<typeof send> =>
    send('PUT', last.url, { headers: last.headers, body: Buffer.alloc(1_000) });
  const refused = await more();
  t.equal(refused.outcome, '429 rate_limited');
  t.ok(Number(refused.headers['retry-after']) >= 1);
  for (const { sent } of open) sent.end(Buffer.alloc(500));
  const replies = await Promise.all(open.map(({ reply }) => reply));
  t.ok(replies.every(({ outcome }) => outcome === '200'));
  t.equal((await more()).outcome, '200', 'a place is free again');
});

t.test('BLOB-19: an upload that stalls or trickles is cut after a bounded time', async (t) => {
  /** Bytes received so far. */
  const taken = new Events<number>();
  const ends = new Events<string>();
  const clock = new TestClock();
  const { front, port } = await frontOf(t, {
    clock,
    services: {
      ...STUBS,
      transfers: {
        check: () => ({ tenantId: TENANT, ref: 'x.bin' }),
        tooSlow: (_tenant, pace) => pace < 1024,
        enter: () => () => undefined,
        download: () => Promise.reject(new Error('nobody asks')),
        upload: async (_wish, source) => {
          let bytes = 0;
          try {
            for (let got = await source.next(); got !== undefined; got = await source.next())
              taken.add((bytes += got.length));
            ends.add('whole');
          } catch (error) {
            ends.add(error instanceof Error ? error.message : 'unknown');
            throw error;
          }
        },
      },
    },
  });
  const { sent, reply } = openRequest('PUT', `http://127.0.0.1:${port}/blobs/${TENANT}/x.bin`, {
    'content-length': '1000000',
  });
  sent.write(Buffer.alloc(100_000));
  await taken.until((all) => all.at(-1) === 100_000);
  clock.advance(30_000);
  t.equal(ends.all.length, 0, 'the upload was quick enough until now');
  sent.write(Buffer.alloc(10_000));
  await taken.until((all) => all.at(-1) === 110_000);
  await soon(new Promise((resolve) => setImmediate(resolve)), 'the next wait');
  clock.advance(30_000);
  await ends.until(1);
  t.match(ends.all[0], /ended before it was whole/);
  await t.rejects(reply);
  t.equal(front.calls, 0, 'the call is released');
});

t.test('BLOB-19: a download that is not read is cut, and its file closed', async (t) => {
  let closed = 0;
  const reads = new Events<number>();
  const size = 64 * 1024 * 1024;
  const clock = new TestClock();
  const { port } = await frontOf(t, {
    clock,
    services: {
      transfers: {
        check: () => ({ tenantId: TENANT, ref: 'x.bin' }),
        tooSlow: (_tenant, pace) => pace < 1024,
        enter: () => () => undefined,
        upload: () => Promise.reject(new Error('nobody asks')),
        download: () =>
          Promise.resolve({
            size,
            read: (into, position) => {
              reads.add(position);
              return Promise.resolve(into.length);
            },
            close: () => {
              closed++;
              return Promise.resolve();
            },
          }),
      },
    },
  });
  const { sent } = openRequest('GET', `http://127.0.0.1:${port}/blobs/${TENANT}/x.bin`);
  // The client reads nothing, not even the head of the reply.
  sent.on('socket', (socket) => socket.pause());
  sent.end();
  sent.on('error', () => undefined);
  const gone = new Promise((resolve) => sent.on('close', resolve));
  await reads.until(1);
  let seen = -1;
  await until('no more is read ahead', () => {
    const still = seen === reads.all.length;
    seen = reads.all.length;
    return still;
  });
  t.ok((reads.all.at(-1) ?? size) < size / 2, 'the blob is not read into memory');
  // Buffers in between may have taken a little more in the first windows.
  await until('the file is closed', () => {
    if (closed === 0) clock.advance(30_000);
    return closed === 1;
  });
  sent.destroy();
  await soon(gone, 'the end of the request');
  t.equal(closed, 1);
});
