/** Very many device sockets, held by several processes: a process may hold 20,000 descriptors here. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Child } from './child.js';
import { Receivers, type Drivers, type ReceiverOptions, type ReceiverReport } from './drivers.js';
import { writeSockets, type BenchDevice } from './population.js';

/** Sockets of one process of a client or, on the average of those that share a port, of a server. */
const PER_PROCESS = 18_000;
/** Sockets of one source address: connect() slows down badly past 14,000 ports per pair of addresses. */
const PER_ADDRESS = 9_000;
/** The last one of many may have to wait for all others. */
const OPEN_MS = 1_800_000;

/**
 * New devices a second: well below what two cores take at their best (S6), also beside the heartbeats of a million, which
 * take two thirds of them with the clients'. Of a crowd that comes faster most of the work is given up before it is done.
 */
const ARRIVALS_PER_S = 1_000;

/** Seconds over which so many sockets come. */
export const spreadFor = (sockets: number): number => Math.max(10, sockets / ARRIVALS_PER_S);

/** Processes that so many sockets take, on either side. */
export const processesFor = (sockets: number): number => Math.ceil(sockets / PER_PROCESS);

/** Who is in a crowd. */
export interface CrowdOptions {
  readonly drivers: Drivers;
  readonly folder: string;
  readonly devices: readonly BenchDevice[];
}

/** How a crowd comes. */
export type Coming = Pick<ReceiverOptions, 'port' | 'path' | 'reconnect' | 'spread' | 'opening'>;

/** What the sockets of a crowd have counted so far, all together. */
export type CrowdCount = Pick<ReceiverReport, 'live' | 'pings' | 'recorded' | 'codes'>;

/** The same devices, coming back as often as they are told to. */
export class Crowd {
  private readonly files: readonly string[];
  /** Sockets of one process. */
  private readonly each: number;
  private here: Receivers[] = [];
  /** Each time from other addresses: the ports of the last time rest for a minute. */
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

  /** Opens every socket. Seconds from the first connection until the last has caught up. */
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

  /** Without `reconnect` a process whose socket is closed ends, and this rejects. */
  async count(): Promise<CrowdCount> {
    const reports = await Promise.all(this.here.map(async (each) => each.report()));
    const sum = (of: 'live' | 'pings' | 'recorded'): number => reports.reduce((total, report) => total + report[of], 0);
    const codes: Record<string, number> = {};
    for (const report of reports) {
      for (const [code, times] of Object.entries(report.codes)) codes[code] = (codes[code] ?? 0) + times;
    }
    return { live: sum('live'), pings: sum('pings'), recorded: sum('recorded'), codes };
  }

  /** Writes the records since the last time to files, and forgets them. */
  async dump(): Promise<readonly string[]> {
    return await Promise.all(
      this.here.map(async (each, n) => {
        const file = join(this.options.folder, `crowd.${n}.received`);
        await each.dump(file);
        return file;
      }),
    );
  }

  /** The clients' processes. */
  get pids(): readonly number[] {
    return this.here.map(({ child }) => child.pid);
  }

  /** All go at once, without a word, and the servers have seen it. */
  async leave(servers: readonly Child[]): Promise<void> {
    await Promise.all(this.here.map(async (each) => each.stop()));
    this.here = [];
    for (const { pid } of servers) while (descriptors(pid) > DESCRIPTORS_AT_REST) await sleep(100);
  }
}

/** What a server holds without sockets: connections of its database, files, pipes. */
export const DESCRIPTORS_AT_REST = 200;

export const descriptors = (pid: number): number => readdirSync(`/proc/${pid}/fd`).length;
