/** Bins, on a real database and two instances. */
import t from 'tap';
import { ulid } from 'ulid';
import { Bins, defaultSlug } from '../src/server/bins/bins.js';
import { PostgresItemLog } from '../src/server/storage/item-log.js';
import { BinStore } from '../src/server/bins/store.js';
import { systemClock } from '../src/protocol/clock.js';
import { BIN_SLUG } from '../src/protocol/ids.js';
import {
  base64,
  claimedWorld,
  generationOf,
  newDevice,
  newWorld,
  outcomes,
  pairOne,
  random,
  refusal,
  together,
  valueOf,
  type Instance,
  type World,
} from './support/accounts.js';
import { soon, until } from './support/events.js';

interface Sums {
  readonly head: number;
  readonly item_count: number;
  readonly version_sum: number;
  readonly storage_bytes: number;
}

/** Inserts live items directly into the tables, with the tenant's sums as a commit would leave them. */
async function fill({ a, tenantId }: World, binId: string, count: number): Promise<void> {
  const ids = Array.from({ length: count }, () => ulid());
  await a.pool.query(
    `WITH t AS (SELECT head FROM tenants WHERE id = $1), added AS (
       INSERT INTO items (tenant_id, id, version, bin_id, type, ts, sender_device, changed_by, ct, nonce, sig, master, keys, bytes)
       SELECT $1, u.id, t.head + n, $2, 'text', 1700000000000, 'd', 'd', '\\x00', '\\x01', '\\x02', '\\x03', '\\x04', 10
       FROM t, unnest($3::text[]) WITH ORDINALITY AS u(id, n) RETURNING version)
     UPDATE tenants SET head = head + $4, item_count = item_count + $4, storage_bytes = storage_bytes + 10 * $4,
       version_sum = version_sum + (SELECT coalesce(sum(version), 0)::bigint FROM added) WHERE id = $1`,
    [tenantId, binId, ids, count],
  );
}

/** The tenant's stored sums, and the same sums counted from its items. */
async function sums({ pool }: Instance, tenantId: string): Promise<{ kept: Sums; counted: Sums }> {
  const kept = await pool.query<Sums>(
    'SELECT head, item_count, version_sum, storage_bytes FROM tenants WHERE id = $1',
    [tenantId],
  );
  const counted = await pool.query<Sums>(
    `SELECT max(version) AS head, count(*) FILTER (WHERE deleted_at IS NULL) AS item_count,
       coalesce(sum(version) FILTER (WHERE deleted_at IS NULL), 0)::bigint AS version_sum, sum(bytes)::bigint AS storage_bytes
     FROM items WHERE tenant_id = $1`,
    [tenantId],
  );
  return { kept: kept.rows[0] as Sums, counted: counted.rows[0] as Sums };
}

/** A deletion whose server dies after the first batch. */
async function cutOff({ a, tenantId }: World, binId: string): Promise<void> {
  const by = await valueOf<string>(a.pool, 'SELECT id AS value FROM devices LIMIT 1');
  const store = new BinStore(a.pool);
  const closing = { tenantId, id: binId, by, force: true, now: 1 };
  if ((await store.close(closing)) !== 'closed') throw new Error('it is not closed');
  await store.deleteItems({ tenantId, id: binId, by, after: 0, limit: 500, now: 1 });
}

async function claimed(t: Parameters<typeof newWorld>[0]): Promise<World> {
  const world = await newWorld(t);
  await claimedWorld(world);
  return world;
}

