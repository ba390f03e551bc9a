/** Blobs through the local store, from the upload URL to the downloaded bytes. */
import { createHash, randomBytes } from 'node:crypto';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { BlobStore } from '../src/server/blobs/store.js';
import { blobItem, downloadUrl, openRequest, send, askUpload, uploadOf, uploaded } from './support/blobs.js';
import { newId } from './support/devices.js';
import { poolOf, temporaryFolder } from './support/postgres.js';
import { Scene } from './support/scene.js';
import { camel, SHAPES } from './support/wire.js';

const dataDir = await temporaryFolder(t);
const scene = await Scene.start(t, { env: { DATA_DIR: dataDir, MAX_BLOB_SIZE_MB: '80' } });
const { wire, first, second, server } = scene;

const sha = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');
const used = async (): Promise<number> => (await scene.me()).number('server.storageUsedBytes');
const temporaries = async (): Promise<string[]> => readdir(join(dataDir, 'blobs', 'uploads')).catch(() => []);

for (const shape of SHAPES) {
  t.test(`BLOB-01 BLOB-02 BLOB-03: a blob is uploaded, named by an item and downloaded whole (${shape})`, async (t) => {
    const bytes = randomBytes(1_500_000);
    const before = Date.now();
    const given = await uploadOf(wire, first, { size: bytes.length, type: 'image/jpeg', shape });
    t.match(given.blobRef, /^[0-7][0-9A-HJKMNP-TV-Z]{25}\.bin$/);
    t.match(given.url, /^http:\/\/127\.0\.0\.1:\d+\/blobs\/[0-9A-Z]{26}\/[0-9A-Z]{26}\.bin\?exp=\d+&sig=/);
    t.ok(given.expiresAt >= before + 900_000 && given.expiresAt <= Date.now() + 900_000, 'valid for 15 minutes');
    t.strictSame(given.headers, { 'content-type': 'image/jpeg', 'content-length': String(bytes.length) });

    const put = await send('PUT', given.url, { headers: given.headers, body: bytes });
    t.equal(put.outcome, '200', put.bytes.toString());
    const body = blobItem(shape, scene.ids, given.blobRef);
    const written = await wire.post('/items', body, scene.as(shape));
    t.equal(written.status, 200, written.raw);
    for (const reading of SHAPES) {
      const row = await scene.row(String(body['id']), reading);
      t.equal(camel(row)['blobRef'], given.blobRef, `read in ${reading}`);
      const asked = await wire.get(`/blobs/${given.blobRef}/url`, scene.as(reading, second));
      const fields = camel(asked.body);
      t.equal(asked.status, 200, asked.raw);
      t.equal(fields['size'], bytes.length);
      t.ok(Number(fields['expiresAt']) <= Date.now() + 300_000, 'valid for 5 minutes');
      const got = await send('GET', String(fields['url']));
      t.equal(got.status, 200);
      t.equal(sha(got.bytes), sha(bytes));
      t.match(got.headers, {
        'content-length': String(bytes.length),
        'content-type': 'application/octet-stream',
        'x-content-type-options': 'nosniff',
        'content-disposition': 'attachment',
        'cache-control': 'no-store',
        'accept-ranges': 'bytes',
      });
    }
    t.strictSame(await temporaries(), [], 'the upload leaves nothing but the blob');
  });

  t.test(`BLOB-04: an upload with a bad size or content type is refused (${shape})`, async (t) => {
    const bad: readonly (readonly [unknown, unknown])[] = [
      [0, 'a/b'],
      [-1, 'a/b'],
      [1.5, 'a/b'],
      ['10', 'a/b'],
      [undefined, 'a/b'],
      [2 ** 53, 'a/b'],
      [10, ''],
      [10, 'a\nb'],
      [10, 'ä'],
      [10, 'x'.repeat(128)],
      [10, ' a/b'],
      [10, 'a/b;  c=d'],
      [10, 'a\u007f'],
      [10, 7],
    ];
    for (const [size, type] of bad) {
      const body = shape === 'a' ? { contentLength: size, contentType: type } : { size, contentType: type };
      const reply = await wire.post('/blobs/upload-url', body, { ...scene.as(shape) });
      t.equal(reply.outcome, shape === 'a' ? '400 validation' : '400 invalid_payload', JSON.stringify(body));
    }
    const plain = await uploadOf(wire, first, { size: 5, shape });
    t.equal(plain.headers['content-type'], 'application/octet-stream', 'the type may be omitted');
    for (const type of ['x', 'x'.repeat(127), 'text/plain; charset=utf-8'])
      t.equal((await uploadOf(wire, first, { size: 1, type, shape })).headers['content-type'], type);
  });

  t.test(`BLOB-05: an item may name only a blob that was uploaded (${shape})`, async (t) => {
    const { blobRef } = await uploadOf(wire, first, { size: 10 });
    for (const ref of [blobRef, `${newId()}.bin`, '../../etc/passwd', 'x']) {
      const reply = await wire.post('/items', blobItem(shape, scene.ids, ref), scene.as(shape));
      t.equal(reply.outcome, '400 blob_not_found', ref);
    }
    for (const ref of [blobRef, `${newId()}.bin`, 'x', '%2e%2e']) {
      const reply = await wire.get(`/blobs/${ref}/url`, scene.as(shape));
      t.equal(reply.outcome, '404 blob_not_found', ref);
    }
    const taken = await uploaded(wire, first, randomBytes(10));
    t.equal((await wire.post('/items', blobItem(shape, scene.ids, taken), scene.as(shape))).status, 200);
    const again = await wire.post('/items', blobItem(shape, scene.ids, taken), scene.as(shape));
    t.equal(again.outcome, '400 blob_not_found', 'a second item cannot name the blob');
  });
}

