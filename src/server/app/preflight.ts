/**
 * Checks before the start, before anything is created: a port in use, a folder that is not writable, a database that
 * refuses the connection. Their messages tell the operator what to do.
 */
import { constants, existsSync } from 'node:fs';
import { access, stat, statfs } from 'node:fs/promises';
import { dirname } from 'node:path';
import { portOf, type Config } from '../config/config.js';
import { hasCluster, probePort } from '../storage/embedded/process.js';
import {
  awaitsStandby,
  databaseIdentity,
  STATEMENT_TIMEOUT_MS,
  unfitSettings,
  withClient,
} from '../storage/database.js';
import { describeHosts, hostsOf, type DatabaseHosts } from '../storage/database-hosts.js';
import { migrate, MigrationError } from '../storage/migrate.js';
import { untestedLibrary } from '../http/library.js';
import { errorCode } from '../../protocol/error-code.js';
import { percentDecoded } from '../../protocol/percent.js';
import { SQL_FOLDER } from '../../root.js';

/** The server cannot start; the message says why, and what to do. */
export class StartError extends Error {
  override readonly name = 'StartError';
}

/** `application_name` of the connections that check the database. */
const NAME = 'service start';
/** `withClient` has no time limit by default. */
const LIMITED = { statementTimeoutMs: STATEMENT_TIMEOUT_MS };
const MIB = 1024 * 1024;
/** Disk space of a new cluster with its first WAL segments. */
const NEW_CLUSTER_BYTES = 200 * MIB;
/** One WAL segment: PostgreSQL does not start with less. */
const FREE_BYTES = 16 * MIB;

/** All checks. Resolves with warnings. Throws `StartError`, or `MigrationError` for a database of another version. */
export async function preflight(config: Config): Promise<string[]> {
  const strange = untestedLibrary();
  if (strange !== undefined && config.uwsStrict === 'on')
    throw new StartError(`${strange} Install what package-lock.json names (npm ci), or set UWS_STRICT to off.`);
  const { host, metricsHost, metricsPort, instances } = config;
  for (const port of new Set(Array.from({ length: instances }, (_, n) => portOf(config, n))))
    await checkPort(host, port, ['HOST', 'PORT']);
  for (let n = 0; metricsPort > 0 && n < instances; n++)
    await checkPort(metricsHost, metricsPort + n, ['METRICS_HOST', 'METRICS_PORT']);
  await checkDataDir(config);
  const warnings = await checkDatabase(config);
  return strange === undefined ? warnings : [strange, ...warnings];
}

/** `of`: the names of the variables that configure it. */
async function checkPort(host: string, port: number, of: readonly [host: string, port: string]): Promise<void> {
  try {
    await probePort(host, port);
  } catch (error) {
    const [hostName, portName] = of;
    const code = errorCode(error);
    const unknown = `${hostName}: the name ${host} is not known on this machine (${code}). Set ${hostName} to an address of this machine.`;
    const texts: Readonly<Record<string, string>> = {
      EADDRINUSE: `${portName}: port ${port} of ${host} is in use by another program. Stop that one, or set ${portName} to a free port.`,
      EADDRNOTAVAIL: `${hostName}: ${host} is not an address of this machine. Set ${hostName} to one that is, or to 0.0.0.0 for all of them.`,
      EACCES: `${portName}: port ${port} may not be opened by this user. Set ${portName} to 1024 or more and put a proxy before it, or give the program the right (CAP_NET_BIND_SERVICE).`,
      ENOTFOUND: unknown,
      EAI_AGAIN: unknown,
    };
    const other = `${hostName}, ${portName}: the server cannot listen on ${host} port ${port} (${code}).`;
    throw new StartError(texts[code] ?? other, { cause: error });
  }
}

/** Checks that DATA_DIR, or its nearest parent that exists, is a writable folder with enough space. */
async function checkDataDir(config: Config): Promise<void> {
  const { dataDir, databaseUrl, tokenSecret, storageKind } = config;
  const embedded = databaseUrl === null;
  if (!embedded && tokenSecret !== null && storageKind !== 'local') return;
  let folder = dataDir;
  while (!existsSync(folder) && dirname(folder) !== folder) folder = dirname(folder);
  const another = 'or set DATA_DIR to another folder.';
  try {
    if (!(await stat(folder)).isDirectory())
      throw new StartError(`DATA_DIR: ${folder} is a file, and the data need a folder. Move it away, ${another}`);
    await access(folder, constants.W_OK | constants.X_OK);
  } catch (error) {
    if (error instanceof StartError) throw error;
    const why = `DATA_DIR: the user of this process may not write to ${folder} (${errorCode(error)}).`;
    throw new StartError(`${why} Give it to that user, ${another}`, { cause: error });
  }
  const { bavail, bsize } = await statfs(folder);
  const [free, needed] = [bavail * bsize, embedded && !hasCluster(dataDir) ? NEW_CLUSTER_BYTES : FREE_BYTES];
  if (free >= needed) return;
  const room = `${Math.floor(free / MIB)} MiB free, and the server needs ${needed / MIB}`;
  throw new StartError(`DATA_DIR: the disk of ${folder} has ${room}. Make room, ${another}`);
}

