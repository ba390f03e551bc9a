/** Bins. */
import { randomBytes } from 'node:crypto';
import { newId, writeBody } from '../../support/devices.js';
import { range, untilVersion } from '../../support/stream.js';
import { camel, spelled, type Json } from '../../support/wire.js';
import { CODES, type Case, type Stage, fields } from '../stage.js';

const listed = async (stage: Stage): Promise<Json[]> =>
  (await stage.wire.get('/bins', stage.as())).list('bins').map(camel);
const binOf = async (stage: Stage, id: string): Promise<Json | undefined> =>
  (await listed(stage)).find((bin) => bin['id'] === id);

const inbox: Case = {
  ids: ['BIN-01', 'BIN-02', 'BIN-03'],
  async run(stage, check) {
    const fields = ['createdAt', 'id', 'itemCount', 'meta', 'slug', 'updatedAt'];
    const all = await listed(stage);
    check.same(
      'BIN-03',
      all.flatMap((bin) => [Object.keys(bin).sort()]).filter((names) => names.join() !== fields.join()),
      [],
      'bins with other fields',
    );
    const mine = all.find(({ id }) => id === 'inbox');
    check.same('BIN-01', mine?.['slug'], 'inbox', 'slug of the bin `inbox`');
    for (const body of [undefined, {}, { force: true }]) {
      const reply = await stage.wire.delete('/bins/inbox', { ...stage.as(), body });
      check.outcome('BIN-02', reply, '409 conflict', 'inbox stays');
    }
    check.ok('BIN-02', (await binOf(stage, 'inbox')) !== undefined, '`inbox` is still in the list');
  },
};

const make: Case = {
  ids: ['BIN-04', 'BIN-05', 'BIN-07', 'BIN-10', 'BIN-17'],
  async run(stage, check) {
    const { wire, shape } = stage;
    const socket = await stage.watch();
    const [id, meta] = [stage.ownBin(newId()), randomBytes(4_096)];
    const reply = await wire.post('/bins', { id, meta }, stage.as());
    check.outcome('BIN-04', reply, '200');
    const made = fields(reply.at('bin'));
    check.same('BIN-04', [made['id'], made['itemCount']], [id, 0], 'id and itemCount of the new bin');
    check.same('BIN-07', made['meta'], spelled(shape, meta), 'meta, as it was sent');
    check.same('BIN-10', made['slug'], id.toLowerCase(), 'slug of a bin that was made without one');
    const told = fields((await socket.next('bin'))['bin']);
    check.same(
      'BIN-17',
      ['id', 'slug', 'meta', 'createdAt', 'updatedAt', 'itemCount'].map((field) => told[field]),
      ['id', 'slug', 'meta', 'createdAt', 'updatedAt', 'itemCount'].map((field) => made[field]),
      'fields of the frame, as in the reply',
    );
    check.outcome('BIN-04', await stage.write(stage.item({ binId: id })), '200', 'an item in it');
    const slug = `s-${newId().toLowerCase()}`;
    const changed = await wire.patch(`/bins/${id}`, { slug }, stage.as());
    const now = fields(changed.at('bin'));
    check.same(
      'BIN-05',
      [changed.status, now['id'], now['slug'], now['meta'], now['itemCount'], now['createdAt']],
      [200, id, slug, made['meta'], 1, made['createdAt']],
      'status, id, slug, meta, itemCount and createdAt after a new slug',
    );
    check.same('BIN-17', fields((await socket.next('bin'))['bin'])['slug'], slug, 'slug of the frame');
    const cleared = fields((await wire.patch(`/bins/${id}`, { meta: null }, stage.as())).at('bin'));
    check.same('BIN-05', [cleared['slug'], cleared['meta']], [slug, null], 'slug and meta after meta was set to null');
    const other = spelled(shape, randomBytes(4_096));
    const patched = await wire.patch(`/bins/${id}`, { meta: other }, stage.as());
    check.same('BIN-07', fields(patched.at('bin'))['meta'], other, 'meta that was changed');
    check.same('BIN-07', (await binOf(stage, id))?.['meta'], other, 'meta in the list');
    const over = randomBytes(4_097);
    check.outcome(
      'BIN-07',
      await wire.post('/bins', { id: newId(), meta: over }, stage.as()),
      CODES.validation[shape],
      'meta of 4,097 bytes',
    );
    check.outcome(
      'BIN-07',
      await wire.patch(`/bins/${id}`, { meta: over }, stage.as()),
      CODES.validation[shape],
      'meta of 4,097 bytes',
    );
    await wire.delete(`/bins/${id}`, { ...stage.as(), body: { force: true } });
    for (let frame = await socket.next('bin'); ; frame = await socket.next('bin')) {
      if ('bin' in frame) continue;
      check.same(
        'BIN-17',
        [fields(frame)['id'], Number.isInteger(fields(frame)['deletedAt'])],
        [id, true],
        'id of the frame, and whether its deletedAt is an integer',
      );
      break;
    }
  },
};

