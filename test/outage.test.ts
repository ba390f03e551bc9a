/** Two instances under load while one thing after the other is taken away. */
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

t.setTimeout(600_000);

t.test('INST-23 INST-24 DUR-07 DUR-08 DUR-09: under load one after the other is taken away', async (t) => {
  const cluster = await Cluster.start(t, { tenants: 3, paceMs: 5, env: { WS_PING_INTERVAL_MS: '1000' } });
  const [one, two] = cluster.nodes;
  await more(cluster);
  await t.test('INST-23: an instance is killed', async () => instanceKilled(cluster, one));
  await t.test('INST-24: the LISTEN connections die', async (t) => listenEnded(t, cluster));
  await t.test('INST-24: a LISTEN connection is half-open', async (t) => listenSwallowed(t, cluster, two));
  await t.test('DUR-07 DUR-08: PostgreSQL stands still', async (t) => databaseStill(t, cluster));
  await t.test('DUR-07 DUR-08: PostgreSQL is stopped', async (t) => databaseStopped(t, cluster));
  await t.test('DUR-08 DUR-09: PostgreSQL is killed', async (t) => databaseCrashed(t, cluster));
  await t.test('DUR-09: an instance and PostgreSQL are killed', async () => bothKilled(cluster, two));
  await cluster.tally();
});
