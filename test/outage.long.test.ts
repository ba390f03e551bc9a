/** Two instances under load while one component after the other fails, and PostgreSQL for a minute. */
import t from 'tap';
import { Cluster } from './support/cluster.js';
import {
  bothKilled,
  databaseCrashed,
  databaseStill,
  databaseStopped,
  instanceKilled,
  listenEnded,
  listenSwallowed,
  more,
} from './support/faults.js';

t.setTimeout(840_000);

const MINUTE_MS = 60_000;

t.test('INST-23 INST-24 DUR-07 DUR-08 DUR-09: no write is lost while components fail in turn', async (t) => {
  const cluster = await Cluster.start(t, { tenants: 3, paceMs: 5, env: { WS_PING_INTERVAL_MS: '1000' } });
  const [one, two] = cluster.nodes;
  await more(cluster);
  await t.test('INST-23: an instance is killed', async (t) => t.resolves(instanceKilled(cluster, one)));
  await t.test('INST-24: the LISTEN connections are ended', async (t) => listenEnded(t, cluster));
  await t.test('INST-24: a LISTEN connection is half-open', async (t) => t.resolves(listenSwallowed(cluster, two)));
  await t.test('DUR-07 DUR-08: PostgreSQL is frozen', async (t) => databaseStill(t, cluster));
  await t.test('DUR-07 DUR-08: PostgreSQL is stopped', async (t) => databaseStopped(t, cluster));
  await t.test('DUR-08 DUR-09: PostgreSQL is killed', async (t) => databaseCrashed(t, cluster));
  await t.test('DUR-09: an instance and PostgreSQL are killed', async (t) => t.resolves(bothKilled(cluster, two)));
  await cluster.tally();
});

t.test('DUR-07 DUR-08 DUR-09: PostgreSQL is frozen, stopped and killed, for a minute each', async (t) => {
  const cluster = await Cluster.start(t, { tenants: 3, paceMs: 10, env: { WS_PING_INTERVAL_MS: '2000' } });
  await more(cluster, 2_000);
  await databaseStill(t, cluster, MINUTE_MS);
  await more(cluster, 2_000);
  await databaseStopped(t, cluster, MINUTE_MS);
  await more(cluster, 2_000);
  await databaseCrashed(t, cluster, MINUTE_MS);
  await more(cluster, 2_000);
  await cluster.tally();
});
