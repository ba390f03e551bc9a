/** Very many device sockets, held by several processes, since a process may hold 20,000 descriptors here. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Child } from './child.js';
import { Receivers, type Drivers, type ReceiverOptions, type ReceiverReport } from './drivers.js';
import { writeSockets, type BenchDevice } from './population.js';

/** Sockets of one client process; also of one server process, on average over those that share a port. */
const PER_PROCESS = 18_000;
/** Sockets of one source address: connect() slows down badly past 14,000 ports per pair of addresses. */
const PER_ADDRESS = 9_000;
/** Time-out of opening: the last socket may have to wait for all others. */
const OPEN_MS = 1_800_000;

/**
 * New devices per second: well below the best rate of two cores (S6), even in addition to the heartbeats of a million
 * sockets, which take two thirds of these cores, clients included. At higher rates most upgrades are abandoned before
 * they are finished.
 */
const ARRIVALS_PER_S = 1_000;

/** Seconds over which this many sockets are opened. */
export const spreadFor = (sockets: number): number => Math.max(10, sockets / ARRIVALS_PER_S);

/** Processes for this many sockets, on either side. */
export const processesFor = (sockets: number): number => Math.ceil(sockets / PER_PROCESS);

export interface CrowdOptions {
  readonly drivers: Drivers;
  readonly folder: string;
  readonly devices: readonly BenchDevice[];
}

/** How the sockets of a crowd are opened. */
export type Coming = Pick<ReceiverOptions, 'port' | 'path' | 'reconnect' | 'spread' | 'opening'>;

/** Counters of all sockets of a crowd, summed. */
export type CrowdCount = Pick<ReceiverReport, 'live' | 'pings' | 'recorded' | 'codes'>;

/** A set of devices that can open their sockets repeatedly. */
export class Crowd {
  private readonly files: readonly string[];
  /** Sockets of one process. */
  private readonly each: number;
  private here: Receivers[] = [];
  /** Source addresses differ each time: ports of closed connections are blocked for a minute (TIME_WAIT). */
  private source = 0;

  constructor(private readonly options: CrowdOptions) {
    const { devices, folder } = options;
    const processes = processesFor(devices.length);
    this.each = Math.ceil(devices.length / processes);
    this.files = Array.from({ length: processes }, (_, n) => {
      const file = join(folder, `crowd.${n}`);
      writeSockets(file, devices.slice(n * this.each, (n + 1) * this.each));
      return file;
    });
  }

  /** Opens every socket. Resolves with the seconds from the first connection until the last socket has caught up. */
  async come(how: Coming): Promise<number> {
    const addresses = Math.ceil(PER_PROCESS / PER_ADDRESS);
    this.here = this.files.map((sockets, n) => {
      const source = (this.source + n * addresses) % 250;
      return new Receivers(this.options.drivers, { ...how, sockets, source, wait: true, first: n * this.each });
    });
    this.source += this.files.length * addresses;
    const opened = await Promise.all(this.here.map(async (each) => each.open(OPEN_MS)));
    const from = opened.reduce((first, line) => (line.from < first ? line.from : first), opened[0]?.from ?? 0n);
    const last = opened.reduce((latest, line) => (line.to > latest ? line.to : latest), 0n);
    return Number(last - from) / 1e9;
  }

  /** Rejects if a process has ended, as it does when one of its sockets is closed without `reconnect`. */
  async count(): Promise<CrowdCount> {
    const reports = await Promise.all(this.here.map(async (each) => each.report()));
    const sum = (of: 'live' | 'pings' | 'recorded'): number => reports.reduce((total, report) => total + report[of], 0);
    const codes: Record<string, number> = {};
    for (const report of reports) {
      for (const [code, times] of Object.entries(report.codes)) codes[code] = (codes[code] ?? 0) + times;
    }
    return { live: sum('live'), pings: sum('pings'), recorded: sum('recorded'), codes };
  }

  /** Writes the records since the last dump to files, and drops them. */
  async dump(): Promise<readonly string[]> {
    return await Promise.all(
      this.here.map(async (each, n) => {
        const file = join(this.options.folder, `crowd.${n}.received`);
        await each.dump(file);
        return file;
      }),
    );
  }

  /** Ids of the client processes. */
  get pids(): readonly number[] {
    return this.here.map(({ child }) => child.pid);
  }

  /** Kills all client processes, and waits until the servers have closed their sockets. */
  async leave(servers: readonly Child[]): Promise<void> {
    await Promise.all(this.here.map(async (each) => each.stop()));
    this.here = [];
    for (const { pid } of servers) while (descriptors(pid) > DESCRIPTORS_AT_REST) await sleep(100);
  }
}

/** Most descriptors of a server without sockets: database connections, files, pipes. */
export const DESCRIPTORS_AT_REST = 200;

export const descriptors = (pid: number): number => readdirSync(`/proc/${pid}/fd`).length;
