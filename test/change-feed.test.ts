/** Hints between instances over real LISTEN/NOTIFY, and presence (src/server/storage/change-feed.ts, presence.ts). */
import { mock } from 'node:test';
import t from 'tap';
import type pg from 'pg';
import { ChangeFeed, type ChangeFeedOptions, type DrainOrder } from '../src/server/storage/change-feed.js';
import { clientConfig, createPool } from '../src/server/storage/database.js';
import { Presence } from '../src/server/storage/presence.js';
import { deviceId, inline, writeChange, writeOf } from './support/changes.js';
import { TestClock } from './support/clock.js';
import { Events, until } from './support/events.js';
import type { ItemRow } from '../src/server/tenant/change.js';
import { frameBytes, JsonWriter } from '../src/server/tenant/codec.js';
import type { HintedGeneration } from '../src/server/tenant/ports.js';
import { testDatabase, type WithTeardown } from './support/postgres.js';
import { TcpProxy } from './support/tcp-proxy.js';

const BEAT_MS = 5_000;
const COALESCE_MS = 5;
type Change = Parameters<ChangeFeedOptions['onChange']>;
type Hint = readonly [tenantId: string, head: number, generation: HintedGeneration];

const STANDING = { host: 'machine', pid: 7, port: 8080, version: '1.2.3', sockets: 0, draining: false };

interface Instance {
  readonly id: string;
  readonly feed: ChangeFeed;
  readonly clock: TestClock;
  readonly hints: Events<Hint>;
  readonly changes: Events<Change>;
  /** With sockets there. */
  readonly tenants: string[];
  readonly connected: Events<null>;
  readonly others: Events<null>;
  readonly faults: Events<unknown>;
  /** Statements that came back, with their values. */
  readonly statements: Events<string>;
  readonly orders: Events<DrainOrder>;
  /** Turns the clock to the next heartbeat and waits until it is sent. */
  readonly beat: () => Promise<void>;
}

/** A pool whose statements can be waited for. */
function watched(pool: pg.Pool, statements: Events<string>): pg.Pool {
  const query = async (statement: string | pg.QueryConfig, values?: unknown[]): Promise<unknown> => {
    const answer = await pool.query(statement as string, values);
    statements.add(typeof statement === 'string' ? statement : `${statement.text} ${String(statement.values)}`);
    return answer;
  };
  return { query } as unknown as pg.Pool;
}

const isBeat = (text: string): boolean => text.includes('INSERT INTO instances');

interface World {
  readonly url: string;
  readonly pool: pg.Pool;
  readonly instance: (id: string, listenUrl?: string) => Instance;
}

async function world(t: WithTeardown): Promise<World> {
  const { url } = await testDatabase(t);
  const pool = createPool({ url, name: 'feed test', onIdleError: () => undefined });
  t.teardown(async () => pool.end());
  const instance = (id: string, listenUrl = url): Instance => {
    const clock = new TestClock();
    const made = {
      hints: new Events<Hint>(),
      connected: new Events<null>(),
      others: new Events<null>(),
      faults: new Events<unknown>(),
      changes: new Events<Change>(),
      statements: new Events<string>(),
      orders: new Events<DrainOrder>(),
      tenants: [] as string[],
    };
    const feed = new ChangeFeed({
      instanceId: id,
      pool: watched(pool, made.statements),
      connection: () => Promise.resolve(clientConfig({ url: listenUrl, name: `listener ${id}` })),
      clock,
      onHint: (...hint) => made.hints.add(hint),
      onChange: (...change) => made.changes.add(change),
      tenants: () => made.tenants,
      onConnected: () => made.connected.add(null),
      onOthers: () => made.others.add(null),
      standing: () => ({ ...STANDING, sockets: made.tenants.length }),
      onDrain: (order) => made.orders.add(order),
      onFault: made.faults.add,
    });
    t.teardown(async () => feed.close());
    const beat = async (): Promise<void> => {
      const before = made.statements.all.filter(isBeat).length;
      clock.advance(BEAT_MS);
      await made.statements.until((all) => all.filter(isBeat).length > before);
    };
    return { id, feed, clock, beat, ...made };
  };
  return { url, pool, instance };
}

/** Two instances that know of each other. */
async function pair(
  t: WithTeardown,
  listenUrl?: (url: string) => string,
): Promise<World & { a: Instance; b: Instance }> {
  const made = await world(t);
  const a = made.instance('a', listenUrl?.(made.url));
  const b = made.instance('b');
  await a.feed.start();
  await b.feed.start();
  await a.others.until(1);
  await b.others.until(1);
  return { ...made, a, b };
}

