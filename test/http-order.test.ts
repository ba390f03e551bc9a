/** The outcome of a write to an id that exists; deletes, moves, batches. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { edited, join, newId, sealedFor, write, writeBody, type TestItem } from './support/devices.js';
import { Scene } from './support/scene.js';
import { camel, PAYLOAD_FIELDS, SHAPES, spelled, type Json, type Reply, type Shape } from './support/wire.js';

const scene = await Scene.start(t);
const { wire, first, second } = scene;

const CONFLICT = { a: '409 conflict', b: '409 version_conflict' } as const;
const other = (shape: Shape): Shape => (shape === 'a' ? 'b' : 'a');
const ctOf = (row: Json | undefined): unknown => row?.['ct'];

/** Reduces an item to the tombstone that the nightly job leaves. */
async function purge(id: string): Promise<void> {
  await scene.server.sql(
    `UPDATE items SET type = NULL, ts = NULL, sender_device = NULL, changed_by = NULL, write_hash = NULL WHERE id = $1`,
    [id],
  );
}

const remove = async (id: string, shape: Shape, body?: Json): Promise<Reply> =>
  wire.delete(`/items/${id}`, { ...scene.as(shape), body });

for (const shape of SHAPES) {
  t.test(`RETRY-01 RETRY-07: the same write again keeps its version, in any spelling (${shape})`, async (t) => {
    const socket = await scene.watch(second, shape);
    const item = await scene.written();
    await socket.next('item');
    await scene.quietly(t, socket, async () => {
      for (const again of [shape, other(shape)]) {
        const reply = await write(wire, first, item, again);
        t.equal(reply.outcome, '200');
        t.equal(reply.at('version'), item.version, again);
      }
      const body = JSON.stringify(spelled(shape, writeBody(shape, item)));
      const padded = body.replaceAll(/"([A-Za-z0-9_-]{32,})"/g, (_, text: string) =>
        JSON.stringify(Buffer.from(text, 'base64').toString('base64')),
      );
      for (const text of [body, shape === 'a' ? padded : body.replaceAll('=', '')]) {
        const reply = await wire.post('/items', text, scene.as(shape));
        t.equal(reply.at('version'), item.version);
      }
      t.equal((await write(wire, second, item, shape)).at('version'), item.version, 'another device sends the same');
    });
    await socket.close();
  });

  t.test(`RETRY-02 RETRY-12: a write to a deleted or purged item is a conflict (${shape})`, async (t) => {
    const socket = await scene.watch();
    const item = await scene.written();
    await remove(item.id, shape);
    const attempts = async (): Promise<void> => {
      for (const body of [
        edited(item),
        edited(item, { ts: item.ts + 1e9 }),
        { ...item, keys: sealedFor(...scene.ids) },
      ]) {
        t.equal((await write(wire, first, body, shape)).outcome, CONFLICT[shape]);
        t.equal((await write(wire, first, { ...body, ifVersion: item.version + 1 }, shape)).outcome, CONFLICT[shape]);
      }
    };
    await socket.next('delete');
    await scene.quietly(t, socket, attempts);
    await purge(item.id);
    await scene.quietly(t, socket, attempts);
    await scene.quietly(t, socket, async () => {
      t.equal((await write(wire, first, item, shape)).outcome, CONFLICT[shape], 'also the write that created it');
    });
    await socket.close();
  });

  t.test(`RETRY-03 RETRY-13 RETRY-14: an ifVersion that is not current is a conflict (${shape})`, async (t) => {
    const item = scene.item();
    t.equal(
      (await write(wire, first, { ...scene.item(), ifVersion: 7 }, shape)).outcome,
      CONFLICT[shape],
      'no item has version 7 yet',
    );
    const created = await write(wire, first, { ...item, ifVersion: 0 }, shape);
    t.equal(created.status, 200, '0 is accepted for a new id');
    const version = created.number('version');
    for (const ifVersion of [0, version - 1, version + 1]) {
      const reply = await write(wire, first, edited(item, { ifVersion }), shape);
      t.equal(reply.outcome, CONFLICT[shape], `ifVersion ${ifVersion}`);
      t.equal(reply.at('error.details.version'), version);
      t.equal(reply.at('error.details.ts'), item.ts);
    }
    const right = await write(wire, first, edited(item, { ifVersion: version }), shape);
    t.equal(right.at('version'), version + 1, 'the current one is accepted');
    const early = await write(wire, first, edited(item, { ts: item.ts, ifVersion: version + 1 }), shape);
    t.equal(early.outcome, CONFLICT[shape], 'the later decisions still apply');
    for (const ifVersion of [-1, 1.5, 2 ** 53]) {
      const bad = await write(wire, first, edited(item, { ifVersion }), shape);
      t.equal(bad.status, 400, `ifVersion ${ifVersion} is a schema error`);
    }
  });

  t.test(`RETRY-04 RETRY-15 RETRY-16 RETRY-17 RETRY-18: a re-wrap adds what is missing (${shape})`, async (t) => {
    const bin = `wraps-${shape}`;
    await wire.post('/bins', { id: bin }, scene.as(shape));
    const socket = await scene.watch();
    const item = await scene.written({ master: null });
    await socket.next('item');
    const nothingNew = { ...item, keys: sealedFor(...scene.ids) };
    await scene.quietly(t, socket, async () => {
      const reply = await write(wire, first, nothingNew, shape);
      t.equal(reply.outcome, '200', 'other seals for the same devices add nothing');
      t.equal(reply.at('version'), item.version);
      const stale = {
        ...nothingNew,
        master: { nonce: randomBytes(24), ct: randomBytes(48) },
        ifVersion: item.version - 1,
      };
      t.equal(
        (await write(wire, first, stale, shape)).outcome,
        CONFLICT[shape],
        'the third decision comes before the fourth',
      );
    });
    const master = { nonce: randomBytes(24), ct: randomBytes(48) };
    const wrapped = await write(wire, first, { ...nothingNew, master, binId: bin }, shape);
    t.equal(wrapped.outcome, '200', 'a missing master is added');
    t.ok(wrapped.number('version') > item.version);
    t.match(await socket.next(), { type: 'item', id: item.id, version: wrapped.at('version'), binId: 'inbox' });
    const row = await scene.row(item.id, 'b');
    t.equal(row?.['bin_id'], 'inbox', 'the item stays in its bin');
    t.same(row?.['master'], spelled('b', master));
    await socket.close();
  });

  t.test(`RETRY-05 RETRY-06 RETRY-19: a later ts replaces the item, a late retry does not (${shape})`, async (t) => {
    const item = await scene.written();
    const newer = edited(item, { ts: item.ts + 10 });
    const version = (await write(wire, first, newer, shape)).number('version');
    const late: readonly (readonly [string, TestItem])[] = [
      ['the text before', item],
      ['the same time', edited(item, { ts: newer.ts })],
      ['an earlier time', edited(item, { ts: newer.ts - 1 })],
      ['another type', { ...newer, type: 'code' }],
      ['another nonce', { ...newer, nonce: randomBytes(24) }],
    ];
    for (const [what, body] of late) t.equal((await write(wire, first, body, shape)).outcome, CONFLICT[shape], what);
    const row = await scene.row(item.id, 'b');
    t.equal(row?.['version'], version);
    t.equal(ctOf(row), newer.ct.toString('base64'));
    t.equal(
      (await write(wire, second, edited(newer), shape)).number('version') > version,
      true,
      'a later ts is accepted',
    );
  });

  t.test(`RETRY-10: the same write succeeds though its ifVersion is stale (${shape})`, async (t) => {
    const item = scene.item({ ifVersion: 0 });
    const version = (await write(wire, first, item, shape)).number('version');
    t.equal((await write(wire, first, item, shape)).at('version'), version);
    const replaced = edited(item, { ifVersion: version });
    const next = (await write(wire, first, replaced, shape)).number('version');
    t.equal((await write(wire, first, replaced, shape)).at('version'), next);
    t.equal((await write(wire, first, item, shape)).outcome, CONFLICT[shape], 'but the write before it is a conflict');
  });

  t.test(`DEL-01 DEL-02 DEL-03 DEL-07 DEL-08 LIST-13: a delete clears the item (${shape})`, async (t) => {
    const socket = await scene.watch(second, shape);
    for (const sig of [undefined, randomBytes(32)]) {
      const item = await scene.written();
      await socket.next('item');
      const reply = await remove(item.id, shape, sig === undefined ? undefined : { sig });
      t.equal(reply.outcome, '200');
      t.equal(reply.at('id'), item.id);
      t.equal(reply.at('version'), item.version + 1);
      const text = sig === undefined ? undefined : (spelled(shape, sig) as string);
      const frame = await socket.next();
      t.match(frame, { type: 'delete', id: item.id, version: item.version + 1 });
      t.equal(frame['sig'] ?? undefined, text);
      const row = camel((await scene.row(item.id, shape)) ?? {});
      t.ok(Number.isInteger(row['deletedAt']), 'deletedAt is a time');
      t.equal(row['sig'] ?? undefined, text, 'the tag is in the row');
      for (const field of PAYLOAD_FIELDS[shape]) t.equal(row[field], null, field);
      t.match(row, { binId: 'inbox', type: item.type, version: item.version + 1 });
    }
    await socket.close();
  });

  t.test(`DEL-04 DEL-05 DEL-06 DEL-09: deleting a deleted, unknown or purged item (${shape})`, async (t) => {
    const socket = await scene.watch();
    const sig = randomBytes(32);
    const item = await scene.written();
    const version = (await remove(item.id, shape, { sig })).number('version');
    await socket.next('delete');
    await scene.quietly(t, socket, async () => {
      for (const body of [undefined, { sig }, { sig: randomBytes(32) }]) {
        t.equal((await remove(item.id, shape, body)).at('version'), version, 'deleted already');
      }
      t.equal((await remove(newId(), shape)).outcome, '404 item_not_found', 'unknown');
      t.equal((await remove('not-a-ulid', shape)).status, 400, 'not a ULID');
      t.equal((await remove(newId(), shape, { sig: randomBytes(31) })).status, 400, 'not a tag');
    });
    await purge(item.id);
    t.equal((await remove(item.id, shape)).outcome, '404 item_not_found', 'purged');
    const row = camel((await scene.row(item.id, shape)) ?? {});
    t.match(row, { id: item.id, binId: 'inbox', version, sig: spelled(shape, sig) });
    t.ok(Number.isInteger(row['deletedAt']));
    await socket.close();
    const late = await wire.connect({ token: second.token, shape });
    const frames = await late.hello(version - 1);
    t.match(
      frames[0],
      { type: 'delete', id: item.id, version, sig: spelled(shape, sig) },
      'a purged item is still sent as a delete',
    );
    await late.close();
  });

  t.test(`MOVE-01 MOVE-02 MOVE-03 MOVE-04 MOVE-05 MOVE-06 MOVE-07: moves change bin and sig (${shape})`, async (t) => {
    const bin = `moves-${shape}`;
    await wire.post('/bins', { id: bin }, scene.as(shape));
    const socket = await scene.watch(second, shape);
    const item = await scene.written();
    await socket.next('item');
    const before = await scene.row(item.id, 'b');
    const move = async (body: Json, id = item.id): Promise<Reply> =>
      wire.post(`/items/${id}/reconcile`, body, scene.as(shape));
    const sig = randomBytes(32);
    const reply = await move({ binId: bin, version: item.version, sig });
    t.equal(reply.outcome, '200');
    t.equal(reply.at('id'), item.id);
    t.equal(reply.at('version'), item.version + 1);
    const frame = camel(await socket.next());
    t.match(shape === 'a' ? frame : frame['item'], { id: item.id, binId: bin, version: item.version + 1 });
    const after = await scene.row(item.id, 'b');
    t.same(
      after,
      { ...before, bin_id: bin, version: item.version + 1, sig: sig.toString('base64') },
      'nothing else changed',
    );
    await scene.quietly(t, socket, async () => {
      const again = await move({ binId: bin, version: item.version, sig });
      t.equal(again.outcome, '200', 'a retry');
      t.equal(again.at('version'), item.version + 1);
      t.equal((await move({ binId: 'inbox', version: item.version, sig })).outcome, CONFLICT[shape]);
      t.equal((await move({ binId: bin, version: item.version, sig: randomBytes(32) })).outcome, CONFLICT[shape]);
      t.equal((await move({ binId: bin, version: item.version + 1, sig }, newId())).outcome, '404 item_not_found');
      t.equal(
        (await move({ binId: 'nowhere', version: item.version + 1, sig: randomBytes(32) })).outcome,
        '404 bin_not_found',
      );
      for (const bad of [
        { binId: bin, version: 1 },
        { binId: bin, sig },
        { version: 1, sig },
        { binId: bin, version: 'x', sig },
        { binId: bin, version: 1, sig: randomBytes(16) },
      ]) {
        t.equal((await move(bad)).status, 400, Object.keys(bad).join());
      }
    });
    const gone = await scene.written();
    await remove(gone.id, shape);
    for (const version of [gone.version, gone.version + 1])
      t.equal((await move({ binId: bin, version, sig }, gone.id)).outcome, CONFLICT[shape], 'a deleted item');
    await socket.close();
  });

  t.test(`BATCH-01 BATCH-02 BATCH-04: each write of a batch is judged alone (${shape})`, async (t) => {
    const socket = await scene.watch(second, shape);
    const stored = await scene.written();
    await socket.next('item');
    const good = [scene.item(), scene.item(), scene.item()] as const;
    const [x, y, z] = good;
    const writes: readonly unknown[] = [
      x,
      stored,
      { ...scene.item(), binId: 'none' },
      y,
      edited(stored, { ts: stored.ts }),
      { ...scene.item(), type: 'note' },
      z,
    ];
    const items = [...writes.map((item) => writeBody(shape, item as TestItem)), 'no object', {}];
    const reply = await wire.post('/items/batch', { items }, scene.as(shape));
    t.equal(reply.outcome, '200');
    const results = reply.list('results');
    const codes = results.map((result) => (result['error'] as Json | undefined)?.['code'] ?? 'ok');
    const invalid = shape === 'a' ? 'validation' : 'invalid_payload';
    const conflict = shape === 'a' ? 'conflict' : 'version_conflict';
    t.same(codes, ['ok', 'ok', 'bin_not_found', 'ok', conflict, 'unknown_type', 'ok', invalid, invalid]);
    t.equal(results[1]?.['version'], stored.version, 'the same write again keeps its version');
    const versions = [0, 3, 6].map((index) => results[index]?.['version']);
    t.same(
      versions,
      [1, 2, 3].map((step) => stored.version + step),
      'in the order given, without a gap',
    );
    for (const [index, item] of good.entries()) {
      t.equal(results[[0, 3, 6][index] ?? 0]?.['id'], item.id);
      const frame = camel(await socket.next());
      t.match(shape === 'a' ? frame : frame['item'], { id: item.id, version: stored.version + index + 1 });
    }
    for (const bad of [[], Array.from({ length: 101 }, () => writeBody(shape, scene.item())), 'x', null]) {
      const refused = await wire.post('/items/batch', { items: bad }, scene.as(shape));
      t.equal(refused.outcome, `400 ${invalid}`);
    }
    const hundred = await wire.post(
      '/items/batch',
      { items: Array.from({ length: 100 }, () => writeBody(shape, scene.item())) },
      scene.as(shape),
    );
    const stored100 = hundred.list('results').filter((result) => Number.isInteger(result['version']));
    t.equal(stored100.length, 100, '100 are accepted');
    const twice = scene.item();
    const doubled = await wire.post(
      '/items/batch',
      { items: [twice, twice, edited(twice)].map((item) => writeBody(shape, item)) },
      scene.as(shape),
    );
    const [one, two, three] = doubled.list('results').map((result) => Number(result['version']));
    t.ok(one === two && three === Number(two) + 1, 'an id twice: the same write again, then a replace');
    await socket.close();
  });
}