t.test('BLOB-06: a URL admits exactly the declared size and type, once', async (t) => {
  const bytes = randomBytes(1_000);
  const { url, headers, blobRef } = await uploadOf(wire, first, { size: bytes.length, type: 'a/b' });
  const type = { 'content-type': 'a/b' };
  const refused: readonly (readonly [string, Record<string, string>, Buffer])[] = [
    ['shorter', { ...type, 'content-length': '999' }, bytes.subarray(0, 999)],
    ['longer', { ...type, 'content-length': '1001' }, Buffer.concat([bytes, bytes.subarray(0, 1)])],
    ['another type', { ...headers, 'content-type': 'a/c' }, bytes],
    ['no type', { 'content-length': '1000' }, bytes],
  ];
  for (const [what, given, body] of refused) {
    t.equal((await send('PUT', url, { headers: given, body })).outcome, '403 url_invalid', what);
  }
  t.equal((await send('GET', url)).outcome, '403 url_invalid', 'another method');
  const { sent, reply } = openRequest('PUT', url, { ...type, 'transfer-encoding': 'chunked' });
  sent.end(bytes);
  t.equal((await reply).outcome, '400 validation', 'a body without a length is refused');
  t.equal((await send('PUT', url, { headers, body: bytes })).outcome, '200');
  t.equal((await send('PUT', url, { headers, body: bytes })).outcome, '403 url_invalid', 'a second upload is refused');
  t.equal(sha((await send('GET', await downloadUrl(wire, first, blobRef))).bytes), sha(bytes));
});

