/** What runs beside the service: the nightly jobs and the metrics, put together. */
import type { Front } from './front/server.js';
import { Nightly } from './jobs/nightly.js';
import type { Job } from './jobs/ports.js';
import type { Gauges, Metrics } from './metrics/metrics.js';
import type { Parts, TenantParts } from './parts.js';
import { nightlyJobs, PostgresJobTurn } from './postgres/jobs.js';

/** What happens by night, on one instance; `more`: jobs beside those of the database alone. */
export async function composeNightly(
  { log, config, clock, database, stops, onFault }: Parts,
  more: readonly Job[],
): Promise<void> {
  const { pool, url } = database;
  const nightly = new Nightly({
    jobs: [...nightlyJobs({ pool, now: () => clock.now(), softDeleteMs: config.softDeleteMs }), ...more],
    turn: new PostgresJobTurn(pool, url),
    clock,
    at: config.purgeAt,
    onReport: (report) => log.info(report, 'nightly job'),
    onFault,
  });
  await nightly.start();
  stops.push(() => nightly.close());
}

/** What is asked for at each scrape. */
export const gaugesOf = ({ registry, lanes }: TenantParts, front: Front): Gauges => ({
  sockets: () => front.sockets,
  calls: () => front.calls,
  actors: () => registry.size,
  pendingChanges: () => lanes.waiting,
});

/** The metrics' port, where one is named. Instances that share a machine have one each, counted up from it. */
export async function listenForMetrics({ log, config, stops }: Parts, meter: Metrics, gauges: Gauges): Promise<void> {
  meter.observe(gauges);
  const listening = await meter.listen();
  stops.push(() => listening.close());
  log.info({ port: listening.port, host: config.metricsHost }, 'metrics');
}
