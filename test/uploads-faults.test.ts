/** Uploads that continue after faults: killed servers, full disks, a crash between two steps, the nightly job. */
import { randomBytes } from 'node:crypto';
import { appendFile, link, mkdir, readdir, rename, stat } from 'node:fs/promises';
import { join } from 'node:path';
import t, { type Test } from 'tap';
import { LocalStore } from '../src/server/blobs/objects/local.js';
import { BlobStore } from '../src/server/blobs/store.js';
import { Transfers } from '../src/server/blobs/transfers.js';
import { blobItem, downloadUrl, openRequest, send } from './support/blobs.js';
import { stageOf, type Stage } from './support/blob-stage.js';
import { claim } from './support/devices.js';
import { until } from './support/events.js';
import { poolOf, temporaryFolder, testDatabase } from './support/postgres.js';
import { Scene } from './support/scene.js';
import { spawnServer } from './support/server.js';
import { smallDisk } from './support/small-disk.js';
import { askStanding, begun, PART, put, sendRest, standing, type Part, type Standing } from './support/uploads.js';

const MIB = 1024 * 1024;
const HOUR_MS = 3_600_000;
const partOf = (at: Standing, index = 0): Part => {
  const part = at.parts[index];
  if (part === undefined) throw new Error('no such part');
  return part;
};

t.test('BLOB-60: a server that is killed again and again loses no byte that it reported as kept', async (t) => {
  const database = await testDatabase(t);
  const dataDir = join(await temporaryFolder(t), 'data');
  const uploads = join(dataDir, 'blobs', 'uploads');
  const whole = randomBytes(4 * PART);
  let child = await spawnServer(t, { database, dataDir });
  const device = await claim(child.wire);
  const { blobRef } = await begun(child.wire, device, whole.length);
  let told = 0;
  let sentBytes = 0;
  for (let round = 0; round < 3; round++) {
    const now = await standing(child.wire, device, blobRef);
    t.equal(now.offset, told, `round ${round}: the reported bytes are kept`);
    t.equal((await put(partOf(now), whole)).outcome, '200');
    told += PART;
    // In the middle of the next part.
    const next = partOf(now, 1);
    const { sent, reply } = openRequest('PUT', next.url, next.headers);
    sent.write(whole.subarray(next.from, next.from + 2 * MIB));
    const [name = ''] = await readdir(uploads);
    await until('bytes of it', async () => (await stat(join(uploads, name))).size > told);
    sentBytes += PART + 2 * MIB;
    await child.end('SIGKILL');
    await t.rejects(reply);
    child = await spawnServer(t, { database, dataDir });
  }
  const last = await standing(child.wire, device, blobRef);
  t.equal(last.offset, 3 * PART);
  await sendRest(child.wire, device, last, whole);
  t.ok((await send('GET', await downloadUrl(child.wire, device, blobRef))).bytes.equals(whole));
  t.ok(sentBytes + PART <= whole.length + 3 * PART);
  t.strictSame(await readdir(uploads), []);
});

/** An upload of two parts of which the first is kept, and its file. */
async function half(stage: Stage, whole: Buffer): Promise<{ readonly at: Standing; readonly path: string }> {
  const { wire, first } = stage.scene;
  const at = await begun(wire, first, whole.length);
  await put(partOf(at), whole);
  return { at, path: join(stage.folder, '..', 'uploads', `${stage.scene.server.tenantId}.${at.blobRef}.part`) };
}

