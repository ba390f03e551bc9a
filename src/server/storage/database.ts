/**
 * Connections to PostgreSQL: the pool, single clients with the same settings, and the classification of errors. Other
 * folders import only the types of `pg`.
 */
import type { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { MINUTE_MS } from '../../protocol/clock.js';
import { asError, errorCode } from '../../protocol/error-code.js';
import { unavailable } from '../../protocol/errors.js';
import { hostsOf, notWritable, type DatabaseHosts } from './database-hosts.js';

/** Object ids of PostgreSQL's types. */
const INT8 = 20;
const INT8_ARRAY = 1016;

/** Versions, byte counts and times are int8. Throws a RangeError above 2^53-1, where a Number is not exact. */
export function parseInt8(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value)) throw new RangeError(`int8 ${text} does not fit a safe integer`);
  return value;
}

/** `{1,NULL,3}`: numbers are never quoted or nested, and pg's own parser reads the text character by character. */
function parseInt8Array(text: string): (number | null)[] {
  const entries = text === '{}' ? [] : text.slice(1, -1).split(',');
  return entries.map((entry) => (entry === 'NULL' ? null : parseInt8(entry)));
}

/** int8 as Number instead of pg's string; other types as pg reads them: numeric is a string, so cast sums to bigint. */
const types = new pg.TypeOverrides();
types.setTypeParser(INT8, parseInt8);
types.setTypeParser(INT8_ARRAY, parseInt8Array);

/** How to reach the database. Times are milliseconds. */
interface ConnectionSettings {
  /** `postgres://user:password@host:port/database`, or with several hosts (see `DatabaseHosts`). */
  readonly url: string;
  /** Shown in `pg_stat_activity`. */
  readonly name: string;
  /** A statement that runs longer is cancelled by the server; 0: no limit. Default 15 s. */
  readonly statementTimeoutMs?: number;
  /** How long a connection may take to open. Default 5 s. */
  readonly connectTimeoutMs?: number;
  /** How long after the server's limit the client ends a statement itself. Default 5 s. */
  readonly graceMs?: number;
  /** Creates the socket of each connection (see `CircuitBreaker`). Default: pg's own. */
  readonly link?: () => Duplex;
  /**
   * Reached through a pooler that gives each transaction another session, like PgBouncer in transaction mode: nothing
   * stays set or prepared, and the settings below must be set for the role (`unfitSettings`).
   */
  readonly pooled?: boolean;
}

/** `application_name` of a server's connections, by which the operator's program finds running servers. */
export const CONNECTION_NAMES = { pool: 'service', commit: 'service-commit', listen: 'service-listen' } as const;

/** Default of `statementTimeoutMs`. */
export const STATEMENT_TIMEOUT_MS = 15_000;
const CONNECT_TIMEOUT_MS = 5_000;
/** A half-open connection never answers: the client's timer ends the wait, after the server's, which gives a reason. */
const QUERY_GRACE_MS = 5_000;
const KEEP_ALIVE_MS = 10_000;

/**
 * Every statement here reads few rows through an index. Compiling one takes longer than running it, and a bitmap scan
 * for a page reads the tenant's whole history to sort it: 800 ms instead of 2 ms, measured on a table without
 * statistics.
 */
const PLANNING = { jit: 'off', enable_bitmapscan: 'off' };

/**
 * Settings that a database or role may override, and that guarantees rely on: an acknowledged write is durable, even if
 * a statement on the pool assigned its versions; and a statement after the locking one sees what the previous holder of
 * the lock committed.
 */
const GUARANTEES = { synchronous_commit: 'on', default_transaction_isolation: 'read committed' };

const OPTIONS = Object.entries({ ...PLANNING, ...GUARANTEES })
  .map(([name, value]) => `-c ${name}=${value.replace(' ', '\\ ')}`)
  .join(' ');