/**
 * Connects once, and checks the migrations without applying any; then checks the connection through the pooler, if
 * there is one. Resolves with warnings.
 */
async function checkDatabase({ databaseUrl, listenDatabaseUrl }: Config): Promise<string[]> {
  if (databaseUrl === null) return [];
  const direct = listenDatabaseUrl ?? databaseUrl;
  const name = listenDatabaseUrl === null ? 'DATABASE_URL' : 'LISTEN_DATABASE_URL';
  const warnings = await checkServers(name, hostsOf(direct));
  await orStartError(name, direct, () => migrate({ url: direct, folder: SQL_FOLDER, dryRun: true }));
  if (listenDatabaseUrl !== null) await checkPooler(databaseUrl, listenDatabaseUrl);
  const waits = await orStartError(name, direct, () => withClient(direct, NAME, awaitsStandby, LIMITED));
  return waits ? [...warnings, `${name}: ${AWAITS}`] : warnings;
}

const AWAITS =
  'the database waits for a synchronous standby (synchronous_standby_names), and none is connected: no write is ' +
  'acknowledged until one is.';

/** Checks that several servers are one cluster, of which one takes writes. Resolves with warnings. */
async function checkServers(name: string, hosts: DatabaseHosts): Promise<string[]> {
  if (hosts.servers.length === 1) return [];
  const answers = await hosts.answers();
  const said = `${name}: ${describeHosts(answers)}`;
  if (new Set(answers.map(({ cluster }) => cluster).filter(Boolean)).size > 1)
    throw new StartError(`${said}. They are different clusters: name one and its standbys.`);
  const writable = answers.filter(({ state }) => state === 'writable');
  if (writable.length === 0) throw new StartError(`${said}. Start the primary, or promote a standby.`);
  const newest = Math.max(...writable.map(({ timeline }) => timeline));
  if (writable.filter(({ timeline }) => timeline === newest).length > 1)
    throw new StartError(`${said}, and nothing shows which is the primary. Stop the one that is not.`);
  if (writable.length === 1) return [];
  return [`${said}. Only the newest is used; stop the others, and start them again as standbys.`];
}

/** Runs `work` on the database; its failure becomes a `StartError` that names the variable. */
async function orStartError<T>(name: string, url: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof MigrationError) throw error;
    throw new StartError(`${name}: ${databaseText(error, new URL(hostsOf(url).current))}`, { cause: error });
  }
}

/** Checks that the pooler leads to the same database, and its sessions have the settings that clients cannot send. */
async function checkPooler(url: string, directUrl: string): Promise<void> {
  const identity = await withClient(directUrl, NAME, databaseIdentity, LIMITED);
  const [pooled, lacking] = await orStartError('DATABASE_URL', url, () =>
    withClient(url, NAME, async (client) => [await databaseIdentity(client), await unfitSettings(client)] as const, {
      ...LIMITED,
      pooled: true,
    }),
  );
  if (pooled !== identity)
    throw new StartError('DATABASE_URL and LISTEN_DATABASE_URL lead to different databases. Correct one of them.');
  if (lacking.length === 0) return;
  throw new StartError(
    'DATABASE_URL: sessions behind the pooler lack settings that the server relies on. As the owner or a superuser, run:\n' +
      `${lacking.map((line) => `  ${line}`).join('\n')}\nand RECONNECT in the pooler's console.`,
  );
}

/** The message for an error of the database. It omits the URL, which has the password. */
function databaseText(error: unknown, { host, username, pathname }: URL): string {
  const code = errorCode(error);
  const where = host === '' ? 'the local socket' : host;
  const [user, database] = [percentDecoded(username), percentDecoded(pathname.slice(1))];
  const unknown = `the host of ${where} is not known (${code}). Correct its name, or check this machine's name service.`;
  const silent = `no database listens at ${where} (${code}). Start it, or correct host and port.`;
  const texts: Readonly<Record<string, string>> = {
    ENOTFOUND: unknown,
    EAI_AGAIN: unknown,
    ECONNREFUSED: silent,
    ENOENT: silent,
    '28P01': `the database at ${where} refuses the password of the user "${user}". Correct user and password.`,
    '28000': `the database at ${where} does not admit the user "${user}". Create that user, or allow it in pg_hba.conf.`,
    '3D000': `there is no database "${database}" at ${where}. Create it, or correct its name.`,
    '42501': `the user "${user}" lacks a right in the database "${database}" at ${where}. Make that user the owner of it and of its tables.`,
  };
  const reason = error instanceof Error && error.message !== '' ? error.message : 'no connection';
  // A pooler's sessions do not take `options` at the start; with `pooled` none are sent.
  if (code === '08P01' && reason.includes('startup parameter'))
    return (
      `a pooler answers at ${where}, which gives each transaction another session. Set DATABASE_URL to the pooler, and ` +
      'LISTEN_DATABASE_URL to the database itself.'
    );
  // A server may answer with any code, including `constructor`.
  const known = Object.hasOwn(texts, code) ? texts[code] : undefined;
  return known ?? `the database at ${where} cannot be used: ${reason}${code === '' ? '' : ` (${code})`}.`;
}
