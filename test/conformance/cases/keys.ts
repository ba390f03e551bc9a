/** Items: required keys, keys of blobs, and the removal of a revoked device's keys. */
import { randomBytes } from 'node:crypto';
import { request as httpRequest } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { blobFields, type BlobFields, newId, sealedFor, wrappedOf, writeBody } from '../../support/devices.js';
import { changesOf, untilVersion } from '../../support/stream.js';
import { spelled, type Json, type Reply } from '../../support/wire.js';
import { NotApplicable, type Check } from '../check.js';
import { CODES, type Case, type Stage, fields } from '../stage.js';

const sealed: Case = {
  ids: ['ITEM-26', 'ITEM-28'],
  async run(stage, check) {
    const { shape, world, first, second } = stage;
    const invalid = CODES.validation[shape];
    const field = shape === 'a' ? 'missingDevices' : 'missing_devices';
    const missing = (reply: Reply): unknown => {
      const list = reply.at(`error.details.${field}`);
      return Array.isArray(list) ? list.map(String).sort() : list;
    };
    const lacking = await stage.write(stage.item({ keys: sealedFor(first.id) }));
    check.outcome('ITEM-26', lacking, invalid, 'a key for one of two devices');
    check.of(
      'ITEM-26',
      lacking,
      JSON.stringify(missing(lacking)) === JSON.stringify([second.id]),
      `details.${field} = [${second.id}]`,
    );
    const none = await stage.write(stage.item({ keys: {} }));
    check.of(
      'ITEM-26',
      none,
      JSON.stringify(missing(none)) === JSON.stringify(world.ids.sort()),
      `details.${field} has both devices`,
    );
    const stranger = await stage.write(stage.item({ keys: sealedFor(...world.ids, newId()) }));
    check.outcome('ITEM-28', stranger, invalid, 'a key for an unknown device');
    check.of('ITEM-28', stranger, missing(stranger) === undefined, `no details.${field}`);
  },
};

const BLOB_BYTES = 1_000;

async function put(url: string, headers: Json, content: Buffer): Promise<number> {
  const send = url.startsWith('https:') ? httpsRequest : httpRequest;
  return new Promise((resolve, reject) => {
    const outgoing = send(
      url,
      { method: 'PUT', headers: { 'content-length': content.length, ...(headers as Record<string, string>) } },
      (reply) => {
        reply.resume();
        reply.on('end', () => resolve(reply.statusCode ?? 0));
      },
    );
    outgoing.setTimeout(30_000, () => outgoing.destroy(new Error('no answer to the upload')));
    outgoing.on('error', reject);
    outgoing.end(content);
  });
}

/** Uploads a blob and returns its ref. */
async function newBlob(stage: Stage): Promise<string> {
  const body = { contentLength: BLOB_BYTES, contentType: 'application/octet-stream' };
  const reply = await stage.wire.post('/blobs/upload-url', body, stage.as('a'));
  if (reply.status === 404) throw new NotApplicable('the server takes no blobs');
  const status = await put(reply.text('url'), (reply.at('headers') ?? {}) as Json, randomBytes(BLOB_BYTES));
  if (status < 200 || status > 299) throw new Error(`the upload was answered with ${status}`);
  return reply.text('blobRef');
}

/** A write of a blob alone. In B the blob's nonce and keys stand where an inline item has its own. */
function blobOnly(stage: Stage, blob: BlobFields, more: Json = {}): Record<string, unknown> {
  const head = { id: newId(), binId: stage.world.bin, type: 'file', ts: Date.now() };
  if (stage.shape === 'a') return { ...head, ...blob, ...more };
  return { ...head, ct: '', nonce: blob.blobNonce, wrapped: wrappedOf(blob.blobKeys), blobRef: blob.blobRef, ...more };
}

const post = async (stage: Stage, body: Json): Promise<Reply> => stage.wire.post('/items', body, stage.as());
const sorted = (entries: unknown): unknown =>
  Array.isArray(entries)
    ? (entries as Json[]).toSorted((x, y) => String(x['device_id']).localeCompare(String(y['device_id'])))
    : entries;

