/**
 * Prometheus metrics on a port of their own (METRICS_PORT), which is for the operator's network, not for clients.
 * No label names a tenant or a device: a host has a hundred thousand of them, and their activity is private.
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { once } from 'node:events';
import { collectDefaultMetrics, Counter, Gauge, Histogram, Registry } from 'prom-client';
import type { Meter } from '../../protocol/meter.js';

/** Values that are read at each scrape, with their help texts. */
const GAUGES = {
  sockets: 'Open sockets.',
  actors: 'Tenants in memory.',
  pending_changes: 'Changes that were taken and are not answered.',
  calls: 'Requests under way.',
  admission_waiting: 'Sockets that wait for the database to be let in.',
  admission_rate: 'Sockets a second that the database is thought to let in here.',
  draining: '1 while the instance is being drained.',
};

/** What is counted and measured, with its help texts. */
const HELP = {
  commit_batch_changes: 'Changes in one commit of a lane.',
  commit_seconds: 'Time of one commit in the database.',
  write_seconds: 'From the arrival of the oldest change of a commit until it was answered.',
  write_to_push_seconds:
    'From the arrival of the oldest of the changes that are pushed together until their frames were handed to the sockets.',
  read_rows_total: 'Rows read for replays and listings.',
  notifications_total: 'Tenants that instances told each other of.',
  refusals_total: 'Refused requests by the code of the error catalogue.',
  sockets_turned_away_total:
    'Sockets that were told when to come back, by why: the instance is drained, or the database cannot keep up.',
};

/** How to read them; `held` is the amount in use of each budget, by its name. */
type Gauges = Readonly<Record<keyof typeof GAUGES, () => number>> & {
  held(): Readonly<Record<string, number>>;
};

const SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5];
const SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
const PREFIX = 'service_';

/** The registry, its meters, and the port on which it is scraped. */
export class Metrics implements Meter {
  private readonly registry = new Registry();
  private readonly registers = [this.registry];
  private readonly batchSize = this.histogram('commit_batch_changes', SIZES);
  private readonly commitSeconds = this.histogram('commit_seconds', SECONDS);
  private readonly writeSeconds = this.histogram('write_seconds', SECONDS);
  private readonly pushSeconds = this.histogram('write_to_push_seconds', SECONDS);
  private readonly rows = this.counter('read_rows_total');
  private readonly notifications = this.counter('notifications_total', 'direction');
  private readonly refusals = this.counter('refusals_total', 'code');
  private readonly away = this.counter('sockets_turned_away_total', 'why');

  /** @param options.onFault is called if the port fails after `listen`: scraping then fails, the service continues. */
  constructor(
    private readonly options: {
      readonly host: string;
      readonly port: number;
      readonly version: string;
      readonly onFault: (error: unknown) => void;
    },
  ) {
    const { registers } = this;
    collectDefaultMetrics({ register: this.registry });
    new Gauge({ name: `${PREFIX}info`, help: 'The version that runs.', labelNames: ['version'], registers })
      .labels(options.version)
      .set(1);
  }

  /** Adds the values that are read at each scrape. */
  observe(gauges: Gauges): void {
    const { registers } = this;
    for (const [name, help] of Object.entries(GAUGES) as [keyof typeof GAUGES, string][]) {
      new Gauge({
        name: PREFIX + name,
        help,
        registers,
        collect() {
          this.set(gauges[name]());
        },
      });
    }
    new Gauge({
      name: `${PREFIX}held`,
      help: 'Calls and bytes that are held for clients, by budget.',
      labelNames: ['budget'],
      registers,
      collect() {
        for (const [budget, held] of Object.entries(gauges.held())) this.labels(budget).set(held);
      },
    });
  }

  committed(changes: number, commitMs: number, waitMs: number): void {
    this.batchSize.observe(changes);
    this.commitSeconds.observe(commitMs / 1_000);
    this.writeSeconds.observe(waitMs / 1_000);
  }

  pushed(ms: number): void {
    this.pushSeconds.observe(ms / 1_000);
  }

  read(rows: number): void {
    this.rows.inc(rows);
  }

  notified(direction: 'sent' | 'received', tenants: number): void {
    this.notifications.labels(direction).inc(tenants);
  }

  refused(code: string): void {
    this.refusals.labels(code).inc();
  }

  turnedAway(why: 'drain' | 'admission'): void {
    this.away.labels(why).inc();
  }

  /** Listens. Resolves with the port and how to close it; rejects when the port cannot be bound. */
  async listen(): Promise<{ readonly port: number; close(): Promise<void> }> {
    const server = createServer((request, response) => {
      if (request.method !== 'GET' || request.url?.split('?')[0] !== '/metrics') {
        response.writeHead(404, { 'content-type': 'text/plain' }).end('GET /metrics\n');
        return;
      }
      this.registry.metrics().then(
        (text) => response.writeHead(200, { 'content-type': this.registry.contentType }).end(text),
        (error: unknown) => response.writeHead(500).end(error instanceof Error ? error.message : ''),
      );
    });
    server.requestTimeout = 10_000;
    server.headersTimeout = 10_000;
    server.maxConnections = 32;
    server.listen(this.options.port, this.options.host);
    await once(server, 'listening');
    // Without a listener an error would end the process, for example when the system is out of file descriptors.
    server.on('error', this.options.onFault);
    return {
      port: (server.address() as AddressInfo).port,
      close: async () => {
        server.close();
        server.closeAllConnections();
        await once(server, 'close');
      },
    };
  }

  private histogram(name: keyof typeof HELP, buckets: number[]): Histogram {
    return new Histogram({ name: PREFIX + name, help: HELP[name], buckets, registers: this.registers });
  }

  private counter(name: keyof typeof HELP, ...labelNames: string[]): Counter {
    return new Counter({ name: PREFIX + name, help: HELP[name], labelNames, registers: this.registers });
  }
}