/** Settings that connections request when they open, and that a role needs if a pooler passes none on; times in ms. */
const ROLE_SETTINGS: Readonly<Record<string, string>> = {
  ...PLANNING,
  ...GUARANTEES,
  statement_timeout: String(STATEMENT_TIMEOUT_MS),
  idle_in_transaction_session_timeout: String(2 * STATEMENT_TIMEOUT_MS),
};

/** A connection that can only run queries. */
export type Client = Pick<pg.ClientBase, 'query'>;

/** The row of a statement that always returns exactly one. */
export async function rowOf<Row extends pg.QueryResultRow>(
  client: Client,
  text: string,
  values?: unknown[],
): Promise<Row> {
  const [row] = (await client.query<Row>(text, values)).rows;
  if (row === undefined) throw new Error(`no row from: ${text.slice(0, 60)}`);
  return row;
}

/** The one value of the row of a statement that always returns exactly one. */
export const valueOf = async <T>(client: Client, text: string, values?: unknown[]): Promise<T> =>
  Object.values(await rowOf<Record<string, T>>(client, text, values))[0] as T;

/** Identifies the database and its cluster, independent of the address. */
export const databaseIdentity = (client: Client): Promise<string> =>
  valueOf(
    client,
    `SELECT concat_ws('/', c.system_identifier, d.oid)
     FROM pg_control_system() c, pg_database d WHERE d.datname = current_database()`,
  );

/** Whether a table of this name exists: an older schema, or a database that is not set up yet, may lack it. */
export const hasTable = (client: Client, name: string): Promise<boolean> =>
  valueOf(client, 'SELECT to_regclass($1) IS NOT NULL', [name]);

/** Whether commits wait for a synchronous standby while none is connected. */
export const awaitsStandby = (client: Client): Promise<boolean> =>
  valueOf(
    client,
    `SELECT current_setting('synchronous_standby_names') <> '' AND NOT EXISTS (SELECT FROM pg_stat_replication)`,
  );

/** The statements that give the role of a pooled connection the settings it lacks; empty if it has them all. */
export async function unfitSettings(client: Client): Promise<readonly string[]> {
  const { rows } = await client.query<{ name: string; setting: string; role: string; database: string }>(
    `SELECT name, setting, quote_ident(current_user) AS role, quote_ident(current_database()) AS database
     FROM pg_settings WHERE name = ANY ($1)`,
    [Object.keys(ROLE_SETTINGS)],
  );
  return rows
    .filter(({ name, setting }) => setting !== ROLE_SETTINGS[name])
    .map(({ name, role, database }) => {
      return `ALTER ROLE ${role} IN DATABASE ${database} SET ${name} = '${ROLE_SETTINGS[name] ?? ''}';`;
    });
}

/** The configuration of a connection; also for `pg-listen`, which opens its own and changes nothing. */
export function clientConfig(settings: ConnectionSettings): ServiceClientConfig {
  const hosts = hostsOf(settings.url);
  const statementTimeout = settings.statementTimeoutMs ?? STATEMENT_TIMEOUT_MS;
  const sessionSettings = {
    statement_timeout: statementTimeout,
    idle_in_transaction_session_timeout: 2 * statementTimeout,
    options: OPTIONS,
  };
  return {
    hosts,
    // Of several servers, the one that took writes last; `ServiceClient` searches again when it connects.
    connectionString: hosts.current,
    application_name: settings.name,
    connectionTimeoutMillis: settings.connectTimeoutMs ?? CONNECT_TIMEOUT_MS,
    query_timeout: statementTimeout === 0 ? 0 : statementTimeout + (settings.graceMs ?? QUERY_GRACE_MS),
    ...(settings.pooled === true ? {} : sessionSettings),
    keepAlive: true,
    keepAliveInitialDelayMillis: KEEP_ALIVE_MS,
    types,
    ...(settings.link === undefined ? {} : { stream: settings.link }),
  };
}