const noBlob: Case = {
  ids: ['ITEM-14', 'ITEM-16', 'ITEM-17', 'ITEM-18', 'ITEM-19'],
  async run(stage, check) {
    const { first, world, shape } = stage;
    for (const ref of [`${newId()}.bin`, 'x', '../../etc/passwd']) {
      const alone = await post(stage, blobOnly(stage, blobFields(ref, world.ids)));
      check.outcome('ITEM-19', alone, '400 blob_not_found', 'a blob that was never uploaded');
      check.outcome('ITEM-18', alone, ['200', '400 blob_not_found'], 'the schema is passed');
    }
    const blob = blobFields(`${newId()}.bin`, world.ids);
    const extra = shape === 'a' ? blob : { ...blob, blobKeys: wrappedOf(blob.blobKeys) };
    const beside = await post(stage, { ...writeBody(shape, stage.item()), ...extra });
    check.outcome('ITEM-19', beside, '400 blob_not_found', 'a blob that was never uploaded, beside metadata');
    check.outcome('ITEM-17', beside, ['200', '400 blob_not_found'], 'metadata beside a blob passes the schema');
    const signed = { sig: randomBytes(32), master: { nonce: randomBytes(24), ct: randomBytes(48) } };
    const top = await post(stage, blobOnly(stage, blobFields(`${newId()}.bin`, world.ids), signed));
    check.outcome('ITEM-18', top, ['200', '400 blob_not_found'], 'sig and master at top level pass the schema');
    for (const size of [31, 257]) {
      const odd = { ...blob, blobKeys: { ...blob.blobKeys, [first.id]: randomBytes(size) } };
      const reply = await post(stage, blobOnly(stage, odd));
      check.outcome('ITEM-14', reply, CODES.validation[shape], `a blob's key of ${size} bytes`);
    }
    const without = await post(stage, blobOnly(stage, { ...blob, blobRef: null as never }));
    check.outcome('ITEM-16', without, CODES.validation[shape], 'keys of a blob, but neither blob nor payload');
  },
};

const emptyBeside: Case = {
  ids: ['ITEM-41'],
  async run(stage, check) {
    const { world, first, shape } = stage;
    const good = { nonce: randomBytes(24) as unknown, keys: sealedFor(...world.ids) as Json };
    const bad: readonly (readonly [field: 'nonce' | 'keys', value: unknown])[] = [
      ['nonce', ''],
      ['nonce', randomBytes(23)],
      ['nonce', '***'],
      ['keys', { nobody: randomBytes(80) }],
      ['keys', { [first.id]: randomBytes(8) }],
      ['keys', { [first.id]: '***' }],
    ];
    // The schema is checked before the blob is looked up, so no blob needs to exist.
    const bodyOf = (part: { nonce: unknown; keys: unknown }, ref = `${newId()}.bin`): Json => {
      const blob = blobFields(ref, world.ids);
      const head = { id: newId(), binId: world.bin, type: 'file', ts: Date.now() };
      const { nonce, keys } = part;
      if (shape === 'a') return { ...head, ...blob, payloadEnc: { ct: '', nonce, keys, sig: randomBytes(32) } };
      const wrapped = wrappedOf(keys as Readonly<Record<string, Buffer>>);
      return { ...head, ...blob, blobKeys: wrappedOf(blob.blobKeys), ct: '', nonce, wrapped };
    };
    for (const [field, value] of bad) {
      const reply = await post(stage, bodyOf({ ...good, [field]: value }));
      const what = `${field} = ${JSON.stringify(spelled(shape, value)).slice(0, 60)}`;
      check.outcome('ITEM-41', reply, CODES.validation[shape], what);
      const name = shape === 'a' ? `payloadEnc.${field}` : field === 'keys' ? 'wrapped' : field;
      const path = String(reply.at('error.details.path'));
      check.of('ITEM-41', reply, path.startsWith(name), `${what}: details.path names ${name}`);
    }
    const fits = await post(stage, bodyOf(good));
    check.outcome('ITEM-41', fits, ['200', '400 blob_not_found'], 'nonce and keys that fit pass the schema');
    const body = bodyOf(good, await newBlob(stage));
    check.outcome('ITEM-41', await post(stage, body), '200', 'the same with a blob');
    check.same('ITEM-41', (await stage.row(String(body['id']), 'a'))['payloadEnc'], null, 'payloadEnc of that item');
  },
};

