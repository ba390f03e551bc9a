/** The composition root: puts the rings together into one running server. Nothing else knows all of them. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from 'pino';
import { ulid } from 'ulid';
import { Bootstrap } from './account/bootstrap.js';
import { Devices } from './account/devices.js';
import { Passwords } from './account/password.js';
import { AddressLimits } from './account/rates.js';
import { Reauthentication } from './account/reauth.js';
import { Recovery, type ForeignHost } from './account/recovery.js';
import { Tickets } from './account/tickets.js';
import { tokenIssuer, TokenVerifier } from './account/tokens.js';
import { Bins } from './bins/bins.js';
import { publicHosts, type Config } from './config.js';
import { nodePasswordHasher, nodeSodium } from './crypto/sodium-node.js';
import { openDatabase, type Stop } from './database.js';
import { describe } from './front/fail.js';
import { ALL_ROWS, startFront, type Front } from './front/server.js';
import { composeHosted, type Hosted } from './hosted.js';
import { Metrics } from './metrics/metrics.js';
import { composeNightly, gaugesOf, listenForMetrics } from './operations.js';
import { Pairing } from './pairing/pairing.js';
import type { Parts, TenantParts } from './parts.js';
import { ensureSingleTenant, AccountStore } from './postgres/account-store.js';
import { BinStore } from './postgres/bin-store.js';
import { ChangeFeed } from './postgres/change-feed.js';
import { PostgresCommitLanes } from './postgres/commit-lanes.js';
import { clientConfig } from './postgres/database.js';
import { PostgresDirectory } from './postgres/directory.js';
import { IdentityStore } from './postgres/identity.js';
import { PostgresItemLog } from './postgres/item-log.js';
import { PostgresKeyPurger } from './postgres/key-purger.js';
import { PairingStore } from './postgres/pairing-store.js';
import { Presence } from './postgres/presence.js';
import { RateStore } from './postgres/rate-store.js';
import { TicketStore } from './postgres/ticket-store.js';
import { systemClock, type Clock } from './protocol/clock.js';
import { openReference } from './reference/open.js';
import { REFERENCE_FOLDER, SERVER_VERSION } from './root.js';
import { serverSecrets } from './secrets.js';
import { composeStorage, type Storage } from './storage.js';
import { TenantRegistry } from './tenant/registry.js';

/** Two lanes commit 1.6 times what one does; a third adds nothing (bench S1). */
const LANES = 2;
/** Tokens whose MAC was verified once, kept by this instance. */
const CACHED_TOKENS = 100_000;

export interface ServerOptions {
  readonly config: Config;
  readonly log: Logger;
  readonly clock?: Clock;
  /** Other instances listen on the same port of this machine. */
  readonly sharePort?: boolean;
  /** The tenant of a host name. Left out: the one tenant of single mode, whatever the host. */
  readonly resolveTenant?: (host: string) => string | undefined;
}

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
  const services = composeServices(parts, tenants);
  tenants.onChange = (tenant) => services.pairing.changed(tenant);
  await tenants.feed.start();
  stops.push(() => tenants.feed.close());
  const hosted = multi ? await composeHosted(parts, tenants, services.addressLimits) : undefined;
  tenants.registry.start();
  stops.push(() => Promise.resolve(tenants.registry.stop()));
  const storage = await composeStorage(parts);
  await composeNightly(parts, storage.jobs);
  const front = await listen(parts, { options, tenants, services, hosted, storage });
  let graceMs = 0;
  stops.push(() => front.close(graceMs));
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

function composeLanes({ config, clock, database, onFault, meter }: Parts): PostgresCommitLanes {
  return new PostgresCommitLanes({
    connect: (onLost) => database.openLane(onLost),
    lanes: LANES,
    storageCap: config.storageCapBytes,
    now: () => clock.now(),
    wait: (ms) => sleep(ms),
    onFault,
    meter,
  });
}

