/** A rolling restart of two instances, each drained first, with open sockets and running writes. */
import t from 'tap';
import { OperatorStore, type InstanceRow } from '../src/server/admin/store.js';
import { admin } from './support/admin.js';
import { TestClock } from './support/clock.js';
import { Cluster } from './support/cluster.js';
import { until } from './support/events.js';
import { poolOf } from './support/postgres.js';
import { runServer } from './support/server.js';

/** The sockets are closed over this period, ms. */
const OVER_MS = 5_000;

t.test('DRAIN-13: a rolling restart loses nothing, and every socket gets each version once and in order', async (t) => {
  const cluster = await Cluster.start(t, { tenants: 6, paceMs: 20 });
  const pool = poolOf(t, cluster.postgres.url);
  const store = new OperatorStore(pool);
  for (const node of cluster.nodes) {
    const mine = async (): Promise<InstanceRow | undefined> =>
      (await store.instances()).find(({ port }) => port === node.port);
    await until('its row', async () => (await mine())?.draining === false);
    const row = await mine();
    const before = cluster.acked;
    await store.drain([row?.id ?? ''], OVER_MS, false);
    await until('no socket left', async () => {
      const now = (await store.instances()).find(({ id }) => id === row?.id);
      return now?.draining === true && now.sockets === 0;
    });
    t.ok(cluster.acked > before, 'writes continued during the drain');
    const codes = cluster.recorders.flatMap(({ connections }) =>
      connections.filter(({ port, greeted }) => port === node.port && greeted).map(({ closedWith }) => closedWith),
    );
    t.ok(codes.length > 0 && codes.every((code) => code === 1012), 'every socket of the instance was closed with 1012');
    t.equal(await node.child?.end('SIGTERM'), 0);
    await node.start();
  }
  await cluster.tally();
});

t.test('DRAIN-10: an instance that does not comply with the order is reported', async (t) => {
  const clock = new TestClock();
  const server = await runServer(t, { clock });
  const operator = await admin(t, { DATABASE_URL: server.databaseUrl });
  // Its clock stands still, so it sends no heartbeat; the later time keeps its row from looking stale.
  await server.sql("UPDATE instances SET seen_at = seen_at + 3600000, host = 'old'");
  const ended = await operator.json('drain', 'old', '--minutes', '0', '--force');
  t.match(ended, { code: 4, error: { code: 'not_followed' } });
});