interface PoolSettings extends ConnectionSettings {
  /** Maximum number of connections. Default 10, as the driver's; the embedded server admits 60 in total. */
  readonly size?: number;
  /** An idle connection is closed after this time, ms; 0: never. Default a minute. */
  readonly idleMs?: number;
  /** Called for every connection that is lost, for the log; the pool opens another by itself. */
  readonly onIdleError: (error: Error) => void;
  /** Runs on each new connection before its first use; a connection for which it fails is not used. */
  readonly onConnect?: (client: pg.ClientBase) => Promise<void>;
}

const IDLE_MS = MINUTE_MS;

/** Configuration of a `ServiceClient`: pg passes on properties that it does not know. */
interface ServiceClientConfig extends pg.ClientConfig {
  readonly hosts: DatabaseHosts;
}

/** How long a connection that is ended may take to close. */
const CLOSED_WITHIN_MS = 3_000;

/** SQLSTATE transaction_resolution_unknown. */
const UNRESOLVED = '08007';

/** Connects to the server that takes writes, and fails commits that lack their synchronous standby. */
class ServiceClient extends pg.Client {
  private readonly hosts: DatabaseHosts;
  private url: string;

  constructor(config: ServiceClientConfig) {
    super(config);
    this.hosts = config.hosts;
    this.url = config.hosts.current;
    this.on('error', () => this.hosts.failed(this.url));
    this.on('notice', ({ routine }) => {
      // Unlike the text, the routine's name is not translated.
      if (routine === 'SyncRepWaitForLSN') this.rejectCommit();
    });
  }

  override connect(): Promise<pg.Client>;
  override connect(callback: (error: Error | null, client?: pg.Client) => void): void;
  override connect(callback?: (error: Error | null, client?: pg.Client) => void): Promise<pg.Client> {
    const connected = this.connectWritable();
    if (callback !== undefined)
      connected.then(
        (client) => callback(null, client),
        (error: unknown) => callback(asError(error)),
      );
    return connected;
  }

  /** Ends the connection. One whose other side does not close it, as behind a broken network, is cut off. */
  override end(): Promise<void>;
  override end(callback: (error: Error) => void): void;
  override end(callback?: (error: Error) => void): Promise<void> | undefined {
    const { stream } = this.connection as unknown as { readonly stream: Duplex };
    const cut = setTimeout(() => stream.destroy(), CLOSED_WITHIN_MS).unref();
    stream.once('close', () => clearTimeout(cut));
    if (callback === undefined) return super.end();
    super.end(callback);
    return undefined;
  }

  /** Connects to the server that takes writes, if the URL names several. */
  private async connectWritable(): Promise<pg.Client> {
    const { hosts } = this;
    if (!hosts.writable) return super.connect();
    this.url = await hosts.choose();
    const { hostname, port } = new URL(this.url);
    // The servers of a list differ only in host and port.
    const address = { host: hostname.replace(/^\[(.*)\]$/, '$1'), port: port === '' ? 5432 : Number(port) };
    if (hosts.servers.length > 1) Object.assign(this, address);
    try {
      await super.connect();
      const { rows } = await this.query<{ transaction_read_only: string }>('SHOW transaction_read_only');
      // Also without a row, as a broken pooler answers: the next connection may reach another server.
      if (rows[0]?.transaction_read_only === 'off') return this;
      throw notWritable(`${address.host}:${address.port}`);
    } catch (error) {
      hosts.failed(this.url);
      void this.end().catch(() => undefined);
      throw error;
    }
  }

  /**
   * PostgreSQL gave up waiting for the synchronous standby: the transaction is committed here, and the only sign is a
   * warning, followed by success. The commit is lost if the standby is promoted, so the statement must not succeed.
   */
  private rejectCommit(): void {
    const error = new Error('the database committed without its synchronous standby');
    // At once: the success message follows the warning, perhaps in the same packet.
    (this.connection as unknown as NodeJS.EventEmitter).emit('error', Object.assign(error, { code: UNRESOLVED }));
    void this.end().catch(() => undefined);
  }
}