/** Beats, and waits until the beat was heard: the listening connection may be slower than the statement's answer. */
async function beatHeard(of: Instance, from: Instance, sync: number): Promise<void> {
  await of.beat();
  const before = of.hints.all.length;
  tell(from, ['sync', sync, 1]);
  await of.hints.until(before + 1);
}

function tell(from: Instance, ...hints: readonly Hint[]): void {
  for (const hint of hints) from.feed.announce(...hint);
  from.clock.advance(COALESCE_MS);
}

const listeners = async (pool: pg.Pool): Promise<number[]> =>
  (
    await pool.query<{ pid: number }>(
      "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'listener%' AND datname = current_database() ORDER BY backend_start",
    )
  ).rows.map(({ pid }) => pid);

t.test('instances find each other, and an instance alone notifies nobody', async (t) => {
  const { instance, pool } = await world(t);
  const [a, b] = [instance('a'), instance('b')];
  const heard = new Events<string>();
  const client = await pool.connect();
  client.on('notification', ({ payload }) => heard.add(payload ?? ''));
  await client.query('LISTEN service; LISTEN marker');
  t.teardown(() => client.release(true));
  await a.feed.start();
  t.notOk(a.feed.othersUp);
  tell(a, ['tenant', 1, 1]);
  await b.feed.start();
  await a.others.until(1);
  t.ok(a.feed.othersUp && b.feed.othersUp, 'a by the notice of b, b by the table');
  await heard.until((all) => all.some((text) => text.includes('"b"')));
  t.notOk(
    heard.all.some((text) => text.includes('tenant')),
    'what was announced to nobody was not sent',
  );
  tell(a, ['tenant', 2, 1]);
  await b.hints.until(1);
  t.strictSame(b.hints.all, [['tenant', 2, 1]]);
  t.strictSame(a.hints.all, [], 'an instance does not hear itself');
  const told = heard.all.length;
  await b.feed.close();
  await client.query("SELECT pg_notify('marker', 'after b')");
  await heard.until((all) => all.includes('after b'));
  const last = heard.all.slice(told).filter((text) => text.includes('"from":"b"'));
  t.same(last, [], 'who leaves says nothing more: heard late, it would count as being there');
  await a.beat();
  t.notOk(a.feed.othersUp, 'b has left');
  await pool.query(
    "INSERT INTO instances (id, seen_at) VALUES ('c', (extract(epoch FROM now()) * 1000)::bigint - 15100)",
  );
  await a.beat();
  t.notOk(a.feed.othersUp, 'c was not seen for too long');
  await pool.query("UPDATE instances SET seen_at = (extract(epoch FROM now()) * 1000)::bigint - 9000 WHERE id = 'c'");
  await a.beat();
  t.ok(a.feed.othersUp);
  t.equal(a.others.all.length, 2, 'whoever appears is told everything anew');
  await pool.query("DELETE FROM instances WHERE id = 'a'");
  await a.beat();
  t.equal(a.others.all.length, 3, 'so is everybody after this registration was lost');
  t.strictSame([...a.faults.all, ...b.faults.all], []);
});

t.test('hints are coalesced, and a crowd of them is split', async (t) => {
  const { a, b } = await pair(t);
  tell(a, ['tenant', 3, 1], ['tenant', 5, 1], ['tenant', 4, 2]);
  await b.hints.until(1);
  tell(a, ['other', 0, 'newer'], ['other', 3, 7]);
  await b.hints.until(2);
  t.strictSame(
    b.hints.all,
    [
      ['tenant', 5, 2],
      ['other', 3, 'newer'],
    ],
    'what is newer than any number stays so',
  );
  const crowd = Array.from({ length: 1_000 }, (_, n): Hint => [
    `tenant ${n}`.padStart(26, '0'),
    Number.MAX_SAFE_INTEGER,
    Number.MAX_SAFE_INTEGER,
  ]);
  tell(a, ...crowd);
  await b.hints.until(1_002);
  t.strictSame(b.hints.all.slice(2), crowd);
  t.strictSame([...a.faults.all, ...b.faults.all], []);
});

/** Rows of one transaction that ends at `head`, with ciphertexts of these lengths. */
const rowsOf = (head: number, ...sizes: readonly number[]): ItemRow[] =>
  sizes.map((size, n) => {
    const change = writeChange(writeOf({ inline: inline(`text ${n}`, [deviceId(1)], size) }), { tenantId: 'tenant' });
    return Object.assign(change, { version: head - sizes.length + 1 + n });
  });

