/**
 * A real server for black-box tests: in this process, so that a clock can be handed in and the log read, or as a
 * child process, so that it can be killed.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { pino } from 'pino';
import tap from 'tap';
import { startServer, type Server } from '../../src/server/app/server.js';
import { readConfig } from '../../src/server/config/config.js';
import { openClient } from '../../src/server/storage/database.js';
import type { Clock } from '../../src/protocol/clock.js';
import { soon } from './events.js';
import { fitForPooler, PgBouncer } from './pgbouncer.js';
import {
  PATIENT,
  preparedFolder,
  temporaryFolder,
  testDatabase,
  type TestDatabase,
  type WithTeardown,
} from './postgres.js';
import { Wire } from './wire.js';

/** The library's own limit for a whole file, half a minute, is too little on a busy machine; test/run.ts gives another. */
tap.setTimeout(Number(process.env['TAP_TIMEOUT'] ?? 600) * 1_000);

export const ADMIN_TOKEN = 'admin-token-of-the-tests';
export const TOKEN_SECRET = 'token-secret-of-the-tests-0123456789';

/** The night of test servers is half a day away, so that no test meets it for the hour at which it runs. */
const NIGHT = new Date(Date.now() + 12 * 3_600_000);
const PURGE_AT = [NIGHT.getHours(), NIGHT.getMinutes()].map((part) => String(part).padStart(2, '0')).join(':');

/** Environment of a test server: rates are off, secrets are set, nothing is left to chance. */
const DEFAULTS: Readonly<Record<string, string>> = {
  HOST: '127.0.0.1',
  PORT: '0',
  TOKEN_SECRET,
  ADMIN_TOKEN,
  RATE_READ_PER_S: '0',
  RATE_WRITE_PER_S: '0',
  RATE_PAIR_PER_MIN: '0',
  // Sockets of tests answer no ping: however long a busy machine takes, they are not to be taken for dead.
  WS_PONG_GRACE_MS: '3600000',
  LOG_LEVEL: 'debug',
  PURGE_AT,
};

export interface RunOptions {
  /** Variables beside the defaults; an empty one is as unset. */
  readonly env?: Readonly<Record<string, string>>;
  readonly clock?: Clock;
  /** Left out: a fresh database of this test. Given: an instance beside others, or a restart. */
  readonly database?: Pick<TestDatabase, 'url'>;
  /** The folder in which it is linked to other instances of this machine. */
  readonly siblings?: string;
  /** The tenant of a host name; left out: one tenant, whatever the host. */
  readonly resolveTenant?: (host: string) => string | undefined;
}

export type LogLine = Readonly<Record<string, unknown>>;

/** A running server, its wire and what lies behind it. */
export interface Running {
  readonly port: number;
  readonly wire: Wire;
  readonly databaseUrl: string;
  readonly tenantId: string;
  /** What it has logged, parsed, oldest first. */
  readonly logs: readonly LogLine[];
  /** Rows of a statement, on a connection of its own. */
  sql(text: string, values?: readonly unknown[]): Promise<Record<string, unknown>[]>;
  /** Once; also called by the test's teardown. */
  stop(graceMs?: number): Promise<void>;
}

/** Runs one statement on a database. */
export async function runSql(
  url: string,
  text: string,
  values: readonly unknown[] = [],
): Promise<Record<string, unknown>[]> {
  const client = await openClient({ ...PATIENT, url, name: 'tests', onLost: () => undefined });
  try {
    return (await client.query<Record<string, unknown>>(text, [...values])).rows;
  } finally {
    await client.end();
  }
}

/** Where TEST_POOLER is set, each server reaches its database through a pooler of its own. */
export const POOLED = (process.env['TEST_POOLER'] ?? '') !== '';

/** How a server reaches a database. */
async function addressesOf(t: WithTeardown, url: string): Promise<Readonly<Record<string, string>>> {
  const direct = { DATABASE_URL: url };
  if (url === '' || !POOLED) return direct;
  await fitForPooler(url);
  return (await PgBouncer.before(t, url)).env;
}

