/** A server: constructs its parts and connects them, subject by subject, starts them in order, and stops them. */
import { availableParallelism, hostname } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import type { Logger } from 'pino';
import { ulid } from 'ulid';
import { nodePasswordHasher, nodeSodium } from '../../crypto/sodium-node.js';
import { type Clock, MINUTE_MS, systemClock } from '../../protocol/clock.js';
import { HEAD_COMPARE_MS } from '../../protocol/limits.js';
import { repeated } from '../../protocol/single-flight.js';
import { REFERENCE_FOLDER, RELEASE, SERVER_VERSION, WEB_FOLDER } from '../../root.js';
import { Checkout } from '../billing/checkout.js';
import { BillingStore } from '../billing/store.js';
import { SWEEP_MS, Webhooks } from '../billing/webhooks.js';
import { Bins } from '../bins/bins.js';
import { BinStore } from '../bins/store.js';
import { Blobs } from '../blobs/blobs.js';
import type { LocalStore } from '../blobs/objects/local.js';
import type { ObjectStore } from '../blobs/ports.js';
import { Reaper } from '../blobs/reaper.js';
import { BlobStore } from '../blobs/store.js';
import { Transfers } from '../blobs/transfers.js';
import { apexOf, apexUrl, publicHosts, tenantUrl, type Config } from '../config/config.js';
import { fingerprintOf, serverSecrets } from '../config/secrets.js';
import { Passwords, Reauthentication, Tickets } from '../devices/credentials.js';
import { Devices } from '../devices/devices.js';
import { Bootstrap, Recovery, type ForeignHost } from '../devices/enrolment.js';
import { AccountStore } from '../devices/store.js';
import { TenantHosts } from '../hosting/hosts.js';
import { Signup } from '../hosting/signup.js';
import { HostingStore } from '../hosting/store.js';
import { AddressLimits } from '../http/address-limits.js';
import { describe } from '../http/fail.js';
import { tokenIssuer, verifyToken } from '../http/tokens.js';
import { Metrics } from '../ops/metrics.js';
import { Nightly } from '../ops/nightly.js';
import { nightlyJobs, PostgresJobTurn, type Job } from '../ops/store.js';
import { Pairing } from '../pairing/pairing.js';
import { PairingStore } from '../pairing/store.js';
import { descriptorRoom } from '../realtime/descriptors.js';
import { startListening, type Listener } from '../realtime/server.js';
import { ChangeFeed } from '../storage/change-feed.js';
import { PostgresCommitLanes } from '../storage/commit/lanes.js';
import { hostsOf } from '../storage/database-hosts.js';
import { clientConfig, CONNECTION_NAMES, valueOf } from '../storage/database.js';
import { PostgresItemLog } from '../storage/item-log.js';
import { PostgresKeyPurger } from '../storage/key-purger.js';
import { Presence } from '../storage/presence.js';
import { UNAUTHENTICATED } from '../storage/query.js';
import { RateStore } from '../storage/rate-store.js';
import type { DrainOrder, InstanceStatus } from '../storage/registration.js';
import { PostgresTenantLoader } from '../storage/tenant-loader.js';
import { TenantRegistry } from '../tenant/registry.js';
import { blobJobs } from './blobs.js';
import { openDocs, openWebApp } from './built.js';
import { openDatabase, type Database, type DatabaseHooks } from './database.js';
import { orStop, runStops, type Stop } from './lifecycle.js';
import { localStore, openBucket } from './object-store.js';
import { StartError } from './preflight.js';
import { rowsOf, type App } from './route-table.js';

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
  /** Whether a device has claimed it; of several instances, when they started. False in multi mode. */
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

/** What every part is constructed from. */
interface Parts {
  readonly log: Logger;
  readonly config: Config;
  readonly clock: Clock;
  readonly database: Database;
  readonly instanceId: string;
  /** Of the links to other instances of this machine; undefined: there are none. */
  readonly linkFolder: string | undefined;
  readonly secret: Uint8Array;
  /** Signs the URLs of the local blob store. */
  readonly blobUrlSecret: string;
  /** Of these two, for the other instances. */
  readonly fingerprint: string;
  /** Run in reverse order when the server stops. */
  readonly stops: Stop[];
  readonly onFault: (error: unknown, tenantId?: string) => void;
  /** The one tenant of single mode; null in multi mode. */
  readonly tenantId: string | null;
  /** Undefined: METRICS_PORT is unset. */
  readonly meter: Metrics | undefined;
}