function publish(from: Instance, head: number, ...sizes: readonly number[]): readonly ItemRow[] {
  const rows = rowsOf(head, ...sizes);
  from.feed.publish('tenant', rows, { summary: { version: head, itemCount: 3, versionSum: 9 }, generation: 1 });
  from.clock.advance(COALESCE_MS);
  return rows;
}

/** Statements that told the others something. */
const notified = (of: Instance): number => of.statements.all.filter((text) => text.includes('string_to_table')).length;

/** An instance with a socket of the tenant, which the others know of. */
async function attends(of: Instance): Promise<void> {
  of.tenants.push('tenant');
  of.feed.subscribe('tenant');
  const before = notified(of);
  of.clock.advance(2_000);
  await of.statements.until(() => notified(of) > before);
}

const frames = (rows: readonly ItemRow[]): string[] =>
  rows.map((row) => frameBytes(new JsonWriter(), 'a', row).toString());

t.test('INST-40: who has a socket gets the change itself, who has none is told the head', async (t) => {
  const { a, b, instance } = await pair(t);
  const c = instance('c');
  await c.feed.start();
  await a.beat();
  await attends(b);
  tell(b, ['sync', 1, 1]);
  await a.hints.until(1);
  await c.hints.until(1);
  const rows = publish(a, 3, 40, 700, 40);
  await c.hints.until(2);
  await b.changes.until(1);
  t.strictSame(c.hints.all.at(-1), ['tenant', 3, 1]);
  t.strictSame(c.changes.all, []);
  const [tenantId, generation, carried] = b.changes.all[0] ?? [];
  t.strictSame([tenantId, generation, carried?.summary], ['tenant', 1, { version: 3, itemCount: 3, versionSum: 9 }]);
  t.strictSame(frames(carried?.rows ?? []), frames(rows), 'as it was made');
  t.strictSame(
    carried?.rows.map(({ version, changedBy }) => [version, changedBy]),
    rows.map(({ version, changedBy }) => [version, changedBy]),
  );
  b.tenants.length = 0;
  await b.beat();
  b.clock.advance(COALESCE_MS);
  tell(b, ['sync', 2, 1]);
  await a.hints.until(2);
  publish(a, 4, 40);
  await b.hints.until((all) => all.some(([id, head]) => id === 'tenant' && head === 4));
  t.equal(b.changes.all.length, 1, 'a socket that is gone wants nothing');
  t.strictSame([...a.faults.all, ...b.faults.all, ...c.faults.all], []);
});

t.test('INST-40: whose sockets come while a crowd does, is told of every two seconds', async (t) => {
  const { a, b } = await pair(t);
  await attends(b);
  const before = notified(b);
  b.feed.subscribe('second');
  b.clock.advance(1_900);
  b.feed.subscribe('third');
  const told = async (sync: number): Promise<void> => {
    tell(b, ['sync', sync, 1]);
    await b.statements.until((all) => all.some((text) => text.includes(`["sync",${sync},`)));
  };
  await told(1);
  t.equal(notified(b), before + 1, 'the hint alone');
  b.clock.advance(100);
  await b.statements.until(() => notified(b) > before + 1);
  b.clock.advance(100);
  await told(2);
  t.equal(notified(b), before + 3, 'both in one statement');
  t.strictSame([...a.faults.all, ...b.faults.all], []);
});

t.test('INST-41: up to the size of a notification the change is carried, beyond it the head is told', async (t) => {
  const { a, b } = await pair(t);
  await attends(b);
  tell(b, ['sync', 1, 1]);
  await a.hints.until(1);
  let head = 0;
  const carriedSizes: number[] = [];
  for (let size = 5_300; size < 5_900; size += 7) {
    publish(a, ++head, size);
    const [version] = [head];
    await until('told', () => b.changes.all.length + b.hints.all.length >= version);
    if (b.changes.all.at(-1)?.[2].summary?.version === head) carriedSizes.push(size);
    else t.strictSame(b.hints.all.at(-1), ['tenant', head, 1]);
  }
  t.ok(carriedSizes.length > 5 && b.hints.all.length > 5, 'both sides of the boundary were met');
  t.equal(carriedSizes.length + b.hints.all.length, head);
  const before = b.changes.all.length;
  publish(a, head + 40, ...Array.from({ length: 40 }, (_, n) => 300 + n * 60));
  await b.changes.until((all) => all.at(-1)?.[2].summary?.version === head + 40);
  const versions = b.changes.all.slice(before).flatMap(([, , { rows }]) => rows.map(({ version }) => version));
  t.strictSame(
    versions,
    Array.from({ length: 40 }, (_, n) => head + 1 + n),
    'a transaction that needs several comes whole and in order',
  );
  t.strictSame([...a.faults.all, ...b.faults.all], []);
});