/** Starts a server in this process and stops it after the test. */
export async function runServer(t: WithTeardown, options: RunOptions = {}): Promise<Running> {
  const database = options.database ?? (await testDatabase(t));
  const dataDir = options.env?.['DATA_DIR'] ?? (await temporaryFolder(t));
  const addresses = await addressesOf(t, database.url);
  const config = readConfig({ ...DEFAULTS, DATA_DIR: dataDir, ...addresses, ...options.env });
  const logs: LogLine[] = [];
  const log = pino(
    { level: config.logLevel },
    { write: (line: string) => void logs.push(JSON.parse(line) as LogLine) },
  );
  const { clock, resolveTenant, siblings } = options;
  const server: Server = await startServer({
    config,
    log,
    siblings,
    ...(clock === undefined ? {} : { clock }),
    ...(resolveTenant === undefined ? {} : { resolveTenant }),
  });
  const wire = new Wire(server.port);
  let stopping: Promise<void> | undefined;
  const stop = async (graceMs = 0): Promise<void> => {
    stopping ??= (async () => {
      const closed = server.close(graceMs);
      wire.close();
      await closed;
    })();
    return stopping;
  };
  t.teardown(async () => stop());
  return {
    port: server.port,
    wire,
    databaseUrl: database.url,
    tenantId: server.tenantId ?? '',
    logs,
    sql: async (text, values) => runSql(database.url, text, values),
    stop,
  };
}

/** The compiled entry point. */
const MAIN = fileURLToPath(new URL('../../src/server/main.js', import.meta.url));
const START_MAX_MS = 60_000;

export interface Child {
  readonly port: number;
  readonly wire: Wire;
  readonly process: ChildProcess;
  readonly databaseUrl: string;
  readonly dataDir: string;
  /** What it wrote to standard output and standard error so far. */
  readonly output: readonly string[];
  /** Sends a signal and waits for the end; answers the exit code, or the signal that ended it. */
  end(signal: NodeJS.Signals): Promise<number | NodeJS.Signals | null>;
}

export interface SpawnOptions extends Pick<RunOptions, 'env' | 'database'> {
  readonly dataDir?: string;
  /** With its own PostgreSQL under `dataDir` instead of a test database. */
  readonly embedded?: boolean;
  /** Arguments of Node, with the program; left out: this build's server. */
  readonly node?: readonly string[];
}

/** Starts a server as a child process and kills it after the test. Rejects with its output when it does not start. */
export async function spawnServer(t: WithTeardown, options: SpawnOptions = {}): Promise<Child> {
  const databaseUrl = options.embedded === true ? '' : (options.database ?? (await testDatabase(t))).url;
  const dataDir =
    options.dataDir ?? (options.embedded === true ? await preparedFolder(t) : join(await temporaryFolder(t), 'data'));
  const addresses = await addressesOf(t, databaseUrl);
  const env = { PATH: process.env['PATH'], ...DEFAULTS, ...addresses, DATA_DIR: dataDir, ...options.env };
  const child = spawn(process.execPath, options.node ?? [MAIN], { env, stdio: ['ignore', 'pipe', 'pipe'] });
  const output: string[] = [];
  const exited = once(child, 'exit').then(([code, signal]) => (signal ?? code) as number | NodeJS.Signals | null);
  const end = async (signal: NodeJS.Signals): Promise<number | NodeJS.Signals | null> => {
    if (child.exitCode === null && child.signalCode === null) child.kill(signal);
    try {
      return await soon(exited, () => `the end after ${signal}:\n${output.join('\n')}`);
    } catch (error) {
      child.kill('SIGKILL');
      throw error;
    }
  };
  t.teardown(() => end('SIGTERM'));
  const port = await new Promise<number>((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no start in time:\n${output.join('\n')}`)), START_MAX_MS);
    const take = (line: string): void => {
      output.push(line);
      const found = /listening on http:\/\/[\w.]+:(\d+)/.exec(line);
      if (found === null) return;
      clearTimeout(timer);
      resolve(Number(found[1]));
    };
    createInterface({ input: child.stdout }).on('line', take);
    createInterface({ input: child.stderr }).on('line', (line) => output.push(line));
    void exited.then((code) => {
      clearTimeout(timer);
      reject(new Error(`ended with ${String(code)} before it listened:\n${output.join('\n')}`));
    });
  });
  const wire = new Wire(port);
  t.teardown(() => wire.close());
  return { port, wire, process: child, databaseUrl, dataDir, output, end };
}

/**
 * Takes a database away from its clients: their connections end, and no new one is let in. Answers a function that
 * gives it back.
 */
export async function databaseDown(url: string): Promise<() => Promise<void>> {
  const name = new URL(url).pathname.slice(1);
  const admin = new URL(url);
  admin.pathname = '/postgres';
  await runSql(admin.href, `ALTER DATABASE ${name} ALLOW_CONNECTIONS false`);
  await runSql(admin.href, 'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1', [name]);
  return async () => {
    await runSql(admin.href, `ALTER DATABASE ${name} ALLOW_CONNECTIONS true`);
  };
}
