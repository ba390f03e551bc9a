/** One service under test: its database, population and server processes. */
import { randomInt } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { PROJECT_ROOT, SQL_FOLDER } from '../src/root.js';
import { migrate } from '../src/server/storage/migrate.js';
import { Audit, type Audited } from './audit.js';
import { Child } from './child.js';
import type { Cluster } from './database.js';
import { Receivers, type Drivers, type ReceiverOptions } from './drivers.js';
import { cpuOf } from './machine.js';
import { imagine, settle, writePlan, writeSockets, type Population, type PopulationSize } from './population.js';
import { BENCH_TOKEN_SECRET, benchToken } from './tokens.js';

/** CPU seconds so far of a server process and of its database. */
export interface CpuSeconds {
  readonly server: number;
  readonly database: number;
  readonly client: number;
}

/** The properties of a loaded server that a leg needs: ours or the reference. */
export interface Target {
  readonly port: number;
  readonly plan: string;
  readonly folder: string;
  readonly cluster: Cluster;
  readonly population: Population;
  readonly database: string;
  readonly audit: Audit;
  /** The processes that serve it: one, or several instances. */
  readonly servers: readonly Child[];
}

/** The current CPU seconds of a target; `clients`: ids of the drivers' processes. */
export const cpuSeconds = (target: Target, clients: readonly number[]): CpuSeconds => ({
  server: target.servers.reduce((sum, { pid }) => sum + cpuOf(pid), 0),
  database: target.cluster.cpuSeconds(),
  client: clients.reduce((sum, pid) => sum + cpuOf(pid), 0),
});

/** Audits all writes to a target since the last audit. */
export async function audit(
  target: Target,
  logs: { readonly acked: readonly string[]; readonly received?: readonly string[]; readonly crashed?: boolean },
): Promise<Audited> {
  const { cluster, population } = target;
  return await cluster.with(target.database, async (client) => target.audit.run({ client, population, ...logs }));
}

export interface WorldOptions {
  readonly name: string;
  readonly folder: string;
  readonly cluster: Cluster;
  readonly drivers: Drivers;
  readonly size: PopulationSize;
  /** Processes that serve it; 1 by default. */
  readonly instances?: number;
  /** True: each instance has its own port; by default all share one. */
  readonly ownPorts?: boolean;
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
  readonly plan: string;
  readonly sockets: string;
  /** The folder of the links between instances. */
  private readonly links: string;
  private running: Child[] = [];

  private constructor(
    private readonly options: WorldOptions,
    readonly population: Population,
    /** One shared port, or with `ownPorts` one per instance. */
    readonly ports: readonly [number, ...number[]],
  ) {
    this.plan = join(options.folder, `${options.name}.plan`);
    this.sockets = join(options.folder, `${options.name}.sockets`);
    this.links = join(options.folder, `${options.name}.links`);
  }

  /** Creates a database with the population, and starts one or several instances on it. */
  static async open(options: WorldOptions): Promise<World> {
    const { cluster, name, instances = 1, ownPorts = false } = options;
    await cluster.create(name);
    // Measures the commit functions inside the database. Always on: it costs two clock reads per call.
    await cluster.with(name, async (client) => client.query(`ALTER DATABASE ${name} SET track_functions = 'pl'`));
    await migrate({ url: cluster.url(name), folder: SQL_FOLDER });
    const population = imagine(options.size, benchToken);
    await cluster.with(name, async (client) => settle(client, population));
    const ports: [number, ...number[]] = [await quietPort()];
    while (ownPorts && ports.length < instances) ports.push(await quietPort());
    const world = new World(options, population, ports);
    writePlan(world.plan, population);
    writeSockets(world.sockets, population.devices);
    await world.start();
    return world;
  }

  get cluster(): Cluster {
    return this.options.cluster;
  }

  get folder(): string {
    return this.options.folder;
  }

  get database(): string {
    return this.options.name;
  }

  /** The port of all instances, or of the first. */
  get port(): number {
    return this.ports[0];
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

  /** Starts every instance, always on the same port. */
  async start(): Promise<void> {
    const { instances = 1 } = this.options;
    await mkdir(this.links, { recursive: true, mode: 0o700 });
    this.running = Array.from({ length: instances }, (_, n) => this.startOne(n));
    await Promise.all(this.running.map(async (server) => server.next('listening')));
  }

  private startOne(n: number): Child {
    const { name, instances = 1 } = this.options;
    const script = fileURLToPath(new URL('./server.js', import.meta.url));
    const command = [process.execPath, '--expose-gc', ...SERVE_FLAGS, ...EXTRA_FLAGS, script];
    return new Child(instances === 1 ? `server ${name}` : `server ${name} ${n + 1}`, command, {
      env: {
        ...process.env,
        ...SERVER_ENVIRONMENT,
        PORT: String(this.ports[n] ?? this.port),
        BENCH_SIBLINGS: this.ports.length < instances ? this.links : '',
        DATABASE_URL: this.cluster.url(name),
        DATA_DIR: join(this.folder, `${name}.data`),
      },
    });
  }

  async stop(): Promise<void> {
    await Promise.all(this.running.map(async (server) => server.stop()));
    this.running = [];
  }

  /** SQL statements that all instances have sent since their start, by kind. */
  async statements(): Promise<Map<string, number>> {
    const lines = await Promise.all(this.running.map(async (server) => server.ask('statements', 'statements')));
    const all = new Map<string, number>();
    for (const { kinds } of lines) {
      for (const [kind, times] of Object.entries(kinds as Record<string, number>)) {
        all.set(kind, (all.get(kind) ?? 0) + times);
      }
    }
    return all;
  }

  /** kill -9 of one instance; restarts it after `ms`, like a supervisor. */
  async crashOne(n: number, ms: number): Promise<void> {
    const server = this.running[n];
    if (server === undefined) throw new Error(`there is no instance ${n}`);
    server.process.kill('SIGKILL');
    await server.ended;
    await sleep(ms);
    const again = this.startOne(n);
    this.running = this.running.with(n, again);
    await again.next('listening');
  }

  /** Stops one instance gracefully, and restarts it. */
  async restartOne(n: number): Promise<void> {
    await this.running[n]?.stop();
    const again = this.startOne(n);
    this.running = this.running.with(n, again);
    await again.next('listening');
  }

  /** kill -9 of all instances and the database at once; then its supervisor restarts the database, this the servers. */
  async crash(): Promise<void> {
    for (const server of this.running) server.process.kill('SIGKILL');
    this.cluster.kill();
    await Promise.all(this.running.map(async (server) => server.ended));
    await this.cluster.recovered();
    await this.start();
  }

  receivers(options: Partial<ReceiverOptions> = {}): Receivers {
    return new Receivers(this.options.drivers, { port: this.port, sockets: this.sockets, ...options });
  }
}

const ARRIVE_MS = 30_000;

/** Waits for this many records since the last dump, at most 30 s: the audit then reports what is missing. */
export async function arrived(receivers: Receivers, records: number): Promise<void> {
  const until = performance.now() + ARRIVE_MS;
  while ((await receivers.report()).recorded < records && performance.now() < until) await sleep(20);
}