/** The actors, what they write to and read from, and what tells them of other instances. */
function composeTenants(all: Parts): TenantParts {
  const { clock, database, instanceId, stops, onFault, meter } = all;
  const { pool, history } = database;
  const directory = new PostgresDirectory(pool, () => clock.now());
  const items = new PostgresItemLog(pool, meter);
  const lanes = composeLanes(all);
  stops.push(() => lanes.close());
  const purger = new PostgresKeyPurger(pool, onFault, clock);
  stops.push(() => purger.close());
  const feed: ChangeFeed = new ChangeFeed({
    instanceId,
    pool,
    connection: clientConfig({ url: database.url, name: 'service-listen' }),
    clock,
    onHint: (tenant, head, generation) => {
      registry.nudge(tenant, head, generation);
      parts.onChange(tenant);
      parts.onHint(tenant);
    },
    onConnected: () => void registry.compareHeads(),
    onOthers: () => presence.announceAll(),
    onFault,
    meter,
  });
  const registry: TenantRegistry = new TenantRegistry({
    lanes,
    log: items,
    directory,
    standings: directory,
    announcer: feed,
    purger,
    onFault,
    clock,
    meter,
    epoch: () => history.epoch,
  });
  const presence: Presence = new Presence({
    instanceId,
    pool,
    clock,
    local: (tenant) => registry.peek(tenant)?.onlineDevices() ?? new Set(),
    tenants: () => registry.tenantsWithSockets(),
    othersUp: () => feed.othersUp,
    onFault,
  });
  stops.push(() => presence.close());
  const parts: TenantParts = {
    registry,
    items,
    lanes,
    feed,
    presence,
    onChange: () => undefined,
    onHint: () => undefined,
  };
  return parts;
}

type Services = ReturnType<typeof composeServices>;

/** Everything of a tenant that is not items. */
function composeServices({ log, config, clock, database, secret, stops, onFault }: Parts, tenants: TenantParts) {
  const { pool } = database;
  const { maxDevices } = config;
  const store = new AccountStore(pool);
  const changed = async (tenant: string): Promise<void> => {
    await tenants.registry.changed(tenant);
    tenants.onChange(tenant);
  };
  const reset = async (tenant: string): Promise<void> => {
    await tenants.registry.reset(tenant);
    tenants.onChange(tenant);
  };
  const issueToken = tokenIssuer({ secret, ttlMs: config.tokenTtlMs, clock });
  const tickets = new Tickets({ secret, clock, store: new TicketStore(pool, () => clock.now()) });
  const online = (tenant: string): Promise<ReadonlySet<string>> => tenants.presence.online(tenant);
  const devices = new Devices({ store, clock, changed, online, onFault });
  stops.push(() => devices.close());
  const bins = new Bins({ store: new BinStore(pool), clock, changed, onFault });
  stops.push(() => bins.close());
  const { bootstrapToken } = config;
  const joins = { store, clock, issueToken, tickets, maxDevices, changed, onFault };
  const onForeignHost = (mismatch: ForeignHost): void =>
    log.warn(mismatch, 'recovery refused: it was signed for another host than the one the request came to');
  const recovery = { ...joins, sodium: nodeSodium, publicHosts: publicHosts(config), onForeignHost };
  return {
    tokens: new TokenVerifier(secret, CACHED_TOKENS),
    tickets,
    devices,
    bootstrap: new Bootstrap({ ...joins, bootstrapToken, claimTokens: config.tenantMode === 'multi', reset }),
    reauth: new Reauthentication({ store, clock, sodium: nodeSodium, issueToken }),
    recovery: new Recovery(recovery),
    passwords: new Passwords({ store, clock, hasher: nodePasswordHasher, tickets }),
    pairing: new Pairing({ ...joins, store: new PairingStore(pool) }),
    bins,
    addressLimits: new AddressLimits({ store: new RateStore(pool), clock, perMinute: config.ratePairPerMin }),
    identities: new IdentityStore(pool),
  };
}

interface Listening {
  readonly options: ServerOptions;
  readonly tenants: TenantParts;
  readonly services: Services;
  readonly hosted: Hosted | undefined;
  readonly storage: Storage;
}

async function listen(parts: Parts, { options, tenants, services, hosted, storage }: Listening): Promise<Front> {
  const { log, config, clock, database, tenantId } = parts;
  const docs = await openReference({ folder: REFERENCE_FOLDER, version: SERVER_VERSION, routes: ALL_ROWS });
  const byHost = (host: string): string | undefined => hosted?.hosts.tenantOf(host);
  return startFront({
    ...services,
    blobs: storage.blobs,
    transfers: storage.transfers,
    config,
    sharePort: options.sharePort ?? false,
    meter: parts.meter,
    clock,
    log,
    version: SERVER_VERSION,
    resolveTenant: options.resolveTenant ?? (tenantId === null ? byHost : () => tenantId),
    hosting: hosted?.hosting,
    billing: hosted?.billing,
    epoch: () => database.history.epoch,
    tenants: tenants.registry,
    items: tenants.items,
    presence: tenants.presence,
    docs,
  });
}