t.test('BATCH-03: a batch over 1 MiB is 413', async (t) => {
  const items = Array.from({ length: 12 }, () => writeBody('a', scene.item({ ct: randomBytes(65_536) })));
  const fits = await wire.post('/items/batch', { items: items.slice(0, 11) }, scene.as('a'));
  t.equal(fits.status, 200);
  t.equal((await wire.post('/items/batch', { items }, scene.as('a'))).outcome, '413 payload_too_large');
});

t.test('RETRY-08 RETRY-09 RETRY-04 SHAPE-14: retries succeed after a join and a revocation', async (t) => {
  const item = await scene.written();
  const third = await join(wire, first);
  const socket = await scene.watch();
  for (const shape of SHAPES) {
    t.equal((await write(wire, first, item, shape)).at('version'), item.version, 'after a device joined');
    t.equal((await write(wire, first, edited(item), shape)).status, 400, 'while other content lacks a key');
  }
  const keys = { ...item.keys, ...sealedFor(third.id) };
  const wrapped = await write(wire, first, { ...item, keys });
  t.ok(wrapped.number('version') > item.version, 'a re-wrap that adds the device');
  t.match(await socket.next(), { type: 'item', version: wrapped.at('version') });
  await wire.post(`/devices/${third.id}/revoke`, {}, scene.as('a'));
  await socket.next('device_revoked');
  for (const shape of SHAPES) {
    t.equal((await write(wire, first, { ...item, keys }, shape)).at('version'), wrapped.at('version'), 'after it left');
  }
  await socket.close();
});
