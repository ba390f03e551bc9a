/** Pages of the item log, how rows are stored, and the purge of a revoked device's keys (src/server/storage). */
import fc from 'fast-check';
import t, { type Test } from 'tap';
import { PostgresKeyPurger } from '../src/server/storage/key-purger.js';
import type { Item } from '../src/protocol/item.js';
import { toBase64Url } from '../src/protocol/base64.js';
import { Arena } from '../src/server/tenant/change.js';
import { type ItemRow } from '../src/server/tenant/codec.js';
import { decodeWriteA } from '../src/server/tenant/decode.js';
import { PAGE_BYTES } from '../src/protocol/limits.js';
import {
  BIN,
  blob,
  blobRef,
  bodyOf,
  bytes,
  deleteChange,
  deviceId,
  inline,
  itemId,
  master,
  moveChange,
  OTHER_BIN,
  sig,
  TS,
  writeChange,
  refusal,
  writeOf,
} from './support/changes.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';
import { tenantWith } from './support/instances.js';
import { allRows, commit, memoryLogs, postgresLogs, sums, type LogUnderTest } from './support/logs.js';
import { itemOf, sigOf, unpackedKeys } from './support/rows.js';

const MANY = 1_200;
const itemsOf = (rows: readonly ItemRow[]): Item[] => rows.map(itemOf);

for (const [name, open] of [
  ['the log in memory', (): Promise<LogUnderTest> => Promise.resolve(memoryLogs())],
  ['PostgreSQL', (t: Test): Promise<LogUnderTest> => postgresLogs(t)],
] as const) {
  t.test(`LIST-01 LIST-12 LIST-13 LIST-15: pages continue from their cursor, in version order: ${name}`, async (t) => {
    const { lanes, log, newTenant } = await open(t);
    const [tenantId, other] = [await newTenant(), await newTenant()];
    t.equal(await refusal(log.page({ tenantId: 'nobody', since: 0, limit: 1 })), 'tenant_not_found');
    const none = { version: 0, itemCount: 0, versionSum: 0 };
    t.strictSame(await log.page({ tenantId, since: 0, limit: 1 }), { rows: [], more: false, summary: none });
    await commit(lanes, writeChange(writeOf(), { tenantId: other }));
    for (let n = 1; n <= 5; n++)
      await commit(lanes, writeChange(writeOf({ id: itemId(n), text: `${n}` }), { tenantId }));
    await commit(lanes, moveChange({ id: itemId(2), binId: OTHER_BIN, version: 2, sig: sig('m') }, { tenantId }));
    await commit(lanes, deleteChange(itemId(4), sig('gone'), { tenantId, deviceId: deviceId(2) }));
    const summary = { version: 7, itemCount: 4, versionSum: 1 + 3 + 5 + 6 };
    const page = async (since: number, limit: number): Promise<unknown> => {
      const found = await log.page({ tenantId, since, limit });
      t.strictSame(found.summary, summary);
      return [found.rows.map(({ version }) => version), found.more];
    };
    t.strictSame(await page(0, 10), [[1, 3, 5, 6, 7], false]);
    t.strictSame(await page(0, 5), [[1, 3, 5, 6, 7], false], 'exactly as many rows as requested, and no more');
    t.strictSame(await page(0, 4), [[1, 3, 5, 6], true]);
    t.strictSame(await page(3, 2), [[5, 6], true]);
    t.strictSame(await page(7, 2), [[], false]);
    t.strictSame(
      await page(99, 2),
      [[], false],
      'a cursor above the head gives an empty page; the caller has to notice',
    );
    const [deleted] = (await log.page({ tenantId, since: 6, limit: 1 })).rows;
    t.hasStrict(deleted, {
      changedBy: deviceId(2),
      ...{ id: itemId(4), type: 'text', ts: TS, senderDevice: deviceId(1) },
    });
    t.strictSame(deleted && sigOf(deleted), Buffer.from(sig('gone')), 'DEL-07');
  });
}

