/** The metrics of a running server: what is asked at each scrape, and the port that is scraped. */
import type { Listener } from '../realtime/server.js';
import type { Gauges, Metrics } from '../ops/metrics.js';
import type { Parts } from './parts.js';
import type { TenantParts } from './tenants.js';

/** What is asked for at each scrape. */
export const gaugesOf = ({ registry, lanes }: TenantParts, front: Listener): Gauges => ({
  sockets: () => front.sockets,
  calls: () => front.calls,
  held: () => front.held(),
  actors: () => registry.size,
  pending_changes: () => lanes.waiting,
});

/** The metrics' port, where one is named. Instances that share a machine have one each, counted up from it. */
export async function listenForMetrics({ log, config, stops }: Parts, meter: Metrics, gauges: Gauges): Promise<void> {
  meter.observe(gauges);
  const listening = await meter.listen();
  stops.push(() => listening.close());
  log.info({ port: listening.port, host: config.metricsHost }, 'metrics');
}
