/** Which devices hold a socket on any instance (src/server/storage/presence.ts). */
import t from 'tap';
import { Presence } from '../src/server/storage/presence.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';
import { pair, watched, type Instance } from './support/feeds.js';
import { poolOf } from './support/postgres.js';

/** Whether it writes this instance's devices, rather than reads those of the others. */
const isWrite = (text: string): boolean => text.includes('INSERT INTO presence');

t.test('DEV-03 STAT-10: a device with a socket on any instance is online', async (t) => {
  const { pool, a, b } = await pair(t);
  const sockets = { a: new Map<string, Set<string>>(), b: new Map<string, Set<string>>() };
  const made = (instance: Instance, here: Map<string, Set<string>>): Presence => {
    const { id, clock, feed, faults, statements } = instance;
    const presence = new Presence({
      instanceId: id,
      pool: watched(pool, statements),
      clock,
      local: (tenant) => here.get(tenant) ?? new Set(),
      tenants: () => [...here.keys()],
      othersUp: () => feed.othersUp,
      onFault: faults.add,
    });
    t.teardown(async () => presence.close());
    return presence;
  };
  const [onA, onB] = [made(a, sockets.a), made(b, sockets.b)];
  const flush = async (instance: Instance): Promise<void> => {
    const before = instance.statements.all.filter((text) => isWrite(text)).length;
    instance.clock.advance(2_000);
    await instance.statements.until((all) => all.filter((text) => isWrite(text)).length > before);
  };
  const online = async (): Promise<unknown> =>
    Promise.all([onA, onB].map(async (presence) => [...(await presence.online('tenant'))].sort()));
  sockets.a.set('tenant', new Set(['one', 'two']));
  sockets.b.set('tenant', new Set(['two', 'three']));
  onA.announceAll();
  onB.announceAll();
  await flush(a);
  await flush(b);
  t.strictSame(await online(), [
    ['one', 'three', 'two'],
    ['one', 'three', 'two'],
  ]);
  t.strictSame([...(await onA.online('another'))], [], 'TOKEN-26: devices of another tenant are not included');
  sockets.b.set('tenant', new Set(['two']));
  onB.touched('tenant', 'three');
  await flush(b);
  t.strictSame(await online(), [
    ['one', 'two'],
    ['one', 'two'],
  ]);
  // Heartbeats under way would see, or undo, what is changed.
  await Promise.all([a.answered(), b.answered()]);
  await pool.query("UPDATE instances SET seen_at = seen_at - 16000 WHERE id = 'a'");
  t.strictSame(await online(), [['one', 'two'], ['two']], 'devices of an instance that is no longer seen do not count');

  await b.beat();
  t.notOk(b.feed.othersUp);
  sockets.b.set('tenant', new Set());
  onB.touched('tenant', 'two');
  await a.beat();
  await b.beat();
  t.ok(b.feed.othersUp);
  onB.announceAll();
  await flush(b);
  t.strictSame(await online(), [
    ['one', 'two'],
    ['one', 'two'],
  ]);
  sockets.a.set('tenant', new Set());
  t.strictSame(await onA.online('tenant'), new Set(), 'a socket that closed while no other instance was up is gone');

  await pool.query('ALTER TABLE presence RENAME TO hidden');
  sockets.b.set('tenant', new Set(['four']));
  onB.touched('tenant', 'four');
  b.clock.advance(2_000);
  await b.faults.until(1);
  await pool.query('ALTER TABLE hidden RENAME TO presence');
  await flush(b);
  t.strictSame([...(await onA.online('tenant'))], ['four'], 'a change that could not be written is written later');
  await onB.close();
  t.strictSame([...(await onA.online('tenant'))], []);
});

interface Plan {
  readonly 'Node Type': string;
  readonly 'Actual Loops': number;
  readonly Plans?: readonly Plan[];
}

