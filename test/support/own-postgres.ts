/** A PostgreSQL of one test alone, which it may kill, stop, hold still and start again. Durable like a real one. */
import { readFile } from 'node:fs/promises';
import { openClient } from '../../src/server/storage/database.js';
import { DATABASE_USER, launch, type Cluster, type Postmaster } from '../../src/server/storage/embedded/process.js';
import { errorCode } from '../../src/protocol/error-code.js';
import { until } from './events.js';
import { freePort } from './free-port.js';
import { clusterIn, databasePassword, preparedFolder, type WithTeardown } from './postgres.js';
import { runSql } from './server.js';

const DATABASE = 'service';
/** A crashed one reads its log again before it answers. */
const START_MAX_MS = 60_000;
const STOP_MAX_MS = 20_000;

/** Sends a signal to a process that may have ended by itself. */
function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch (error) {
    if (errorCode(error) !== 'ESRCH') throw error;
  }
}

/** True once it has ended; one that nobody has collected yet has ended too. */
async function isGone(pid: number): Promise<boolean> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '');
  return stat === '' || /^ [ZX]/.test(stat.slice(stat.lastIndexOf(')') + 1));
}

/** A postmaster and its children, which are the backends and the writers. */
export async function family(pid: number): Promise<number[]> {
  const children = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8').catch(() => '');
  return [pid, ...children.split(' ').filter(Boolean).map(Number)];
}

/** Holds all its processes still: connections stay open, new ones are taken by the system, and nothing answers. */
export async function freezeAll(postmaster: number): Promise<readonly number[]> {
  // First of all, so that no further child is made.
  signal(postmaster, 'SIGSTOP');
  const frozen = await family(postmaster);
  for (const pid of frozen) signal(pid, 'SIGSTOP');
  return frozen;
}

/** Lets frozen processes go on where they stood. */
export const thawAll = (frozen: readonly number[]): void =>
  [...frozen].reverse().forEach((pid) => signal(pid, 'SIGCONT'));

/** kill -9 of all its processes. Resolves when they are gone. */
export async function crashAll(pids: readonly number[]): Promise<void> {
  for (const pid of pids) signal(pid, 'SIGKILL');
  await until('the end of all its processes', async () => (await Promise.all(pids.map(isGone))).every(Boolean));
}

/** Whether a PostgreSQL takes connections; it may still be starting. */
export const answers = (url: string): Promise<boolean> =>
  openClient({ url, name: 'tests', connectTimeoutMs: 1_000, onLost: () => undefined })
    .then((client) => client.end())
    .then(
      () => true,
      () => false,
    );

export class OwnPostgres {
  private postmaster: Postmaster | undefined;
  private frozen: readonly number[] = [];

  private constructor(
    private readonly cluster: Cluster,
    private readonly port: number,
    private readonly password: string,
  ) {}

  /** Makes one with an empty database and starts it; it ends with the test. */
  static async start(t: WithTeardown): Promise<OwnPostgres> {
    const dataDir = await preparedFolder(t);
    const cluster = await clusterIn(dataDir);
    const postgres = new OwnPostgres(cluster, await freePort(), await databasePassword(dataDir));
    t.teardown(async () => postgres.end());
    await postgres.start();
    await runSql(postgres.urlOf('postgres'), `CREATE DATABASE ${DATABASE}`);
    return postgres;
  }

  /** The same after every start. */
  get url(): string {
    return this.urlOf(DATABASE);
  }

  private urlOf(database: string): string {
    return `postgres://${DATABASE_USER}:${this.password}@127.0.0.1:${this.port}/${database}`;
  }

  /** Rows of a statement, past any proxy. */
  async sql(text: string, values: readonly unknown[] = []): Promise<Record<string, unknown>[]> {
    return runSql(this.url, text, values);
  }

  /** Starts it again. Resolves when it takes connections. */
  async start(): Promise<void> {
    this.postmaster = await launch(this.cluster, this.port, { max_connections: '100' });
    await until('a PostgreSQL that answers', async () => answers(this.urlOf('postgres')), START_MAX_MS);
  }

  /** See `family`; nobody while it does not run. */
  private async processes(): Promise<number[]> {
    const pid = this.postmaster?.pid;
    return pid === undefined ? [] : family(pid);
  }

  /** See `crashAll`. */
  async crash(): Promise<void> {
    await crashAll(await this.processes());
    this.postmaster = undefined;
  }

  /** See `freezeAll`. */
  async freeze(): Promise<void> {
    if (this.postmaster !== undefined) this.frozen = await freezeAll(this.postmaster.pid);
  }

  /** See `thawAll`. */
  thaw(): void {
    thawAll(this.frozen);
    this.frozen = [];
  }

  /** Stops it in the ordinary way, without waiting for its clients. */
  async stop(): Promise<void> {
    const { postmaster } = this;
    if (postmaster === undefined) return;
    signal(postmaster.pid, 'SIGINT');
    if (!(await postmaster.ended(STOP_MAX_MS))) throw new Error('PostgreSQL did not stop');
    this.postmaster = undefined;
  }

  private async end(): Promise<void> {
    this.thaw();
    await this.crash();
  }
}
