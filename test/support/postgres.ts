/**
 * Databases for tests. Each test has a fresh one, copied from a template with the migrated schema, on one server that
 * all test files share: TEST_DATABASE_ADMIN_URL, which the test runner sets. A file run on its own starts a server.
 */
import { execFile } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { chmod, mkdtemp, readdir, readFile, rm, statfs } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type pg from 'pg';
import { keptSecret } from '../../src/server/config/secrets.js';
import { createPool, openClient } from '../../src/server/storage/database.js';
import { findBinaries, type Binaries } from '../../src/server/storage/embedded/binaries.js';
import { EmbeddedPostgres } from '../../src/server/storage/embedded/embedded.js';
import { clusterFolder, initialise, type Cluster } from '../../src/server/storage/embedded/process.js';
import { databaseUser } from '../../src/server/storage/embedded/user.js';
import { migrate } from '../../src/server/storage/migrate.js';
import { errorCode } from '../../src/protocol/error-code.js';
import { SQL_FOLDER } from '../../src/root.js';

/** What of a test is used here. */
export interface WithTeardown {
  teardown(done: () => unknown): void;
}

/** A database of one test. */
export interface TestDatabase {
  readonly url: string;
  /** Called by the test's teardown; fails when the test left a connection open. */
  drop(): Promise<void>;
}

/** For connections of the tests themselves: a server must answer soon, a test need not be told so by its tools. */
export const PATIENT = { connectTimeoutMs: 60_000, statementTimeoutMs: 60_000 } as const;

const PARENT_MODE = 0o755;
/** SQLSTATE object_in_use. */
const IN_USE = '55006';
const FALLBACK_TIMEOUT_MS = 300_000;

/** A new folder, which the database's user can enter (mkdtemp closes it to others). */
export async function newFolder(parent = tmpdir()): Promise<string> {
  const folder = await mkdtemp(join(parent, 'service-test-'));
  await chmod(folder, PARENT_MODE);
  return folder;
}