t.test('BIN-03 BIN-04 BIN-07 BIN-17: a new bin is listed with its meta, and is announced', async (t) => {
  const { a, b, tenantId, clock } = await claimed(t);
  clock.advance(1);
  const before = await generationOf(a.pool, tenantId);
  const meta = random(4_096);
  const { bin } = await a.bins.create(tenantId, { id: 'Work_1', slug: 'work', meta });
  const now = clock.now();
  t.same(
    { ...bin, meta: base64(bin.meta ?? new Uint8Array()) },
    {
      id: 'Work_1',
      slug: 'work',
      meta,
      createdAt: now,
      updatedAt: now,
      itemCount: 0,
    },
  );
  t.same((await b.bins.list(tenantId)).bins[1], bin);
  t.equal(a.announced.at(-1), tenantId);
  t.equal(await generationOf(a.pool, tenantId), before + 1);
  const change = (await b.loader.reload(tenantId, before))?.bins.find((found) => found.id === 'Work_1');
  const { id, slug, createdAt, updatedAt } = bin;
  const view = { id, slug, meta: bin.meta, createdAt, updatedAt, itemCount: 0 };
  t.same(change, { id: 'Work_1', deletedAt: null, view, changedAtGeneration: before + 1, open: true });
  t.equal(await refusal(a.bins.create(tenantId, { id: 'big', meta: random(4_097) })), 'validation');
  t.equal(await refusal(a.bins.create(ulid(), { id: 'x' })), 'tenant_not_found');
});

t.test('BIN-06: itemCount counts the live items of the bin', async (t) => {
  const world = await claimed(t);
  const { a, tenantId } = world;
  await a.bins.create(tenantId, { id: 'work' });
  await fill(world, 'work', 3);
  await fill(world, 'inbox', 2);
  await a.pool.query("UPDATE items SET deleted_at = 1 WHERE id = (SELECT min(id) FROM items WHERE bin_id = 'work')");
  t.same(
    (await a.bins.list(tenantId)).bins.map(({ id, itemCount }) => [id, itemCount]),
    [
      ['inbox', 2],
      ['work', 2],
    ],
  );
  t.equal((await a.bins.patch(tenantId, 'work', { slug: 'w' })).bin.itemCount, 2);
});

t.test('BIN-05 BIN-11: a patch changes only the fields it names', async (t) => {
  const { a, tenantId, clock } = await claimed(t);
  const { bin } = await a.bins.create(tenantId, { id: 'work', meta: random(10) });
  clock.advance(5);
  const patched = (await a.bins.patch(tenantId, 'work', { slug: 'office' })).bin;
  t.same(patched, { ...bin, slug: 'office', updatedAt: clock.now() });
  const before = await generationOf(a.pool, tenantId);
  clock.advance(5);
  t.same((await a.bins.patch(tenantId, 'work', { slug: 'office' })).bin, patched, 'nothing is changed');
  t.equal(await generationOf(a.pool, tenantId), before);
  t.equal((await a.bins.patch(tenantId, 'work', { meta: null })).bin.meta, null);
  t.equal((await a.bins.patch(tenantId, 'inbox', { slug: 'in' })).bin.slug, 'in', 'inbox takes a patch too');
  t.equal(await refusal(a.bins.patch(tenantId, 'none', { slug: 'x' })), 'bin_not_found');
  t.equal(await refusal(a.bins.patch(ulid(), 'work', { slug: 'x' })), 'bin_not_found');
});

t.test(
  'BIN-05 FAIR-43: items are counted without the lock of the tenant, for which its writes would wait',
  async (t) => {
    const world = await claimed(t);
    const { a, b, tenantId } = world;
    await a.bins.create(tenantId, { id: 'work' });
    await fill(world, 'work', 3);
    const client = await b.pool.connect();
    t.teardown(() => client.release());
    await client.query('BEGIN');
    await client.query('LOCK TABLE items IN ACCESS EXCLUSIVE MODE');
    const patched = a.bins.patch(tenantId, 'work', { slug: 'office' });
    const counts = `SELECT 1 FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%FROM items%'`;
    await until('the items are counted', async () => (await b.pool.query(counts)).rowCount === 1);
    await b.pool.query('SELECT 1 FROM tenants WHERE id = $1 FOR UPDATE NOWAIT', [tenantId]);
    await client.query('ROLLBACK');
    t.match((await patched).bin, { slug: 'office', itemCount: 3 });
  },
);

