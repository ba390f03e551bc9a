/** Bins over HTTP. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { newId, write, writeBody } from './support/devices.js';
import { Scene } from './support/scene.js';
import { runServer } from './support/server.js';
import { camel, SHAPES, spelled, type Json, type Reply } from './support/wire.js';

const scene = await Scene.start(t);
const { wire, first, second } = scene;

const VALIDATION = { a: '400 validation', b: '400 invalid_payload' } as const;
const create = async (body: Json): Promise<Reply> => wire.post('/bins', body, scene.as('a'));
const list = async (): Promise<Json[]> => (await wire.get('/bins', scene.as('a'))).list('bins');
const binOf = async (id: string): Promise<Json | undefined> => (await list()).find((bin) => bin['id'] === id);
const remove = async (id: string, body?: Json): Promise<Reply> =>
  wire.delete(`/bins/${id}`, { ...scene.as('a'), body });

t.test('BIN-01 BIN-02 BIN-03: a new tenant has an inbox, which cannot be deleted', async (t) => {
  const bins = await list();
  t.match(bins, [{ id: 'inbox', slug: 'inbox', meta: null, itemCount: 0 }]);
  t.same(Object.keys(bins[0] ?? {}).toSorted(), ['createdAt', 'id', 'itemCount', 'meta', 'slug', 'updatedAt']);
  for (const shape of SHAPES) {
    for (const body of [undefined, {}, { force: true }]) {
      const reply = await wire.delete('/bins/inbox', { ...scene.as(shape), body });
      t.equal(reply.outcome, '409 conflict');
    }
  }
  t.equal((await list()).length, 1);
});

for (const shape of SHAPES) {
  t.test(`BIN-04 BIN-05 BIN-07 BIN-10 BIN-17: bins are created, changed and pushed (${shape})`, async (t) => {
    const socket = await scene.watch(second, shape);
    const meta = randomBytes(4_096);
    const id = `Made_${shape}`;
    const reply = await wire.post('/bins', { id, meta }, scene.as(shape));
    const made = camel(reply.at('bin'));
    t.match(made, { id, meta: spelled(shape, meta), itemCount: 0 });
    t.equal(made['slug'], `made-${shape}`, 'the slug is the id in the spelling of a slug');
    const { slug, meta: opaque, createdAt, updatedAt } = made;
    t.match(camel((await socket.next('bin'))['bin']), { id, slug, meta: opaque, createdAt, updatedAt, itemCount: 0 });
    t.equal((await write(wire, first, scene.item({ binId: id }), shape)).status, 200);
    const changed = await wire.patch(`/bins/${id}`, { slug: `better-${shape}` }, scene.as(shape));
    t.match(camel(changed.at('bin')), {
      id,
      slug: `better-${shape}`,
      meta: spelled(shape, meta),
      itemCount: 1,
      createdAt: made['createdAt'],
    });
    t.match(camel((await socket.next('bin'))['bin']), { slug: `better-${shape}` });
    const cleared = await wire.patch(`/bins/${id}`, { meta: null }, scene.as(shape));
    t.match(camel(cleared.at('bin')), { slug: `better-${shape}`, meta: null });
    t.equal(
      (await wire.post('/bins', { id: `X${shape}`, meta: randomBytes(4_097) }, scene.as(shape))).outcome,
      VALIDATION[shape],
      'meta over 4 KiB',
    );
    t.equal(
      (await wire.patch(`/bins/${id}`, { meta: randomBytes(4_097) }, scene.as(shape))).outcome,
      VALIDATION[shape],
    );
    t.equal((await wire.post('/bins', { id: `UPPER${shape}` }, scene.as(shape))).at('bin.slug'), `upper${shape}`);
    await socket.close();
  });

  t.test(`BIN-08 BIN-09 BIN-11 ITEM-04: bad ids and slugs, and those in use, are refused (${shape})`, async (t) => {
    for (const slug of ['', 'Upper', '-x', 'a_b', 'a b', 'ä', 'x'.repeat(64), 7]) {
      t.equal(
        (await wire.post('/bins', { id: newId(), slug }, scene.as(shape))).outcome,
        VALIDATION[shape],
        JSON.stringify(slug),
      );
      t.equal(
        (await wire.patch('/bins/inbox', { slug }, scene.as(shape))).outcome,
        VALIDATION[shape],
        `PATCH ${JSON.stringify(slug)}`,
      );
    }
    for (const id of ['', 'a b', 'ä', 'a/b', 'x'.repeat(65), 7, null])
      t.equal((await wire.post('/bins', { id }, scene.as(shape))).outcome, VALIDATION[shape]);
    const slugTaken = shape === 'a' ? '409 conflict' : '409 slug_taken';
    const mine = newId();
    t.equal((await wire.post('/bins', { id: mine, slug: `own-${shape}` }, scene.as(shape))).status, 200);
    t.equal((await wire.post('/bins', { id: newId(), slug: `own-${shape}` }, scene.as(shape))).outcome, slugTaken);
    t.equal((await wire.patch(`/bins/${mine}`, { slug: 'inbox' }, scene.as(shape))).outcome, slugTaken);
    t.equal((await wire.patch(`/bins/${mine}`, { slug: `own-${shape}` }, scene.as(shape))).status, 200, 'its own slug');
    t.equal((await wire.post('/bins', { id: mine }, scene.as(shape))).status, 409, 'an id in use');
    t.equal((await wire.patch('/bins/nowhere', { slug: 'x' }, scene.as(shape))).outcome, '404 bin_not_found');
    t.equal((await wire.delete('/bins/nowhere', scene.as(shape))).outcome, '404 bin_not_found');
  });
}

t.test('BIN-06 BIN-12 BIN-13 BIN-15 BIN-17: a forced delete deletes each item under a version', async (t) => {
  await create({ id: 'full' });
  const items = Array.from({ length: 120 }, () => scene.item({ binId: 'full' }));
  for (const part of [items.slice(0, 60), items.slice(60)]) {
    await wire.post('/items/batch', { items: part.map((item) => writeBody('a', item)) }, scene.as('a'));
  }
  t.equal((await binOf('full'))?.['itemCount'], 120);
  await wire.delete(`/items/${items[0]?.id ?? ''}`, scene.as('a'));
  t.equal((await binOf('full'))?.['itemCount'], 119);
  for (const body of [undefined, {}, { force: false }])
    t.equal((await remove('full', body)).outcome, '409 conflict', 'a bin with items is kept');
  t.equal((await remove('full', { force: 'yes' })).outcome, '400 validation');
  const [mine, theirs] = [await scene.watch(first), await scene.watch(second)];
  const head = await scene.head();
  t.equal((await remove('full', { force: true })).status, 200);
  t.equal(await binOf('full'), undefined);
  const live = new Set(items.slice(1).map((item) => item.id));
  const seen = new Set<unknown>();
  for (let version = head + 1; version <= head + 119; version++) {
    const frame = await theirs.next('delete');
    t.equal(frame['version'], version, 'each delete has its own version');
    seen.add(frame['id']);
  }
  t.same(seen, live);
  for (const socket of [mine, theirs]) {
    const told = socket.of('bin').at(-1) ?? (await socket.next('bin'));
    t.match(told, { type: 'bin', id: 'full', deletedAt: Number });
    await socket.close();
  }
  t.equal((await scene.me()).at('server.headVersion'), head + 119);
  const rows = (await scene.rows('a')).filter((row) => row['binId'] === 'full');
  t.ok(rows.length === 120 && rows.every((row) => row['deletedAt'] !== null));
  t.equal((await wire.get('/items?bin_id=full&since=0', scene.as('a'))).outcome, '404 bin_not_found');

  await create({ id: 'empty', slug: 'empty' });
  t.equal((await remove('empty')).status, 200, 'a bin without items is deleted without force');
  t.equal((await remove('empty')).outcome, '404 bin_not_found');
  t.equal((await create({ id: 'other', slug: 'empty' })).status, 200, 'its slug is free again');
});

t.test('BIN-14 LIST-16 INST-11: a bin refuses writes before its items are deleted', async (t) => {
  const beside = await runServer(t, { database: { url: scene.server.databaseUrl } });
  await create({ id: 'closing' });
  for (let round = 0; round < 12; round++) {
    const items = Array.from({ length: 100 }, () => writeBody('a', scene.item({ binId: 'closing' })));
    await wire.post('/items/batch', { items }, scene.as('a'));
  }
  // Each delete takes a millisecond longer, so that writes arrive while the bin is being emptied.
  await scene.server.sql(`CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep(0.001); RETURN NEW; END $$`);
  await scene.server.sql(`CREATE TRIGGER linger BEFORE UPDATE ON items FOR EACH ROW
    WHEN (NEW.deleted_at IS NOT NULL) EXECUTE FUNCTION linger()`);
  let gone = false;
  const deleting = remove('closing', { force: true }).then((reply) => {
    gone = true;
    return reply;
  });
  let closedBefore = 0;
  await Promise.all(
    [wire, beside.wire].map(async (instance) => {
      for (let closed = false; !gone;) {
        const reply = await write(instance, first, scene.item({ binId: 'closing' }));
        t.ok(reply.status === 200 ? !closed : reply.outcome === '404 bin_not_found', 'once closed it stays closed');
        if (reply.status === 404) closed = true;
        if (closed && !gone) closedBefore++;
      }
    }),
  );
  t.equal((await deleting).status, 200);
  t.ok(closedBefore > 0, `${closedBefore} writes were refused while items were still being deleted`);
  const live = (await scene.rows('a')).filter((row) => row['binId'] === 'closing' && row['deletedAt'] === null);
  t.same(live, [], 'no item of the bin is left');
});

t.test('BIN-16: a tenant has at most 1,000 bins', async (t) => {
  const fresh = await Scene.start(t);
  await fresh.server.sql(
    `INSERT INTO bins (tenant_id, id, slug, created_at, updated_at, changed_at_generation)
     SELECT $1, 'b' || n, 'b' || n, 1, 1, 1 FROM generate_series(1, 998) n`,
    [fresh.server.tenantId],
  );
  t.equal((await fresh.wire.post('/bins', { id: 'last' }, fresh.as('a'))).status, 200);
  t.equal((await fresh.wire.post('/bins', { id: 'toomany' }, fresh.as('a'))).outcome, '409 conflict');
  t.equal((await fresh.wire.get('/bins', fresh.as('a'))).list('bins').length, 1_000);
  t.equal((await fresh.wire.delete('/bins/last', fresh.as('a'))).status, 200);
  t.equal((await fresh.wire.post('/bins', { id: 'again' }, fresh.as('a'))).status, 200, 'a deleted bin makes room');
});