t.test('BLOB-60: a server that dies between any two steps of a part loses nothing and leaves nothing', async (t) => {
  const stage = await stageOf(t);
  const { wire, first, server } = stage.scene;
  const whole = randomBytes(2 * PART);
  const fetched = async (ref: string): Promise<Buffer> =>
    (await send('GET', await downloadUrl(wire, first, ref))).bytes;

  const written = await half(stage, whole);
  await appendFile(written.path, randomBytes(PART));
  const now = await standing(wire, first, written.at.blobRef);
  t.equal(now.offset, PART, 'bytes in the file that the row does not count are sent again');
  await sendRest(wire, first, now, whole);
  t.ok((await fetched(written.at.blobRef)).equals(whole), 'the uncounted bytes are replaced');

  const kept = async (): Promise<Standing> => {
    const { at, path } = await half(stage, whole);
    await appendFile(path, whole.subarray(PART));
    await server.sql('UPDATE blobs SET kept = size WHERE ref = $1', [at.blobRef]);
    return at;
  };
  const asked = await kept();
  t.match(
    await standing(wire, first, asked.blobRef),
    { offset: whole.length, parts: [] },
    'all bytes kept, blob not linked: a query completes the upload',
  );
  t.ok((await fetched(asked.blobRef)).equals(whole));
  const moved = await half(stage, whole);
  await appendFile(moved.path, whole.subarray(PART));
  await rename(moved.path, `${moved.path}.whole`);
  await server.sql('UPDATE blobs SET kept = size WHERE ref = $1', [moved.at.blobRef]);
  t.match(
    await standing(wire, first, moved.at.blobRef),
    { offset: whole.length },
    'the file is moved aside, not linked: a query completes the upload',
  );
  t.ok((await fetched(moved.at.blobRef)).equals(whole));
  const given = await half(stage, whole);
  await rename(given.path, `${given.path}.whole`);
  await wire.delete(`/uploads/${given.at.blobRef}`, stage.scene.as('a'));
  await t.rejects(
    stat(`${given.path}.whole`),
    { code: 'ENOENT' },
    'a file that is moved aside is removed when its upload is given up',
  );
  const named = await kept();
  const item = blobItem('a', stage.scene.ids, named.blobRef);
  t.equal(
    (await wire.post('/items', item, stage.scene.as('a'))).status,
    200,
    'all bytes kept, blob not linked: the item completes the upload',
  );

  const { at, path } = await half(stage, whole);
  await appendFile(path, whole.subarray(PART));
  await mkdir(stage.folder, { recursive: true });
  await link(path, join(stage.folder, at.blobRef));
  t.match(
    await standing(wire, first, at.blobRef),
    { offset: whole.length },
    'the blob is linked, the row does not say so: a query completes the upload',
  );
  t.ok((await fetched(at.blobRef)).equals(whole));
  await stage.sound();
});

t.test('BLOB-57: a part that arrives while its upload is given up leaves no file', async (t) => {
  const stage = await stageOf(t);
  const { wire, first, server } = stage.scene;
  const { tenantId } = server;
  const folder = join(stage.folder, '..');
  /** Between the row and the file of a part, its upload is given up. */
  class LateStore extends LocalStore {
    override async openPart(...[name, from]: Parameters<LocalStore['openPart']>) {
      await wire.delete(`/uploads/${name.ref}`, stage.scene.as('a'));
      return super.openPart(name, from);
    }
  }
  const rows = new BlobStore(poolOf(t, server.databaseUrl));
  const faults: unknown[] = [];
  const transfers = new Transfers({
    ...{ rows, files: new LateStore(folder, 'unused'), clock: stage.clock, secret: 'unused' },
    onFault: (error) => faults.push(error),
  });
  const late = async (isWhole: boolean): Promise<void> => {
    const { blobRef: ref } = await begun(wire, first, 2 * PART);
    const chunks = [randomBytes(PART)];
    const next = (): Promise<Buffer | undefined> =>
      isWhole || chunks.length > 0 ? Promise.resolve(chunks.shift()) : Promise.reject(new Error('cut off'));
    await transfers.upload({ tenantId, ref, size: PART, from: 0 }, { next, cut: () => undefined });
  };
  const left = (): Promise<string[]> => readdir(join(folder, 'uploads'));
  await t.rejects(late(true), { message: /used, or its reservation/ });
  t.strictSame(await left(), [], 'whole');
  await t.rejects(late(false), { message: 'cut off' });
  t.strictSame(await left(), [], 'cut off');
  t.strictSame(faults, []);
  await stage.sound();

  const failing = new Error('the database failed');
  rows.find = () => Promise.reject(failing);
  await t.rejects(late(false), { message: 'cut off' }, 'not the failure of what looks for the remnant');
  t.strictSame(faults, [failing]);
});