t.test('LIST-13 LIST-15: small pages of many tenants are read together and equal those read alone', async (t) => {
  const { lanes, log, newTenant } = await postgresLogs(t);
  const tenants = await Promise.all(Array.from({ length: 5 }, async () => newTenant()));
  for (const [n, tenantId] of tenants.entries()) {
    for (let i = 1; i <= n + 1; i++) await commit(lanes, writeChange(writeOf({ id: itemId(i) }), { tenantId }));
  }
  const [last = ''] = tenants.slice(-1);
  const big = writeOf({ id: itemId(9), inline: inline('big', [deviceId(1)], 40_000) });
  for (const id of [itemId(7), itemId(8), itemId(9)])
    await commit(lanes, writeChange({ ...big, id }, { tenantId: last }));
  const requests = [...tenants, last, 'nobody'].map((tenantId, n) => ({ tenantId, since: n === 5 ? 5 : 1, limit: 3 }));
  const seen = async (small: boolean): Promise<unknown[]> =>
    Promise.all(
      requests.map(async (request) =>
        log.page({ ...request, small }).then(
          ({ rows, more, summary }) => [rows.map(({ version }) => version), more, summary],
          (error: unknown) => String(error),
        ),
      ),
    );
  const [alone, together] = [await seen(false), await seen(true)];
  t.strictSame(together.slice(0, 5), alone.slice(0, 5));
  t.match(together[6], /ServiceError/, 'an unknown tenant fails alone');
  t.equal(together[6], alone[6]);
  t.strictSame((alone[5] as unknown[]).slice(0, 2), [[6, 7, 8], false]);
  t.strictSame(
    (together[5] as unknown[]).slice(0, 2),
    [[6, 7], true],
    'a small page ends earlier, and reports that there is more',
  );
});

t.test('LIST-15 LIST-16: pages of one bin use the same cursor, and a bin that is gone is refused', async (t) => {
  const logs = await postgresLogs(t);
  const { lanes, log } = logs;
  const tenantId = await tenantWith(logs, 1);
  for (let n = 1; n <= 6; n++)
    await commit(
      lanes,
      writeChange(writeOf({ id: itemId(n), binId: n % 2 === 0 ? OTHER_BIN : 'inbox' }), { tenantId, generation: 2 }),
    );
  const first = await log.page({ tenantId, since: 0, limit: 2, binId: OTHER_BIN });
  t.strictSame([first.rows.map(({ version }) => version), first.more, first.summary.version], [[2, 4], true, 6]);
  const second = await log.page({ tenantId, since: 4, limit: 2, binId: OTHER_BIN });
  t.strictSame([second.rows.map(({ version }) => version), second.more], [[6], false]);
  for (const closed of ['closed_at', 'deleted_at']) {
    await logs.pool.query(`UPDATE bins SET ${closed} = 1 WHERE tenant_id = $1 AND id = $2`, [tenantId, OTHER_BIN]);
    t.equal(await refusal(log.page({ tenantId, since: 0, limit: 2, binId: OTHER_BIN })), 'bin_not_found');
  }
  t.equal(await refusal(log.page({ tenantId, since: 0, limit: 2, binId: 'unknown' })), 'bin_not_found');
});