t.test('many devices that disconnect cost an index lookup each, whatever the table’s statistics', async (t) => {
  const { pool } = await pair(t);
  const clock = new TestClock();
  const devices = Array.from({ length: 1_000 }, (_, n) => `device ${n}`);
  let here = new Set(devices);
  const told: [text: string, values: unknown[]][] = [];
  const query = async (text: string, values: unknown[]): Promise<unknown> => {
    const answer = await pool.query(text, values);
    told.push([text, values]);
    return answer;
  };
  const presence = new Presence({
    ...{ instanceId: 'a', pool: { query } as unknown as typeof pool, clock },
    local: () => here,
    tenants: () => ['tenant'],
    othersUp: () => true,
    onFault: (error) => t.error(error),
  });
  const flush = async (): Promise<[string, unknown[]]> => {
    const before = told.length;
    clock.advance(2_000);
    const written = (): [string, unknown[]] | undefined => told.slice(before).find(([text]) => isWrite(text));
    await until('the statement', () => written() !== undefined);
    return written() ?? ['', []];
  };
  presence.announceAll();
  await flush();
  t.match(await pool.query('SELECT count(*)::int FROM presence'), { rows: [{ count: 1_000 }] });
  here = new Set();
  for (const device of devices) presence.touched('tenant', device);
  const [text, values] = await flush();
  t.match(await pool.query('SELECT count(*)::int FROM presence'), { rows: [{ count: 0 }] });
  // Statistics from a time when another instance had all devices.
  const insert = "INSERT INTO presence SELECT $1, 'tenant', 'device ' || n FROM generate_series(0, $2::int) AS n";
  await pool.query(insert, ['b', 99_999]);
  await pool.query('VACUUM ANALYZE presence');
  await pool.query(insert, ['a', 999]);
  const { rows } = await pool.query<Record<string, [{ Plan: Plan }]>>(`EXPLAIN (ANALYZE, FORMAT JSON) ${text}`, values);
  const scans: Plan[] = [];
  const visit = (plan: Plan): void => {
    scans.push(plan);
    plan.Plans?.forEach(visit);
  };
  rows.forEach((row) => Object.values(row).forEach(([{ Plan }]) => visit(Plan)));
  const repeated = scans.filter((plan) => plan['Actual Loops'] > 1).map((plan) => plan['Node Type']);
  t.ok(scans.some((plan) => plan['Node Type'] === 'Function Scan'));
  t.ok(
    repeated.every((type) => /^(Index|Bitmap)/.test(type)),
    `each repeated scan uses an index: ${repeated.join(', ')}`,
  );
  await presence.close();
});

t.test('STAT-10: a reconnect storm is written in parts, each device as it is at that time', async (t) => {
  const clock = new TestClock();
  const statements: (readonly string[])[] = [];
  const tenants = Array.from({ length: 20_000 }, (_, n) => `t${n}`);
  let gone = '';
  const query = (text: string, values: readonly string[]): Promise<unknown> => {
    if (isWrite(text)) statements.push(values);
    return Promise.resolve({ rows: [] });
  };
  const presence = new Presence({
    ...{ instanceId: 'a', pool: { query } as never, clock },
    local: (tenant) => new Set(tenant === gone ? [] : ['device']),
    tenants: () => tenants,
    othersUp: () => true,
    onFault: (error) => t.error(error),
  });
  presence.announceAll();
  const next = async (): Promise<readonly string[]> => {
    const { length } = statements;
    clock.advance(2_000);
    await until('a statement', () => statements.length > length && clock.waiting === 1);
    return statements.at(-1) ?? [];
  };
  const [, first = ''] = await next();
  t.equal(first.split(',').length, 1_000);
  t.ok(first.startsWith('{t0,t1,'), 'devices that came first are written first');
  gone = 't1000';
  const [, on = '', , off] = await next();
  t.equal(on.split(',').length, 949);
  t.equal(off, '{t1000}');
  await presence.close();
});

t.test('ERR-14: while the database is down, a query of the online devices is unavailable, not a fault', async (t) => {
  const pool = poolOf(t, 'postgres://nobody@127.0.0.1:1/none');
  const presence = new Presence({
    ...{ instanceId: 'a', pool, clock: new TestClock() },
    local: () => new Set(['here']),
    tenants: () => ['tenant'],
    othersUp: () => true,
    onFault: () => undefined,
  });
  await t.rejects(presence.online('tenant'), { error: 'unavailable', cause: { code: 'ECONNREFUSED' } });
});