t.test('BLOB-62: an upload continues when a full disk has room again', async (t) => {
  const dataDir = await smallDisk(t, '12m');
  if (dataDir === undefined) return t.comment('skipped: no file system can be mounted here');
  const scene = await Scene.start(t, { env: { DATA_DIR: dataDir } });
  const { wire, first } = scene;
  const [other, whole] = [randomBytes(2 * PART), randomBytes(2 * PART)];
  const blocking = await begun(wire, first, other.length);
  await put(partOf(blocking), other);
  const at = await begun(wire, first, whole.length);
  await put(partOf(at), whole);
  t.equal((await put(partOf(at, 1), whole)).outcome, '503 storage_unavailable');
  t.ok((await standing(wire, first, at.blobRef)).offset >= PART, 'what was kept before stays');
  await wire.delete(`/uploads/${blocking.blobRef}`, scene.as('a'));
  await sendRest(wire, first, await standing(wire, first, at.blobRef), whole);
  t.ok((await send('GET', await downloadUrl(wire, first, at.blobRef))).bytes.equals(whole));
});

t.test('BLOB-58: the nightly job removes no upload of which a part is being sent', async (t) => {
  const stage = await stageOf(t);
  const { wire, first } = stage.scene;
  const whole = randomBytes(2 * PART);
  const { at } = await half(stage, whole);
  stage.clock.advance(24 * HOUR_MS - 60_000);
  const last = partOf(at, 1);
  // Its URL has expired: the part is requested anew, which continues the upload. The updates undo that: only the lease
  // holds the upload.
  const fresh = partOf(await standing(wire, first, at.blobRef));
  await stage.scene.server.sql('UPDATE blobs SET expires_at = $2 WHERE ref = $1', [
    at.blobRef,
    stage.clock.now() + 30_000,
  ]);
  const { sent, reply } = openRequest('PUT', fresh.url, fresh.headers);
  sent.write(whole.subarray(PART, PART + MIB));
  const leased = `SELECT uploading_until > 0 AS yes FROM blobs WHERE ref = $1`;
  await until('it is taken', async () => (await stage.scene.server.sql(leased, [at.blobRef]))[0]?.['yes'] === true);
  await stage.scene.server.sql('UPDATE blobs SET expires_at = 1 WHERE ref = $1', [at.blobRef]);
  t.equal(await stage.released(), 0);
  sent.end(whole.subarray(PART + MIB));
  t.equal((await reply).outcome, '200');
  t.equal((await put(last, whole)).outcome, '403 url_invalid');
  t.ok((await send('GET', await downloadUrl(wire, first, at.blobRef))).bytes.equals(whole));
});

async function raceOfEnds(t: Test, stage: Stage): Promise<void> {
  const { wire, server, ids } = stage.scene;
  const whole = randomBytes(PART + 1);
  const { at, path } = await half(stage, whole);
  await appendFile(path, whole.subarray(PART));
  await server.sql('UPDATE blobs SET kept = size, expires_at = 1 WHERE ref = $1', [at.blobRef]);
  const item = blobItem('a', ids, at.blobRef);
  const [, written] = await Promise.all([stage.released(), wire.post('/items', item, stage.scene.as('a'))]);
  await stage.removed();
  if (written.status === 200) {
    const url = await downloadUrl(wire, stage.scene.first, at.blobRef);
    t.ok((await send('GET', url)).bytes.equals(whole), 'the item has its bytes');
  } else {
    t.equal(written.outcome, '400 blob_not_found');
    t.equal((await askStanding(wire, stage.scene.first, at.blobRef)).outcome, '404 blob_not_found', 'nothing is left');
    t.notOk((await stage.files()).includes(at.blobRef));
  }
}

t.test('BLOB-58: of the nightly job and an item that race for a late upload one wins, consistently', async (t) => {
  const stage = await stageOf(t);
  for (let round = 0; round < 8; round++) await raceOfEnds(t, stage);
  await stage.sound();
});
