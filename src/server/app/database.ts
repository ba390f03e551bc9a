/** Opens the database: external or embedded, migrated, every connection checked for the history it belongs to. */
import type pg from 'pg';
import type { Logger } from 'pino';
import { sessionDatabaseUrl, type Config } from '../config/config.js';
import type { Clock } from '../../protocol/clock.js';
import { keptSecret } from '../config/secrets.js';
import { CONNECTION_NAMES, createPool, endPool, openClient, valueOf, withPooled } from '../storage/database.js';
import { hostsOf } from '../storage/database-hosts.js';
import { EmbeddedPostgres } from '../storage/embedded/embedded.js';
import { EpochGuard } from '../storage/epoch-guard.js';
import { migrate } from '../storage/migrate.js';
import { CircuitBreaker } from '../storage/circuit-breaker.js';
import { takeTurns } from '../storage/query.js';
import { SQL_FOLDER } from '../../root.js';
import { repeated } from '../../protocol/single-flight.js';
import type { Stop } from './lifecycle.js';

const POOL_SIZE = 11;

/**
 * Interval of the checks for a failover that broke no connection, ms: behind a pooler the history is compared, and
 * where DATABASE_URL names several servers, all of them are queried.
 */
const LOOK_MS = 5_000;

/** An open database. */
export type Database = Awaited<ReturnType<typeof openDatabase>>;

/** The callbacks of the database. The last two are set once it is open, since they call the tenants, which need it. */
export interface DatabaseHooks {
  /** The stops of what was opened are added here. */
  readonly stops: Stop[];
  readonly onFault: (error: unknown) => void;
  /** A connection found another history: the database was restored or failed over. */
  onOtherHistory: () => void;
  /** It is reachable again after an outage: what other instances committed in the meantime is unknown here. */
  onBack: () => void;
}

/** Opens the database. Rejects with `MigrationError`, or the error of the connection. */
export async function openDatabase(config: Config, log: Logger, clock: Clock, hooks: DatabaseHooks) {
  const url = config.databaseUrl ?? (await startEmbedded(config, log, hooks.stops));
  // Bypasses a pooler, for connections that need a session of their own.
  const sessionUrl = sessionDatabaseUrl(config) ?? url;
  // Whether the connections of the pool and of the lanes go through a transaction pooler.
  const pooled = config.listenDatabaseUrl !== null;
  const report = await migrate({ url: sessionUrl, folder: SQL_FOLDER });
  if (report.applied.length > 0) log.info({ applied: report.applied }, 'migrated');
  if (report.altered.length > 0) log.warn({ altered: report.altered }, 'migrations differ from the ones applied');
  const history = new EpochGuard((epoch) => {
    log.warn({ epoch }, 'the database has another history: all sockets start again');
    // Older connections may lead to a server whose history ended: nothing may be read or written there any more.
    breaker.cut();
    hooks.onOtherHistory();
  });
  const breaker: CircuitBreaker = new CircuitBreaker({
    url,
    pooled,
    onChange(within, cause) {
      if (within) log.warn('the database answers again');
      else log.error({ cause: String(cause) }, 'the database does not answer: its connections are cut');
      if (within) hooks.onBack();
    },
  });
  const { link } = breaker;
  const settings = {
    ...{ url, link, pooled, name: CONNECTION_NAMES.pool, onIdleError: hooks.onFault },
    onConnect: (client: pg.ClientBase) => history.check(client),
  };
  const pool = createPool({ ...settings, size: POOL_SIZE });
  takeTurns(pool, config.tenantMode === 'multi');
  // One connection that stays open, for heartbeats and notifications: where the pool has to open another one on a busy
  // machine, they would fail, and every other instance would compare all of its heads with the database.
  const feedPool = createPool({ ...settings, size: 1, idleMs: 0 });
  hooks.stops.push(
    () => endPool(pool),
    () => endPool(feedPool),
    () => breaker.close(),
  );
  // See `NoticeMac`.
  const noticeKey = await valueOf<Uint8Array>(pool, 'SELECT key FROM notice_key');
  breaker.start();
  const { onFault } = hooks;
  const hosts = hostsOf(url);
  const compare = (): Promise<void> => withPooled(pool, (client) => history.check(client));
  if (pooled) hooks.stops.push(repeated(clock, LOOK_MS, () => compare().catch(onFault)));
  if (hosts.servers.length > 1) hooks.stops.push(repeated(clock, LOOK_MS, () => hosts.refresh().catch(onFault)));
  return {
    ...{ pool, feedPool, history, noticeKey, sessionUrl, pooled, link },
    /** A connection for a commit lane. `onLost` is called at most once, when the connection is lost. */
    async openLane(onLost: (error: Error) => void): Promise<pg.Client> {
      const client = await openClient({ url, link, pooled, name: CONNECTION_NAMES.commit, onLost });
      try {
        await history.check(client);
        return client;
      } catch (error) {
        await client.end().catch(hooks.onFault);
        throw error;
      }
    },
  };
}

/** Starts the PostgreSQL under DATA_DIR with additional `settings`. Resolves with its URL; adds its stop to `stops`. */
export async function startEmbedded(
  { dataDir }: Config,
  log: Logger,
  stops: Stop[],
  settings: Readonly<Record<string, string>> = {},
): Promise<string> {
  const embedded = await EmbeddedPostgres.start({
    ...{ dataDir, settings },
    password: await keptSecret(dataDir, 'database-password'),
    onLog: (level, message) => log[level]({ from: 'postgres' }, message),
  });
  stops.push(() => embedded.stop());
  return embedded.url;
}
