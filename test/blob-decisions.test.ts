/** Items that name blobs: their spelling, and the order in which they are judged. */
import { randomBytes } from 'node:crypto';
import { rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { ALL_ROWS } from '../src/server/app/route-table.js';
import { askUpload, blobItem, downloadUrl, send, uploaded, uploadOf } from './support/blobs.js';
import { ShiftedClock } from './support/clock.js';
import { newId, writeBody } from './support/devices.js';
import { until } from './support/events.js';
import { temporaryFolder } from './support/postgres.js';
import { Scene } from './support/scene.js';
import { SHAPES, type Json, type Reply } from './support/wire.js';

const dataDir = await temporaryFolder(t);
const scene = await Scene.start(t, { env: { DATA_DIR: dataDir } });
const { wire, first, second } = scene;
const ALL = { a: '400 validation', b: '400 invalid_payload' };
const CONFLICT = { a: '409 conflict', b: '409 version_conflict' };

/** The calls that a suspended tenant is refused. */
const WRITES = [
  'POST /items',
  'POST /items/batch',
  'DELETE /items/:id',
  'POST /items/:id/reconcile',
  'POST /bins',
  'PATCH /bins/:id',
  'DELETE /bins/:id',
  'POST /blobs/upload-url',
  'POST /uploads',
  'POST /uploads/:ref',
];
/** The calls that a tenant that has not paid is served, apart from the portal and those without a tenant. */
const SERVED_UNPAID = [
  'GET /me',
  'GET /service/status',
  'POST /devices/bootstrap',
  'POST /devices/reauth/challenge',
  'POST /devices/reauth',
];

t.test('BLOB-41 SHAPE-11: the calls for URLs are answered in the spelling of each shape', async (t) => {
  const wish = { size: 3, type: 'image/png' };
  const [a, b] = [
    await askUpload(wire, first, { ...wish, shape: 'a' }),
    await askUpload(wire, first, { ...wish, shape: 'b' }),
  ];
  t.strictSame(Object.keys(a.body as Json).sort(), ['blobRef', 'expiresAt', 'headers', 'url']);
  t.strictSame(Object.keys(b.body as Json).sort(), ['blob_ref', 'expires_at', 'headers', 'url']);
  t.strictSame(a.at('headers'), { 'content-type': 'image/png', 'content-length': '3' });
  t.strictSame(b.at('headers'), a.at('headers'));
  t.match(b.body, { blob_ref: /\.bin$/, url: /^http/, expires_at: Number });
  const ref = await uploaded(wire, first, randomBytes(3));
  const [inA, inB] = [
    await wire.get(`/blobs/${ref}/url`, scene.as('a')),
    await wire.get(`/blobs/${ref}/url`, scene.as('b')),
  ];
  t.strictSame(Object.keys(inA.body as Json).sort(), ['expiresAt', 'size', 'url']);
  t.strictSame(Object.keys(inB.body as Json).sort(), ['expires_at', 'size', 'url']);
  const none = await wire.get(`/blobs/${newId()}.bin/url`, scene.as('b'));
  t.match(none.body, { error: { code: 'blob_not_found', hint: '/docs/errors#blob_not_found' } });
  const odd = await wire.post('/items', blobItem('b', scene.ids, '../x'), scene.as('b'));
  t.match(odd.body, { error: { code: 'blob_not_found', details: { path: 'blob_ref' } } });
});

t.test('BLOB-41 SHAPE-06: the body of a request for an upload URL shows its shape', async (t) => {
  const ask = async (body: Json): Promise<Reply> =>
    wire.post('/blobs/upload-url', JSON.stringify(body), { token: first.token });
  t.match((await ask({ contentLength: 3, contentType: 'a/b' })).body, { blobRef: String });
  t.match((await ask({ size: 3 })).body, { blob_ref: String });
  t.match((await ask({ size: 3, content_type: 'a/b' })).body, { blob_ref: String });
  t.equal((await ask({ contentLength: 3, content_type: 'a/b' })).outcome, '400 invalid_payload');
});

for (const shape of SHAPES) {
  const post = async (body: unknown): Promise<Reply> => wire.post('/items', body, scene.as(shape));
  t.test(`BLOB-44 RETRY-04 RETRY-06 SHAPE-18: another blob needs a later ts, a move keeps it (${shape})`, async (t) => {
    const ref = await uploaded(wire, first, randomBytes(10));
    const other = await uploaded(wire, first, randomBytes(10));
    const body = blobItem(shape, scene.ids, ref);
    const stored = await post(body);
    t.equal(stored.status, 200, stored.raw);
    const again = { ...body, ifVersion: stored.number('version') };
    t.equal((await post({ ...again, blobRef: other })).outcome, CONFLICT[shape], 'another blob is a conflict');
    const nonce = shape === 'a' ? 'blobNonce' : 'nonce';
    t.equal((await post({ ...again, [nonce]: randomBytes(24) })).outcome, CONFLICT[shape], 'another nonce of the blob');
    const lacking = blobItem(shape, [first.id], ref);
    const own = shape === 'a' ? 'blobKeys' : 'wrapped';
    t.equal((await post({ ...again, [own]: lacking[own] })).outcome, '200', 'a re-wrap that adds no key is accepted');
    t.equal(camelRef(await scene.row(String(body['id']))), ref);
    t.equal((await post({ ...body, binId: 'inbox', ts: Number(body['ts']) + 1 })).status, 200, 'a later write');
    t.equal(camelRef(await scene.row(String(body['id']))), ref, 'the later write names the same blob');
    const bin = `b${newId().toLowerCase()}`;
    await wire.post('/bins', { id: bin }, scene.as('a'));
    const row = await scene.row(String(body['id']));
    const move = { binId: bin, version: Number(row?.['version']), sig: randomBytes(32) };
    t.equal((await wire.post(`/items/${String(body['id'])}/reconcile`, move, scene.as(shape))).status, 200);
    const moved = await scene.row(String(body['id']));
    t.match(moved, { binId: bin, blobRef: ref, blobNonce: row?.['blobNonce'], blobKeys: row?.['blobKeys'] });
    const later = { ...body, binId: bin, ts: Number(body['ts']) + 2, blobRef: other };
    t.equal((await post(later)).status, 200, 'a later write may name another blob');
    t.equal(
      (await wire.get(`/blobs/${ref}/url`, scene.as('a'))).outcome,
      '404 blob_not_found',
      'the previous blob is gone',
    );
    t.equal(
      (await post({ ...later, ts: Number(body['ts']) + 3, blobRef: ref })).outcome,
      '400 blob_not_found',
      'the previous blob cannot be named again',
    );
    t.strictSame(await scene.server.sql('SELECT * FROM discrepancies()'), []);
  });
}

const camelRef = (row: Json | undefined): unknown => row?.['blobRef'];

t.test('BLOB-43 BILL-14 TOKEN-23 OPER-01: a suspended tenant may only download, an unpaid one nothing', async (t) => {
  const poor = await Scene.start(t);
  const ref = await uploaded(poor.wire, poor.first, randomBytes(10));
  const attached = await uploaded(poor.wire, poor.first, randomBytes(20));
  t.equal((await poor.wire.post('/items', blobItem('a', poor.ids, attached), poor.as('a'))).status, 200);
  const open = await uploadOf(poor.wire, poor.first, { size: 5 });
  const got = await downloadUrl(poor.wire, poor.first, attached);
  const all = async (): Promise<Record<string, string>> => ({
    uploadUrl: (await askUpload(poor.wire, poor.first, { size: 5 })).outcome,
    badWish: (await askUpload(poor.wire, poor.first, { size: -5 })).outcome,
    upload: (await send('PUT', open.url, { headers: open.headers, body: randomBytes(5) })).outcome,
    item: (await poor.wire.post('/items', blobItem('a', poor.ids, ref), poor.as('a'))).outcome,
    downloadUrl: (await poor.wire.get(`/blobs/${attached}/url`, poor.as('a'))).outcome,
    download: (await send('GET', got)).outcome,
  });
  /** How every endpoint answers; the input is never valid, so that nothing changes. */
  const everywhere = async (): Promise<Map<string, string>> => {
    const out = new Map<string, string>();
    for (const { method, path, auth, apex, tenantless } of ALL_ROWS) {
      const served =
        path.startsWith('/api/') && (auth === 'device' || auth === 'none') && !/billing|tls-check/.test(path);
      if (!served || apex === true || tenantless === true) continue;
      const asked = path.slice('/api'.length).replace(':id', newId()).replace(':ref', `${newId()}.bin`);
      const more = method === 'GET' ? {} : { body: '{"not": "valid"' };
      out.set(
        `${method} ${path.slice('/api'.length)}`,
        (await poor.wire.ask(method, asked, { ...poor.as('a'), ...more })).outcome,
      );
    }
    return out;
  };
  const those = (answers: Map<string, string>, outcome: string): string[] =>
    [...answers].filter(([, came]) => came === outcome).map(([call]) => call);
  const become = async (state: string): Promise<void> => {
    await poor.server.sql(`UPDATE tenants SET state = $1, generation = generation + 1`, [state]);
    const expected =
      state === 'active' ? '400 validation' : state === 'suspended' ? '403 tenant_suspended' : '402 payment_required';
    await until(state, async () => (await askUpload(poor.wire, poor.first, { size: -5 })).outcome === expected);
  };
  await become('suspended');
  const refused = '403 tenant_suspended';
  t.strictSame(await all(), {
    ...{ uploadUrl: refused, badWish: refused, upload: refused, item: refused },
    ...{ downloadUrl: '200', download: '200' },
  });
  t.same(those(await everywhere(), refused).sort(), [...WRITES].sort(), 'exactly the writes are refused');
  const unpaid = '402 payment_required';
  for (const state of ['pending', 'inactive']) {
    await become(state);
    t.strictSame(new Set(Object.values(await all())), new Set([unpaid]), state);
    const answers = await everywhere();
    const served = [...answers.keys()].filter((call) => answers.get(call) !== unpaid);
    t.same(served.sort(), [...SERVED_UNPAID].sort(), `${state}: exactly these calls are served`);
  }
  await become('active');
  t.match(
    await all(),
    { uploadUrl: '200', upload: '200', item: '200', download: '200' },
    'the refusals used nothing up',
  );
});

t.test('BLOB-45: at the cap, a store that is away cannot report what expired uploads left', async (t) => {
  const clock = new ShiftedClock();
  const folder = await temporaryFolder(t);
  const capped = await Scene.start(t, { clock, env: { DATA_DIR: folder, STORAGE_CAP_BYTES: '100000' } });
  await uploaded(capped.wire, capped.first, randomBytes(10));
  await uploadOf(capped.wire, capped.first, { size: 90_000 });
  const ask = async (): Promise<Reply> => askUpload(capped.wire, capped.first, { size: 50_000 });
  const own = join(folder, 'blobs', capped.server.tenantId);
  await rename(own, `${own}-away`);
  await writeFile(own, 'not a folder');
  t.equal((await ask()).outcome, '413 storage_cap_exceeded', 'no upload has expired, so no request is sent');
  clock.advance(16 * 60_000);
  const refused = await ask();
  t.equal(refused.outcome, '503 storage_unavailable');
  t.match(refused.headers, { 'retry-after': /^[1-9]/ });
  await rm(own);
  await rename(`${own}-away`, own);
  t.equal((await ask()).status, 200, 'once the store is back the room is free again');
  t.strictSame(await capped.server.sql('SELECT * FROM discrepancies()'), []);
});

// The last test: the store of the scene does not come back.
t.test('BLOB-42 RETRY-01 RETRY-02 RETRY-03 RETRY-06: what is decided before the blob needs no store', async (t) => {
  const blobOf = async (shape: (typeof SHAPES)[number]): Promise<{ body: Json; version: number }> => {
    const body = blobItem(shape, scene.ids, await uploaded(wire, first, randomBytes(10)));
    return { body, version: (await wire.post('/items', body, scene.as(shape))).number('version') };
  };
  const waiting = (await uploadOf(wire, first, { size: 10 })).blobRef;
  const stored = { a: await blobOf('a'), b: await blobOf('b') };
  const gone = { a: await blobOf('a'), b: await blobOf('b') };
  for (const shape of SHAPES) await wire.delete(`/items/${String(gone[shape].body['id'])}`, scene.as(shape));
  const own = join(dataDir, 'blobs', scene.server.tenantId);
  await rm(own, { recursive: true });
  await writeFile(own, 'not a folder');
  for (const shape of SHAPES) {
    const { body, version } = stored[shape];
    const ts = Number(body['ts']);
    const post = async (more: Json, of: Json = body): Promise<string> =>
      (await wire.post('/items', { ...of, ...more }, scene.as(shape))).outcome;
    t.equal(
      await post({ blobRef: waiting, ts: ts + 1 }),
      '503 storage_unavailable',
      'only a write that gets as far as the blob needs the store',
    );
    t.equal(await post({}), '200', 'the same write is answered');
    t.equal(await post({ blobRef: waiting, ts: ts + 1 }, gone[shape].body), CONFLICT[shape], 'a deleted item');
    t.equal(
      await post({ blobRef: waiting, ts: ts + 1, ifVersion: version + 1000 }),
      CONFLICT[shape],
      'another ifVersion is a conflict',
    );
    t.equal(await post({ blobRef: waiting, ts: ts - 1 }), CONFLICT[shape], 'an earlier ts is a conflict');
    t.equal(await post({ blobRef: waiting, ts }), CONFLICT[shape], 'the same ts is a conflict');
    t.equal(await post({ blobRef: waiting, ts: ts + 1, binId: 'nowhere' }), '404 bin_not_found');
    const one = blobItem(shape, [first.id], waiting);
    t.equal(await post({ ...one, id: newId() }), ALL[shape], 'a missing key is refused');
    const item = `/items/${String(body['id'])}`;
    const move = { binId: 'inbox', version, sig: randomBytes(32) };
    t.equal((await wire.post(`${item}/reconcile`, move, scene.as(shape))).outcome, '200', 'a move needs no store');
    t.equal((await wire.delete(item, scene.as(shape))).outcome, '200', 'a delete needs no store');
    t.equal(
      (await wire.post('/items', writeBody(shape, scene.item()), scene.as(shape, second))).outcome,
      '200',
      'an inline item needs no store',
    );
  }
});