/** Prepares nothing, since the next transaction gets another session. */
class PooledClient extends ServiceClient {
  constructor(config: ServiceClientConfig) {
    super(config);
    const query = this.query.bind(this) as (first: unknown, ...rest: unknown[]) => unknown;
    this.query = ((first: unknown, ...rest: unknown[]) => query(unnamed(first), ...rest)) as pg.Client['query'];
  }
}

/** A statement without its name; a query object of our own is returned unchanged. */
function unnamed(statement: unknown): unknown {
  if (typeof statement !== 'object' || statement === null || 'submit' in statement) return statement;
  return { ...statement, name: undefined };
}

/**
 * A pool that survives the loss of any connection.
 * A caller of `connect()` must `release(error)` after a failure, so that a broken client is not reused; `pool.query`
 * does so itself.
 */
export function createPool(settings: PoolSettings): pg.Pool {
  const pool = new pg.Pool({
    // The pool passes its own settings on to its clients.
    ...clientConfig(settings),
    Client: (settings.pooled === true ? PooledClient : ServiceClient) as unknown as typeof pg.Client,
    max: settings.size,
    idleTimeoutMillis: settings.idleMs ?? IDLE_MS,
    // The pool waits for the promise; its type does not say so.
    onConnect: settings.onConnect as pg.PoolConfig['onConnect'],
  });
  // The pool listens only to idle connections. One that is lost while checked out emits 'error' too, besides rejecting
  // its statement; without a listener of its own that would end the process.
  pool.on('connect', (client) => client.on('error', settings.onIdleError));
  // Errors of idle connections, which the listener above has reported; without one here they would end the process.
  pool.on('error', () => undefined);
  return pool;
}

/**
 * Ends a pool. Resolves when its connections are closed; the pool's own `end` does not wait for that, and a database
 * stopped next would end them itself, so that each would be reported as a loss.
 */
export async function endPool(pool: pg.Pool): Promise<void> {
  let open = pool.totalCount;
  const closed = new Promise<void>((resolve) => {
    if (open === 0) resolve();
    pool.on('remove', () => {
      if (--open <= 0) resolve();
    });
  });
  await pool.end();
  // A connection that hangs never closes, and is not waited for.
  await Promise.race([closed, sleep(CLOSED_WITHIN_MS, undefined, { ref: false })]);
}

/**
 * A single connection outside the pool (a commit lane, a lock). `onLost` is called at most once, when it ends
 * unexpectedly; statements under way are also rejected.
 */
export async function openClient(
  settings: ConnectionSettings & { readonly onLost: (error: Error) => void },
): Promise<pg.Client> {
  const client = new ServiceClient(clientConfig(settings));
  let opened = false;
  // pg emits 'error' for an unexpected end, whatever was under way, and sometimes more than once.
  client.on('error', (error) => {
    if (!opened) return; // the rejection of `connect` reports it
    opened = false;
    settings.onLost(error);
  });
  try {
    await client.connect();
  } catch (error) {
    // Half-open: end it, so that its socket does not keep the process alive. The connection failure is the one thrown.
    await client.end().catch(() => undefined);
    throw error;
  }
  opened = true;
  return client;
}

/**
 * Gives `work` a connection, by default without a statement time limit, and ends it after. A loss rejects statements
 * under way.
 */
export async function withClient<T>(
  url: string,
  name: string,
  work: (client: pg.Client) => Promise<T>,
  more: Pick<ConnectionSettings, 'statementTimeoutMs' | 'pooled'> = {},
): Promise<T> {
  const client = await openClient({ url, name, statementTimeoutMs: 0, ...more, onLost: () => undefined });
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}

/** Gives `work` a connection of the pool. As in `pool.query`, one on which anything failed is not reused. */
export async function withPooled<T>(pool: pg.Pool, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await pool.connect();
  let failed = true;
  try {
    const result = await work(client);
    failed = false;
    return result;
  } finally {
    client.release(failed);
  }
}