t.test('INST-42: what cannot be read is a hint or nothing, and is reported once, without its text', async (t) => {
  const { a, pool } = await pair(t);
  const row = Buffer.alloc(400, 7);
  const texts = ['', '1', '2abc', '1!!!!', `1${row.toString('base64')}`, `1${Buffer.alloc(300).toString('base64')}`];
  for (const [n, text] of texts.entries()) {
    const payload = JSON.stringify({ from: 'x', changes: [['tenant', n + 1, 1, text]] });
    await pool.query('SELECT pg_notify($1, $2)', ['service_a', payload]);
  }
  for (const payload of ['secret', '{"from":"x","wants":7}', '{"from":"x","changes":[["t",1,1,7]]}', ''])
    await pool.query('SELECT pg_notify($1, $2)', ['service_a', payload]);
  await pool.query('SELECT pg_notify($1, $2)', ['service', '{"from":"x","wants":"secret","changes":[["last",1,1]]}']);
  await a.hints.until(texts.length + 1);
  t.strictSame(a.hints.all, [...texts.map((_, n): Hint => ['tenant', n + 1, 1]), ['last', 1, 1]]);
  t.strictSame(a.changes.all, []);
  t.equal(a.faults.all.length, 1);
  t.notMatch(String(a.faults.all[0]), /secret/);
});

t.test('what is no hint is not taken for one', async (t) => {
  const { a, pool } = await pair(t);
  const wrong = [
    'null',
    '7',
    '{}',
    '{"from":7}',
    '{"from":"x","changes":{}}',
    '{"from":"x","changes":[["t","1",1]]}',
    '{"from":"x","changes":[[1,1,1]]}',
  ];
  for (const payload of [...wrong, '{"from":"x","changes":[["last",1,1]]}'])
    await pool.query('SELECT pg_notify($1, $2)', ['service', payload]);
  await a.hints.until(1);
  t.strictSame(a.hints.all, [['last', 1, 1]]);
});

t.test('INST-03: a listening connection that dies is made anew, and says so', async (t) => {
  const { a, b, pool } = await pair(t);
  const [pid] = await listeners(pool);
  t.equal(a.connected.all.length, 1);
  await pool.query('SELECT pg_terminate_backend($1)', [pid]);
  await a.connected.until(2);
  tell(b, ['tenant', 7, 1]);
  await a.hints.until(1);
  t.strictSame(a.hints.all, [['tenant', 7, 1]]);
  t.equal((await listeners(pool)).length, 2, 'no connection is left over');
});

t.test('INST-03: it listens before it says that it is connected', async (t) => {
  const { instance, pool } = await world(t);
  const [a, b] = [instance('a'), instance('b')];
  await b.feed.start();
  // Whatever is notified from the moment of `connected` on must be heard.
  const notified = a.connected
    .until(1)
    .then(async () => pool.query('SELECT pg_notify($1, $2)', ['service', '{"from":"b","changes":[["tenant",1,1]]}']));
  const started = a.feed.start();
  await notified;
  await started;
  await a.hints.until(1);
  t.pass('heard');
});

t.test('INST-03: a link that is open and carries nothing is given up after three heartbeats', async (t) => {
  const { url, pool, instance } = await world(t);
  const proxy = await TcpProxy.before(t, url);
  const [a, b] = [instance('a', proxy.through(url)), instance('b')];
  await a.feed.start();
  await b.feed.start();
  await a.others.until(1);
  tell(b, ['tenant', 1, 1]);
  await a.hints.until(1);
  proxy.freeze();
  tell(b, ['tenant', 2, 1]);
  await b.statements.until((all) => all.some((text) => text.includes('["tenant",2,1]')));
  for (let beats = 0; beats < 3; beats++) await a.beat();
  t.equal(a.connected.all.length, 1);
  await a.beat();
  await a.connected.until(2);
  tell(b, ['tenant', 3, 1]);
  await a.hints.until(2);
  t.strictSame(
    a.hints.all,
    [
      ['tenant', 1, 1],
      ['tenant', 3, 1],
    ],
    'what was lost is for the comparison of heads, which `connected` calls for',
  );
  for (let beats = 1; beats <= 5; beats++) await beatHeard(a, b, beats);
  t.equal(a.connected.all.length, 2, 'and then it is content');
  t.ok((await listeners(pool)).length >= 2);
});