t.test('BIN-09 BIN-10: slugs are unique; the default is the id in lower case, made valid', async (t) => {
  const world = await claimed(t);
  const { a, b, tenantId } = world;
  t.equal((await a.bins.create(tenantId, { id: 'Work' })).bin.slug, 'work');
  t.equal(await refusal(a.bins.create(tenantId, { id: 'work' })), 'slug_taken');
  t.equal(await refusal(a.bins.create(tenantId, { id: 'Work', slug: 'other' })), 'conflict');
  await a.bins.create(tenantId, { id: 'work', slug: 'other' });
  t.equal(await refusal(a.bins.patch(tenantId, 'work', { slug: 'work' })), 'slug_taken');
  t.equal(await refusal(a.bins.patch(tenantId, 'work', { slug: 'other' })), undefined, 'a bin may keep its own slug');
  const ids: [id: string, slug: string][] = [
    ['A_b', 'a-b'],
    ['-_x', 'x'],
    ['___', 'bin'],
    ['-', 'bin'],
    ['Z'.repeat(64), 'z'.repeat(63)],
  ];
  for (const [id, slug] of ids) {
    t.equal(defaultSlug(id), slug);
    t.match(slug, BIN_SLUG);
  }
  const slugs = [1, 2, 3].map((n) => () => b.bins.create(tenantId, { id: `r${n}`, slug: 'race' }));
  t.same((await together(world, slugs)).toSorted(), ['ok', 'slug_taken', 'slug_taken']);
  const same = [1, 2].map((n) => () => b.bins.create(tenantId, { id: 'same', slug: `same-${n}` }));
  t.same((await together(world, same)).toSorted(), ['conflict', 'ok']);
  const patches = ['Work', 'same'].map((id) => () => b.bins.patch(tenantId, id, { slug: 'wanted' }));
  t.same((await together(world, patches)).toSorted(), ['ok', 'slug_taken']);
});

t.test('BIN-16: a tenant has at most 1,000 bins, deleted ones not counted', async (t) => {
  const world = await claimed(t);
  const { a, b, tenantId } = world;
  await a.pool.query(
    `INSERT INTO bins (tenant_id, id, slug, created_at, updated_at, changed_at_generation)
     SELECT $1, 'b' || n, 'b' || n, 1, 1, 1 FROM generate_series(1, 998) n`,
    [tenantId],
  );
  const last = [1, 2, 3].map((n) => () => b.bins.create(tenantId, { id: `last${n}` }));
  const ends = await together(world, last);
  t.same(ends.toSorted(), ['conflict', 'conflict', 'ok']);
  await a.bins.remove(tenantId, 'b1', {});
  t.equal(await refusal(a.bins.create(tenantId, { id: 'more' })), undefined);
  t.equal((await a.bins.list(tenantId)).bins.length, 1_000);
});

t.test('BIN-19: of deleted bins the latest hundred stay stored', async (t) => {
  const { a, b, tenantId } = await claimed(t);
  await a.pool.query(
    `INSERT INTO bins (tenant_id, id, slug, meta, created_at, updated_at, closed_at, deleted_at, changed_at_generation)
     SELECT $1, 'b' || n, 'b' || n, '\\x00', 1, 1, 1, 1, n FROM generate_series(1, 700) n`,
    [tenantId],
  );
  const stored = async (): Promise<string[]> =>
    (
      await a.pool.query<{ id: string }>(
        'SELECT id FROM bins WHERE deleted_at IS NOT NULL ORDER BY changed_at_generation',
      )
    ).rows.map(({ id }) => id);
  await a.bins.create(tenantId, { id: 'live' });
  t.equal((await stored()).length, 200, 'many are removed in steps');
  await b.bins.create(tenantId, { id: 'b650' });
  const kept = await stored();
  t.equal(kept.length, 99, 'one of the hundred was made again');
  t.equal(kept[0], 'b601');
  t.same((await a.bins.list(tenantId)).bins.map(({ id }) => id).toSorted(), ['b650', 'inbox', 'live']);
  for (let n = 0; n < 3; n++) {
    await a.bins.create(tenantId, { id: `brief${n}` });
    await b.bins.remove(tenantId, `brief${n}`, {});
  }
  t.equal((await stored()).length, 101, 'the one that was deleted last, and the hundred before it');
});