/** Runs `work` in a transaction, which is rolled back if it fails. */
export async function inTransaction(client: pg.ClientBase, work: () => Promise<void>): Promise<void> {
  await client.query('BEGIN');
  try {
    await work();
    await client.query('COMMIT');
  } catch (error) {
    // If this fails too, the connection is gone and the transaction with it; the first error is the one to report.
    await client.query('ROLLBACK').catch(() => undefined);
    throw error;
  }
}

const SOCKET_ERRORS =
  /^(ECONNREFUSED|ECONNRESET|ECONNABORTED|EPIPE|ETIMEDOUT|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH)$/;
/** Failed (08), ended by the administrator, by a crash, still starting, or by an idle limit. */
const ENDED_STATES = /^(08...|57P01|57P02|57P03|57P05|25P03)$/;
/** No connection is accepted: unknown role, wrong password, no such database, or one that takes no connections now. */
const REFUSED_STATES = /^(28000|28P01|3D000|55000)$/;
/** This process or machine has no file descriptor, port or memory left for a connection. */
const EXHAUSTED_ERRORS = /^(EMFILE|ENFILE|ENOBUFS|EADDRNOTAVAIL)$/;
/**
 * Out of resources (53), a system error (58), cancelled, locked out past a time limit, read-only, or no room for notifications
 * (54000; of no statement here is anything else too large).
 */
const UNABLE_STATES = /^(53...|58...|57014|55P03|25006|54000)$/;
/** pg's own errors carry no code; these are their texts in pg 8 and pg-pool 3. */
const LOSS_TEXTS = [
  'Connection terminated',
  'Query read timeout',
  'timeout exceeded when trying to connect',
  'timeout expired',
  'Client has encountered a connection error',
  'Client was closed',
];

/**
 * Whether the connection failed, rather than the statement: then the outcome of a commit under way is unknown,
 * and another connection may succeed.
 */
export function isConnectionLoss(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const code = errorCode(error);
  if (SOCKET_ERRORS.test(code) || ENDED_STATES.test(code)) return true;
  return LOSS_TEXTS.some((text) => error.message.startsWith(text));
}

/** Whether the database is currently unable to work. The caller answers 503 `unavailable`, not 500. */
export function isUnavailable(error: unknown): boolean {
  if (isConnectionLoss(error)) return true;
  const code = errorCode(error);
  return REFUSED_STATES.test(code) || EXHAUSTED_ERRORS.test(code) || UNABLE_STATES.test(code);
}

/** Whether another transaction held a lock for longer than `lock_timeout`: nothing was done. */
export const isLockTimeout = (error: unknown): boolean => errorCode(error) === '55P03';

/** Deadlock or serialization failure: nothing was done, and the same transaction may succeed at once. */
export function isRetryable(error: unknown): boolean {
  const code = errorCode(error);
  return code === '40P01' || code === '40001';
}

const CALLS_MAX = 5;
const RETRY_BASE_MS = 5;
const RETRY_MAX_MS = 500;

/**
 * Calls `work` until it succeeds, waiting 5, 10, 20 ... ms in between (each reduced by up to half at random, so that
 * competing callers separate).
 * @param retryable whether to call again after an error; include `isConnectionLoss` only for idempotent work.
 * @param wait waits before the next call; replaced in tests.
 */
export async function withRetry<T>(
  work: () => Promise<T>,
  retryable: (error: unknown) => boolean = isRetryable,
  wait: (ms: number) => Promise<void> = sleep,
): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if (attempt >= CALLS_MAX || !retryable(error)) throw error;
      const longest = Math.min(RETRY_MAX_MS, RETRY_BASE_MS * 2 ** (attempt - 1));
      await wait(longest * (0.5 + Math.random() / 2));
    }
  }
}

/**
 * The same error, or `unavailable` (503) with it as the cause if the database is currently unable to work. If the
 * connection was lost, it is unknown whether the statement was executed: the client may retry.
 */
export function asUnavailable(error: unknown): unknown {
  if (!isUnavailable(error) && !isRetryable(error)) return error;
  return Object.assign(unavailable('the database is out of reach'), { cause: error });
}
