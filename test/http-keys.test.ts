/** Envelopes of blobs, keys that a write must have, keys that a revocation removes, tags, the storage cap. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { edited, join, mustWrite, newId, sealedFor, write, writeBody } from './support/devices.js';
import { Scene } from './support/scene.js';
import { camel, SHAPES, spelled, type Json, type Reply, type Shape } from './support/wire.js';

const scene = await Scene.start(t);
const { wire, first, second } = scene;

const VALIDATION = { a: '400 validation', b: '400 invalid_payload' } as const;

/** A blob as an upload leaves it. */
async function newBlob(of: Scene = scene): Promise<string> {
  const ref = `${newId()}.bin`;
  await of.server.sql(`INSERT INTO blobs (tenant_id, ref, size, state, created_at) VALUES ($1, $2, 1000, 'ready', 1)`, [
    of.server.tenantId,
    ref,
  ]);
  return ref;
}

interface BlobFields {
  readonly blobRef: string;
  readonly blobNonce: Buffer;
  readonly blobKeys: Readonly<Record<string, Buffer>>;
}

const blobFields = (blobRef: string, ids = scene.ids): BlobFields => ({
  blobRef,
  blobNonce: randomBytes(24),
  blobKeys: sealedFor(...ids),
});

const wrappedOf = (keys: Readonly<Record<string, Buffer>>): Json[] =>
  Object.entries(keys).map(([deviceId, key]) => ({ deviceId, key }));

/** A write of a blob alone. In B the blob's nonce and keys stand where an inline item has its own. */
function blobOnly(shape: Shape, blob: BlobFields, more: Json = {}): Record<string, unknown> {
  const head = { id: newId(), binId: 'inbox', type: 'file', ts: Date.now() };
  if (shape === 'a') return { ...head, ...blob, ...more };
  return { ...head, ct: '', nonce: blob.blobNonce, wrapped: wrappedOf(blob.blobKeys), blobRef: blob.blobRef, ...more };
}

const post = async (body: Json, shape: Shape): Promise<Reply> => wire.post('/items', body, scene.as(shape));

const sorted = (entries: unknown): unknown =>
  (entries as Json[]).toSorted((x, y) => String(x['device_id']).localeCompare(String(y['device_id'])));

