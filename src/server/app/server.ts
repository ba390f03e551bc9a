/** Starts and stops a server: its parts in order, the listening socket, the metrics. */
import { join } from 'node:path';
import type { Logger } from 'pino';
import { ulid } from 'ulid';
import type { Config } from '../config/config.js';
import { serverSecrets } from '../config/secrets.js';
import { describe } from '../http/fail.js';
import { rowsOf, type App } from './route-table.js';
import { socketsThatFit } from '../realtime/descriptors.js';
import { startListening, type Listener } from '../realtime/server.js';
import { Metrics } from '../ops/metrics.js';
import { ensureSingleTenant } from '../devices/store.js';
import { systemClock, type Clock } from '../../protocol/clock.js';
import { REFERENCE_FOLDER, RELEASE, SERVER_VERSION, WEB_FOLDER } from '../../root.js';
import {
  composeBlobs,
  composeHosting,
  composeNightly,
  composeServices,
  composeTenants,
  type BlobServices,
  type HostedServices,
  type Parts,
  type Services,
  type Tenants,
} from './compose.js';
import { openDatabase, type DatabaseHooks } from './database.js';
import { runStops, type Stop } from './lifecycle.js';
import type { DrainOrder } from '../storage/registration.js';
import { openDocs } from './docs.js';
import { openWebApp } from './web.js';

/** What a server is started from. */
export interface ServerOptions {
  readonly config: Config;
  readonly log: Logger;
  readonly clock?: Clock;
  /** Set where other instances of this machine share the port: the folder of their links, or '' (storage/links.ts). */
  readonly siblings?: string | undefined;
  /** The tenant of a host name. Default: the one tenant of single mode, or in multi mode the tenant by that name. */
  readonly resolveTenant?: (host: string) => string | undefined;
}

/** A running server. */
export interface Server {
  readonly port: number;
  /** The one tenant of single mode; null in multi mode. */
  readonly tenantId: string | null;
  /** True once a device has claimed it; false in multi mode. */
  claimed(): Promise<boolean>;
  /** For the operator, once, at start. */
  readonly warnings: readonly string[];
  /** Closes the sockets spread over `ms` and admits no new ones; requests are still answered. */
  drain(order: DrainOrder): void;
  /**
   * Accepts no new work, finishes accepted work, closes sockets with 1012 over half of `graceMs`, stops the database
   * last. Rejects as `runStops`, after all parts were stopped. A second call waits for the first.
   */
  close(graceMs: number): Promise<void>;
}

/**
 * Starts all parts. On failure the parts that were started are stopped again; errors of these stops are logged, and the
 * error of the start is thrown.
 */
export async function startServer(options: ServerOptions): Promise<Server> {
  const stops: Stop[] = [];
  try {
    return await compose(options, stops, () => runStops(stops));
  } catch (error) {
    await runStops(stops).catch((fault: unknown) => {
      options.log.error({ cause: describe(fault) }, 'a part did not stop');
    });
    throw error;
  }
}

