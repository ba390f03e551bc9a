/** Reading items over HTTP, and the sums of `/me`. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { edited, mustWrite, newItem, writeBody, type TestItem } from './support/devices.js';
import { Scene } from './support/scene.js';
import { camel, SHAPES, type Json, type Reply, type Shape } from './support/wire.js';

const scene = await Scene.start(t);
const { wire, first, second } = scene;

const VALIDATION = { a: '400 validation', b: '400 invalid_payload' } as const;
const list = async (query: string, shape: Shape): Promise<Reply> => wire.get(`/items${query}`, scene.as(shape));
const next = (reply: Reply): number => reply.number(reply.at('hasMore') === undefined ? 'head_version' : 'nextSince');
const hasMore = (reply: Reply): unknown => reply.at('hasMore') ?? reply.at('has_more');
const versions = (reply: Reply): number[] => reply.list('items').map((row) => Number(row['version']));

async function writeAll(items: readonly TestItem[], size = 100): Promise<void> {
  for (let from = 0; from < items.length; from += size) {
    const body = { items: items.slice(from, from + size).map((item) => writeBody('a', item)) };
    const reply = await wire.post('/items/batch', body, scene.as('a'));
    if (reply.list('results').some((result) => !('version' in result))) throw new Error(reply.raw.slice(0, 500));
  }
}

await wire.post('/bins', { id: 'rare' }, scene.as('a'));
const COUNT = 1_210;
await writeAll(
  Array.from({ length: COUNT }, (_, index) => scene.item({ binId: index % 300 === 7 ? 'rare' : 'inbox' })),
);

t.test('LIST-01 LIST-02 LIST-03: rows above since, in version order', async (t) => {
  for (const shape of SHAPES) {
    const reply = await list('?since=100&limit=50', shape);
    t.same(
      versions(reply),
      Array.from({ length: 50 }, (_, index) => 101 + index),
      shape,
    );
  }
  t.equal(versions(await list('?limit=3', 'a'))[0], 1, 'A starts at 0');
  t.equal((await list('?limit=3', 'b')).outcome, VALIDATION.b, 'B requires since');
  t.equal((await list('', 'b')).outcome, VALIDATION.b);
});

t.test('LIST-04 LIST-05: the limit is 500 in A and 200 in B by default, and 1,000 at most', async (t) => {
  t.equal((await list('', 'a')).list('items').length, 500);
  t.equal((await list('?since=0', 'b')).list('items').length, 200);
  for (const shape of SHAPES) {
    for (const limit of [1_000, 1_001, 1_000_000_000]) {
      t.equal((await list(`?since=0&limit=${limit}`, shape)).list('items').length, 1_000, `${shape} ${limit}`);
    }
    t.equal((await list('?since=0&limit=1', shape)).list('items').length, 1);
  }
});

t.test('LIST-06 LIST-07 LIST-08 LIST-09 ERR-05: a bad parameter is a schema error', async (t) => {
  const bad = [
    'since=-1',
    'since=1.5',
    'since=x',
    'since=1e3',
    'since=%201',
    'since=0x10',
    'since=9007199254740992',
    'since=99999999999999999999',
  ];
  const alsoBad = [
    'limit=0',
    'limit=-1',
    'limit=2.5',
    'limit=ten',
    'limit=',
    'since=',
    'epoch=',
    'bin_id=',
    'limit=1&limit=1',
    'since=0&since=0',
    'epoch=x&epoch=x',
    'bin_id=inbox&bin_id=inbox',
  ];
  for (const shape of SHAPES) {
    for (const query of [...bad, ...alsoBad]) {
      const reply = await list(`?${query.includes('since') ? '' : 'since=0&'}${query}`, shape);
      t.equal(reply.outcome, VALIDATION[shape], `${shape} ${query}`);
      t.equal(reply.at('error.details.path'), query.split('=')[0], 'names the parameter');
    }
  }
  for (const query of ['shape=c', 'shape=', 'shape=A', 'shape=a&shape=a', 'shape=a&shape=b']) {
    t.equal((await wire.get(`/items?since=0&${query}`, { token: first.token })).outcome, VALIDATION.a, query);
  }
});

t.test('LIST-10 LIST-11 LIST-15 LIST-16 LIST-17: the cursor is the last version, or the head', async (t) => {
  const epoch = (await scene.me()).text('server.epoch');
  for (const shape of SHAPES) {
    const page = await list('?since=0&limit=40', shape);
    t.equal(hasMore(page), true);
    t.equal(next(page), 40);
    const last = await list(`?since=${COUNT - 1}&limit=40`, shape);
    t.same([versions(last), hasMore(last), next(last)], [[COUNT], false, COUNT]);
    const exact = await list(`?since=${COUNT - 40}&limit=40`, shape);
    t.same([versions(exact).length, hasMore(exact), next(exact)], [40, false, COUNT], 'a page that ends at the head');
    const none = await list(`?since=${COUNT}`, shape);
    t.same([versions(none), hasMore(none), next(none)], [[], false, COUNT]);
    const rare = await list('?since=0&bin_id=rare', shape);
    t.same(versions(rare), [8, 308, 608, 908, 1_208], 'the rows of that bin only');
    t.same([hasMore(rare), next(rare)], [false, COUNT], 'over the same cursor');
    t.ok(rare.list('items').every((row) => camel(row)['binId'] === 'rare'));
    const some = await list('?since=8&limit=2&bin_id=rare', shape);
    t.same([versions(some), hasMore(some), next(some)], [[308, 608], true, 608]);
    t.equal((await list('?since=0&bin_id=nowhere', shape)).outcome, '404 bin_not_found');
    t.equal(page.at('epoch'), epoch);
  }
});

t.test('LIST-18 LIST-19 EPOCH-01: a cursor of another history starts at 0', async (t) => {
  for (const shape of SHAPES) {
    const epoch = (await list('?since=0&limit=1', shape)).text('epoch');
    t.ok(epoch.length > 0);
    const same = await list(`?since=500&limit=2&epoch=${encodeURIComponent(epoch)}`, shape);
    t.same([versions(same), same.at('reset')], [[501, 502], undefined]);
    for (const query of [
      'since=500&limit=2&epoch=other',
      `since=${COUNT + 1}&limit=2`,
      `since=9007199254740991&limit=2&epoch=${epoch}`,
    ]) {
      const reset = await list(`?${query}`, shape);
      t.same([versions(reset), reset.at('reset'), hasMore(reset), next(reset)], [[1, 2], true, true, 2], query);
      t.equal(reset.at('epoch'), epoch);
    }
  }
});

t.test('LIST-12: paging concurrently with writers misses no item', async (t) => {
  let done = false;
  const mine: TestItem[] = [];
  const writers = [first, second].map(async (device) => {
    for (let index = 0; index < 60; index++) {
      const item = scene.item();
      mine.push(item);
      await mustWrite(wire, device, item);
      if (index % 2 === 0) await mustWrite(wire, device, edited(item));
      if (index % 5 === 0) await wire.delete(`/items/${item.id}`, { token: device.token });
    }
  });
  const finished = Promise.all(writers).then(() => (done = true));
  const held = new Map<string, Json>();
  let since = COUNT;
  let pages = 0;
  for (;;) {
    const over = done;
    const page = await list(`?since=${since}&limit=7`, 'a');
    pages++;
    const rows = page.list('items');
    for (const row of rows) held.set(String(row['id']), row);
    const sorted = versions(page);
    t.ok(
      sorted.every((version, index) => version > (sorted[index - 1] ?? since)),
      'strictly rising',
    );
    if (page.at('hasMore') === true) t.equal(page.at('nextSince'), sorted.at(-1));
    else t.ok(page.number('nextSince') >= (sorted.at(-1) ?? since));
    since = page.number('nextSince');
    if (over && page.at('hasMore') !== true) break;
  }
  await finished;
  t.ok(pages > 20, 'many pages were read meanwhile');
  const truth = await scene.rows('a', COUNT);
  t.same(new Set(held.keys()), new Set(mine.map((item) => item.id)));
  for (const row of truth) t.same(held.get(String(row['id'])), row, 'each in its latest state');
});

t.test('LIST-14: a page ends at about 4 MiB', async (t) => {
  const big = Array.from({ length: 70 }, () => scene.item({ ct: randomBytes(65_536) }));
  const before = await scene.head();
  await writeAll(big, 11);
  for (const shape of SHAPES) {
    const seen: number[] = [];
    let since = before;
    for (;;) {
      const page = await list(`?since=${since}&limit=1000`, shape);
      t.ok(page.raw.length < 8 * 1024 * 1024, `a page of ${page.raw.length} characters`);
      seen.push(...versions(page));
      t.same(next(page), seen.at(-1));
      since = next(page);
      if (hasMore(page) === false) break;
    }
    t.same(
      seen,
      Array.from({ length: 70 }, (_, index) => before + 1 + index),
      'all items are read, in pages',
    );
    t.equal(hasMore(await list(`?since=${before}&limit=70`, shape)), true, 'not all in one page');
  }
});

t.test('STAT-06 STAT-07 STAT-08 STAT-09 STAT-11 STAT-12 EPOCH-01: /me has device, server and sums', async (t) => {
  const fresh = await Scene.start(t, { env: { REGION: 'test-region', STORAGE_CAP_BYTES: '1000000' } });
  const server = async (): Promise<Json> => camel((await fresh.wire.get('/me', fresh.as('a'))).at('server'));
  t.match(await server(), {
    itemCount: 0,
    deviceCount: 2,
    devicesOnline: 0,
    storageUsedBytes: 0,
    headVersion: 0,
    versionSum: 0,
  });
  const [one, two] = [await fresh.written(), await fresh.written()];
  const used = Number((await server())['storageUsedBytes']);
  t.ok(used >= 2 * (48 + 2 * 80), `ciphertext and keys count: ${used}`);
  await mustWrite(fresh.wire, fresh.first, edited(one));
  t.match(await server(), { itemCount: 2, headVersion: 3, versionSum: 5, storageUsedBytes: used });
  await fresh.wire.delete(`/items/${two.id}`, fresh.as('a'));
  t.match(await server(), { itemCount: 1, headVersion: 4, versionSum: 3, storageUsedBytes: used / 2 });
  const status = await fresh.wire.get('/service/status');
  for (const shape of SHAPES) {
    const me = await fresh.wire.get('/me', fresh.as(shape));
    const { device, server: about } = camel(me.body) as { device: Json; server: Json };
    t.match(device, { id: fresh.first.id, name: 'first', glyph: 'laptop' });
    t.ok(Number.isInteger(device['pairedAt']));
    t.match(about, {
      region: 'test-region',
      storageCapBytes: 1_000_000,
      tenantId: fresh.server.tenantId,
      epoch: status.at('epoch'),
    });
    t.match(about['version'], /^\d+\.\d+\.\d+/);
  }
  t.equal((await fresh.wire.get('/health')).at('version'), (await server())['version']);
  const listed = await fresh.wire.get('/items?since=0', fresh.as('b'));
  t.equal(listed.at('epoch'), status.at('epoch'));
  t.equal((await fresh.wire.post(`/devices/${fresh.second.id}/revoke`, {}, fresh.as('a'))).status, 200);
  t.equal((await server())['deviceCount'], 1, 'a revoked device does not count');
});

t.test('LIST-01: a fresh server has an empty list', async (t) => {
  const fresh = await Scene.start(t);
  const reply = await fresh.wire.get('/items', fresh.as('a'));
  t.match(reply.body, { items: [], nextSince: 0, hasMore: false });
  t.equal(reply.at('reset'), undefined);
  const item = newItem(fresh.ids);
  t.equal(await mustWrite(fresh.wire, fresh.first, item), 1);
});