for (const shape of SHAPES) {
  t.test(`ITEM-18 ITEM-22 ITEM-31 SHAPE-19 SHAPE-20: a blob-only item, read in both shapes (${shape})`, async (t) => {
    const blob = blobFields(await newBlob());
    const body = blobOnly(shape, blob);
    const reply = await post(body, shape);
    t.equal(reply.outcome, '200');
    const a = await scene.row(String(body['id']), 'a');
    t.same(
      [a?.['payloadEnc'], a?.['blobRef'], a?.['blobNonce']],
      [null, blob.blobRef, blob.blobNonce.toString('base64url')],
    );
    t.same(a?.['blobKeys'], spelled('a', blob.blobKeys), 'whole, as sent');
    const b = await scene.row(String(body['id']), 'b');
    t.same([b?.['ct'], b?.['nonce'], b?.['blob_ref']], ['', blob.blobNonce.toString('base64'), blob.blobRef]);
    t.same(sorted(b?.['wrapped']), sorted(spelled('b', wrappedOf(blob.blobKeys))));
    t.equal((await post(body, shape)).at('version'), reply.at('version'), 'the same write again');
  });

  t.test(`ITEM-18 SHAPE-18: a blob-only item may carry sig and master at top level (${shape})`, async (t) => {
    const blob = blobFields(await newBlob());
    const more = { sig: randomBytes(32), master: { nonce: randomBytes(24), ct: randomBytes(48) } };
    const body = blobOnly(shape, blob, more);
    t.equal((await post(body, shape)).outcome, '200');
    t.match(await scene.row(String(body['id']), 'a'), spelled('a', more));
    t.match(await scene.row(String(body['id']), 'b'), spelled('b', more));
  });

  t.test(`ITEM-17 SHAPE-18: an item may have both a blob and a payload (${shape})`, async (t) => {
    const blob = blobFields(await newBlob());
    const item = scene.item({ type: 'image' });
    const extra = shape === 'a' ? blob : { ...blob, blobKeys: wrappedOf(blob.blobKeys) };
    t.equal((await post({ ...writeBody(shape, item), ...extra }, shape)).outcome, '200');
    const a = await scene.row(item.id, 'a');
    t.match(
      a,
      spelled('a', { ...blob, payloadEnc: { ct: item.ct, nonce: item.nonce, sig: item.sig, master: item.master } }),
    );
    const b = await scene.row(item.id, 'b');
    t.match(b, spelled('b', { ct: item.ct, nonce: item.nonce, blobRef: blob.blobRef, blobNonce: blob.blobNonce }));
    t.same(sorted(b?.['blob_keys']), sorted(spelled('b', wrappedOf(blob.blobKeys))));
    t.same(sorted(b?.['wrapped']), sorted(spelled('b', wrappedOf(item.keys))));
  });

  t.test(
    `ITEM-14 ITEM-19 ITEM-27 ITEM-16: unknown blobs, missing keys and keys of a bad size are refused (${shape})`,
    async (t) => {
      for (const ref of [`${newId()}.bin`, 'x', '../../etc/passwd']) {
        t.equal((await post(blobOnly(shape, blobFields(ref)), shape)).outcome, '400 blob_not_found', ref);
      }
      const item = { ...writeBody(shape, scene.item()), ...blobFields(`${newId()}.bin`) };
      const beside = shape === 'a' ? item : { ...item, blobKeys: wrappedOf(item.blobKeys) };
      t.equal((await post(beside, shape)).outcome, '400 blob_not_found', 'beside metadata');
      const lacking = await post(blobOnly(shape, blobFields(await newBlob(), [first.id])), shape);
      t.equal(lacking.outcome, VALIDATION[shape]);
      t.same(camel(lacking.at('error.details'))['missingDevices'], [second.id]);
      const stranger = await post(blobOnly(shape, blobFields(await newBlob(), [...scene.ids, newId()])), shape);
      t.equal(stranger.outcome, VALIDATION[shape]);
      for (const size of [31, 257]) {
        const blob = blobFields(`${newId()}.bin`);
        const odd = { ...blob, blobKeys: { ...blob.blobKeys, [first.id]: randomBytes(size) } };
        t.equal((await post(blobOnly(shape, odd), shape)).outcome, VALIDATION[shape], `a blob's key of ${size} bytes`);
      }
      const nothing =
        shape === 'a'
          ? blobOnly('a', blobFields('x'), { blobRef: null })
          : blobOnly('b', blobFields('x'), { blobRef: null });
      t.equal((await post(nothing, shape)).outcome, VALIDATION[shape], 'neither blob nor payload');
      const neither = {
        id: newId(),
        binId: 'inbox',
        type: 'text',
        ts: Date.now(),
        ...(shape === 'b' ? { ct: '', nonce: '', wrapped: [] } : {}),
      };
      t.equal((await post(neither, shape)).outcome, VALIDATION[shape]);
    },
  );
}

t.test('ITEM-19: a blob can belong to one item only', async (t) => {
  const blob = blobFields(await newBlob());
  t.equal((await post(blobOnly('a', blob), 'a')).status, 200);
  t.equal((await post(blobOnly('a', blob), 'a')).outcome, '400 blob_not_found', 'the blob is in use');
});

t.test('ITEM-42: a write that names a device twice is refused', async (t) => {
  const item = scene.item();
  const twice = [...wrappedOf(item.keys), { deviceId: first.id, key: randomBytes(80) }];
  const inline = await post({ ...writeBody('b', item), wrapped: twice }, 'b');
  t.equal(inline.outcome, VALIDATION.b);
  t.equal(inline.at('error.details.path'), `wrapped.${first.id}`);
  const blob = blobFields(await newBlob());
  const beside = await post({ ...writeBody('b', item), ...blob, blobKeys: twice }, 'b');
  t.equal(beside.outcome, VALIDATION.b);
  t.equal(beside.at('error.details.path'), `blob_keys.${first.id}`);
});

/** The device ids that each row has keys for, by item id. */
async function keysOfRows(): Promise<Map<string, string[]>> {
  const rows = (await scene.rows('a')).filter((row) => row['payloadEnc'] !== null);
  return new Map(rows.map((row) => [String(row['id']), Object.keys((row['payloadEnc'] as { keys: Json }).keys)]));
}