t.test('FAIR-46: a page of a bin ends when 50,000 items were looked at', async (t) => {
  const logs = await postgresLogs(t);
  const { lanes, log, pool } = logs;
  const tenantId = await tenantWith(logs, 1);
  for (let n = 1; n <= 4; n++) {
    const write = writeOf({ id: itemId(n), binId: OTHER_BIN });
    await commit(lanes, writeChange(write, { tenantId, generation: 2 }));
  }
  // With the first of the bin's items and 49,998 of these, the second is the 50,000th of all.
  const others = Array.from({ length: 120_000 }, (_, n) => (n + 1) * 100);
  const [second, third, last, head] = [4_999_801, 4_999_802, 100_000_000, 200_000_000];
  for (const [n, version] of [second, third, last].entries()) {
    const values = [tenantId, itemId(n + 2), version];
    await pool.query('UPDATE items SET version = $3 WHERE tenant_id = $1 AND id = $2', values);
  }
  await pool.query(
    `INSERT INTO items (tenant_id, id, version, bin_id, deleted_at)
     SELECT $1, 'other ' || version, version, $2, 1 FROM unnest($3::bigint[]) version`,
    [tenantId, BIN, others],
  );
  await pool.query('UPDATE tenants SET head = $2 WHERE id = $1', [tenantId, head]);
  const page = async (since: number, limit: number): Promise<unknown> => {
    const { rows, more, upTo, summary } = await log.page({ tenantId, since, limit, binId: OTHER_BIN });
    t.equal(summary.version, head);
    return [rows.map(({ version }) => version), more, upTo];
  };
  t.strictSame(await page(0, 100), [[1, second], true, second]);
  t.strictSame(await page(0, 1), [[1], true, undefined], 'a page that is full before');
  t.strictSame(await page(0, 2), [[1, second], true, second], 'a page that is full there');
  const behind = second + 99 + 49_999 * 100;
  t.strictSame(await page(second, 100), [[third], true, behind - 100], 'whatever the versions');
  t.strictSame(await page(behind, 100), [[last], false, undefined]);
  t.strictSame(await page(last, 100), [[], false, undefined]);
});

t.test('LIST-14: a page ends at about 4 MiB, and the next one continues without a loss', async (t) => {
  const { lanes, log, newTenant } = await postgresLogs(t);
  const tenantId = await newTenant();
  // Each item takes 64 KiB with its key: 64 of them are exactly 4 MiB.
  const changes = Array.from({ length: 128 }, (_, n) =>
    writeChange(writeOf({ id: itemId(n), inline: inline(`${n}`, [deviceId(1)], 65_536 - 108) }), { tenantId }),
  );
  await Promise.all(changes.map(async (change) => commit(lanes, change)));
  const seen: number[] = [];
  const sizes: (readonly [number, boolean])[] = [];
  for (let more = true; more;) {
    const page = await log.page({ tenantId, since: seen.at(-1) ?? 0, limit: 500 });
    seen.push(...page.rows.map(({ version }) => version));
    sizes.push([page.rows.length, page.more]);
    more = page.more;
  }
  t.strictSame(
    seen,
    Array.from({ length: 128 }, (_, n) => n + 1),
  );
  t.strictSame(sizes, [
    [64, true],
    [64, true],
    [0, false],
  ]);
  t.equal(64 * 65_536, PAGE_BYTES);
});

t.test('ITEM-02: every field comes back as it was written', async (t) => {
  const { lanes, log, newTenant, putBlob } = await postgresLogs(t);
  const tenantId = await newTenant();
  await putBlob(tenantId, blobRef(1), { state: 'ready', itemId: null });
  await putBlob(tenantId, blobRef(2), { state: 'ready', itemId: null });
  const devices = [deviceId(1), deviceId(2)];
  const writes = [
    writeOf({ id: itemId(1), inline: inline('one', devices), master: master() }),
    writeOf({ id: itemId(2), inline: null, blob: blob(blobRef(1), devices), master: master(), sig: null }),
    writeOf({
      id: itemId(3),
      blob: blob(blobRef(2), devices),
      ts: Number.MAX_SAFE_INTEGER,
      binId: 'NULL',
      type: 'location',
    }),
    writeOf({ id: itemId(4), inline: { ...inline('one'), keys: new Map() } }),
    writeOf({
      id: itemId(5),
      inline: {
        ...inline('one'),
        keys: new Map([
          [deviceId(1), bytes('short', 32)],
          [deviceId(2), bytes('long', 256)],
        ]),
      },
    }),
  ];
  for (const write of writes) await commit(lanes, writeChange(write, { tenantId }));
  const plain = (value: unknown): unknown =>
    value instanceof Map
      ? [...value].map(plain)
      : value instanceof Uint8Array
        ? Buffer.from(value).toString('hex')
        : Array.isArray(value)
          ? value.map(plain)
          : typeof value === 'object' && value !== null
            ? Object.fromEntries(Object.entries(value).map(([key, one]) => [key, plain(one)]))
            : value;
  const rows = await allRows(log, tenantId);
  for (const [n, write] of writes.entries()) {
    t.strictSame(
      plain({ ...itemsOf(rows)[n], ifVersion: null }),
      plain({ ...write, version: n + 1, senderDevice: deviceId(1), deletedAt: null }),
    );
  }
});

