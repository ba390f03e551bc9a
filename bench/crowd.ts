/** Very many device sockets, held by several processes, since a process may hold 20,000 descriptors here. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Child } from './child.js';
import { startBare, type Context } from './context.js';
import { Cluster, CONNECTIONS_EACH } from './database.js';
import { Receivers, startWriters, type ReceiverOptions, type ReceiverReport, type WriterOptions } from './drivers.js';
import { writePlan, writeSockets } from './population.js';
import { quietPort, World } from './world.js';

/** Devices of a tenant. */
export const PER_TENANT = 5;

/** Sockets of one client process; also of one server process, on average over those that share a port. */
const PER_PROCESS = 18_000;
/** Sockets of one source address: connect() slows down badly past 14,000 ports per pair of addresses. */
const PER_ADDRESS = 9_000;

/**
 * New devices per second: well below the best rate of two cores (S6), even in addition to the heartbeats of a million
 * sockets, which take two thirds of these cores, clients included. At higher rates most upgrades are abandoned before
 * they are finished.
 */
const ARRIVALS_PER_S = 1_000;

/** Seconds over which this many are opened: twice as long for a million, whose heartbeats leave less of the cores. */
export const spreadFor = (sockets: number): number =>
  Math.max(10, (sockets / ARRIVALS_PER_S) * (1 + sockets / 1_000_000));

/** Time-out of opening, ms: the last socket may have to wait for all others. */
const openingMs = (sockets: number): number => 2_000 * Math.max(900, spreadFor(sockets));

/** Writes while the sockets are open: `WRITERS` connections write for `WRITING_DEVICES` devices in turn. */
const WRITERS = 50;
const WRITING_DEVICES = 20_000;

interface CrowdOptions {
  /** Of its database. */
  readonly name: string;
  /** In progress messages. */
  readonly text: string;
  /** Devices, rounded up to whole tenants. */
  readonly devices: number;
  /** Instances beyond those that the sockets need, for when one is lost. */
  readonly spare: number;
}

/** A set of devices that can open their sockets repeatedly, with a server on a PostgreSQL of its own. */
export class Crowd {
  private readonly files: readonly string[];
  /** Sockets of one process. */
  private readonly perProcess: number;
  private receivers: Receivers[] = [];
  /** Source addresses differ each time: ports of closed connections are blocked for a minute (TIME_WAIT). */
  private source = 0;

  private constructor(
    private readonly context: Context,
    readonly world: World,
  ) {
    const { devices } = world.population;
    // As many client processes as instances, not counting the spare ones.
    const processes = Math.ceil(devices.length / PER_PROCESS);
    this.perProcess = Math.ceil(devices.length / processes);
    this.files = Array.from({ length: processes }, (_, n) => {
      const file = join(context.folder, `crowd.${n}`);
      writeSockets(file, devices.slice(n * this.perProcess, (n + 1) * this.perProcess));
      return file;
    });
  }

  /** Starts the server; the sockets are opened by `connect`. */
  static async open(context: Context, { name, text, devices, spare }: CrowdOptions): Promise<Crowd> {
    const tenants = Math.ceil(devices / PER_TENANT);
    const instances = Math.ceil((tenants * PER_TENANT) / PER_PROCESS) + spare;
    context.tell(`${text}: setting up ${tenants * PER_TENANT} devices, ${instances} instances`);
    const cluster = await Cluster.start(name, { connections: CONNECTIONS_EACH * (instances + 1) });
    const size = { tenants, perTenant: PER_TENANT };
    return new Crowd(context, await World.open(context, { name, cluster, size, instances }));
  }

  /** Number of devices. */
  get size(): number {
    return this.world.population.devices.length;
  }