t.test(
  'INST-03: a clock that leaps beats once, not for every beat missed, and nothing listens after the end',
  async (t) => {
    const { a, pool } = await pair(t);
    const beats = (): number => a.statements.all.filter(isBeat).length;
    const before = beats();
    a.clock.advance(3_600_000);
    await a.feed.close();
    t.ok(beats() - before <= 2, 'the one under way and at most one more');
    t.equal(a.connected.all.length, 1, 'beats that were not yet heard are no reason to listen anew');
    t.equal((await listeners(pool)).length, 1, 'only the other instance listens');
    t.strictSame(a.faults.all, []);
  },
);

t.test('a listener that was replaced while it could not connect does not come back', async (t) => {
  const { url, pool, instance } = await world(t);
  const proxy = await TcpProxy.before(t, url);
  const a = instance('a', proxy.through(url));
  await a.feed.start();
  // The waits between attempts to connect pass when this test says so. The pool's idle timers must begin and end on
  // the same side of the switch: one left over would keep the process for a minute.
  const idle = await Promise.all(Array.from({ length: pool.idleCount }, async () => pool.connect()));
  mock.timers.enable({ apis: ['setTimeout'] });
  for (const client of idle) client.release();
  t.teardown(() => mock.timers.reset());
  proxy.refuse(true);
  proxy.cut();
  // The pool works, so heartbeats go out and are not heard: twice it listens anew, both times in vain.
  for (let beats = 0; beats < 8; beats++) await a.beat();
  await a.faults.until(2);
  proxy.refuse(false);
  const aWhile = async (): Promise<void> => {
    for (let rounds = 0; rounds < 50; rounds++) await pool.query('SELECT 1');
  };
  // Everybody's longest wait, and then some: whoever still tries has tried.
  for (let seconds = 0; seconds < 12 || a.connected.all.length < 2; seconds++) {
    mock.timers.tick(1_000);
    await aWhile();
  }
  // A backend ends a moment after its client.
  await until('one listener', async () => (await listeners(pool)).length === 1 && proxy.connections === 1);
  await aWhile();
  t.equal((await listeners(pool)).length, 1);
  t.equal(proxy.connections, 1);
});

t.test('DEV-03 STAT-10: who is online, on any instance', async (t) => {
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
    const before = instance.statements.all.filter((text) => text.includes('WITH arrived')).length;
    instance.clock.advance(2_000);
    await instance.statements.until((all) => all.filter((text) => text.includes('WITH arrived')).length > before);
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
  t.strictSame([...(await onA.online('another'))], [], 'TOKEN-26: of this tenant only');
  sockets.b.set('tenant', new Set(['two']));
  onB.touched('tenant', 'three');
  await flush(b);
  t.strictSame(await online(), [
    ['one', 'two'],
    ['one', 'two'],
  ]);
  await pool.query("UPDATE instances SET seen_at = seen_at - 16000 WHERE id = 'a'");
  t.strictSame(
    await online(),
    [['one', 'two'], ['two']],
    'of an instance that is not seen any more nothing is believed',
  );

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
  t.strictSame(await onA.online('tenant'), new Set(), 'a socket that closed while nobody else was up is gone');

  await pool.query('ALTER TABLE presence RENAME TO hidden');
  sockets.b.set('tenant', new Set(['four']));
  onB.touched('tenant', 'four');
  b.clock.advance(2_000);
  await b.faults.until(1);
  await pool.query('ALTER TABLE hidden RENAME TO presence');
  await flush(b);
  t.strictSame([...(await onA.online('tenant'))], ['four'], 'what could not be told is told later');
  await onB.close();
  t.strictSame([...(await onA.online('tenant'))], []);
});

t.test('ERR-14: while the database is away, who is online elsewhere is unavailable, not a fault', async (t) => {
  const pool = createPool({ url: 'postgres://nobody@127.0.0.1:1/none', name: 'away', onIdleError: () => undefined });
  t.teardown(() => pool.end());
  const presence = new Presence({
    ...{ instanceId: 'a', pool, clock: new TestClock() },
    local: () => new Set(['here']),
    tenants: () => ['tenant'],
    othersUp: () => true,
    onFault: () => undefined,
  });
  await t.rejects(presence.online('tenant'), { error: 'unavailable', cause: { code: 'ECONNREFUSED' } });
});