/**
 * Starts all parts. On failure the parts that were started are stopped again; errors of these stops are logged, and the
 * error of the start is thrown.
 */
export async function startServer(options: ServerOptions): Promise<Server> {
  const stops: Stop[] = [];
  const onFault = (fault: unknown): void => options.log.error({ cause: describe(fault) }, 'a part did not stop');
  return orStop(stops, () => compose(options, stops), onFault);
}

/**
 * Tenants that the other TENANT_MODE made cannot be reached. With the variable forgotten, every host of a hosted service
 * would lead to its oldest tenant: then the server does not start.
 */
async function checkMode(multi: boolean, pool: pg.Pool, log: Logger): Promise<void> {
  const other = multi ? 'slug IS NULL AND claimed_at IS NOT NULL' : 'slug IS NOT NULL';
  if (!(await valueOf<boolean>(pool, `SELECT EXISTS (SELECT FROM tenants WHERE ${other})`))) return;
  const advice = 'Set TENANT_MODE as it was, or use another database.';
  if (!multi)
    throw new StartError(`TENANT_MODE is single, and this database has tenants with names of their own. ${advice}`);
  log.warn(`TENANT_MODE is multi, and no host leads to the tenant of a single server in this database. ${advice}`);
}

async function compose(options: ServerOptions, stops: Stop[]): Promise<Server> {
  const { config, log, clock = systemClock } = options;
  const secrets = await serverSecrets(config);
  const instanceId = ulid();
  const onFault = (error: unknown, tenantId?: string): void =>
    log.error({ cause: describe(error), instanceId, ...(tenantId ? { tenantId } : {}) }, 'background fault');

  const hooks: DatabaseHooks = { stops, onFault, onOtherHistory: nothing, onBack: nothing };
  const database = await openDatabase(config, log, clock, hooks);
  const multi = config.tenantMode === 'multi';
  await checkMode(multi, database.pool, log);
  const tenantId = multi ? null : await new AccountStore(database.pool).singleTenant(clock.now());
  const secret = new TextEncoder().encode(secrets.tokenSecret);
  const { metricsPort: port, metricsHost: host } = config;
  const meter = port === 0 ? undefined : new Metrics({ host, port, version: SERVER_VERSION, onFault });
  const { blobUrlSecret } = secrets;
  const parts: Parts = {
    ...{ log, config, clock, database, instanceId, secret, blobUrlSecret, fingerprint: fingerprintOf(secrets) },
    ...{ stops, onFault, tenantId, meter, linkFolder: options.siblings || undefined },
  };

  const tenants = composeTenants(parts);
  followDatabase(hooks, tenants);
  // Stopped after all parts that change tenants, which are constructed later, and before the database.
  stops.push(() => tenants.feed.close());
  stops.push(() => tenants.registry.close());
  const services = composeServices(parts, tenants);
  tenants.hooks.onChange = (tenant) => services.pairing.changed(tenant);
  await tenants.feed.start();
  const hosting = multi ? await composeHosting(parts, tenants, services) : undefined;
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
      return (closing ??= runStops(stops));
    },
  };
}

/** What the tenants do when the database has changed. */
function followDatabase(hooks: DatabaseHooks, tenants: Tenants): void {
  hooks.onOtherHistory = () => {
    tenants.registry.restart();
    tenants.hooks.onOtherHistory();
  };
  hooks.onBack = () => void tenants.registry.compareHeads();
}

/** Serves the metrics where METRICS_PORT is set. */
async function serveMetrics({ log, config, stops, meter }: Parts, { registry, lanes }: Tenants, front: Listener) {
  if (meter === undefined) return;
  meter.observe({
    sockets: () => front.sockets,
    calls: () => front.calls,
    held: () => front.held(),
    actors: () => registry.actors.size,
    pending_changes: () => lanes.waiting,
    admission_waiting: () => front.admission.waiting,
    admission_rate: () => front.admission.rate,
    draining: () => Number(front.draining),
  });
  const listening = await meter.listen();
  stops.push(() => listening.close());
  log.info({ port: listening.port, host: config.metricsHost }, 'metrics');
}

