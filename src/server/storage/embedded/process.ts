/** Processes of the embedded PostgreSQL: creates the cluster, starts the postmaster, finds one that already runs. */
import { spawn } from 'node:child_process';
import { randomBytes, randomInt } from 'node:crypto';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { createServer, type AddressInfo } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { FILE_MODE, FOLDER_MODE, syncFolder } from '../../../files/durable.js';
import { ifThere } from '../../../files/there.js';
import { systemClock, within } from '../../../protocol/clock.js';
import { SERVICE_NAME } from '../../../protocol/limits.js';
import { removeLeftovers, type Binaries } from './binaries.js';
import { run, type SystemUser } from './user.js';

/** Database superuser and owner of everything. */
export const DATABASE_USER: string = SERVICE_NAME;

/** A cluster, and what runs it. */
export interface Cluster {
  readonly dataDir: string;
  /** `dataDir`/postgres with links resolved, as the postmaster names it. */
  readonly folder: string;
  readonly logFile: string;
  readonly binaries: Binaries;
  readonly user: SystemUser | null;
}

/**
 * The environment of the database's processes: without libpq's variables, which would influence them, and without the
 * server's secrets, which they do not need.
 */
function childEnvironment(): NodeJS.ProcessEnv {
  const kept = Object.entries(process.env).filter(([name]) => !/^PG|SECRET|TOKEN|PASSWORD|KEY|DATABASE_URL/.test(name));
  return { ...Object.fromEntries(kept), LC_ALL: 'C', TZ: 'UTC' };
}

/** The error output of a failed program, or the error's message. */
function reason(error: unknown): string {
  const output = error instanceof Error && 'stderr' in error ? String(error.stderr).trim() : '';
  return output === '' && error instanceof Error ? error.message : output;
}

/**
 * Whether the folder contains a cluster. False for an empty folder, such as a freshly mounted volume: initdb's result
 * may be renamed over it.
 */
export const isCluster = (folder: string): boolean => existsSync(join(folder, 'PG_VERSION'));

/** Folder of a complete cluster of a new major version, while the old one is moved aside. */
export const upgradedFolder = (dataDir: string): string => join(dataDir, 'postgres.upgraded');

/** Whether `dataDir` has a cluster, be it one whose upgrade was interrupted between its last two renames. */
export const hasCluster = (dataDir: string): boolean =>
  isCluster(join(dataDir, 'postgres')) || isCluster(upgradedFolder(dataDir));

/**
 * Puts the new cluster in the place of the old one if an upgrade was killed between its last two renames. Without this
 * a start would find no cluster and create an empty one.
 */
export async function finishUpgrade(dataDir: string): Promise<void> {
  const folder = join(dataDir, 'postgres');
  if (isCluster(folder) || !isCluster(upgradedFolder(dataDir))) return;
  try {
    await fs.rename(upgradedFolder(dataDir), folder);
  } catch (error) {
    // Another start that found the same state was faster.
    if (!isCluster(folder)) throw error;
  }
  await syncFolder(dataDir);
}

/**
 * Creates the cluster in a folder of another name and renames it into place, so that `folder` is complete or absent.
 * Of two simultaneous starts the slower one finds the name taken and uses the other's. `quick`: without fsync.
 */
export async function initialise(cluster: Cluster, password: string, quick: boolean): Promise<void> {
  const { dataDir, folder, binaries, user } = cluster;
  if (isCluster(folder)) return;
  await removeLeftovers(dataDir, /^postgres\.init-(\d+)-/);
  const initFolder = join(dataDir, `postgres.init-${process.pid}-${randomBytes(4).toString('hex')}`);
  const made = join(initFolder, 'data');
  const passwordFile = join(initFolder, 'password');
  try {
    await fs.mkdir(initFolder, { mode: FOLDER_MODE });
    await fs.mkdir(made, { mode: FOLDER_MODE });
    await fs.writeFile(passwordFile, `${password}\n`, { mode: FILE_MODE });
    if (user !== null) for (const path of [passwordFile, made, initFolder]) await fs.chown(path, user.uid, user.gid);
    const own = [`--pgdata=${made}`, `--username=${DATABASE_USER}`, `--pwfile=${passwordFile}`];
    const all = ['--auth=scram-sha-256', '--encoding=UTF8', '--locale=C', '--data-checksums', '--no-instructions'];
    const flags = [...own, ...all, ...(quick ? ['--no-sync'] : [])];
    await run(binaries.initdb, flags, { ...user, cwd: initFolder, env: childEnvironment() });
    await fs.rename(made, folder);
    await syncFolder(dataDir);
  } catch (error) {
    if (!isCluster(folder))
      throw new Error(`PostgreSQL could not be set up in ${dataDir}. ${reason(error)}`, { cause: error });
  } finally {
    await fs.rm(initFolder, { recursive: true, force: true });
  }
}