  /** Opens every socket. Resolves with the seconds from the first connection until the last socket has caught up. */
  async connect(how: Pick<ReceiverOptions, 'port' | 'path' | 'reconnect' | 'spread' | 'opening'>): Promise<number> {
    const addresses = Math.ceil(PER_PROCESS / PER_ADDRESS);
    this.receivers = this.files.map((sockets, n) => {
      const source = (this.source + n * addresses) % 250;
      return new Receivers(this.context.drivers, { ...how, sockets, source, wait: true, first: n * this.perProcess });
    });
    this.source += this.files.length * addresses;
    const opened = await Promise.all(this.receivers.map(async (one) => one.open(openingMs(this.size))));
    const from = opened.reduce((first, line) => (line.from < first ? line.from : first), opened[0]?.from ?? 0n);
    const last = opened.reduce((latest, line) => (line.to > latest ? line.to : latest), 0n);
    return Number(last - from) / 1e9;
  }

  /** Opens every socket to as many processes of bare uWS instead, calls `work` with those and the seconds, and ends them. */
  async onBare(opening: number, work: (servers: readonly Child[], seconds: number) => unknown): Promise<void> {
    // A port that the system assigns cannot be shared.
    const port = await quietPort();
    const started = await Promise.all(this.world.servers.map(async () => startBare(port)));
    const servers = started.map(({ child }) => child);
    await work(servers, await this.connect({ port, path: '/device', opening }));
    await this.disconnect(servers);
    await Promise.all(servers.map(async (server) => server.stop()));
  }

  /** Writes at a rate; resolves when the measured time begins. Unanswered writes are sent again. */
  async write(how: Required<Pick<WriterOptions, 'rate' | 'seconds'>>): Promise<{ writers: Child; acked: string }> {
    const { world, context } = this;
    const [plan, out] = [
      join(world.folder, `${world.database}.writers`),
      join(world.folder, `${world.database}.acked`),
    ];
    writePlan(plan, world.population, WRITING_DEVICES);
    const own = { port: world.port, plan, out, connections: WRITERS, retry: true };
    const writers = startWriters(context.drivers, { ...own, ...how });
    await writers.next('window');
    return { writers, acked: out };
  }

  /** Rejects if a process has ended, as it does when one of its sockets is closed without `reconnect`. */
  async count(): Promise<Pick<ReceiverReport, 'live' | 'pings' | 'recorded' | 'codes'>> {
    const reports = await Promise.all(this.receivers.map(async (one) => one.report()));
    const sum = (of: 'live' | 'pings' | 'recorded'): number => reports.reduce((total, report) => total + report[of], 0);
    const codes: Record<string, number> = {};
    for (const report of reports) {
      for (const [code, times] of Object.entries(report.codes)) codes[code] = (codes[code] ?? 0) + times;
    }
    return { live: sum('live'), pings: sum('pings'), recorded: sum('recorded'), codes };
  }

  /** Writes the records since the last dump to files, and drops them. */
  async dump(): Promise<readonly string[]> {
    const { folder } = this.context;
    return await Promise.all(this.receivers.map(async (one, n) => one.dump(join(folder, `crowd.${n}.received`))));
  }

  /** Ids of the client processes. */
  get pids(): readonly number[] {
    return this.receivers.map(({ child }) => child.pid);
  }

  /** Ends the clients, the servers and the database. */
  async close(): Promise<void> {
    await this.disconnect([]);
    await this.world.stop();
    await this.world.cluster.remove();
  }

  /** Kills all client processes, and waits until the servers have closed their sockets. */
  async disconnect(servers: readonly Child[]): Promise<void> {
    await Promise.all(this.receivers.map(async (one) => one.stop()));
    this.receivers = [];
    for (const { pid } of servers) while (descriptors(pid) > DESCRIPTORS_AT_REST) await sleep(100);
  }
}

/** Most descriptors of a server without sockets: database connections, files, pipes. */
export const DESCRIPTORS_AT_REST = 200;

export const descriptors = (pid: number): number => readdirSync(`/proc/${pid}/fd`).length;