t.test('BIN-02 BIN-11 BIN-12 BIN-17: an empty bin is deleted, inbox is not', async (t) => {
  const { a, b, tenantId, clock } = await claimed(t);
  await a.bins.create(tenantId, { id: 'work' });
  t.same(await b.bins.remove(tenantId, 'work', {}), { ok: true });
  t.same(
    (await a.bins.list(tenantId)).bins.map(({ id }) => id),
    ['inbox'],
  );
  const change = (await a.loader.reload(tenantId, 0))?.bins.find(({ id }) => id === 'work');
  t.match(change, { deletedAt: clock.now(), view: null, open: false });
  t.equal(change?.changedAtGeneration, await generationOf(a.pool, tenantId));
  for (const force of [undefined, false, true]) {
    t.equal(await refusal(a.bins.remove(tenantId, 'inbox', { force })), 'conflict');
    t.equal(await refusal(a.bins.remove(tenantId, 'work', { force })), 'bin_not_found');
    t.equal(await refusal(a.bins.remove(tenantId, 'none', { force })), 'bin_not_found');
  }
  t.equal(await refusal(a.bins.patch(tenantId, 'work', { slug: 'x' })), 'bin_not_found');
});

t.test('BIN-13 INST-11: a write that is committed while its bin is being deleted keeps the bin', async (t) => {
  const world = await claimed(t);
  const { a, b, tenantId } = world;
  await a.bins.create(tenantId, { id: 'work' });
  const before = await generationOf(a.pool, tenantId);
  const write = "INSERT INTO items (tenant_id, id, version, bin_id) VALUES ($1, $2, 1, 'work')";
  const ends = await together(world, [() => b.bins.remove(tenantId, 'work', {})], (holder) =>
    holder.query(write, [tenantId, ulid()]),
  );
  t.same(ends, ['conflict']);
  t.equal(await generationOf(a.pool, tenantId), before);
  await a.bins.remove(tenantId, 'work', { force: true });
  t.ok((await generationOf(a.pool, tenantId)) > before, 'a write checked before it closed is checked again');
});

t.test('a deleted id may be used again, and so may its slug', async (t) => {
  const { a, tenantId, clock } = await claimed(t);
  await a.bins.create(tenantId, { id: 'work', meta: random(8) });
  await a.bins.remove(tenantId, 'work', {});
  await a.bins.create(tenantId, { id: 'other', slug: 'work' });
  clock.advance(9);
  t.equal(await refusal(a.bins.create(tenantId, { id: 'work' })), 'slug_taken');
  const { bin } = await a.bins.create(tenantId, { id: 'work', slug: 'again' });
  t.match(bin, { meta: null, createdAt: clock.now(), updatedAt: clock.now(), itemCount: 0 });
  t.match(
    (await a.loader.reload(tenantId, 0))?.bins.find(({ id }) => id === 'work'),
    { deletedAt: null, open: true },
  );
});

t.test(
  "BIN-13 BIN-14 BIN-15 ITEM-36: force deletes the items in batches, each with a version, as the caller's changes",
  async (t) => {
    const world = await claimed(t);
    const { a, tenantId, clock } = world;
    await a.bins.create(tenantId, { id: 'work' });
    await fill(world, 'inbox', 3);
    await fill(world, 'work', 1_200);
    t.equal(await refusal(a.bins.remove(tenantId, 'work', {})), 'conflict');
    t.equal(await refusal(a.bins.remove(tenantId, 'work', { force: false })), 'conflict');
    const before = await generationOf(a.pool, tenantId);
    const told = a.announced.length;
    const by = await valueOf<string>(a.pool, 'SELECT id AS value FROM devices');
    clock.advance(77);
    t.same(await a.bins.remove(tenantId, 'work', { force: true }, by), { ok: true });
    t.equal(a.announced.length - told, 4, 'announced after closing, after two full batches and after the rest');
    t.equal(await generationOf(a.pool, tenantId), before + 2, 'once for closing, once for deleting');
    const { kept, counted } = await sums(a, tenantId);
    t.same(kept, counted);
    t.match(kept, { head: 2_403, item_count: 3, storage_bytes: 30 });
    const page = await new PostgresItemLog(a.pool).page({ tenantId, since: 1_203, limit: 1_000 });
    t.equal(page.rows.length, 1_000);
    for (const [at, { version, deletedAt, changedBy }] of page.rows.entries()) {
      if (version !== 1_204 + at || deletedAt !== clock.now() || changedBy !== by) t.fail(`row ${at}`);
    }
    const content = 'num_nonnulls(ct, nonce, sig, master, keys, blob_ref, blob_nonce, blob_keys)';
    t.equal(await valueOf(a.pool, `SELECT sum(${content}) AS value FROM items WHERE bin_id = 'work'`), 0);
    t.equal(
      await valueOf(a.pool, "SELECT count(*) AS value FROM items WHERE bin_id = 'work' AND sender_device = 'd'"),
      1_200,
    );
  },
);