t.test('BLOB-07: an altered URL is refused, and so is one for another blob, tenant or method', async (t) => {
  const ref = await uploaded(wire, first, randomBytes(100));
  const other = await uploaded(wire, first, randomBytes(100));
  const url = new URL(await downloadUrl(wire, first, ref));
  const altered = (change: (url: URL) => void): string => {
    const copy = new URL(url);
    change(copy);
    return copy.href;
  };
  const sig = url.searchParams.get('sig') ?? '';
  const flipped = (sig.startsWith('A') ? 'B' : 'A') + sig.slice(1);
  const attempts: Record<string, string> = {
    'a later end': altered((u) => u.searchParams.set('exp', String(Number(u.searchParams.get('exp')) + 1))),
    'another signature': altered((u) => u.searchParams.set('sig', flipped)),
    'no signature': altered((u) => u.searchParams.delete('sig')),
    'two signatures': altered((u) => u.searchParams.append('sig', sig)),
    'another blob': altered((u) => (u.pathname = u.pathname.replace(ref, other))),
    'another tenant': altered((u) => (u.pathname = u.pathname.replace(server.tenantId, newId()))),
    'a way up': `${url.origin}/blobs/${server.tenantId}/..%2f..%2fsecrets%2ftoken-secret${url.search}`,
    'an encoded name': altered((u) => (u.pathname = u.pathname.replace('.bin', '%2ebin'))),
  };
  for (const [what, attempt] of Object.entries(attempts)) {
    t.equal((await send('GET', attempt)).outcome, '403 url_invalid', what);
  }
  t.equal((await send('PUT', url.href, { body: randomBytes(100) })).outcome, '403 url_invalid', 'another method');
  t.equal((await send('GET', url.href)).status, 200);
});

t.test('BLOB-08: a size over MAX_BLOB_SIZE_MB is refused before any upload', async (t) => {
  const before = await used();
  const reply = await askUpload(wire, first, { size: 80 * 1024 * 1024 + 1 });
  t.equal(reply.outcome, '413 blob_too_large');
  t.equal(reply.at('error.details.maxBytes'), 80 * 1024 * 1024);
  t.equal((await askUpload(wire, first, { size: 80 * 1024 * 1024 })).status, 200, 'the largest size is accepted');
  t.equal(await used(), before + 80 * 1024 * 1024, 'its room counts from then on');
});

t.test('BLOB-09: only their owner can access files and folders', async (t) => {
  const ref = await uploaded(wire, first, randomBytes(10));
  const folder = join(dataDir, 'blobs', server.tenantId);
  const modes = [join(dataDir, 'blobs'), join(dataDir, 'blobs', 'uploads'), folder, join(folder, ref)].map(
    async (path) => (await stat(path)).mode & 0o777,
  );
  t.strictSame(await Promise.all(modes), [0o700, 0o700, 0o700, 0o600]);
});

t.test('BLOB-10: of uploads that race for the cap only those that fit are admitted', async (t) => {
  const capped = await Scene.start(t, { env: { STORAGE_CAP_BYTES: '100000' } });
  const asked = await Promise.all(
    Array.from({ length: 20 }, (_, n) =>
      askUpload(capped.wire, n % 2 === 0 ? capped.first : capped.second, { size: 9_000 }),
    ),
  );
  const outcomes = asked.map(({ outcome }) => outcome).sort();
  t.strictSame(outcomes, [...Array<string>(11).fill('200'), ...Array<string>(9).fill('413 storage_cap_exceeded')]);
  t.equal((await capped.me()).number('server.storageUsedBytes'), 99_000);
  t.strictSame(await capped.server.sql('SELECT * FROM discrepancies()'), []);
});

t.test('OBJ-24: an upload that several requests complete at once is complete for each of them', async (t) => {
  const pool = poolOf(t, server.databaseUrl);
  const rows = new BlobStore(pool);
  const { blobRef: ref } = await uploadOf(wire, first, { size: 100 });
  const name = { tenantId: server.tenantId, ref };
  t.equal(await rows.markReady(name, 101, 0), false, 'another size than was reserved');
  t.equal(await rows.markReady(name, 100, 0), true);
  t.equal(await rows.markReady(name, 100, 0), true, 'also where another request was first');
  t.equal(await rows.markReady({ ...name, ref: newId() }, 100, 0), false, 'no such blob');
});