const slugs: Case = {
  ids: ['BIN-08', 'BIN-09', 'BIN-11', 'ITEM-04'],
  async run(stage, check) {
    const { wire, shape } = stage;
    const mine = await stage.bin();
    for (const slug of ['', 'Upper', '-x', 'a_b', 'a b', 'ä', 'x'.repeat(64), 7]) {
      check.outcome(
        'BIN-08',
        await wire.post('/bins', { id: newId(), slug }, stage.as()),
        CODES.validation[shape],
        JSON.stringify(slug),
      );
      check.outcome(
        'BIN-08',
        await wire.patch(`/bins/${mine}`, { slug }, stage.as()),
        CODES.validation[shape],
        JSON.stringify(slug),
      );
    }
    for (const id of ['', 'a b', 'ä', 'a/b', 'x'.repeat(65), 7, null])
      check.outcome(
        'ITEM-04',
        await wire.post('/bins', { id }, stage.as()),
        CODES.validation[shape],
        JSON.stringify(id),
      );
    check.outcome(
      'BIN-09',
      await wire.post('/bins', { id: newId(), slug: mine }, stage.as()),
      CODES.slugTaken[shape],
      'a slug in use',
    );
    check.outcome(
      'BIN-09',
      await wire.patch(`/bins/${mine}`, { slug: 'inbox' }, stage.as()),
      CODES.slugTaken[shape],
      'a slug in use',
    );
    check.outcome('BIN-09', await wire.patch(`/bins/${mine}`, { slug: mine }, stage.as()), '200', 'its own slug');
    check.outcome('BIN-09', await wire.post('/bins', { id: mine }, stage.as()), '409 conflict', 'an id in use');
    check.outcome('BIN-11', await wire.patch('/bins/nowhere', { slug: 'x' }, stage.as()), '404 bin_not_found');
    check.outcome('BIN-11', await wire.delete('/bins/nowhere', stage.as()), '404 bin_not_found');
  },
};

const counts: Case = {
  ids: ['BIN-06', 'BIN-12', 'BIN-13', 'BIN-14', 'BIN-15'],
  async run(stage, check) {
    const { wire } = stage;
    const id = await stage.bin();
    const items = range(1, 40).map(() => stage.item({ binId: id }));
    await wire.post('/items/batch', { items: items.map((item) => writeBody('a', item)) }, stage.as('a'));
    check.same('BIN-06', (await binOf(stage, id))?.['itemCount'], 40, 'itemCount of 40 items');
    await stage.remove(items[0]?.id ?? '');
    check.same('BIN-06', (await binOf(stage, id))?.['itemCount'], 39, 'itemCount after a delete');
    for (const body of [undefined, {}, { force: false }])
      check.outcome(
        'BIN-13',
        await wire.delete(`/bins/${id}`, { ...stage.as(), body }),
        '409 conflict',
        'it holds items',
      );
    const odd = await wire.delete(`/bins/${id}`, { ...stage.as(), body: { force: 'yes' } });
    check.outcome('BIN-13', odd, CODES.validation[stage.shape], 'force that is no boolean');
    const [socket, own] = [await stage.watch(), await stage.watch(stage.first)];
    const head = await stage.head();
    const reply = await wire.delete(`/bins/${id}`, { ...stage.as(), body: { force: true } });
    check.outcome('BIN-15', reply, '200');
    check.same('BIN-15', await stage.head(), head + 39, 'the head after 39 deletes');
    for (const one of [socket, own]) {
      const told = fields(one.of('bin').at(-1) ?? (await one.next('bin')));
      check.same(
        'BIN-12',
        [told['id'], Number.isInteger(told['deletedAt'])],
        [id, true],
        'the frame of the deleted bin',
      );
    }
    const left = (await stage.rows()).map(fields).filter(({ binId }) => binId === id);
    const deleted = left.filter(({ deletedAt }) => deletedAt !== null);
    check.same('BIN-15', [left.length, deleted.length], [40, 40], 'number of its rows, and of those that are deleted');
    const view = await wire.get(`/items?bin_id=${id}&since=0`, stage.as());
    check.outcome('BIN-12', view, '404 bin_not_found', 'a page of it');
    check.outcome(
      'BIN-14',
      await stage.write(stage.item({ binId: id })),
      '404 bin_not_found',
      'a write into a closed bin',
    );
    const seen = (await untilVersion(socket, head + 39)).filter(({ version }) => version <= head + 39);
    check.same(
      'BIN-15',
      seen.map(({ kind, version }) => `${kind} ${version}`),
      range(1, 39).map((step) => `delete ${head + step}`),
      'frames pushed',
    );
    check.same(
      'BIN-15',
      seen.map((one) => one.id).sort(),
      items
        .slice(1)
        .map((item) => item.id)
        .sort(),
      'ids deleted',
    );
    const empty = await stage.bin();
    check.outcome('BIN-12', await wire.delete(`/bins/${empty}`, stage.as()), '200', 'a bin without items');
    check.outcome('BIN-12', await wire.delete(`/bins/${empty}`, stage.as()), '404 bin_not_found', 'it is gone');
    const next = await wire.post('/bins', { id: stage.ownBin(newId()), slug: empty }, stage.as());
    check.outcome('BIN-12', next, '200', 'its slug is free again');
    for (const gone of [id, empty])
      check.same('BIN-12', await binOf(stage, gone), undefined, 'entry of the deleted bin in the list');
  },
};

const most: Case = {
  ids: ['BIN-16'],
  needs: 'slow',
  once: true,
  async run(stage, check) {
    const { wire } = stage;
    const made: string[] = [];
    for (let count = (await listed(stage)).length; count < 1_000; count++) {
      const id = newId();
      const reply = await wire.post('/bins', { id }, stage.as());
      if (reply.status !== 200) break;
      made.push(id);
    }
    check.same('BIN-16', (await listed(stage)).length, 1_000, 'number of bins when no more can be made');
    check.outcome('BIN-16', await wire.post('/bins', { id: newId() }, stage.as()), '409 conflict', 'one more');
    await wire.delete(`/bins/${made.pop()}`, stage.as());
    made.push(newId());
    check.outcome(
      'BIN-16',
      await wire.post('/bins', { id: made.at(-1) }, stage.as()),
      '200',
      'a deleted bin makes room',
    );
    for (const id of made) await wire.delete(`/bins/${id}`, stage.as());
  },
};

export const bins: readonly Case[] = [inbox, make, slugs, counts, most];
