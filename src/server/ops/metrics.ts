/**
 * Prometheus metrics on a port of their own (METRICS_PORT): that port is for the operator's network, not for clients.
 * No label names a tenant or a device: a host has a hundred thousand of them, and who is active is nobody's business.
 */
import { createServer } from 'node:http';
import { once } from 'node:events';
import { collectDefaultMetrics, Counter, Gauge, Histogram, Registry } from 'prom-client';
import type { Meter } from '../../protocol/meter.js';

/** What is asked for at each scrape. */
export interface Gauges {
  /** Open sockets. */
  sockets(): number;
  /** Tenants in memory. */
  actors(): number;
  /** Changes that were taken and are not answered. */
  pendingChanges(): number;
  /** Requests under way. */
  calls(): number;
  /** What is held of each budget, by its name. */
  held(): Readonly<Record<string, number>>;
}

/** What the metrics are served from. */
export interface MetricsOptions {
  readonly host: string;
  readonly port: number;
  readonly version: string;
  /** Told of what befalls the port later on; scraping fails then, the service goes on. */
  readonly onFault: (error: unknown) => void;
}

const SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5];
const SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
const PREFIX = 'service_';

/** The registry, what feeds it, and the port it is read from. */
export class Metrics implements Meter {
  private readonly registry = new Registry();
  private readonly batchSize: Histogram;
  private readonly commitSeconds: Histogram;
  private readonly writeSeconds: Histogram;
  private readonly pushSeconds: Histogram;
  private readonly rows: Counter;
  private readonly notifications: Counter<'direction'>;
  private readonly refusals: Counter<'code'>;

  constructor(private readonly options: MetricsOptions) {
    const registers = [this.registry];
    const histogram = (name: string, help: string, buckets: number[]): Histogram =>
      new Histogram({ name: PREFIX + name, help, buckets, registers });
    collectDefaultMetrics({ register: this.registry });
    this.batchSize = histogram('commit_batch_changes', 'Changes in one commit of a lane.', SIZES);
    this.commitSeconds = histogram('commit_seconds', 'Time of one commit in the database.', SECONDS);
    this.writeSeconds = histogram(
      'write_seconds',
      'From the arrival of the oldest change of a commit until it was answered.',
      SECONDS,
    );
    this.pushSeconds = histogram(
      'write_to_push_seconds',
      'From the arrival of the oldest of the changes that are pushed together until their frames were handed to the sockets.',
      SECONDS,
    );
    this.rows = new Counter({
      name: `${PREFIX}read_rows_total`,
      help: 'Rows read for replays and listings.',
      registers,
    });
    this.notifications = new Counter({
      name: `${PREFIX}notifications_total`,
      help: 'Tenants that instances told each other of.',
      labelNames: ['direction'],
      registers,
    });
    this.refusals = new Counter({
      name: `${PREFIX}refusals_total`,
      help: 'Refused requests by the code of the error catalogue.',
      labelNames: ['code'],
      registers,
    });
    new Gauge({ name: `${PREFIX}info`, help: 'The version that runs.', labelNames: ['version'], registers })
      .labels(options.version)
      .set(1);
  }

  /** Adds what is asked for at each scrape. */
  observe(gauges: Gauges): void {
    const gauge = (name: string, help: string, value: () => number): void => {
      new Gauge({
        name: PREFIX + name,
        help,
        registers: [this.registry],
        collect() {
          this.set(value());
        },
      });
    };
    gauge('sockets', 'Open sockets.', () => gauges.sockets());
    gauge('actors', 'Tenants in memory.', () => gauges.actors());
    gauge('pending_changes', 'Changes that were taken and are not answered.', () => gauges.pendingChanges());
    gauge('calls', 'Requests under way.', () => gauges.calls());
    new Gauge({
      name: `${PREFIX}held`,
      help: 'Calls and bytes that are held for clients, by budget.',
      labelNames: ['budget'],
      registers: [this.registry],
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

  /** Listens. Resolves with the port and the way to end it; rejects when the port cannot be had. */
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
    // Unheard it would end the process: a system without free files, for one, tells of it here.
    server.on('error', this.options.onFault);
    const address = server.address();
    return {
      port: address !== null && typeof address === 'object' ? address.port : 0,
      close: async () => {
        server.close();
        server.closeAllConnections();
        await once(server, 'close');
      },
    };
  }
}
