/** The same as the short test, with PostgreSQL away for a minute. */
import t from 'tap';
import { Cluster } from './support/cluster.js';
import { databaseCrashed, databaseStill, databaseStopped, more } from './support/faults.js';

t.setTimeout(840_000);

const MINUTE_MS = 60_000;

t.test('DUR-07 DUR-08 DUR-09: PostgreSQL is away for a minute, in three ways', async (t) => {
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