/** The same, removed after the test. Register it before what uses the folder: teardowns run last first. */
export async function temporaryFolder(t: WithTeardown, parent?: string): Promise<string> {
  const folder = await newFolder(parent);
  t.teardown(async () => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  return folder;
}

/** A pool of connections, closed after the test. */
export function poolOf(t: WithTeardown, url: string, more: { readonly size?: number } = {}): pg.Pool {
  const pool = createPool({ url, name: 'tests', onIdleError: () => undefined, ...more });
  t.teardown(() => pool.end());
  return pool;
}

const run = promisify(execFile);

/** Its password in a data folder, kept there as a server keeps it. */
export const databasePassword = (dataDir: string): Promise<string> => keptSecret(dataDir, 'database-password');

/** The cluster of a data folder, whether it is made already or not. */
export async function clusterIn(dataDir: string): Promise<Cluster> {
  const folder = await clusterFolder(dataDir);
  const user = await databaseUser(folder);
  return { dataDir, folder, logFile: join(dataDir, 'postgres.log'), binaries: await findBinaries(dataDir, user), user };
}

/** Makes a cluster in a data folder, as a server does at its first start: three seconds of a processor. */
async function makeCluster(dataDir: string): Promise<Binaries> {
  const cluster = await clusterIn(dataDir);
  await initialise(cluster, await databasePassword(dataDir), true);
  return cluster.binaries;
}

const copyFolder = async (from: string, to: string): Promise<unknown> => run('cp', ['-a', `${from}/.`, to]);

/** A data folder whose cluster is made already: a copy of the one in TEST_CLUSTER, where the test runner gave one. */
export async function preparedFolder(t: WithTeardown): Promise<string> {
  const dataDir = await temporaryFolder(t);
  const made = process.env['TEST_CLUSTER'];
  await (made === undefined || made === '' ? makeCluster(dataDir) : copyFolder(made, dataDir));
  return dataDir;
}

const withDatabase = (url: string, name: string): string => {
  const changed = new URL(url);
  changed.pathname = `/${name}`;
  return changed.href;
};

/** A file system in memory, on Linux. */
const IN_MEMORY = '/dev/shm';
/** The shared server keeps below 2 GiB: the log has at most 1 GiB, a database 9 MiB. */
const ROOM_MIN_BYTES = 4 * 1024 ** 3;

/**
 * Where the shared server's files lie: in memory where there is room. Each of its many databases is three hundred
 * files, which a file system on a disk makes and removes with several times the processor that their bytes take.
 */
export async function serverParent(): Promise<string> {
  const found = await statfs(IN_MEMORY).catch(() => undefined); // other systems have none
  return found !== undefined && found.bavail * found.bsize >= ROOM_MIN_BYTES ? IN_MEMORY : tmpdir();
}

/**
 * A test server: nothing in it has to survive, so it does not flush. Durability tests start their own. `cluster`: a data
 * folder with a cluster that never ran, for copies.
 */
export async function startTestServer(onLog: (message: string) => void) {
  const [dataDir, cluster] = [await newFolder(await serverParent()), await newFolder()];
  const remove = async (): Promise<void> => {
    for (const folder of [dataDir, cluster]) await rm(folder, { recursive: true, force: true, maxRetries: 5 });
  };
  try {
    const binaries = await makeCluster(cluster); // not looked for in memory, where programs may not be run
    await copyFolder(cluster, dataDir);
    const password = await databasePassword(dataDir);
    const server = await EmbeddedPostgres.start({
      ...{ dataDir, binaries, password },
      onLog: (_, message) => onLog(message),
      // No database lives long enough for the processes that tidy up.
      settings: { fsync: 'off', full_page_writes: 'off', autovacuum: 'off', max_connections: '200' },
    });
    await withAdmin(server.url, (client) => client.query(quicklyProven(password)));
    const stop = async (): Promise<void> => {
      await server.stop();
      await remove();
    };
    return { adminUrl: withDatabase(server.url, 'postgres'), cluster, stop };
  } catch (error) {
    await remove();
    throw error;
  }
}

/**
 * The same password, proven with one round of its hash instead of 4,096: each of a test's many connections pays for them.
 */
const quicklyProven = (password: string): string =>
  `SET scram_iterations = 1; ALTER ROLE CURRENT_USER PASSWORD '${password}'`;

async function withAdmin<T>(adminUrl: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  let lost: Error | undefined;
  const client = await openClient({
    url: adminUrl,
    ...PATIENT,
    name: 'tests',
    onLost: (error) => {
      lost = error;
    },
  });
  try {
    const result = await work(client);
    if (lost !== undefined) throw lost;
    return result;
  } finally {
    await client.end();
  }
}

/** Any number; all test processes use it. */
const TEMPLATE_LOCK = 7_265_763_900;

/** The name of the template for these migrations. */
async function templateName(): Promise<string> {
  const hash = createHash('sha256');
  for (const name of (await readdir(SQL_FOLDER)).sort())
    hash.update(name).update(await readFile(join(SQL_FOLDER, name)));
  return `template_${hash.digest('hex').slice(0, 16)}`;
}

const exists = async (client: pg.Client, database: string): Promise<boolean> =>
  (await client.query('SELECT 1 FROM pg_database WHERE datname = $1', [database])).rowCount !== 0;

/**
 * The template's name: made once per server and set of migrations, by whoever comes first. It is migrated under
 * another name, so that a template that exists is whole.
 */
export async function ensureTemplate(adminUrl: string): Promise<string> {
  const template = await templateName();
  await withAdmin(adminUrl, async (client) => {
    await client.query('SELECT pg_advisory_lock($1)', [TEMPLATE_LOCK]);
    if (await exists(client, template)) return;
    await client.query(`DROP DATABASE IF EXISTS ${template}_new WITH (FORCE)`);
    await client.query(`CREATE DATABASE ${template}_new`);
    await migrate({ url: withDatabase(adminUrl, `${template}_new`), folder: SQL_FOLDER });
    await client.query(`ALTER DATABASE ${template}_new RENAME TO ${template}`);
  });
  return template;
}

let ready: Promise<{ adminUrl: string; template: string }> | undefined;

/** The shared server, or one of this process that ends with its last test. */
async function adminUrlOf(): Promise<string> {
  const given = process.env['TEST_DATABASE_ADMIN_URL'];
  if (given !== undefined && given !== '') return given;
  // Imported here only: whoever imports tap becomes a test with a time limit, and the runner uses this file too.
  const { default: tap } = await import('tap');
  tap.setTimeout(FALLBACK_TIMEOUT_MS); // past its 30 s the process is killed, and would leave the server behind
  const server = await startTestServer((message) => tap.comment(message));
  tap.teardown(async () => server.stop());
  return server.adminUrl;
}

/** A connection that may keep the process alive, or not; pg's types do not have what its client has. */
type Kept = pg.Client & { ref(): void; unref(): void };
let kept: Promise<Kept> | undefined;
/** Works under way on it. */
let working = 0;

/** As `withAdmin`, on a connection that this process keeps from one database to the next: its tests make many. */
async function withKept<T>(adminUrl: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const forget = (): void => void (kept = undefined);
  kept ??= openClient({ url: adminUrl, ...PATIENT, name: 'tests', onLost: forget }) as Promise<Kept>;
  const client = await kept.catch((error: unknown) => {
    forget();
    throw error;
  });
  if (working++ === 0) client.ref();
  try {
    return await work(client);
  } finally {
    if (--working === 0) client.unref();
  }
}

async function shared(): Promise<{ adminUrl: string; template: string }> {
  ready ??= adminUrlOf().then(async (adminUrl) => {
    const template = await templateName();
    const there = await withKept(adminUrl, (client) => exists(client, template));
    return { adminUrl, template: there ? template : await ensureTemplate(adminUrl) };
  });
  return ready;
}

/** Tries of 5 s to drop a database whose connections are closing. */
const DROP_TRIES = 4;

/** Waits for connections that are closing; on a busy machine that may take longer than PostgreSQL's own 5 s. */
async function dropClosing(client: pg.Client, name: string): Promise<void> {
  for (let tried = 1; ; tried++) {
    try {
      await client.query(`DROP DATABASE IF EXISTS ${name}`);
      return;
    } catch (error) {
      if (tried === DROP_TRIES || errorCode(error) !== IN_USE) throw error;
    }
  }
}

/** Drops a database. A connection that a test left open is its leak: it fails with what that connection did last. */
async function drop(adminUrl: string, name: string): Promise<void> {
  await withKept(adminUrl, async (client) => {
    try {
      await dropClosing(client, name);
    } catch (error) {
      const { rows } = await client.query<{ application_name: string; query: string }>(
        'SELECT application_name, query FROM pg_stat_activity WHERE datname = $1',
        [name],
      );
      await client.query(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`);
      const left = rows.map((row) => `${row.application_name}: ${row.query.slice(0, 120)}`).join('; ');
      throw new Error(`the test left ${rows.length} database connections open: ${left}`, { cause: error });
    }
  });
}

/**
 * A database of this test alone, dropped after it.
 * @param from `template` (default): with the server's schema; `empty`: without any table.
 */
export async function testDatabase(t: WithTeardown, from: 'template' | 'empty' = 'template'): Promise<TestDatabase> {
  const { adminUrl, template } = await shared();
  const name = `test_${randomBytes(8).toString('hex')}`;
  const source = from === 'empty' ? 'template0' : template;
  // Copied as files: through the log, PostgreSQL's default, it takes twice the processor.
  const create = `CREATE DATABASE ${name} TEMPLATE ${source} STRATEGY file_copy`;
  await withKept(adminUrl, async (client) => client.query(create));
  let dropped: Promise<void> | undefined;
  const dropOnce = async (): Promise<void> => {
    dropped ??= drop(adminUrl, name);
    return dropped;
  };
  t.teardown(dropOnce);
  return { url: withDatabase(adminUrl, name), drop: dropOnce };
}