async function compose(options: ServerOptions, stops: Stop[], stopAll: () => Promise<void>): Promise<Server> {
  const { config, log, clock = systemClock } = options;
  const secrets = await serverSecrets(config);
  const instanceId = ulid();
  const onFault = (error: unknown, tenantId?: string): void =>
    log.error({ cause: describe(error), instanceId, ...(tenantId ? { tenantId } : {}) }, 'background fault');

  const hooks: DatabaseHooks = { stops, onFault, onOtherHistory: () => undefined, onBack: () => undefined };
  const database = await openDatabase({ config, log, clock }, hooks);
  const multi = config.tenantMode === 'multi';
  const tenantId = multi ? null : await ensureSingleTenant(database.pool, clock.now());
  const secret = new TextEncoder().encode(secrets.tokenSecret);
  const { metricsPort: port, metricsHost: host } = config;
  const meter = port === 0 ? undefined : new Metrics({ host, port, version: SERVER_VERSION, onFault });
  const { blobUrlSecret } = secrets;
  const parts: Parts = {
    ...{ log, config, clock, database, instanceId, secret, blobUrlSecret },
    ...{ stops, onFault, tenantId, meter, linkFolder: options.siblings || undefined },
  };

  const tenants = composeTenants(parts);
  hooks.onOtherHistory = () => tenants.registry.restart();
  hooks.onBack = () => void tenants.registry.compareHeads();
  // Stopped after all parts that change tenants, which are constructed later, and before the database.
  stops.push(() => tenants.feed.close());
  stops.push(() => tenants.registry.close());
  const services = composeServices(parts, tenants);
  tenants.hooks.onChange = (tenant) => services.pairing.changed(tenant);
  await tenants.feed.start();
  const hosting = multi ? await composeHosting(parts, tenants, services.addressLimits) : undefined;
  tenants.registry.start();
  const blobs = await composeBlobs(parts);
  await composeNightly(parts, blobs.jobs);
  const front = await listen(parts, { options, tenants, services, hosting, blobs });
  const drain = (order: DrainOrder): void => {
    log.info({ instanceId, ...order, sockets: front.sockets }, 'the instance is being drained');
    front.drain(order);
  };
  tenants.hooks.front = front;
  tenants.hooks.onDrain = drain;
  let graceMs = 0;
  stops.push(async () => {
    await front.close(graceMs);
    // Handlers of closed connections continue until their statements have ended.
    await front.settled();
  });
  await serveMetrics(parts, tenants, front);
  // The operator sees its port from now on.
  await tenants.feed.register();
  let closing: Promise<void> | undefined;

  return {
    port: front.port,
    tenantId,
    claimed: async () => tenantId !== null && services.bootstrap.claimed(tenantId),
    warnings: secrets.warnings,
    drain,
    close(grace) {
      graceMs = grace;
      return (closing ??= stopAll());
    },
  };
}

/** Serves the metrics where METRICS_PORT is set. */
async function serveMetrics({ log, config, stops, meter }: Parts, { registry, lanes }: Tenants, front: Listener) {
  if (meter === undefined) return;
  meter.observe({
    sockets: () => front.sockets,
    calls: () => front.calls,
    held: () => front.held(),
    actors: () => registry.size,
    pending_changes: () => lanes.waiting,
    admission_waiting: () => front.admission.waiting,
    admission_rate: () => front.admission.rate,
    draining: () => Number(front.draining),
  });
  const listening = await meter.listen();
  stops.push(() => listening.close());
  log.info({ port: listening.port, host: config.metricsHost }, 'metrics');
}

interface AppParts {
  readonly options: ServerOptions;
  readonly tenants: Tenants;
  readonly services: Services;
  readonly hosting: HostedServices | undefined;
  readonly blobs: BlobServices;
}

async function listen(parts: Parts, { options, tenants, services, hosting, blobs }: AppParts): Promise<Listener> {
  const { log, config, clock, database, tenantId } = parts;
  const docs = await openDocs(join(REFERENCE_FOLDER, 'served'));
  if (docs === undefined) log.warn({ folder: REFERENCE_FOLDER }, 'no reference: it was not built (npm run build)');
  const web = config.webApp === 'on' ? await openWebApp(WEB_FOLDER, blobs.origin) : undefined;
  if (config.webApp === 'on' && web === undefined)
    log.warn({ folder: WEB_FOLDER }, 'no web app: it was not built (npm run build)');
  const byHost = (host: string): string | undefined => hosting?.hosts.tenantOf(host);
  const app: App = {
    ...services,
    blobs: blobs.blobs,
    transfers: blobs.transfers,
    config,
    meter: parts.meter,
    clock,
    log,
    ...RELEASE,
    resolveTenant: options.resolveTenant ?? tenantId ?? byHost,
    hosting: hosting?.service,
    billing: hosting?.billing,
    epoch: () => database.history.epoch,
    tenants: tenants.registry,
    items: tenants.items,
    presence: tenants.presence,
    ready: () => tenants.hooks.front?.draining !== true,
    docs,
    web,
  };
  return startListening(rowsOf(app), app, { sharePort: options.siblings !== undefined, socketsMax: socketsThatFit() });
}