t.test('blobs of deleted items are left to the reaper', async (t) => {
  const world = await claimed(t);
  const { a, tenantId } = world;
  await a.bins.create(tenantId, { id: 'work' });
  await fill(world, 'work', 2);
  await a.pool.query("INSERT INTO blobs SELECT $1, r, 5, 'ready', NULL, 1 FROM unnest('{one,two}'::text[]) r", [
    tenantId,
  ]);
  await a.pool.query("UPDATE items SET blob_ref = 'one' WHERE version = 1");
  await a.bins.remove(tenantId, 'work', { force: true });
  const states = await a.pool.query('SELECT ref, state FROM blobs ORDER BY ref');
  t.same(states.rows, [
    { ref: 'one', state: 'orphan' },
    { ref: 'two', state: 'ready' },
  ]);
});

t.test('BIN-14: the same call, also without force, finishes a deletion that a crash interrupted', async (t) => {
  for (const force of [true, false]) {
    const world = await claimed(t);
    const { a, b, tenantId } = world;
    await a.bins.create(tenantId, { id: 'work' });
    await fill(world, 'work', 700);
    await cutOff(world, 'work');
    t.match(
      (await b.loader.reload(tenantId, 0))?.bins.find(({ id }) => id === 'work'),
      { open: false, deletedAt: null },
    );
    t.equal((await new BinStore(b.pool).bins(tenantId)).bins[1]?.itemCount, 200);
    t.equal(await refusal(b.bins.create(tenantId, { id: 'work' })), 'conflict');
    t.equal(await refusal(b.bins.patch(tenantId, 'work', { slug: 'x' })), 'bin_not_found');
    t.same(await b.bins.remove(tenantId, 'work', { force }), { ok: true });
    t.equal((await b.bins.list(tenantId)).bins.length, 1);
    const { kept, counted } = await sums(a, tenantId);
    t.same(kept, counted);
  }
});

t.test('concurrent deletions of a bin delete each item once, and leave a bin made anew alone', async (t) => {
  const world = await claimed(t);
  const { a, b, tenantId } = world;
  for (let round = 0; round < 5; round++) {
    await a.bins.create(tenantId, { id: 'work' });
    await fill(world, 'work', 1_100);
    const head = (await sums(a, tenantId)).kept.head;
    const ends = await outcomes([a, b, a].map(({ bins }) => bins.remove(tenantId, 'work', { force: true })));
    t.ok(ends.includes('ok') && ends.every((end) => end === 'ok' || end === 'bin_not_found'), ends.join());
    const { kept, counted } = await sums(a, tenantId);
    t.equal(kept.head, head + 1_100);
    t.same(kept, counted);
  }
  await a.bins.create(tenantId, { id: 'work' });
  await fill(world, 'work', 2);
  const store = new BinStore(a.pool);
  t.same(await store.deleteItems({ tenantId, id: 'work', by: null, after: 0, limit: 500, now: 1 }), {
    deleted: 0,
    last: 0,
    done: true,
  });
  t.equal((await a.bins.list(tenantId)).bins[1]?.itemCount, 2, 'a late batch of an old deletion finds the bin open');
});