/** What the application is made of, beside `Parts`. */
interface AppParts {
  readonly options: ServerOptions;
  readonly tenants: Tenants;
  readonly services: Services;
  readonly hosting: Awaited<ReturnType<typeof composeHosting>> | undefined;
  readonly blobs: Awaited<ReturnType<typeof composeBlobs>>;
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
    ...{ ...services, ...RELEASE, config, meter: parts.meter, clock, log, docs, web },
    blobs: blobs.blobs,
    transfers: blobs.transfers,
    resolveTenant: options.resolveTenant ?? tenantId ?? byHost,
    hosting: hosting?.hosts,
    signup: hosting?.signup,
    ...hosting?.billing,
    epoch: () => database.history.epoch,
    tenants: tenants.registry,
    items: tenants.items,
    presence: tenants.presence,
    ready: () => !tenants.hooks.front.draining,
  };
  const room = descriptorRoom(clock);
  return startListening(rowsOf(app), app, { sharePort: options.siblings !== undefined, room });
}

/** With four cores two commit lanes commit 1.6 times as much as one, and a third adds nothing (bench S1). */
const LANES = { lanes: 2, spareCores: availableParallelism() >= 4 };

/** Callbacks that are set by parts constructed later. */
interface Hooks {
  /** Devices, bins or pairings of the tenant changed, on any instance. */
  onChange: (tenantId: string) => void;
  /** Another instance sent a notification of the tenant, which may be unknown here. */
  onHint: (tenantId: string) => void;
  /** The database has another history. */
  onOtherHistory: () => void;
  /** The operator orders a drain. */
  onDrain: (order: DrainOrder) => void;
  /** The listener, as soon as it listens. */
  front: Pick<InstanceStatus, 'port' | 'sockets' | 'draining'>;
}

const nothing = (): void => undefined;

/** The actors of an instance, and the parts they depend on. */
type Tenants = ReturnType<typeof composeTenants>;

/** The tenants' actors, and what they write to and read from. `registry` and `feed` are to be started by the caller. */
function composeTenants(parts: Parts) {
  const { config, clock, database, instanceId, linkFolder, fingerprint: secrets, stops, onFault, meter } = parts;
  const { pool, feedPool, history, noticeKey, pooled } = database;
  const items = new PostgresItemLog(pool, meter);
  const lanes = new PostgresCommitLanes({
    connect: (onLost) => database.openLane(onLost),
    prepares: !pooled,
    ...LANES,
    storageCap: config.storageCapBytes,
    wait: (ms) => sleep(ms),
    ...{ history, clock, onFault, meter },
  });
  stops.push(() => lanes.close());
  const purger = new PostgresKeyPurger(pool, onFault, clock);
  stops.push(() => purger.close());
  const hooks: Hooks = {
    ...{ onChange: nothing, onHint: nothing, onOtherHistory: nothing, onDrain: nothing },
    front: { port: 0, sockets: 0, draining: false },
  };
  const notify = (tenantId: string): void => {
    hooks.onChange(tenantId);
    hooks.onHint(tenantId);
  };
  const feed: ChangeFeed = new ChangeFeed({
    ...{ instanceId, pool: feedPool, prepares: !pooled, noticeKey, linkFolder, clock, onFault, meter },
    epoch: () => history.epoch,
    connection: () => listenConfig(database),
    onHint: (tenant, head, generation) => {
      registry.headHint(tenant, head, generation);
      notify(tenant);
    },
    onChange: (tenant, generation, carried) => {
      registry.published(tenant, generation, carried);
      notify(tenant);
    },
    tenants: () => registry.tenantsWithSockets(),
    onGap: () => void registry.compareHeads(),
    onOthers: () => presence.announceAll(),
    status: () => {
      const { port, sockets, draining } = hooks.front;
      return { host: hostname(), pid: process.pid, version: SERVER_VERSION, port, sockets, draining, secrets };
    },
    onDrain: (order) => hooks.onDrain(order),
  });
  const registry: TenantRegistry = new TenantRegistry({
    ...{ history, lanes, purger, onFault, clock, meter },
    log: items,
    loader: new PostgresTenantLoader(pool, clock, onFault),
    announcer: feed,
  });
  const presence = new Presence({
    ...{ instanceId, pool, clock, onFault },
    local: (tenant) => registry.actors.get(tenant)?.onlineDevices() ?? new Set(),
    tenants: () => registry.tenantsWithSockets(),
    othersUp: () => feed.othersUp,
  });
  stops.push(() => presence.close());
  return { registry, items, lanes, feed, presence, hooks };
}

type Services = ReturnType<typeof composeServices>;

/** Settings of the LISTEN connection, to the server that takes writes now. */
async function listenConfig({ sessionUrl: url, link }: Database): Promise<ReturnType<typeof clientConfig>> {
  // If no server takes writes, the connection fails, and its retry calls this again.
  await hostsOf(url)
    .choose()
    .catch(() => undefined);
  return clientConfig({ url, name: CONNECTION_NAMES.listen, link });
}