t.test('DUR-05: a page is read though the database ended an idle connection of the pool', async (t) => {
  const { lanes, log, pool, newTenant } = await postgresLogs(t);
  const tenantId = await newTenant();
  await commit(lanes, writeChange(writeOf(), { tenantId }));
  const [killer, idle] = await Promise.all([pool.connect(), pool.connect()]);
  const { rows } = await idle.query<{ pid: number }>('SELECT pg_backend_pid() AS pid');
  idle.release();
  // The connection is being terminated when the pool hands it out again.
  const killed = killer.query('SELECT pg_terminate_backend($1)', [rows[0]?.pid]);
  const pages = Promise.all(Array.from({ length: 8 }, async () => log.page({ tenantId, since: 0, limit: 10 })));
  await killed;
  killer.release();
  for (const page of await pages) t.equal(page.rows.length, 1);
});

t.test('RETRY-07: keys in any order are stored sorted by device id, at any offset of the arena', (t) => {
  const { payloadEnc: envelope, ...body } = bodyOf(writeOf());
  if (!envelope) throw new Error('an inline write');
  const key = fc.uint8Array({ minLength: 32, maxLength: 256 });
  const keys = fc.uniqueArray(fc.tuple(fc.nat(999_999), key), { selector: ([n]) => n, maxLength: 50 });
  const property = fc.property(keys, fc.nat(9), (entries, offset) => {
    const map = new Map(entries.map(([n, one]) => [deviceId(n), one]));
    const arena = new Arena(1024 * 1024);
    const texts = Object.fromEntries([...map].map(([device, one]) => [device, toBase64Url(one)]));
    // Puts something of any length before the write in the arena.
    if (offset > 0) arena.pin(arena.reserve(offset), offset);
    const { bytes, keysAt, keysBytes } = decodeWriteA(
      arena,
      { ...body, payloadEnc: { ...envelope, keys: texts } },
      'never',
    );
    const read = unpackedKeys(bytes.subarray(keysAt, keysAt + keysBytes));
    const devices = [...read.keys()];
    if (devices.join() !== devices.toSorted().join()) return false;
    return (
      read.size === map.size &&
      [...map].every(([device, one]) => Buffer.compare(read.get(device) ?? Buffer.alloc(0), one) === 0)
    );
  });
  t.doesNotThrow(() => fc.assert(property));
  t.end();
});