const namedTwice: Case = {
  ids: ['ITEM-42'],
  async run(stage, check) {
    const { wire, first } = stage;
    const item = stage.item();
    const twice = [...wrappedOf(item.keys), { deviceId: first.id, key: randomBytes(80) }];
    const reply = await wire.post(
      '/items',
      { ...writeBody('b', item), wrapped: twice },
      { token: first.token, shape: 'b' },
    );
    check.outcome('ITEM-42', reply, CODES.validation.b, 'a device twice in wrapped');
    check.same('ITEM-42', reply.at('error.details.path'), `wrapped.${first.id}`, 'details.path');
    // The schema is checked before the blob is looked up, so no blob needs to exist.
    const blob = { ...blobFields(`${newId()}.bin`, stage.world.ids), blobKeys: twice };
    const beside = await wire.post(
      '/items',
      { ...writeBody('b', stage.item()), ...blob },
      { token: first.token, shape: 'b' },
    );
    check.outcome('ITEM-42', beside, CODES.validation.b, 'a device twice in blob_keys');
    check.same('ITEM-42', beside.at('error.details.path'), `blob_keys.${first.id}`, 'details.path');
  },
};

const blobAlone: Case = {
  ids: ['ITEM-17', 'ITEM-18', 'ITEM-19', 'ITEM-27', 'ITEM-31', 'SHAPE-18', 'SHAPE-19', 'SHAPE-20'],
  async run(stage, check) {
    const { world, first, second, shape } = stage;
    const blob = blobFields(await newBlob(stage), world.ids);
    const more = { sig: randomBytes(32), master: { nonce: randomBytes(24), ct: randomBytes(48) } };
    const body = blobOnly(stage, blob, more);
    const stored = await post(stage, body);
    check.outcome('ITEM-18', stored, '200', 'a blob alone');
    check.same(
      'ITEM-18',
      (await post(stage, body)).at('version'),
      stored.at('version'),
      'version of the same write again',
    );
    const other = await post(stage, blobOnly(stage, blob, more));
    check.outcome('ITEM-19', other, '400 blob_not_found', 'a blob that belongs to another item');
    const [a, b] = [await stage.row(String(body['id']), 'a'), await stage.row(String(body['id']), 'b')];
    check.same(
      'SHAPE-20',
      [a['payloadEnc'], a['blobRef'], a['blobNonce'], a['sig'], a['master']],
      [null, blob.blobRef, ...[blob.blobNonce, more.sig, more.master].map((value) => spelled('a', value))],
      'payloadEnc, blobRef, blobNonce, sig and master in A',
    );
    check.same('ITEM-31', a['blobKeys'], spelled('a', blob.blobKeys), 'blobKeys as sent');
    check.same(
      'SHAPE-19',
      [b['ct'], b['nonce'], b['blob_ref'], sorted(b['wrapped'])],
      ['', spelled('b', blob.blobNonce), blob.blobRef, sorted(spelled('b', wrappedOf(blob.blobKeys)))],
      'ct, nonce, blob_ref and wrapped in B',
    );
    check.same(
      'SHAPE-18',
      [b['sig'], b['master']],
      [spelled('b', more.sig), spelled('b', more.master)],
      'sig and master in B',
    );
    const lacking = await post(stage, blobOnly(stage, blobFields(await newBlob(stage), [first.id])));
    check.outcome('ITEM-27', lacking, CODES.validation[shape], 'blobKeys without a device');
    check.same('ITEM-27', fields(lacking.at('error.details'))['missingDevices'], [second.id], 'details.missingDevices');
    const unknown = await post(stage, blobOnly(stage, blobFields(await newBlob(stage), [...world.ids, newId()])));
    check.outcome('ITEM-27', unknown, CODES.validation[shape], 'blobKeys with an unknown device');
    await besidePayload(stage, check);
  },
};

/** An item with both a blob and a payload reads back with both, in both shapes. */
async function besidePayload(stage: Stage, check: Check): Promise<void> {
  const { world, shape } = stage;
  const item = stage.item({ type: 'image' });
  const blob = blobFields(await newBlob(stage), world.ids);
  const extra = shape === 'a' ? blob : { ...blob, blobKeys: wrappedOf(blob.blobKeys) };
  check.outcome('ITEM-17', await post(stage, { ...writeBody(shape, item), ...extra }), '200', 'a blob and a payload');
  const { ct, nonce, sig, master, keys } = item;
  const a = await stage.row(item.id, 'a');
  check.same(
    'ITEM-17',
    [a['blobRef'], a['blobNonce'], a['blobKeys'], a['payloadEnc']],
    [blob.blobRef, ...[blob.blobNonce, blob.blobKeys, { ct, nonce, keys, master, sig }].map((of) => spelled('a', of))],
    'blob and payload in A',
  );
  const b = await stage.row(item.id, 'b');
  check.same(
    'SHAPE-18',
    [b['ct'], b['nonce'], b['blob_ref'], b['blob_nonce'], sorted(b['blob_keys']), sorted(b['wrapped'])],
    [
      ...[ct, nonce, blob.blobRef, blob.blobNonce].map((of) => spelled('b', of)),
      ...[blob.blobKeys, keys].map((of) => sorted(spelled('b', wrappedOf(of)))),
    ],
    'blob and payload in B',
  );
}