/**
 * The services of a tenant other than its items: devices, bins, password, pairing and recovery. A change of a device, bin
 * or pairing notifies the tenant's actor and `hooks.onChange`.
 */
function composeServices({ log, config, clock, database, secret, stops, onFault }: Parts, tenants: Tenants) {
  const { pool } = database;
  const { registry, presence, hooks } = tenants;
  const { maxDevices, bootstrapToken } = config;
  const store = new AccountStore(pool);
  // Anybody can send any number of calls that need no token: a tenant's own must not wait for them.
  const unauthenticatedStore = new AccountStore(pool, UNAUTHENTICATED);
  const changed = async (tenant: string): Promise<void> => {
    await registry.changed(tenant);
    hooks.onChange(tenant);
  };
  const reset = async (tenant: string): Promise<void> => {
    await registry.reset(tenant);
    hooks.onChange(tenant);
  };
  const issueToken = tokenIssuer({ secret, ttlMs: config.tokenTtlMs, clock });
  const tickets = new Tickets({ secret, clock, store });
  const devices = new Devices({ store, clock, changed, online: (tenant) => presence.online(tenant), onFault });
  stops.push(() => devices.close());
  const bins = new Bins({ store: new BinStore(pool), clock, changed, onFault });
  stops.push(() => bins.close());
  const rates = { clock, perMinute: config.ratePairPerMin };
  const joins = { store: unauthenticatedStore, clock, issueToken, tickets, maxDevices, changed, onFault };
  const onForeignHost = (mismatch: ForeignHost): void =>
    log.warn(mismatch, 'recovery refused: it was signed for a host that is not this server');
  return {
    verifyToken: (token: string, now: number) => verifyToken(secret, token, now),
    issueToken,
    tickets,
    devices,
    bootstrap: new Bootstrap({ ...joins, bootstrapToken, claimTokens: config.tenantMode === 'multi', reset }),
    reauth: new Reauthentication({ ...joins, sodium: nodeSodium }),
    recovery: new Recovery({ ...joins, sodium: nodeSodium, publicHosts: publicHosts(config), onForeignHost }),
    passwords: new Passwords({ store, unauthenticatedStore, clock, hasher: nodePasswordHasher, tickets }),
    pairing: new Pairing({
      ...joins,
      store: new PairingStore(pool),
      unauthenticatedStore: new PairingStore(pool, UNAUTHENTICATED),
    }),
    bins,
    addressLimits: new AddressLimits({ ...rates, store: new RateStore(pool, UNAUTHENTICATED) }),
    deviceLimits: new AddressLimits({ ...rates, store: new RateStore(pool, 'limits') }),
    identities: store,
  };
}

/** An active upload writes more often than this; an older temporary file was left by a process that died, ms. */
const QUIET_MS = 2 * MINUTE_MS;

/**
 * Opens the configured blob store, without a request to it: the server also starts while the store is unreachable.
 * `transfers` is undefined where clients reach the store directly.
 */
async function composeBlobs(parts: Parts) {
  const { config, log, clock, database, blobUrlSecret: secret, stops } = parts;
  const { storageKind, maxBlobBytes: maxBytes, storageCapBytes: capBytes } = config;
  const rows = new BlobStore(database.pool);
  const local = storageKind === 'local' ? localStore(config, secret) : undefined;
  const store: ObjectStore = local ?? (await openBucket(config, log));
  stops.push(() => Promise.resolve(store.close?.()));
  const blobs = new Blobs({ store, rows, clock, maxBytes, capBytes });
  const jobs = blobJobs(new Reaper(store, database.pool, database.sessionUrl, clock), {
    onRefused: ({ job, refused, fault }) => {
      const cause: unknown = fault?.cause;
      const why = cause instanceof Error ? cause.message : undefined;
      log.warn({ job, objects: refused, why }, 'the store refuses blobs that are to be removed');
    },
    onCompared: ({ missing, examples, foreign }) => {
      if (missing > 0) log.error({ missing, examples }, 'blobs are missing in the store');
      if (foreign > 0)
        log.warn({ objects: foreign }, 'the store holds objects of tenants that this database never had');
    },
  });
  // Undefined where the store does not know its address, and so cannot sign URLs either.
  const origin = await store.origin().catch((error: unknown) => {
    log.warn({ cause: describe(error) }, "the web app cannot reach the bucket: its store's address is not known");
    return undefined;
  });
  if (local === undefined) return { blobs, transfers: undefined, jobs, origin };
  const transfers = new Transfers({ files: local, rows, clock, secret, onFault: parts.onFault });
  keepSwept(parts, local);
  stops.push(() => transfers.close());
  return { blobs, transfers, jobs, origin };
}