t.test(
  'ITEM-32 ITEM-33 ITEM-34: the purge removes a revoked device from the stored keys while others write',
  async (t) => {
    const logs = await postgresLogs(t);
    const { pool, lanes, log } = logs;
    const tenantId = await tenantWith(logs, 3);
    const all = [1, 2, 3].map((n) => deviceId(n));
    const context = { tenantId, generation: 4 };
    const write = (n: number, text: string, ts: number, devices: readonly string[]) =>
      commit(lanes, writeChange(writeOf({ id: itemId(n), ts, text, inline: inline(text, devices) }), context));
    await Promise.all(
      Array.from({ length: MANY }, async (_, n) => write(n, `${n}`, TS, n % 10 === 0 ? [deviceId(1)] : all)),
    );
    await commit(lanes, deleteChange(itemId(1), null, context));
    await putBlobItem();
    const before = await allRows(log, tenantId);

    const faults: unknown[] = [];
    const purger = new PostgresKeyPurger(pool, (error) => faults.push(error));
    t.teardown(async () => purger.close());
    const marked = async (): Promise<boolean> => {
      const { rows } = await pool.query<{ done: boolean }>(
        'SELECT keys_purged AS done FROM devices WHERE tenant_id = $1 AND id = $2',
        [tenantId, deviceId(2)],
      );
      return rows[0]?.done === true;
    };
    const purged = async (): Promise<void> => {
      await until('the mark', marked);
    };
    await pool.query('UPDATE devices SET revoked_at = 1, keys_purged = false WHERE tenant_id = $1 AND id = $2', [
      tenantId,
      deviceId(2),
    ]);
    purger.purge(tenantId, deviceId(3));
    purger.purge(tenantId, deviceId(2));
    const left = [deviceId(1), deviceId(3)];
    const rewritten = Array.from({ length: 100 }, (_, n) => 2 + n * 11).filter((n) => n < MANY);
    await Promise.all([purged(), ...rewritten.map(async (n) => write(n, 'again', TS + 1, left))]);
    t.strictSame(faults, []);

    const after = new Map(itemsOf(await allRows(log, tenantId)).map((item) => [item.id, item]));
    let kept = 0;
    for (const item of itemsOf(before)) {
      const now = after.get(item.id);
      if (
        now === undefined ||
        now.deletedAt !== null ||
        item.deletedAt !== null ||
        item.inline === null ||
        now.inline === null
      )
        continue;
      const changed = now.ts === TS + 1;
      if (!changed && now.version !== item.version) t.fail(`${item.id} has another version`);
      const wanted = changed ? left : [...item.inline.keys.keys()].filter((device) => device !== deviceId(2));
      if ([...now.inline.keys.keys()].join() !== wanted.join())
        t.fail(`${item.id} has ${[...now.inline.keys.keys()].join()}`);
      kept++;
    }
    t.ok(kept >= MANY - 2);
    const blobItem = after.get(itemId(MANY + 1));
    t.strictSame(
      blobItem?.deletedAt === null && [...(blobItem.blob?.keys.keys() ?? [])],
      all,
      'the keys of a blob stay, because a tag covers them',
    );
    const { told, counted } = await sums(pool, tenantId);
    t.strictSame(told, counted);

    async function putBlobItem(): Promise<void> {
      await logs.putBlob(tenantId, blobRef(1), { state: 'ready', itemId: null });
      await commit(
        lanes,
        writeChange(writeOf({ id: itemId(MANY + 1), inline: null, blob: blob(blobRef(1), all) }), context),
      );
    }
  },
);

t.test('a purge that fails does not stop the next', async (t) => {
  const logs = await postgresLogs(t);
  const tenantId = await tenantWith(logs, 2);
  const faults: unknown[] = [];
  let failed: (() => void) | undefined;
  const failure = new Promise<void>((resolve) => (failed = resolve));
  const clock = new TestClock();
  const purger = new PostgresKeyPurger(
    logs.pool,
    (error) => {
      faults.push(error);
      failed?.();
    },
    clock,
  );
  await logs.pool.query('UPDATE devices SET revoked_at = 1, keys_purged = false WHERE tenant_id = $1', [tenantId]);
  await logs.pool.query('ALTER FUNCTION purge_device_keys RENAME TO hidden');
  purger.purge(tenantId, deviceId(1));
  await failure;
  await logs.pool.query('ALTER FUNCTION hidden RENAME TO purge_device_keys');
  purger.purge(tenantId, deviceId(2));
  const done = async (): Promise<unknown> =>
    (await logs.pool.query('SELECT id FROM devices WHERE keys_purged AND tenant_id = $1', [tenantId])).rows;
  await until('the mark', async () => ((await done()) as unknown[]).length > 0);
  t.strictSame(await done(), [{ id: deviceId(2) }]);
  t.equal(faults.length, 1);
  clock.advance(1_000);
  await until('the first, tried again', async () => ((await done()) as unknown[]).length === 2);
  await purger.close();
});