t.test('ITEM-29 ITEM-30 ITEM-31 ITEM-32 ITEM-33 ITEM-34: the write after a revocation removes old keys', async (t) => {
  const third = await join(wire, first);
  const all = [...scene.ids, third.id];
  const blob = blobFields(await newBlob(), all);
  const blobItem = blobOnly('a', blob);
  t.equal((await post(blobItem, 'a')).status, 200);
  const items = Array.from({ length: 300 }, () => scene.item({ keys: sealedFor(...all) }));
  for (let from = 0; from < items.length; from += 100) {
    await wire.post(
      '/items/batch',
      { items: items.slice(from, from + 100).map((item) => writeBody('a', item)) },
      scene.as('a'),
    );
  }
  await wire.post(`/devices/${third.id}/revoke`, {}, scene.as('a'));
  const before = new Map((await scene.rows('a')).map((row) => [row['id'], row['version']]));
  t.ok(
    [...(await keysOfRows()).values()].some((ids) => ids.includes(third.id)),
    'the revocation alone removes no key',
  );
  const socket = await scene.watch();

  const named = { ...scene.item(), keys: sealedFor(...all) };
  for (const shape of SHAPES) {
    const refused = await post(blobOnly(shape, blobFields(await newBlob(), all)), shape);
    t.equal(refused.outcome, VALIDATION[shape], 'blobKeys must not name it');
  }
  t.equal((await write(wire, first, named)).status, 200, 'inline keys may still name it');
  const changed = items.slice(100, 200).map((item) => edited(item, { keys: sealedFor(...scene.ids) }));
  await Promise.all(changed.map(async (item) => mustWrite(wire, second, item)));

  const mine = new Set(items.map((item) => item.id));
  for (const until = Date.now() + 20_000; ;) {
    const left = [...(await keysOfRows())].filter(([id, ids]) => mine.has(id) && ids.includes(third.id));
    if (left.length === 0) break;
    if (Date.now() > until) throw new Error(`${left.length} items still hold a key of the revoked device`);
  }
  t.same((await keysOfRows()).get(named.id)?.toSorted(), scene.ids.toSorted(), 'dropped from the new write');
  const rows = new Map((await scene.rows('a')).map((row) => [row['id'], row]));
  for (const item of [...items.slice(0, 100), ...items.slice(200)]) {
    t.equal(rows.get(item.id)?.['version'], before.get(item.id), 'no new version');
  }
  for (const item of changed) {
    const envelope = rows.get(item.id)?.['payloadEnc'] as { ct: string; keys: Json };
    t.equal(envelope.ct, item.ct.toString('base64url'), 'a concurrent change is kept');
    t.same(envelope.keys, spelled('a', item.keys));
  }
  t.same(rows.get(blobItem['id'])?.['blobKeys'], spelled('a', blob.blobKeys), 'blobKeys stay whole');
  const marker = await scene.written();
  t.match(await socket.next(), { id: named.id });
  t.match(await socket.next(), { id: marker.id }, 'the removal pushes nothing');
  await socket.close();
});

t.test('ITEM-41: malformed nonce and keys beside a blob and an empty ct are refused', async (t) => {
  const good = { nonce: randomBytes(24), keys: sealedFor(...scene.ids) };
  const bad: readonly (readonly [field: string, part: Json])[] = [
    ['nonce', { nonce: '' }],
    ['nonce', { nonce: randomBytes(23) }],
    ['nonce', { nonce: '***' }],
    ['keys', { keys: { nobody: randomBytes(80) } }],
    ['keys', { keys: { [first.id]: randomBytes(8) } }],
    ['keys', { keys: { [first.id]: '***' } }],
  ];
  const bodyOf = (shape: Shape, blob: BlobFields, part: Json): Json => {
    const { nonce, keys } = { ...good, ...part };
    const head = { id: newId(), binId: 'inbox', type: 'file', ts: Date.now() };
    if (shape === 'a') return { ...head, ...blob, payloadEnc: { ct: '', nonce, keys, sig: randomBytes(32) } };
    return { ...head, ...blob, blobKeys: wrappedOf(blob.blobKeys), ct: '', nonce, wrapped: wrappedOf(keys) };
  };
  for (const shape of SHAPES) {
    const blob = blobFields(await newBlob());
    for (const [field, part] of bad) {
      const reply = await post(bodyOf(shape, blob, part), shape);
      t.equal(reply.outcome, VALIDATION[shape], `${shape}: ${field}`);
      const name = shape === 'a' ? `payloadEnc.${field}` : field === 'keys' ? 'wrapped' : field;
      t.ok(reply.text('error.details.path').startsWith(name), reply.raw);
    }
    const body = bodyOf(shape, blob, {});
    t.equal((await post(body, shape)).outcome, '200', `${shape}: well-formed ones pass`);
    t.equal((await scene.row(String(body['id']), 'a'))?.['payloadEnc'], null, 'and the item has no payload');
  }
});

