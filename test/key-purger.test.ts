/** The purge of a revoked device's keys while its statement fails. */
import type pg from 'pg';
import t from 'tap';
import type { Timer } from '../src/protocol/clock.js';
import { PostgresKeyPurger } from '../src/server/storage/key-purger.js';
import { deviceId } from './support/changes.js';
import { TestClock } from './support/clock.js';
import { Events, soon, until } from './support/events.js';
import { tenantWith } from './support/instances.js';
import { postgresLogs } from './support/logs.js';

/** A clock whose timers fire a millisecond early, as those of the system occasionally do. */
class EarlyClock extends TestClock {
  override setTimer(ms: number, fn: () => void): Timer {
    return super.setTimer(ms > 1 ? ms - 1 : ms, fn);
  }
}

async function revokedDevice(t: Parameters<typeof postgresLogs>[0], clock = new TestClock()) {
  const logs = await postgresLogs(t);
  const tenantId = await tenantWith(logs, 1);
  await logs.pool.query('UPDATE devices SET revoked_at = 1, keys_purged = false WHERE tenant_id = $1', [tenantId]);
  await logs.pool.query('ALTER FUNCTION purge_device_keys RENAME TO hidden');
  const faults = new Events<string>();
  const purger = new PostgresKeyPurger(logs.pool, (_error, tenant) => faults.add(tenant), clock);
  t.teardown(() => purger.close());
  /** Resolves once the purger has set its timer: none of its work is under way then. */
  const rested = async (): Promise<void> => until('the timer of the next try', () => clock.waiting > 0);
  const marked = async (): Promise<boolean> =>
    (await logs.pool.query('SELECT 1 FROM devices WHERE keys_purged AND tenant_id = $1', [tenantId])).rows.length === 1;
  return { logs, tenantId, clock, faults, purger, rested, marked };
}

t.test('ITEM-32: a failed purge is retried automatically, after growing waits', async (t) => {
  const { logs, tenantId, clock, faults, purger, rested, marked } = await revokedDevice(t);
  purger.purge(tenantId, deviceId(1));
  for (const [at, wait] of [1_000, 2_000, 4_000].entries()) {
    await faults.until(at + 1);
    await rested();
    clock.advance(wait - 1);
    t.equal(clock.waiting, 1, 'the retry is not due yet');
    clock.advance(1);
  }
  await faults.until(4);
  await rested();
  clock.setBy(-3_600_000);
  await logs.pool.query('ALTER FUNCTION hidden RENAME TO purge_device_keys');
  clock.advance(8_000);
  await rested();
  clock.advance(8_000);
  await until('the mark of a purged device, although the clock was set back', marked);
  t.same(new Set(faults.all), new Set([tenantId]));
  t.equal(faults.all.length, 4);
});

t.test(
  'ITEM-32: a purge that never succeeds is given up after 20 attempts, and close waits for no timer',
  async (t) => {
    const { tenantId, clock, faults, purger, rested, marked } = await revokedDevice(t);
    purger.purge(tenantId, deviceId(1));
    for (let failed = 1; failed < 20; failed++) {
      await faults.until(failed);
      await rested();
      clock.advance(60_000);
    }
    await faults.until(20);
    purger.purge('another', deviceId(1));
    await faults.until(21);
    await rested();
    clock.advance(60_000);
    await faults.until(22);
    await rested();
    t.same(
      faults.all.slice(19),
      [tenantId, 'another', 'another'],
      'the purge is given up, and the next one has retries of its own',
    );
    await soon(purger.close(), 'the end of close');
    t.equal(clock.waiting, 0);
    t.notOk(await marked());
  },
);

t.test('WORK-04: a purge whose retry timer fires early runs when it is due, and so does the next purge', async (t) => {
  const { logs, tenantId, clock, faults, purger, rested, marked } = await revokedDevice(t, new EarlyClock());
  purger.purge(tenantId, deviceId(1));
  await faults.until(1);
  await rested();
  clock.advance(999);
  await rested();
  t.equal(faults.all.length, 1, 'the retry is not due yet');
  clock.advance(1);
  await faults.until(2);
  await rested();
  await logs.pool.query('ALTER FUNCTION hidden RENAME TO purge_device_keys');
  purger.purge(tenantId, deviceId(1));
  await until('the mark of a purged device', marked);
});

t.test('ITEM-32 FAIR-43: purges of tenants take turns, batch by batch, and one tenant fills no queue', async (t) => {
  const order: string[] = [];
  const batches = new Map([
    ['a', 3],
    ['b', 1],
  ]);
  const pool = {
    query: (_text: string, [tenantId = '', device = '']: readonly string[]) => {
      order.push(`${tenantId}${device}`);
      const left = (batches.get(tenantId) ?? 0) - 1;
      batches.set(tenantId, left);
      return Promise.resolve({ rows: [{ last: left > 0 ? `item ${left}` : null }] });
    },
  } as unknown as pg.Pool;
  const purger = new PostgresKeyPurger(pool, () => undefined);
  for (let device = 0; device < 1_500; device++) purger.purge('a', String(device));
  purger.purge('b', '0');
  await until('all purges', () => order.length > 101);
  await purger.close();
  t.equal(order[1], 'b0', 'another tenant is next after one batch');
  t.strictSame(order.filter((one) => one.startsWith('a')).slice(0, 3), ['a0', 'a0', 'a0']);
});
