/** Uploads that continue where they stopped, through the local store. */
import { createHash, randomBytes } from 'node:crypto';
import { open, readdir, stat, truncate, type FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { blobItem, downloadUrl, openRequest, send, uploaded } from './support/blobs.js';
import { stageOf } from './support/blob-stage.js';
import { until } from './support/events.js';
import {
  askBegin,
  askStanding,
  begun,
  PART,
  put,
  sendRest,
  standing,
  standingIn,
  type Part,
} from './support/uploads.js';
import { SHAPES } from './support/wire.js';

const MIB = 1024 * 1024;
const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const stage = await stageOf(t, { MAX_BLOB_SIZE_MB: '1024', STORAGE_CAP_BYTES: String(1024 * MIB) });
const { scene } = stage;
const { wire, first, second } = scene;

const sha = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');
const parts = async (): Promise<string[]> =>
  (await readdir(join(stage.folder, '..', 'uploads')).catch(() => [])).filter((name) => name.endsWith('.part'));
const fetched = async (ref: string): Promise<string> =>
  sha((await send('GET', await downloadUrl(wire, first, ref))).bytes);
const drop = (ref: string): Promise<unknown> => wire.delete(`/uploads/${ref}`, scene.as('a'));
const firstPart = ({ parts: [part] }: { readonly parts: readonly Part[] }): Part => {
  if (part === undefined) throw new Error('no part');
  return part;
};

/** Sends `bytes` of a part and cuts the connection when the server has taken them. */
async function cutAfter(part: Part, whole: Buffer, bytes: number): Promise<void> {
  const { sent } = openRequest('PUT', part.url, part.headers);
  await new Promise<void>((resolve) => sent.write(whole.subarray(part.from, part.from + bytes), () => resolve()));
  sent.on('error', () => undefined);
  sent.destroy();
}

for (const shape of SHAPES) {
  t.test(`BLOB-53: an upload is sent part by part, and an item names it (${shape})`, async (t) => {
    const whole = randomBytes(12 * MIB + 5);
    const now = Date.now();
    const at = standingIn(await askBegin(wire, first, whole.length, shape));
    t.match(at.blobRef, /^[0-7][0-9A-HJKMNP-TV-Z]{25}\.bin$/);
    t.match(at, { size: whole.length, offset: 0 });
    t.ok(at.expiresAt >= now + 900_000 && at.expiresAt <= Date.now() + 900_000, 'the URLs are valid for 15 minutes');
    t.strictSame(
      at.parts.map(({ from, size }) => [from, size]),
      [
        [0, PART],
        [PART, PART],
        [2 * PART, 2 * MIB + 5],
      ],
    );
    for (const part of at.parts) t.equal((await put(part, whole)).outcome, '200');
    t.equal((await wire.post('/items', blobItem(shape, scene.ids, at.blobRef), scene.as(shape))).status, 200);
    t.equal(await fetched(at.blobRef), sha(whole));
    const end = standingIn(await askStanding(wire, second, at.blobRef, shape));
    t.match(end, { offset: whole.length, size: whole.length, parts: [] }, 'another device may query the upload');
    t.strictSame(await parts(), []);
    await stage.sound();
  });

  t.test(`BLOB-54: nothing is revealed about an upload that is not open (${shape})`, async (t) => {
    for (const ref of ['01ARZ3NDEKTSV4RRFFQ69G5FB1.bin', 'x', '%2e%2e', 'uploads']) {
      t.equal((await askStanding(wire, first, ref, shape)).outcome, '404 blob_not_found', ref);
      t.equal((await wire.delete(`/uploads/${ref}`, scene.as(shape))).outcome, '404 blob_not_found', ref);
    }
    const { blobRef } = standingIn(await askBegin(wire, first, 10, shape));
    t.equal((await wire.post(`/uploads/${blobRef}`, undefined, { shape })).status, 401);
    t.equal((await wire.delete(`/uploads/${blobRef}`, { shape })).status, 401);
    await drop(blobRef);
  });
}

t.test('BLOB-53: a blob that fits in one part is one plain PUT, which may be requested again', async (t) => {
  for (const size of [1, PART]) {
    const whole = randomBytes(size);
    const at = await begun(wire, first, size);
    t.equal(at.parts.length, 1);
    t.notMatch(firstPart(at).url, /from=/);
    const again = await standing(wire, first, at.blobRef);
    t.match(again, { offset: 0, parts: [{ from: 0, size }] });
    t.equal((await put(firstPart(again), whole)).outcome, '200');
    t.match(await standing(wire, first, at.blobRef), { offset: size, parts: [] });
    t.equal(
      (await put(firstPart(at), whole)).outcome,
      '403 url_invalid',
      'a URL is refused once the upload is complete',
    );
    t.equal(await fetched(at.blobRef), sha(whole));
  }
});

t.test('BLOB-55: a part that was cut off counts as far as it arrived; the upload continues from there', async (t) => {
  const whole = randomBytes(16 * MIB);
  const at = await begun(wire, first, whole.length);
  await put(firstPart(at), whole);
  const [, cut] = at.parts;
  if (cut === undefined) throw new Error('no second part');
  await cutAfter(cut, whole, 3 * MIB);
  let now = await standing(wire, first, at.blobRef);
  while (now.offset === PART) now = await standing(wire, first, at.blobRef);
  t.ok(now.offset > PART && now.offset <= PART + 3 * MIB, String(now.offset));
  t.strictSame([firstPart(now).from, firstPart(now).from + firstPart(now).size], [now.offset, 2 * PART]);
  t.equal((await put(cut, whole)).outcome, '409 upload_offset', 'a part at the old offset is refused');
  await sendRest(wire, first, now, whole);
  t.equal(await fetched(at.blobRef), sha(whole));
});

t.test('BLOB-56: a part is accepted at the current offset, once, and in its own size only', async (t) => {
  const whole = randomBytes(11 * MIB);
  const at = await begun(wire, first, whole.length);
  const [one, two] = at.parts;
  if (one === undefined || two === undefined) throw new Error('no parts');
  t.equal((await put(two, whole)).outcome, '409 upload_offset', 'the second part before the first');
  const short = { ...one.headers, 'content-length': '10' };
  t.equal((await send('PUT', one.url, { headers: short, body: whole.subarray(0, 10) })).outcome, '403 url_invalid');
  for (const url of [
    one.url.replace('from=0', `from=${PART}`),
    one.url.replace('from=0&', ''),
    one.url.replace('from=0', 'from=-1'),
    one.url.replace('from=0', 'from=0&from=0'),
    one.url.replace('from=0', 'from=0.5'),
  ]) {
    t.equal(
      (await send('PUT', url, { headers: one.headers, body: whole.subarray(0, PART) })).outcome,
      '403 url_invalid',
    );
  }
  t.equal((await put(one, whole)).outcome, '200');
  t.equal((await put(one, whole)).outcome, '409 upload_offset', 'the first part again');
  await sendRest(wire, first, await standing(wire, first, at.blobRef), whole);
  t.equal((await put(two, whole)).outcome, '403 url_invalid', 'a part after the end of the upload');
  t.equal(await fetched(at.blobRef), sha(whole));
  await stage.sound();
});

t.test('BLOB-56: of concurrent PUTs of one part at most one succeeds, and the bytes are right', async (t) => {
  const whole = randomBytes(6 * MIB);
  const at = await begun(wire, first, whole.length);
  const settled = await Promise.allSettled(Array.from({ length: 8 }, () => put(firstPart(at), whole)));
  const outcomes = settled.map((one) => (one.status === 'fulfilled' ? one.value.outcome : 'cut'));
  t.ok(outcomes.filter((outcome) => outcome === '200').length <= 1, outcomes.join());
  await sendRest(wire, first, await standing(wire, first, at.blobRef), whole);
  t.equal(await fetched(at.blobRef), sha(whole));
});

t.test('BLOB-57: an upload that is given up frees its room at once, and a complete blob stays', async (t) => {
  const before = await stage.used();
  const whole = randomBytes(7 * MIB);
  const at = await begun(wire, first, whole.length);
  t.equal(await stage.used(), before + whole.length);
  await put(firstPart(at), whole);
  t.equal((await parts()).length, 1);
  await drop(at.blobRef);
  t.equal(await stage.used(), before);
  t.strictSame(await parts(), []);
  t.equal((await askStanding(wire, first, at.blobRef)).outcome, '404 blob_not_found');
  t.equal((await put(at.parts[1] ?? firstPart(at), whole)).outcome, '403 url_invalid');
  t.strictSame(await parts(), []);
  const ready = await uploaded(wire, first, randomBytes(10));
  await drop(ready);
  t.equal((await wire.get(`/blobs/${ready}/url`, scene.as('a'))).status, 200);
  await stage.sound();
});

t.test('BLOB-57: an upload that is given up while a part is being sent leaves nothing', async (t) => {
  const before = await stage.used();
  const whole = randomBytes(6 * MIB);
  const at = await begun(wire, first, whole.length);
  await put(firstPart(at), whole);
  // The last part, which is short: what is left of it when it is refused is read, and the connection stays open.
  const [, last = firstPart(at)] = at.parts;
  const { sent, reply } = openRequest('PUT', last.url, last.headers);
  const half = PART + last.size / 2;
  await new Promise<void>((resolve) => sent.write(whole.subarray(PART, half), () => resolve()));
  await until('bytes of the last part', async () => {
    const [name = ''] = await parts();
    return (await stat(join(stage.folder, '..', 'uploads', name))).size > PART;
  });
  await drop(at.blobRef);
  sent.end(whole.subarray(half));
  t.equal((await reply).outcome, '403 url_invalid');
  t.strictSame(await parts(), []);
  t.equal(await stage.used(), before);
});

t.test('BLOB-58: an upload is open for a day after it was last continued, and for seven days at most', async (t) => {
  const whole = randomBytes(6 * MIB);
  const at = await begun(wire, first, whole.length);
  await put(firstPart(at), whole);
  for (let day = 0; day < 7; day++) {
    stage.clock.advance(DAY_MS - HOUR_MS);
    t.equal((await askStanding(wire, first, at.blobRef)).status, 200, `after ${day + 1} days`);
    t.equal(await stage.released(), 0);
  }
  stage.clock.advance(8 * HOUR_MS);
  t.equal((await askStanding(wire, first, at.blobRef)).outcome, '404 blob_not_found', 'after seven days');
  t.equal(await stage.released(), 1);
  t.strictSame(await parts(), []);
  const left = await begun(wire, first, whole.length);
  await put(firstPart(left), whole);
  stage.clock.advance(DAY_MS + 1);
  t.equal((await put(left.parts[1] ?? firstPart(left), whole)).outcome, '403 url_invalid', 'not continued for a day');
  t.equal(await stage.released(), 1);
  t.strictSame(await parts(), []);
  await stage.sound();
});

t.test('BLOB-54: an upload that has expired is not open, but may be given up; then it is unknown', async (t) => {
  const gone = '404 blob_not_found';
  for (const shape of SHAPES) {
    const { blobRef } = await begun(wire, first, 10);
    const used = await stage.used();
    const givenUp = async (): Promise<string> => (await wire.delete(`/uploads/${blobRef}`, scene.as(shape))).outcome;
    stage.clock.advance(DAY_MS + 1);
    t.equal((await askStanding(wire, first, blobRef, shape)).outcome, gone, 'expired');
    t.equal(await givenUp(), '200');
    t.equal(await stage.used(), used - 10, 'its room is free');
    t.equal(await givenUp(), gone, 'given up');
    t.equal((await askStanding(wire, first, blobRef, shape)).outcome, gone);
  }
});

t.test('BLOB-59: an item may name a blob for a day after the last part', async (t) => {
  const whole = randomBytes(6 * MIB);
  const at = await begun(wire, first, whole.length);
  await put(firstPart(at), whole);
  stage.clock.advance(DAY_MS - HOUR_MS);
  await sendRest(wire, first, await standing(wire, first, at.blobRef), whole);
  stage.clock.advance(DAY_MS - HOUR_MS);
  await stage.removed();
  t.equal((await wire.post('/items', blobItem('a', scene.ids, at.blobRef), scene.as('a'))).status, 200);
  t.equal(await fetched(at.blobRef), sha(whole));
});

t.test('BLOB-60 BLOB-09: bytes that the disk no longer has do not count', async (t) => {
  const whole = randomBytes(11 * MIB);
  const at = await begun(wire, first, whole.length);
  await put(firstPart(at), whole);
  const [name = ''] = await parts();
  const path = join(stage.folder, '..', 'uploads', name);
  t.equal((await stat(path)).mode & 0o777, 0o600, 'only its owner can access it');
  await truncate(path, MIB);
  const [, two] = at.parts;
  t.equal(two && (await put(two, whole)).outcome, '409 upload_offset', 'no hole is left before it');
  const now = await standing(wire, first, at.blobRef);
  t.equal(now.offset, MIB);
  await sendRest(wire, first, now, whole);
  t.equal(await fetched(at.blobRef), sha(whole));
});

t.test('BLOB-60: bytes that the disk did not make durable do not count', async (t) => {
  const whole = randomBytes(6 * MIB);
  const at = await begun(wire, first, whole.length);
  const handle = await open(import.meta.filename);
  await handle.close();
  const files = Object.getPrototypeOf(handle) as FileHandle;
  const sync = Reflect.get(files, 'sync');
  files.sync = async function (this: FileHandle) {
    // Folders are synced as ever.
    if ((await this.stat()).isFile()) throw Object.assign(new Error('the disk fails'), { code: 'EIO' });
    return sync.call(this);
  };
  try {
    t.equal((await put(firstPart(at), whole)).outcome, '503 storage_unavailable');
  } finally {
    files.sync = sync;
  }
  const now = await standing(wire, first, at.blobRef);
  t.equal(now.offset, 0);
  await sendRest(wire, first, now, whole);
  t.equal(await fetched(at.blobRef), sha(whole));
});

t.test('BLOB-61: an upload is refused in the same cases as an upload URL', async (t) => {
  t.equal((await askBegin(wire, first, 1024 * MIB + 1)).outcome, '413 blob_too_large');
  const room = 1024 * MIB - (await stage.used());
  t.equal((await askBegin(wire, first, room + 1)).outcome, '413 storage_cap_exceeded');
  for (const size of [0, -1, 1.5, 2 ** 53]) t.equal((await askBegin(wire, first, size)).outcome, '400 validation');
  const open = await begun(wire, first, room);
  t.equal((await askBegin(wire, first, 1)).outcome, '413 storage_cap_exceeded', 'open uploads count');
  t.equal(open.parts.length, 16, 'at most 16 parts at once');
  stage.clock.advance(DAY_MS + 1);
  await drop((await begun(wire, first, 1)).blobRef);
  t.ok(true, 'expired uploads make room');
});

t.test(
  'BLOB-64: a tenant may have ten thousand blobs that no item has named, those of deleted items not counted',
  async (t) => {
    const { server } = scene;
    // Inserted by hand, to save time; without bytes, so that the tenant's usage stays right. Those of items do not count.
    const add = (from: number, to: number, state: string, itemId: string | null): Promise<unknown> =>
      server.sql(
        `INSERT INTO blobs (tenant_id, ref, size, state, item_id, created_at, expires_at)
        SELECT $1, '1' || lpad(n::text, 25, '0') || '.bin', 0, $2, $3, $4, 0 FROM generate_series($5::integer, $6::integer) n`,
        [server.tenantId, state, itemId, stage.clock.now(), from, to],
      );
    const [before] = await server.sql(
      `SELECT count(*) AS n FROM blobs WHERE item_id IS NULL AND state IN ('reserved', 'ready')`,
    );
    await add(1, 100, 'ready', '01ARZ3NDEKTSV4RRFFQ69G5FAV');
    await add(101, 200, 'orphan', '01ARZ3NDEKTSV4RRFFQ69G5FAV');
    await add(201, 10_199 - Number(before?.['n']), 'ready', null);
    const last = await begun(wire, first, 1);
    t.equal((await askBegin(wire, first, 1)).outcome, '429 rate_limited');
    await drop(last.blobRef);
    await drop((await begun(wire, first, 1)).blobRef);
    await server.sql(`DELETE FROM blobs WHERE tenant_id = $1 AND ref LIKE '1%' AND size = 0`, [server.tenantId]);
    await stage.released();
    await stage.sound();
  },
);

t.test('BLOB-61 BLOB-31: a tenant may have a thousand open uploads; expired ones make room, no others', async (t) => {
  // All but one are inserted by hand, to save time; without bytes, so that the tenant's usage stays right.
  await scene.server.sql(
    `INSERT INTO blobs (tenant_id, ref, size, state, created_at, expires_at)
      SELECT $1, lpad(n::text, 26, '0') || '.bin', 0, 'reserved', $2, $3 FROM generate_series(1, 999) n`,
    [scene.server.tenantId, stage.clock.now(), stage.clock.now() + 3 * DAY_MS],
  );
  const { blobRef } = await begun(wire, second, 1);
  t.equal((await askBegin(wire, first, 1)).outcome, '429 rate_limited');
  await drop(blobRef);
  t.equal((await askBegin(wire, first, 1)).status, 200);
  t.equal((await askBegin(wire, first, 1)).outcome, '429 rate_limited', 'no open one has expired');
  stage.clock.advance(DAY_MS + 1);
  t.equal((await askBegin(wire, first, 1)).status, 200, 'one has expired');
  t.equal((await askBegin(wire, first, 1)).outcome, '429 rate_limited', 'the others stay');
  stage.clock.advance(3 * DAY_MS);
  await stage.released();
  await stage.sound();
});
