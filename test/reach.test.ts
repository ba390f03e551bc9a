/** Whether the database answers at all. */
import t from 'tap';
import { createPool, isConnectionLoss } from '../src/postgres/database.js';
import { Reach } from '../src/postgres/reach.js';
import { Events } from './support/events.js';
import { NamedProxy } from './support/named-proxy.js';
import { testDatabase, type WithTeardown } from './support/postgres.js';
import { runSql } from './support/server.js';

t.setTimeout(300_000);

interface World {
  readonly proxy: NamedProxy;
  readonly pool: ReturnType<typeof createPool>;
  /** What was told, in order: true for back. */
  readonly told: Events<boolean>;
  readonly reach: Reach;
  readonly url: string;
}

async function world(t: WithTeardown): Promise<World> {
  const { url } = await testDatabase(t, 'empty');
  const proxy = await NamedProxy.before(t, url);
  const told = new Events<boolean>();
  const reach = new Reach({ url: proxy.url, onChange: told.add });
  const pool = createPool({ url: proxy.url, link: reach.link, name: 'pool', onIdleError: () => undefined });
  await pool.query('SELECT 1');
  reach.start();
  t.teardown(async () => {
    await reach.close();
    await pool.end();
  });
  return { proxy, pool, told, reach, url };
}

t.test(
  'DUR-07: links that carry nothing are cut, and nobody waits for new ones until there is an answer',
  async (t) => {
    const { proxy, pool, told, reach } = await world(t);
    proxy.swallowNew(true);
    proxy.swallow('');
    const waiting = pool.query('SELECT 1').catch((error: unknown) => error);
    const queued = Array.from({ length: 30 }, async () => pool.query('SELECT 1').catch((error: unknown) => error));
    await told.until(1);
    t.same([told.all, reach.within], [[false], false]);
    for (const error of await Promise.all([waiting, ...queued])) t.ok(isConnectionLoss(error));
    const opened = proxy.count('pool');
    t.ok(isConnectionLoss(await pool.query('SELECT 1').catch((error: unknown) => error)));
    t.equal(proxy.count('pool'), opened, 'it was not even tried');
    proxy.swallowNew(false);
    await told.until(2);
    t.same([told.all, reach.within], [[false, true], true]);
    t.equal((await pool.query('SELECT 1')).rowCount, 1);
  },
);

t.test('DUR-07: a link of its own that breaks, a slow statement or a refusal is no silence', async (t) => {
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