const revokedInBlob: Case = {
  ids: ['ITEM-30', 'ITEM-31'],
  async run(stage, check) {
    const lost = await stage.join();
    const all = [...stage.world.ids];
    const blob = blobFields(await newBlob(stage), all);
    const body = blobOnly(stage, blob);
    check.outcome('ITEM-31', await post(stage, body), '200', 'blobKeys of three devices');
    await stage.world.revoke(lost);
    const refused = await post(stage, blobOnly(stage, blobFields(await newBlob(stage), all)));
    check.outcome('ITEM-30', refused, CODES.validation[stage.shape], 'a revoked device in blobKeys');
    await stage.written();
    check.same(
      'ITEM-31',
      (await stage.row(String(body['id']), 'a'))['blobKeys'],
      spelled('a', blob.blobKeys),
      'blobKeys after the revocation, whole',
    );
  },
};

/** Device ids in the inline keys of this case's live rows, by item id. */
async function keysOfRows(stage: Stage): Promise<Map<string, string[]>> {
  const rows = (await stage.rows('a')).filter((row) => row['payloadEnc'] !== null && row['payloadEnc'] !== undefined);
  return new Map(
    rows.map((row) => [String(row['id']), Object.keys((row['payloadEnc'] as { keys?: Json }).keys ?? {})]),
  );
}

const purge: Case = {
  ids: ['ITEM-29', 'ITEM-32', 'ITEM-33', 'ITEM-34'],
  once: true,
  async run(stage, check) {
    const { world, second } = stage;
    const lost = await stage.join();
    const all = [...world.ids];
    const items = Array.from({ length: 60 }, () => stage.item());
    const batch = await stage.wire.post(
      '/items/batch',
      { items: items.map((item) => writeBody('a', item)) },
      stage.as('a'),
    );
    const before = new Map(batch.list('results').map((result) => [result['id'], result['version']]));
    const socket = await stage.watch();
    await world.revoke(lost);
    const mine = new Set(items.map(({ id }) => id));
    const held = async (): Promise<string[]> =>
      [...(await keysOfRows(stage))].filter(([id, ids]) => mine.has(id) && ids.includes(lost.id)).map(([id]) => id);
    check.same('ITEM-32', (await held()).length, items.length, 'number of items with its keys: it alone removes none');
    const named = stage.item({ keys: sealedFor(...all) });
    check.outcome('ITEM-29', await stage.write(named), '200', 'a write whose keys name a revoked device');
    const changed = await Promise.all(
      items.slice(20, 30).map(async (item) => {
        const next = stage.edit(item, { keys: sealedFor(...world.ids) });
        return { next, reply: await stage.write(next, second, 'a') };
      }),
    );
    const gone = await stage.until(async () => (await held()).length === 0);
    check.ok(
      'ITEM-32',
      gone,
      'no stored inline key of the revoked device within 20 s of the first write',
      gone ? '' : `${(await held()).length} items still have one`,
    );
    const rows = new Map((await stage.rows('a')).map((row) => [String(row['id']), row]));
    check.same(
      'ITEM-29',
      Object.keys((rows.get(named.id)?.['payloadEnc'] as { keys: Json }).keys).sort(),
      world.ids.sort(),
      'ids of the devices in the stored keys',
    );
    const still = [...items.slice(0, 20), ...items.slice(30)];
    check.same(
      'ITEM-33',
      still.filter(({ id }) => rows.get(id)?.['version'] !== before.get(id)).length,
      0,
      'number of items that nobody changed and that have a new version',
    );
    for (const { next, reply } of changed) {
      const row = rows.get(next.id);
      check.same(
        'ITEM-34',
        [row?.['version'], fields(row?.['payloadEnc'])['ct']],
        [reply.at('version'), spelled('a', next.ct)],
        'version and ct of an item that was changed during the removal',
      );
    }
    const marker = await stage.written();
    await untilVersion(socket, marker.version);
    const own = new Set<unknown>([named.id, marker.id]);
    check.same(
      'ITEM-33',
      changesOf(socket.frames).filter(({ id }) => !own.has(id)).length,
      0,
      'number of frames pushed for items that nobody changed',
    );
  },
};

export const keys: readonly Case[] = [sealed, noBlob, emptyBeside, namedTwice, blobAlone, revokedInBlob, purge];
