/** Whether the database answers at all (reference, Operating). */
import t, { type Test } from 'tap';
import { clientConfig, createPool, isConnectionLoss } from '../src/server/storage/database.js';
import { CircuitBreaker } from '../src/server/storage/circuit-breaker.js';
import { Listener } from '../src/server/storage/listener.js';
import { TestClock } from './support/clock.js';
import { Events, soon, until } from './support/events.js';
import { listeners } from './support/feeds.js';
import { NamedProxy } from './support/named-proxy.js';
import { testDatabase, type WithTeardown } from './support/postgres.js';
import { runSql } from './support/server.js';

t.setTimeout(600_000);

interface World {
  readonly proxy: NamedProxy;
  readonly pool: ReturnType<typeof createPool>;
  /** What was reported, in order: true where the database is back. */
  readonly told: Events<boolean>;
  readonly url: string;
}

async function world(t: WithTeardown): Promise<World> {
  const { url } = await testDatabase(t, 'empty');
  const proxy = await NamedProxy.before(t, url);
  const told = new Events<boolean>();
  const breaker = new CircuitBreaker({ url: proxy.url, onChange: told.add });
  const pool = createPool({ url: proxy.url, link: breaker.link, name: 'pool', onIdleError: () => undefined });
  await pool.query('SELECT 1');
  breaker.start();
  t.teardown(async () => {
    await breaker.close();
    await pool.end();
  });
  return { proxy, pool, told, url };
}

t.test(
  'DUR-07: connections that carry nothing are cut, and calls fail at once until there is any answer',
  async (t) => {
    const { proxy, pool, told } = await world(t);
    proxy.swallowNew(true);
    proxy.swallow('');
    const waiting = pool.query('SELECT 1').catch((error: unknown) => error);
    const queued = Array.from({ length: 30 }, async () => pool.query('SELECT 1').catch((error: unknown) => error));
    await told.until(1);
    t.same(told.all, [false]);
    for (const error of await Promise.all([waiting, ...queued])) t.ok(isConnectionLoss(error));
    const opened = proxy.count('pool');
    t.ok(isConnectionLoss(await pool.query('SELECT 1').catch((error: unknown) => error)));
    t.equal(proxy.count('pool'), opened, 'no connection is attempted');
    proxy.swallowNew(false);
    await told.until(2);
    t.same(told.all, [false, true]);
    t.equal((await pool.query('SELECT 1')).rowCount, 1);
  },
);

t.test('DUR-07: a lost connection of its own, a slow statement or a refusal is no silence', async (t) => {
  const { pool, told, url } = await world(t);
  const slow = pool.query('SELECT pg_sleep(7)');
  const name = new URL(url).pathname.slice(1);
  const admin = new URL(url);
  admin.pathname = '/postgres';
  await runSql(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'service-pulse'");
  await runSql(admin.href, `ALTER DATABASE ${name} ALLOW_CONNECTIONS false`);
  await slow;
  await runSql(admin.href, `ALTER DATABASE ${name} ALLOW_CONNECTIONS true`);
  t.same(told.all, []);
});

/** A circuit breaker that never opens, and its clock. */
async function closedWorld(t: Test) {
  const { url } = await testDatabase(t, 'empty');
  const proxy = await NamedProxy.before(t, url);
  const clock = new TestClock();
  const onChange = (reachable: boolean): void => void t.fail(String(reachable));
  return { proxy, clock, breaker: new CircuitBreaker({ url: proxy.url, onChange, clock }) };
}

t.test('DUR-07: a slow answer is waited for, and one that lies unread counts as received', async (t) => {
  const { proxy, clock, breaker } = await closedWorld(t);
  t.teardown(() => breaker.close());
  proxy.holdBack('service-pulse');
  breaker.start();
  clock.advance(1_000);
  await until('the check', () => proxy.count('service-pulse') === 1);
  // Answers to the two halves of the authentication, to its end, and to the statement.
  for (let answers = 0; answers < 4; answers++) {
    // So that the previous answer was received.
    await proxy.held();
    await until('the watch is set', () => clock.waiting === 1);
    clock.advance(3_999);
    proxy.pass();
  }
  const over = (): Promise<void> => until('the check is over', () => clock.hasTimer(1_000));
  await over();
  for (let second = 1; second <= 2; second++) {
    clock.advance(1_000);
    await over();
  }
  clock.advance(1_000);
  await proxy.held();
  proxy.pass();
  // As in a process that was suspended before it could read.
  clock.advance(60_000);
  await over();
  t.equal(proxy.count('service-pulse'), 1, 'the check is on the same connection');
});

t.test('DUR-07: while a connection receives something, no check is sent', async (t) => {
  const { proxy, clock, breaker } = await closedWorld(t);
  const pool = createPool({ url: proxy.url, link: breaker.link, name: 'pool', onIdleError: () => undefined });
  t.teardown(async () => {
    await breaker.close();
    await pool.end();
  });
  breaker.start();
  for (let second = 0; second < 3; second++) {
    await pool.query('SELECT 1');
    clock.advance(1_000);
    await until('the next check is set', () => clock.waiting === 1);
    t.equal(proxy.count('service-pulse'), 0);
  }
  clock.advance(1_000);
  await until('a check of its own', () => proxy.count('service-pulse') === 1);
});

t.test('DUR-07: while nothing is received, every third check is sent; a cut ends its connection too', async (t) => {
  const { proxy, clock, breaker } = await closedWorld(t);
  t.teardown(() => breaker.close());
  breaker.start();
  const sent: number[] = [];
  for (let second = 1; second <= 7; second++) {
    clock.advance(1_000);
    await until('the next check is set', () => clock.waiting === 1 && clock.hasTimer(1_000));
    sent.push(proxy.count('service-pulse'));
    // As after a fail-over: it leads to a former primary. The next check has another.
    breaker.cut();
    await until('it is closed', () => proxy.count('service-pulse') === 0);
  }
  t.same(sent, [1, 0, 0, 1, 0, 0, 1]);
});

t.test('DUR-07: a stop does not wait for a database that does not answer', async (t) => {
  const { proxy, clock, breaker } = await closedWorld(t);
  breaker.start();
  clock.advance(1_000);
  await until('the check is over', () => clock.hasTimer(1_000));
  t.equal(proxy.swallow('service-pulse'), 1);
  await soon(breaker.close(), 'the end', 5_000);
});

t.test('INST-03 DUR-07: the circuit breaker ends the listening connection too, and it is opened again', async (t) => {
  const { url, pool } = await world(t);
  const breaker = new CircuitBreaker({ url, onChange: () => undefined });
  const connected = new Events<null>();
  const listener = new Listener({
    connection: () => Promise.resolve(clientConfig({ url, name: 'listener', link: breaker.link })),
    channels: { cut: () => undefined },
    onOpened: () => undefined,
    onConnected: () => connected.add(null),
    onFault: () => undefined,
  });
  t.teardown(async () => {
    await listener.close();
    await breaker.close();
  });
  await listener.start();
  const before = await listeners(pool);
  breaker.cut();
  await soon(connected.until(2), 'the next connection', 5_000);
  await until('one listener', async () => (await listeners(pool)).length === 1);
  t.not((await listeners(pool))[0], before[0]);
});