t.test('BIN-18: an interrupted deletion resumes when the bins are listed, one run at a time', async (t) => {
  const world = await claimed(t);
  const { a, b, tenantId } = world;
  await a.bins.create(tenantId, { id: 'work' });
  await a.bins.create(tenantId, { id: 'also' });
  await fill(world, 'work', 1_700);
  await fill(world, 'also', 600);
  await cutOff(world, 'work');
  await cutOff(world, 'also');
  const told = b.announced.length;
  const all = new Promise<void>((resolve) => {
    b.onChanged = () => {
      if (b.announced.length === told + 4) resolve();
    };
  });
  for (let n = 0; n < 3; n++) t.ok((await b.bins.list(tenantId)).bins.length >= 1);
  await soon(all, 'four batches');
  await b.bins.close();
  t.same(
    (await b.bins.list(tenantId)).bins.map(({ id }) => id),
    ['inbox'],
  );
  t.equal(b.announced.length, told + 4, 'three batches of one bin and one of the other: nothing is done twice');
  const { kept, counted } = await sums(a, tenantId);
  t.same(kept, counted);
  t.equal(kept.item_count, 0);
  const nobodys = 'SELECT count(*) AS value FROM items WHERE deleted_at IS NOT NULL AND changed_by IS NULL';
  t.equal(await valueOf(a.pool, nobodys), 1_300, 'they name no device, so that every socket gets them');
  t.same(b.faults, []);
});

t.test('BIN-18: a resumed deletion that fails is tried again with the next list', async (t) => {
  const world = await claimed(t);
  const { a, b, tenantId } = world;
  await a.bins.create(tenantId, { id: 'work' });
  await fill(world, 'work', 501);
  await cutOff(world, 'work');
  await a.pool.query('ALTER FUNCTION delete_bin_items RENAME TO hidden');
  t.equal((await b.bins.list(tenantId)).bins.length, 2);
  await until('the fault', () => b.faults.length > 0);
  await a.pool.query('ALTER FUNCTION hidden RENAME TO delete_bin_items');
  const gone = new Promise<void>((resolve) => (b.onChanged = () => resolve()));
  await until('the end of the deletion', async () => (await b.bins.list(tenantId)).bins.length === 1);
  await soon(gone, 'the news of it');
  t.equal(b.faults.length, 1);
});

t.test('DEV-15: a device that is revoked while its change of a bin is waiting changes nothing', async (t) => {
  const world = await claimed(t);
  const { a, b, tenantId } = world;
  const first = { ...newDevice(), id: await valueOf<string>(a.pool, 'SELECT id AS value FROM devices') };
  const second = await pairOne(world, first);
  await a.bins.create(tenantId, { id: 'work' });
  await fill(world, 'work', 1);
  await a.bins.create(tenantId, { id: 'empty' });
  const before = (await b.bins.list(tenantId)).bins;
  const calls = [
    () => a.bins.create(tenantId, { id: 'more' }, second.id),
    () => b.bins.patch(tenantId, 'work', { slug: 'w' }, second.id),
    () => a.bins.remove(tenantId, 'work', { force: true }, second.id),
    () => b.bins.remove(tenantId, 'empty', {}, second.id),
  ];
  const ends = await together(world, calls, (holder) =>
    holder.query('UPDATE devices SET revoked_at = 1 WHERE id = $1', [second.id]),
  );
  t.same(ends, ['device_revoked', 'device_revoked', 'device_revoked', 'device_revoked']);
  t.same((await b.bins.list(tenantId)).bins, before);
  t.equal(
    await refusal(a.bins.create(tenantId, { id: 'more' }, ulid())),
    'device_revoked',
    'an unknown device changes nothing',
  );
});

t.test('BIN-18: a list read during a deletion and answered after it begins no other deletion', async (t) => {
  const reads: ((closed: readonly string[]) => void)[] = [];
  let batches = 0;
  let finish: () => void = () => undefined;
  const store = {
    bins: () => new Promise((resolve) => reads.push((closed) => resolve({ bins: [], closed }))),
    deleteItems: () => {
      batches++;
      return new Promise((resolve) => (finish = () => resolve({ deleted: 1, last: 1, done: true })));
    },
  } as unknown as BinStore;
  let told = 0;
  const changed = (): Promise<void> => {
    told++;
    return Promise.resolve();
  };
  const bins = new Bins({ store, clock: systemClock, changed, onFault: () => undefined });
  const lists = [bins.list('T')];
  reads.shift()?.(['work']);
  await lists[0];
  lists.push(bins.list('T'));
  finish();
  await until('the end of the deletion', () => told === 1);
  await new Promise((resolve) => setImmediate(resolve));
  reads.shift()?.(['work']);
  await lists[1];
  t.equal(batches, 1);
  finish();
  await bins.close();
});