/**
 * The name of the program that this process runs; undefined if it is dead. So is a zombie: a postmaster whose server was
 * killed may have no parent that reaps it, as in a container, and would seem alive for ever.
 */
async function programOf(pid: number): Promise<string | undefined> {
  if (process.platform === 'linux') {
    try {
      const line = await fs.readFile(`/proc/${pid}/stat`, 'utf8');
      const end = line.lastIndexOf(')');
      return /^ [ZX]/.test(line.slice(end + 1)) ? undefined : line.slice(line.indexOf('(') + 1, end);
    } catch {
      return undefined; // no such process, or it ended during the read
    }
  }
  try {
    return (await run('ps', ['-o', 'comm=', '-p', String(pid)])).stdout.trim() || undefined;
  } catch {
    return undefined; // `ps` fails for a process that does not exist
  }
}

/** Whether this process is a postmaster running on this folder. The process id may have been reused since. */
async function isPostmasterOf(pid: number, folder: string): Promise<boolean> {
  if (!/postgres$/.test((await programOf(pid)) ?? '')) return false;
  try {
    if (process.platform === 'linux') return (await fs.readlink(`/proc/${pid}/cwd`)) === folder; // its working folder
    return (await run('ps', ['-o', 'command=', '-p', String(pid)])).stdout.includes(` -D ${folder} `);
  } catch {
    return false; // it has ended, or belongs to another user, who could not run on this folder
  }
}

/** Below the range that systems use for outgoing connections, one of which could take the port during a restart. */
const PORT_MIN = 20_000;
const PORT_MAX = 32_000;
const PORT_TRIES = 50;

/**
 * Binds the port briefly and exclusively, so it also fails next to a server that shares its port. Resolves with the
 * port; for port 0, with a free one.
 */
export async function probePort(host: string, port: number): Promise<number> {
  const probe = createServer().listen({ host, port, exclusive: true });
  await once(probe, 'listening');
  const { port: bound } = probe.address() as AddressInfo;
  probe.close();
  await once(probe, 'close');
  return bound;
}

/** A free port of this machine for a postmaster. */
export async function freePort(): Promise<number> {
  for (let tried = 0; tried < PORT_TRIES; tried++) {
    const port = randomInt(PORT_MIN, PORT_MAX);
    if ((await probePort('127.0.0.1', port).catch(() => 0)) === port) return port;
  }
  throw new Error(`No free port between ${PORT_MIN} and ${PORT_MAX} on 127.0.0.1 for the embedded PostgreSQL.`);
}

/** A postmaster: a child process, or one left by an earlier server. */
export interface Postmaster {
  readonly pid: number;
  readonly port: number;
  isAlive(): Promise<boolean>;
  /** Waits at most this long for the process to end; resolves with whether it has. */
  ended(withinMs: number): Promise<boolean>;
}

const POLL_MS = 50;

/** The postmaster named in `postmaster.pid` if it runs on this folder; else null. */
export async function runningPostmaster(folder: string): Promise<Postmaster | null> {
  const pidFile = join(folder, 'postmaster.pid');
  const lines = (await ifThere(() => fs.readFile(pidFile, 'utf8')))?.split('\n');
  if (lines === undefined) return null;
  const [pid, port] = [Number(lines[0]), Number(lines[3])];
  if (!Number.isSafeInteger(pid) || pid <= 1) return null;
  const isAlive = (): Promise<boolean> => isPostmasterOf(pid, folder);
  if (!(await isAlive())) {
    await removeStale(pidFile, pid);
    return null;
  }
  const ended = async (withinMs: number): Promise<boolean> => {
    // Not a child process: there is no event to wait for.
    for (let waited = 0; waited < withinMs && (await isAlive()); waited += POLL_MS) await sleep(POLL_MS);
    return !(await isAlive());
  };
  return { pid, port, isAlive, ended };
}

