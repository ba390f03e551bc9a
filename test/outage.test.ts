/** Two instances under load while components fail in turn. The long test has more faults, and longer ones. */
import t from 'tap';
import { Cluster } from './support/cluster.js';
import { databaseCrashed, instanceKilled, listenEnded, more } from './support/faults.js';

t.setTimeout(600_000);

t.test('INST-23 INST-24 DUR-08 DUR-09: no write is lost while an instance, LISTEN and PostgreSQL fail', async (t) => {
  const cluster = await Cluster.start(t, { tenants: 2, paceMs: 10, env: { WS_PING_INTERVAL_MS: '1000' } });
  await more(cluster);
  await instanceKilled(cluster, cluster.nodes[0]);
  await listenEnded(t, cluster);
  await databaseCrashed(t, cluster);
  await cluster.tally();
});
