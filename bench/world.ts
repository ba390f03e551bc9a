/** One service under test: its database, population and server processes. */
import { randomInt } from 'node:crypto';
import { mkdirSync, readFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { PROJECT_ROOT, SQL_FOLDER } from '../src/root.js';
import { migrate } from '../src/server/storage/migrate.js';
import { Audit, type Audited } from './audit.js';
import { Child, nodeScript } from './child.js';
import type { Context } from './context.js';
import type { Cluster } from './database.js';
import { Receivers, type ReceiverOptions } from './drivers.js';
import { cpuOfAll } from './machine.js';
import { imagine, settle, writePlan, writeSockets, type Population, type PopulationSize } from './population.js';
import { BENCH_TOKEN_SECRET, benchToken } from './tokens.js';

/** Who uses the processor: the server's processes, its database, the drivers. */
type Party = 'server' | 'database' | 'client';
export type CpuSeconds = Readonly<Record<Party, number>>;

export const ofEach = (of: (party: Party) => number): CpuSeconds => ({
  ...{ server: of('server'), database: of('database'), client: of('client') },
});

/** The properties of a loaded server that a leg needs: ours or the reference. */
export interface Target {
  /** For the drivers: a port, or those of several instances. */
  readonly port: number | string;
  readonly plan: string;
  readonly folder: string;
  readonly cluster: Cluster;
  readonly population: Population;
  readonly database: string;
  readonly audit: Audit;
  /** The processes that serve it: one, or several instances. */
  readonly servers: readonly Child[];
}

/** A target all of whose devices also have a socket, as a leg takes it. */
export interface Listening<T extends Target = World> {
  readonly target: T;
  readonly receivers: Receivers;
}

/** Counts CPU seconds of a target from now on; `clients`: ids of the drivers' processes. The result reads the count. */
export function cpuFrom(target: Target, clients: readonly number[] = []): () => CpuSeconds {
  const now = (): CpuSeconds => ({
    server: cpuOfAll(target.servers.map(({ pid }) => pid)),
    database: target.cluster.cpuSeconds(),
    client: cpuOfAll(clients),
  });
  const before = now();
  return () => {
    const after = now();
    return ofEach((party) => after[party] - before[party]);
  };
}

/** Audits all writes to a target since the last audit. */
export async function audit(
  target: Target,
  logs: { readonly acked: readonly string[]; readonly received?: readonly string[]; readonly crashed?: boolean },
): Promise<Audited> {
  const { cluster, population } = target;
  return await cluster.with(target.database, async (client) => target.audit.run({ client, population, ...logs }));
}

interface WorldOptions {
  readonly name: string;
  /** Where its database is created; by default the cluster on the machine's disk. */
  readonly cluster?: Cluster;
  readonly size: PopulationSize;
  /** Processes that serve it; 1 by default. */
  readonly instances?: number;
  /**
   * By default all share a port. `apart`: each has its own, as on a machine of its own. `together`: each has its own and is
   * linked with the others, and all devices of a tenant have the same (INSTANCE_PORTS=own behind a proxy).
   */
  readonly placed?: 'apart' | 'together' | undefined;
}

/**
 * The limits stay enabled, so that their cost is measured, but too high to be reached: a driver's device writes far
 * more often than a person's.
 */
const SERVER_ENVIRONMENT = {
  HOST: '127.0.0.1',
  TOKEN_SECRET: BENCH_TOKEN_SECRET,
  RATE_READ_PER_S: '1000000',
  RATE_WRITE_PER_S: '1000000',
  LOG_LEVEL: 'warn',
};

/** The flags of Node in deploy/serve, which `npm run serve`, the image and the unit run. */
const SERVE_FLAGS = (
  /^exec node (.*) \\$/m.exec(readFileSync(join(PROJECT_ROOT, 'deploy', 'serve'), 'utf8'))?.[1] ?? ''
).split(' ');
/** Further flags of Node for the server, for example for profiles: --cpu-prof --cpu-prof-dir=/tmp/profiles. */
const EXTRA_FLAGS = (process.env['BENCH_SERVER_FLAGS'] ?? '').split(' ').filter(Boolean);

const PORT_MIN = 20_000;
const PORT_MAX = 32_000;

/**
 * A free port below the range for outgoing connections. Otherwise a driver that dials a killed server could get the
 * server's port as its source port: it would be connected to itself, and the server could not restart.
 */
export async function quietPort(): Promise<number> {
  for (;;) {
    const port = randomInt(PORT_MIN, PORT_MAX);
    const free = await new Promise<boolean>((resolve) => {
      const probe = createServer();
      probe.once('error', () => resolve(false));
      probe.listen({ port, host: '127.0.0.1', exclusive: true }, () => probe.close(() => resolve(true)));
    });
    if (free) return port;
  }
}

export class World implements Target {
  readonly audit = new Audit();
  readonly database: string;
  readonly cluster: Cluster;
  readonly folder: string;
  readonly plan: string;
  private readonly sockets: string;
  private running: Child[] = [];

  private constructor(
    private readonly context: Context,
    private readonly options: WorldOptions & { readonly cluster: Cluster; readonly instances: number },
    readonly population: Population,
    /** One shared port, or with `placed` one per instance. */
    readonly ports: readonly [number, ...number[]],
  ) {
    this.database = options.name;
    this.cluster = options.cluster;
    this.folder = context.folder;
    this.plan = join(context.folder, `${options.name}.plan`);
    this.sockets = join(context.folder, `${options.name}.sockets`);
  }

  /** Creates a database with the population, and starts one or several instances on it. */
  static async open(context: Context, options: WorldOptions): Promise<World> {
    const { name, instances = 1, placed, cluster = await context.fast() } = options;
    if (placed === 'together' && options.size.tenants % instances > 0)
      throw new Error(`${options.size.tenants} tenants cannot be divided among ${instances} instances`);
    await cluster.create(name);
    // Measures the commit functions inside the database. Always on: it costs two clock reads per call.
    await cluster.with(name, async (client) => client.query(`ALTER DATABASE ${name} SET track_functions = 'pl'`));
    await migrate({ url: cluster.url(name), folder: SQL_FOLDER });
    const population = imagine(options.size, benchToken);
    await cluster.with(name, async (client) => settle(client, population));
    const ports: [number, ...number[]] = [await quietPort()];
    while (placed !== undefined && ports.length < instances) ports.push(await quietPort());
    const world = new World(context, { ...options, instances, cluster }, population, ports);
    writePlan(world.plan, population);
    writeSockets(world.sockets, population.devices);
    await world.start();
    return world;
  }

  /** The same, and the sockets of all devices. */
  static async listening(context: Context, options: WorldOptions): Promise<Listening> {
    const target = await World.open(context, options);
    return { target, receivers: await target.receivers() };
  }

  /** The port of all instances, that of the first of several apart, or those of all. */
  get port(): number | string {
    return this.options.placed === 'together' ? this.ports.join() : this.ports[0];
  }

  get servers(): readonly Child[] {
    return this.running;
  }

  /** The only server, or the first instance. */
  get server(): Child {
    const [first] = this.running;
    if (!first) throw new Error(`the server of ${this.options.name} is not running`);
    return first;
  }

  /** Starts every instance, always on the same ports. */
  async start(): Promise<void> {
    this.running = Array.from({ length: this.options.instances }, (_, n) => this.startOne(n));
    await Promise.all(this.running.map(async (server) => server.next('listening')));
  }

  private startOne(n: number): Child {
    const { database, cluster, folder, ports } = this;
    const { instances, placed } = this.options;
    const links = join(folder, `${database}.links`);
    mkdirSync(links, { recursive: true, mode: 0o700 });
    const name = instances === 1 ? `server ${database}` : `server ${database} ${n + 1}`;
    return new Child(name, nodeScript('server', {}, ['--expose-gc', ...SERVE_FLAGS, ...EXTRA_FLAGS]), {
      env: {
        ...process.env,
        ...SERVER_ENVIRONMENT,
        PORT: String(ports[n] ?? ports[0]),
        BENCH_SIBLINGS: instances > 1 && placed !== 'apart' ? links : '',
        DATABASE_URL: cluster.url(database),
        DATA_DIR: join(folder, `${database}.data`),
      },
    });
  }

  /** Starts an instance in the place of one that has ended. */
  private async startAgain(n: number): Promise<void> {
    const again = this.startOne(n);
    this.running = this.running.with(n, again);
    await again.next('listening');
  }

  async stop(): Promise<void> {
    await Promise.all(this.running.map(async (server) => server.stop()));
    this.running = [];
  }

  /** SQL statements that all instances have sent since their start, by kind. */
  async statements(): Promise<Map<string, number>> {
    const lines = await Promise.all(this.running.map(async (server) => server.ask('statements', 'statements')));
    const all = new Map<string, number>();
    for (const { kinds } of lines)
      for (const [kind, times] of Object.entries(kinds as Record<string, number>))
        all.set(kind, (all.get(kind) ?? 0) + times);
    return all;
  }

  /** kill -9 of one instance; restarts it after `ms`, like a supervisor. */
  async crashOne(n: number, ms: number): Promise<void> {
    const server = this.running[n];
    if (server === undefined) throw new Error(`there is no instance ${n}`);
    server.process.kill('SIGKILL');
    await server.ended;
    await sleep(ms);
    await this.startAgain(n);
  }

  /** Stops one instance gracefully, and restarts it. */
  async restartOne(n: number): Promise<void> {
    await this.running[n]?.stop();
    await this.startAgain(n);
  }

  /** kill -9 of all instances and the database at once; then its supervisor restarts the database, this the servers. */
  async crash(): Promise<void> {
    for (const server of this.running) server.process.kill('SIGKILL');
    this.cluster.kill();
    await Promise.all(this.running.map(async (server) => server.ended));
    await this.cluster.recovered();
    await this.start();
  }

  /** Head of each tenant. */
  async heads(): Promise<Map<string, number>> {
    return await this.cluster.with(this.database, async (client) => {
      const { rows } = await client.query<{ id: string; head: number }>('SELECT id, head::int FROM tenants');
      return new Map(rows.map(({ id, head }) => [id, head]));
    });
  }

  /** The sockets of all devices, unless `options` name others; they are ready. */
  async receivers(options: Partial<ReceiverOptions> = {}): Promise<Receivers> {
    const { port, sockets } = this;
    return await Receivers.ready(this.context.drivers, { port, sockets, ...options });
  }
}

const ARRIVE_MS = 30_000;

/** Waits for this many records since the last dump, at most 30 s: the audit then reports what is missing. */
export async function arrived(receivers: Receivers, records: number): Promise<void> {
  const until = performance.now() + ARRIVE_MS;
  while ((await receivers.report()).recorded < records && performance.now() < until) await sleep(20);
}
