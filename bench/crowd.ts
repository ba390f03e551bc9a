/** Very many device sockets, held by several processes: a process may hold 20,000 descriptors here. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Child } from './child.js';
import { Receivers, type Drivers, type ReceiverOptions } from './drivers.js';
import { writeSockets, type BenchDevice } from './population.js';

/** Sockets of one process of a client or, on the average of those that share a port, of a server. */
const PER_PROCESS = 18_000;
/** Sockets of one source address: connect() slows down badly past 14,000 ports per pair of addresses. */
const PER_ADDRESS = 9_000;
/** The last one of many may have to wait for all others. */
const OPEN_MS = 600_000;

/** Processes that so many sockets take, on either side. */
export const processesFor = (sockets: number): number => Math.ceil(sockets / PER_PROCESS);

/** How a crowd comes. */
export interface CrowdOptions {
  readonly drivers: Drivers;
  readonly folder: string;
  readonly devices: readonly BenchDevice[];
}

/** The same devices, coming back as often as they are told to. */
export class Crowd {
  private readonly files: readonly string[];
  private here: Receivers[] = [];
  /** Each time from other addresses: the ports of the last time rest for a minute. */
  private source = 0;

  constructor(private readonly options: CrowdOptions) {
    const { devices, folder } = options;
    const processes = processesFor(devices.length);
    const each = Math.ceil(devices.length / processes);
    this.files = Array.from({ length: processes }, (_, n) => {
      const file = join(folder, `crowd.${n}`);
      writeSockets(file, devices.slice(n * each, (n + 1) * each));
      return file;
    });
  }

  /** All come at once. Seconds from the first connection until the last has caught up. */
  async come(to: Omit<ReceiverOptions, 'sockets'>): Promise<number> {
    const addresses = Math.ceil(PER_PROCESS / PER_ADDRESS);
    this.here = this.files.map((sockets, n) => {
      const source = (this.source + n * addresses) % 250;
      return new Receivers(this.options.drivers, { ...to, sockets, source, wait: true });
    });
    this.source += this.files.length * addresses;
    const opened = await Promise.all(this.here.map(async (each) => each.open(OPEN_MS)));
    const from = opened.reduce((first, line) => (line.from < first ? line.from : first), opened[0]?.from ?? 0n);
    const last = opened.reduce((latest, line) => (line.to > latest ? line.to : latest), 0n);
    return Number(last - from) / 1e9;
  }

  /** Sockets that are caught up, and heartbeats answered so far. A process whose socket is closed ends, and this rejects. */
  async count(): Promise<{ readonly live: number; readonly pings: number }> {
    const reports = await Promise.all(this.here.map(async (each) => each.report()));
    const sum = (of: 'live' | 'pings'): number => reports.reduce((total, report) => total + report[of], 0);
    return { live: sum('live'), pings: sum('pings') };
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
const DESCRIPTORS_AT_REST = 200;

const descriptors = (pid: number): number => readdirSync(`/proc/${pid}/fd`).length;