/** Removes temporary files of uploads whose process died, at start and periodically. */
function keepSwept({ clock, stops, onFault }: Parts, local: LocalStore): void {
  // The system's time, which the files' timestamps have, and not that of an injected clock.
  const sweep = (): Promise<void> => local.sweep(Date.now(), QUIET_MS).then(() => undefined, onFault);
  const first = sweep();
  stops.push(() => first);
  stops.push(repeated(clock, QUIET_MS, sweep));
}

/**
 * Tenants by host name, signup and billing, which is undefined where PAYMENT_BILLING_ENABLED is false. Reads the table of
 * names; rejects with `unavailable`.
 */
async function composeHosting(
  parts: Parts,
  { registry, feed, hooks }: Tenants,
  { addressLimits, issueToken }: Services,
) {
  const { config, clock, database, stops, onFault } = parts;
  const store = new HostingStore(database.pool);
  const hosts = new TenantHosts({
    ...{ store, clock, baseDomain: apexOf(config), onFault },
    onFreed: (tenant) => registry.forget(tenant),
    takeCertificate: (slug) => addressLimits.takeCertificate(slug),
  });
  await hosts.start();
  // In reverse order: once closed, a read that still waits runs no statement.
  stops.push(repeated(clock, HEAD_COMPARE_MS, () => hosts.refresh()));
  stops.push(() => hosts.close());
  hooks.onHint = (tenant) => hosts.hint(tenant);
  hooks.onOtherHistory = () => void hosts.restart();
  const urlOf = (slug: string): string => tenantUrl(config, slug);
  const changed = (tenant: string): Promise<void> => registry.changed(tenant);
  const billing = await composeBilling(parts, urlOf, changed);
  const announce = (tenant: string): void => feed.announce(tenant, 0, 0);
  const signup = new Signup({
    ...{ hosts, clock, urlOf, announce, issueToken, onFault },
    // In a line of their own: they wait for each other's lock, which the nightly job holds too.
    store: new HostingStore(database.pool, 'signups'),
    maxDevices: config.maxDevices,
    checkout: billing?.checkout,
  });
  return { hosts, signup, billing };
}

/** A variable that the configuration has checked already (src/server/config/config.ts, `conflicts`). */
function given(value: string | null): string {
  if (value === null) throw new Error('billing is on without the settings that it needs');
  return value;
}

/** `changed`: the tenant's state changed; reads it again here and notifies the other instances. */
async function composeBilling(
  { config, log, clock, database, secret, stops, onFault }: Parts,
  urlOf: (slug: string) => string,
  changed: (tenantId: string) => Promise<void>,
) {
  if (!config.paymentBillingEnabled) return undefined;
  // In a line of their own: events of one customer wait for each other, and no device for them.
  const store = new BillingStore(database.pool, 'billing');
  // Loaded only where it is used: Stripe's library takes 20 MB and a tenth of a second.
  const { StripePayments } = await import('../billing/stripe.js');
  const payments = new StripePayments({
    secretKey: given(config.paymentSecretKey),
    webhookSecret: given(config.paymentWebhookSecret),
    priceId: given(config.paymentPriceId),
    apiBase: config.paymentApiBase,
  });
  const onUnknown = (event: object): void =>
    log.warn(event, 'a payment event for a customer who is not a tenant here (yet)');
  const webhooks = new Webhooks({
    ...{ store, payments, clock, onUnknown, changed, onFault },
    graceMs: config.paymentGraceMs,
  });
  stops.push(repeated(clock, SWEEP_MS, () => webhooks.sweep()));
  stops.push(() => webhooks.close());
  const checkout = new Checkout({ store, payments, clock, secret, apexUrl: apexUrl(config), urlOf });
  return { webhooks, checkout };
}

/** Starts the nightly jobs: those of the database, and `more`. */
async function composeNightly(
  { log, config, clock, database, stops, onFault }: Parts,
  more: readonly Job[],
): Promise<void> {
  const { pool, sessionUrl } = database;
  const nightly = new Nightly({
    jobs: [...nightlyJobs({ pool, now: () => clock.now(), softDeleteMs: config.softDeleteMs }), ...more],
    turn: new PostgresJobTurn(pool, sessionUrl),
    clock,
    at: config.purgeAt,
    onReport: (report) => log.info(report, 'nightly job'),
    onFault,
  });
  await nightly.start();
  stops.push(() => nightly.close());
}
