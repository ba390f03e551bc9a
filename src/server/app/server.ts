/** The composition root: puts the rings together into one running server. Nothing else knows all of them. */
import type { Logger } from 'pino';
import { ulid } from 'ulid';
import type { Config } from '../config/config.js';
import { serverSecrets } from '../config/secrets.js';
import { describe } from '../http/fail.js';
import { ALL_ROWS, rowsOf, type App } from './route-table.js';
import { startListening, type Listener } from '../realtime/server.js';
import { Metrics } from '../ops/metrics.js';
import { ensureSingleTenant } from '../devices/store.js';
import { systemClock, type Clock } from '../../protocol/clock.js';
import { openReference } from '../../docs/open.js';
import { DOCS_FOLDER, SERVER_VERSION } from '../../root.js';
import { composeBlobs, type BlobParts } from './blobs.js';
import { openDatabase, type Stop } from './database.js';
import { composeHosting, type HostingParts } from './hosting.js';
import { gaugesOf, listenForMetrics } from './metrics.js';
import { composeNightly } from './nightly.js';
import type { Parts } from './parts.js';
import { composeServices, type Services } from './services.js';
import { composeTenants, type TenantParts } from './tenants.js';

/** What a server is started from. */
export interface ServerOptions {
  readonly config: Config;
  readonly log: Logger;
  readonly clock?: Clock;
  /** Other instances listen on the same port of this machine. */
  readonly sharePort?: boolean;
  /** The tenant of a host name. Left out: the one tenant of single mode, whatever the host. */
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
  /**
   * Stops taking work, finishes what was taken, closes sockets with 1012 over `graceMs`, stops the database last.
   * Rejects with the first failure, after all parts were told to stop. A second call waits for the first.
   */
  close(graceMs: number): Promise<void>;
}

/**
 * Starts everything. On failure what was started is stopped again; what fails in that is logged, and the failure of the
 * start is thrown.
 */
export async function startServer(options: ServerOptions): Promise<Server> {
  const stops: Stop[] = [];
  const onFault = (error: unknown): void => options.log.error({ cause: describe(error) }, 'a part did not stop');
  const stopAll = (): Promise<void> => runStops(stops, onFault);
  try {
    return await compose(options, stops, stopAll);
  } catch (error) {
    await stopAll().catch(onFault);
    throw error;
  }
}

/**
 * Runs the stops, last first. One that fails keeps no other from running: the database, which is the last, would live
 * on. Throws the first failure; the others, which may follow from it, are told to `onFault`.
 */
async function runStops(stops: Stop[], onFault: (error: unknown) => void): Promise<void> {
  const failures: unknown[] = [];
  for (let stop = stops.pop(); stop !== undefined; stop = stops.pop()) {
    try {
      await stop();
    } catch (error) {
      failures.push(error);
    }
  }
  const [first, ...others] = failures;
  others.forEach(onFault);
  if (failures.length > 0) throw first;
}

async function compose(options: ServerOptions, stops: Stop[], stopAll: () => Promise<void>): Promise<Server> {
  const { config, log, clock = systemClock } = options;
  const secrets = await serverSecrets(config);
  const instanceId = ulid();
  const onFault = (error: unknown, tenantId?: string): void =>
    log.error({ cause: describe(error), instanceId, ...(tenantId ? { tenantId } : {}) }, 'background fault');

  // Both need the registry, which needs the database: the arrows are tied afterwards.
  let onOtherHistory = (): void => undefined;
  let onBack = (): void => undefined;
  const hooks = { stops, onFault, onOtherHistory: () => onOtherHistory(), onBack: () => onBack() };
  const database = await openDatabase(options, hooks);
  const multi = config.tenantMode === 'multi';
  const tenantId = multi ? null : await ensureSingleTenant(database.pool, clock.now());
  const secret = new TextEncoder().encode(secrets.tokenSecret);
  const { metricsPort: port, metricsHost: host } = config;
  const meter = port === 0 ? undefined : new Metrics({ host, port, version: SERVER_VERSION, onFault });
  const { blobUrlSecret } = secrets;
  const parts: Parts = {
    ...{ log, config, clock, database, instanceId, secret, blobUrlSecret },
    ...{ stops, onFault, tenantId, meter },
  };

  const tenants = composeTenants(parts);
  onOtherHistory = () => tenants.registry.restart();
  onBack = () => void tenants.registry.compareHeads();
  // What changes tenants is put upon these two, and so has ended before them: nobody asks the database after it is gone.
  stops.push(() => tenants.feed.close());
  stops.push(() => tenants.registry.close());
  const services = composeServices(parts, tenants);
  tenants.onChange = (tenant) => services.pairing.changed(tenant);
  await tenants.feed.start();
  const hosting = multi ? await composeHosting(parts, tenants, services.addressLimits) : undefined;
  tenants.registry.start();
  const blobs = await composeBlobs(parts);
  await composeNightly(parts, blobs.jobs);
  const front = await listen(parts, { options, tenants, services, hosting, blobs });
  let graceMs = 0;
  stops.push(async () => {
    await front.close(graceMs);
    // Calls that were cut off work on until their statements have ended.
    await front.settled();
  });
  if (meter !== undefined) await listenForMetrics(parts, meter, gaugesOf(tenants, front));
  let closing: Promise<void> | undefined;

  return {
    port: front.port,
    tenantId,
    claimed: async () => tenantId !== null && services.bootstrap.claimed(tenantId),
    warnings: secrets.warnings,
    close(grace) {
      graceMs = grace;
      return (closing ??= stopAll());
    },
  };
}

interface Listening {
  readonly options: ServerOptions;
  readonly tenants: TenantParts;
  readonly services: Services;
  readonly hosting: HostingParts | undefined;
  readonly blobs: BlobParts;
}

async function listen(parts: Parts, { options, tenants, services, hosting, blobs }: Listening): Promise<Listener> {
  const { log, config, clock, database, tenantId } = parts;
  const docs = await openReference(DOCS_FOLDER, SERVER_VERSION, ALL_ROWS);
  const byHost = (host: string): string | undefined => hosting?.hosts.tenantOf(host);
  const app: App = {
    ...services,
    blobs: blobs.blobs,
    transfers: blobs.transfers,
    config,
    meter: parts.meter,
    clock,
    log,
    version: SERVER_VERSION,
    resolveTenant: options.resolveTenant ?? tenantId ?? byHost,
    hosting: hosting?.service,
    billing: hosting?.billing,
    epoch: () => database.history.epoch,
    tenants: tenants.registry,
    items: tenants.items,
    presence: tenants.presence,
    docs,
  };
  return startListening(rowsOf(app), app, { sharePort: options.sharePort ?? false });
}