/**
 * Removes a `postmaster.pid` whose process id is in use but cannot be the postmaster. PostgreSQL only checks whether
 * the id can be signalled, and then refuses to start: if another process has the id since, or if the killed postmaster
 * is a zombie that has not been reaped. Removing the file is safe: the cluster's shared memory, found by the folder,
 * still guards against a second postmaster.
 */
async function removeStale(pidFile: string, pid: number): Promise<void> {
  try {
    process.kill(pid, 0);
  } catch {
    return; // unused, or of a process that PostgreSQL may not signal: it treats the file as stale itself
  }
  const now = await ifThere(() => fs.readFile(pidFile, 'utf8'));
  // Another server's postmaster may have written its own meanwhile.
  if (now !== undefined && Number(now.split('\n')[0]) === pid) await fs.rm(pidFile, { force: true });
}

const LOG_MAX_BYTES = 4 * 1024 * 1024;
const LOG_MODE = 0o640;

/**
 * Opens the log for appending. A file and not a pipe: the postmaster outlives a killed server, and writing a line to a
 * pipe without a reader would end it. One older log is kept.
 */
async function openLog(path: string): Promise<fs.FileHandle> {
  if (existsSync(path) && (await fs.stat(path)).size > LOG_MAX_BYTES) await fs.rename(path, `${path}.1`);
  return fs.open(path, 'a', LOG_MODE);
}

const SETTINGS: Readonly<Record<string, string>> = {
  listen_addresses: '127.0.0.1',
  unix_socket_directories: '',
  max_connections: '60',
  shared_buffers: '128MB',
  fsync: 'on',
  synchronous_commit: 'on',
  // While recovering from a backup it refuses connections, which are retried, instead of accepting read-only ones.
  hot_standby: 'off',
  logging_collector: 'off',
  log_destination: 'stderr',
  // Errors of statements go to the client, which logs them without values; this log covers only the server as a whole.
  log_min_messages: 'log',
  log_min_error_statement: 'panic',
  log_checkpoints: 'off',
};

/**
 * Starts a postmaster on this port. It is detached, in its own process group, so that Ctrl-C in the terminal does not
 * stop the database before the server has drained.
 */
export async function launch(cluster: Cluster, port: number, settings: Record<string, string>): Promise<Postmaster> {
  const log = await openLog(cluster.logFile);
  try {
    const all = Object.entries({ ...SETTINGS, ...settings, port: String(port) });
    const flags = ['-D', cluster.folder, ...all.flatMap(([name, value]) => ['-c', `${name}=${value}`])];
    const child = spawn(cluster.binaries.postgres, flags, {
      ...{ ...cluster.user, cwd: cluster.folder, env: childEnvironment() },
      ...{ detached: true, stdio: ['ignore', log.fd, log.fd] },
    });
    child.unref();
    const exited = new Promise<true>((resolve) => child.once('exit', () => resolve(true)));
    await once(child, 'spawn');
    const { pid } = child;
    if (pid === undefined) throw new Error('the system gave PostgreSQL no process id');
    const isAlive = (): Promise<boolean> => Promise.resolve(child.exitCode === null && child.signalCode === null);
    return { pid, port, isAlive, ended: (withinMs) => within(systemClock, withinMs, exited, false) };
  } finally {
    await log.close();
  }
}

const TAIL_BYTES = 32 * 1024;
const TAIL_LINES = 50;

/**
 * Lines of the log from byte `since` on, at most the last 32 KiB and 50 lines; `size` is the log's current size.
 */
export async function logLines(path: string, since = 0): Promise<{ lines: string[]; size: number }> {
  const handle = await fs.open(path, 'a+', LOG_MODE);
  try {
    const { size } = await handle.stat();
    const start = Math.max(since > size ? 0 : since, size - TAIL_BYTES);
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(size - start), 0, size - start, start);
    const text = buffer.toString('utf8', 0, bytesRead);
    return { lines: text.split('\n').filter(Boolean).slice(-TAIL_LINES), size };
  } finally {
    await handle.close();
  }
}

/** `folder` as the postmaster names it, also before it exists. */
export async function clusterFolder(dataDir: string): Promise<string> {
  return join(await fs.realpath(dataDir), 'postgres');
}