t.test('ITEM-21 ITEM-22 ITEM-23 ITEM-24: REQUIRE_SIG decides which writes need a sig', async (t) => {
  const table = {
    a: { a: false, b: true, blob: true, beside: false, empty: false, besideB: true },
    always: { a: false, b: false, blob: false, beside: false, empty: false, besideB: false },
    never: { a: true, b: true, blob: true, beside: true, empty: true, besideB: true },
  };
  const blobOf = async (of: Scene): Promise<BlobFields> => blobFields(await newBlob(of), of.ids);
  const emptyEnvelope = (ids: string[]): Json => ({ ct: '', nonce: randomBytes(24), keys: sealedFor(...ids) });
  for (const [setting, passes] of Object.entries(table)) {
    const other = await Scene.start(t, { env: { REQUIRE_SIG: setting } });
    const send = async (body: Json, shape: Shape): Promise<Reply> => other.wire.post('/items', body, other.as(shape));
    const unsigned = other.item({ sig: null });
    const besideB = async (): Promise<Json> => {
      const blob = await blobOf(other);
      return { ...writeBody('b', other.item({ sig: null })), ...blob, blobKeys: wrappedOf(blob.blobKeys) };
    };
    const replies = {
      a: await send(writeBody('a', unsigned), 'a'),
      b: await send(writeBody('b', other.item({ sig: null })), 'b'),
      blob: await send(blobOnly('a', blobFields(await newBlob(other), other.ids)), 'a'),
      beside: await send({ ...writeBody('a', other.item({ sig: null })), ...(await blobOf(other)) }, 'a'),
      empty: await send(blobOnly('a', await blobOf(other), { payloadEnc: emptyEnvelope(other.ids) }), 'a'),
      besideB: await send(await besideB(), 'b'),
    };
    for (const [what, pass] of Object.entries(passes)) {
      const reply = replies[what as keyof typeof replies];
      t.equal(
        reply.outcome,
        pass ? '200' : VALIDATION[['b', 'besideB'].includes(what) ? 'b' : 'a'],
        `${setting}: ${what} without sig`,
      );
      if (!pass) t.match(reply.at('error.details.path'), /sig$/);
    }
    for (const shape of SHAPES)
      t.equal((await write(other.wire, other.first, other.item(), shape)).status, 200, 'with sig');
    await other.server.stop();
  }
});

t.test('ITEM-39 ITEM-40 RETRY-11 BATCH-04: a write over the storage cap is 413; a delete frees bytes', async (t) => {
  const capped = await Scene.start(t, { env: { STORAGE_CAP_BYTES: '20000' } });
  const send = async (item = capped.item({ ct: randomBytes(3_000) }), shape: Shape = 'a'): Promise<Reply> =>
    write(capped.wire, capped.first, item, shape);
  const stored = [];
  let refused: Reply | undefined;
  while (refused === undefined && stored.length < 20) {
    const item = capped.item({ ct: randomBytes(3_000) });
    const reply = await send(item, stored.length % 2 === 0 ? 'a' : 'b');
    if (reply.status === 200) stored.push({ item, version: reply.number('version') });
    else refused = reply;
  }
  t.equal(refused?.outcome, '413 storage_cap_exceeded');
  t.ok(stored.length >= 4 && stored.length <= 6, `${stored.length} items of 3,000 bytes fit in 20,000`);
  t.equal(await capped.head(), stored.length, 'a refused write takes no version');
  const [one, two] = stored;
  if (one === undefined || two === undefined) throw new Error('nothing was stored');
  t.equal((await send(one.item)).at('version'), one.version, 'the same write again');
  t.equal((await send(edited(one.item, { ct: randomBytes(3_000) }))).status, 200, 'other content of the same size');
  const growing = await send(edited(one.item, { ts: one.item.ts + 5, ct: randomBytes(9_000) }));
  t.equal(growing.outcome, '413 storage_cap_exceeded', 'content that grows over the cap');
  const batch = { items: [capped.item({ ct: randomBytes(3_000) }), two.item].map((item) => writeBody('b', item)) };
  const results = (await capped.wire.post('/items/batch', batch, capped.as('b'))).list('results');
  t.equal((results[0]?.['error'] as Json | undefined)?.['code'], 'storage_cap_exceeded');
  t.equal(results[1]?.['version'], two.version);
  t.equal((await capped.wire.delete(`/items/${two.item.id}`, capped.as('a'))).status, 200);
  t.equal((await send()).status, 200, 'a delete frees its bytes at once');
  t.equal((await send()).outcome, '413 storage_cap_exceeded');
});
