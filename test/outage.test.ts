/** Two instances under load while one thing after the other is taken away (contract 13; guarantees 1 to 5). */
import t from 'tap';
import { Cluster } from './support/cluster.js';
import { until } from './support/events.js';

t.setTimeout(300_000);

const MORE = 60;
const more = async (cluster: Cluster, count = MORE): Promise<void> => {
  const before = cluster.acked;
  await until(`${count} more writes`, () => cluster.acked >= before + count, 60_000);
};

t.test('INST-23: everything at once', async (t) => {
  const cluster = await Cluster.start(t, { tenants: 3, paceMs: 5 });
  const [one, two] = cluster.nodes;
  await more(cluster);
  t.comment('kill -9 of an instance');
  await one.kill();
  await more(cluster);
  await one.start();
  await more(cluster);
  t.comment('listen terminated');
  await cluster.postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'service-listen'");
  await more(cluster);
  t.comment('listen half open');
  t.equal(two.proxy.swallow('service-listen'), 1);
  await more(cluster);
  await cluster.pause();
  await cluster.caughtUp();
  cluster.resume();
  t.comment('database crashes');
  await cluster.postgres.crash();
  await cluster.postgres.start();
  await more(cluster);
  t.comment('database frozen');
  const from = Date.now();
  await cluster.postgres.freeze();
  await new Promise((resolve) => setTimeout(resolve, 15_000));
  cluster.postgres.thaw();
  await cluster.pause();
  const endings = cluster.tenants.flatMap(({ load }) => load.endings).filter(({ begun, ms }) => begun + ms >= from);
  const worst = endings.map(({ ms }) => ms).sort((a, b) => b - a).slice(0, 5);
  const outcomes = {};
  for (const { kind, outcome } of endings) (outcomes as Record<string, number>)[`${kind} ${outcome}`] = ((outcomes as Record<string, number>)[`${kind} ${outcome}`] ?? 0) + 1;
  t.comment('slowest', worst, outcomes);
  await cluster.caughtUp();
  cluster.resume();
  await more(cluster);
  await cluster.tally();
  for (const tenant of cluster.tenants) for (const recorder of tenant.recorders) t.comment(recorder.connections, recorder.pings);
  for (const node of cluster.nodes) t.comment(node.child?.output.slice(-60).map((l) => l.slice(0, 300)));
});
