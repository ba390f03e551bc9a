/** The load drivers: C if there is a compiler, else Node. Both take the same options and print the same lines. */
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { PROJECT_ROOT } from '../src/root.js';
import { Child, nodeScript, numbersIn, pairs, textIn, type Line } from './child.js';

/** The commands of the two drivers, and the slow-flush library if it could be built. */
export interface Drivers {
  readonly kind: string;
  readonly writers: readonly string[];
  readonly receivers: readonly string[];
  readonly slowFlush: string | undefined;
}

const SOURCES = join(PROJECT_ROOT, 'bench', 'native');
const BUILT = join(PROJECT_ROOT, 'build', 'bench', 'native');

function compiler(): string | undefined {
  const wanted = process.env['CC'] ?? 'cc';
  return [wanted, 'gcc', 'clang'].find((name) => spawnSync(name, ['--version']).status === 0);
}

function compile(cc: string, name: string, flags: readonly string[]): string {
  const source = join(SOURCES, `${name}.c`);
  const shared = flags.includes('-shared');
  const out = join(BUILT, shared ? `${name}.so` : name);
  const newest = Math.max(statSync(source).mtimeMs, statSync(join(SOURCES, 'bench.h')).mtimeMs);
  if ((statSync(out, { throwIfNoEntry: false })?.mtimeMs ?? 0) < newest) {
    execFileSync(cc, ['-O2', '-Wall', ...flags, '-o', out, source, '-lm', '-ldl'], { stdio: 'inherit' });
  }
  return out;
}

const NODE_DRIVERS: Drivers = {
  kind: 'Node (no C compiler: the client is likely the limit)',
  writers: nodeScript('fallback/writers'),
  receivers: nodeScript('fallback/receivers'),
  slowFlush: undefined,
};

/** Builds the C drivers. If that fails the Node drivers are used, and S4, which needs the C library, is left out. */
export function buildDrivers(forceNode = false): Drivers {
  const cc = forceNode || process.platform !== 'linux' ? undefined : compiler();
  if (cc === undefined) return NODE_DRIVERS;
  mkdirSync(BUILT, { recursive: true });
  try {
    return {
      kind: 'C',
      writers: [compile(cc, 'writers', [])],
      receivers: [compile(cc, 'receivers', [])],
      slowFlush: compile(cc, 'slow-flush', ['-shared', '-fPIC']),
    };
  } catch (error) {
    // For example a compiler without the system's headers. It has printed what is missing.
    process.stderr.write(`${cc} cannot build the drivers: ${error instanceof Error ? error.message : String(error)}\n`);
    return NODE_DRIVERS;
  }
}

const LATENCY = ['p50', 'p99', 'p999'] as const;

/** Percentiles in microseconds. */
export type Latency = Readonly<Record<(typeof LATENCY)[number], number>>;

/** Options of one run of the writers. Times are seconds. */
export interface WriterOptions {
  /** Several separated by commas: each tenant at one of them. C driver only. */
  readonly port: number | string;
  readonly plan: string;
  readonly out: string;
  readonly connections: number;
  readonly seconds: number;
  readonly warmup?: number;
  /** Scheduled arrivals per second; absent: each connection writes again once it is answered (closed loop). */
  readonly rate?: number;
  readonly retry?: boolean;
  readonly path?: string;
}

/** The writers' measurements. */
export interface WriterResult {
  readonly perSecond: number;
  /** Writes answered with 200 inside the measured window, and in the whole run. */
  readonly inWindow: number;
  readonly acked: number;
  readonly refused: number;
  readonly failed: number;
  /** The window in ns of the monotonic clock, for the receivers' report. */
  readonly from: string;
  readonly to: string;
  /** From the send, or from the scheduled time, to the answer. */
  readonly latency: Latency;
}

/** Starts the writers, which write at once. They print `window` and `end` when the measured time begins and ends. */
export const startWriters = (drivers: Drivers, options: WriterOptions): Child =>
  new Child('writers', [...drivers.writers, ...pairs(options)]);

/** Waits for the writers' result. */
export async function writerResult(writers: Child): Promise<WriterResult> {
  const line = await writers.result();
  return {
    ...numbersIn(line, ['perSecond', 'inWindow', 'acked', 'refused', 'failed']),
    ...{ from: textIn(line, 'from'), to: textIn(line, 'to'), latency: numbersIn(line, LATENCY) },
  };
}

/** Options of one process of receivers. */
export interface ReceiverOptions {
  /** Several separated by commas: each tenant at one of them. C driver only. */
  readonly port: number | string;
  readonly sockets: string;
  readonly kind?: 'service' | 'socketio' | 'bare';
  readonly path?: string;
  /** `later`: opens all sockets, and sends the hellos on command. */
  readonly hello?: '1' | '0' | 'later';
  /** Reconnects as the SDK does. */
  readonly reconnect?: boolean;
  /** Most sockets that may be opening at once. */
  readonly opening?: number;
  /** With `wait`: each socket is first opened at a random moment within this time, s. C driver only. */
  readonly spread?: number;
  /** Number of the first socket in the records; 0 by default. C driver only. */
  readonly first?: number;
  /** Opens nothing before `open` is called. C driver only. */
  readonly wait?: boolean;
  /** First source address: 127.0.(source + 1).1 and following, 9,000 sockets each. C driver only. */
  readonly source?: number;
}

/** The counters of a process of receivers. */
export interface ReceiverReport {
  readonly live: number;
  /** Answered heartbeats. */
  readonly pings: number;
  /** Closed sockets by close code, and refused upgrades by status. Empty with the Node driver. */
  readonly codes: Readonly<Record<string, number>>;
  readonly disorder: number;
  readonly unstamped: number;
  readonly recorded: number;
  /** From the stamp to the frame's arrival. */
  readonly latency: Latency;
}

/** A process that holds many sockets. */
export class Receivers {
  readonly child: Child;

  constructor(drivers: Drivers, options: ReceiverOptions) {
    this.child = new Child('receivers', [...drivers.receivers, ...pairs(options)]);
  }

  /** Resolves when all sockets are open and, if hello was sent, caught up. */
  static async ready(drivers: Drivers, options: ReceiverOptions): Promise<Receivers> {
    const receivers = new Receivers(drivers, options);
    await receivers.child.next('ready');
    return receivers;
  }

  /** With `wait`: opens all sockets. From the first connection until all had caught up, ns of the monotonic clock. */
  async open(timeoutMs?: number): Promise<{ readonly from: bigint; readonly to: bigint }> {
    const line = await this.child.ask('open', 'ready', timeoutMs);
    return { from: BigInt(textIn(line, 'from')), to: BigInt(textIn(line, 'to')) };
  }

  /** The counters, and the latency of items stamped in [from, to). */
  async report(from = '0', to = '0'): Promise<ReceiverReport> {
    const line: Line = await this.child.ask(`report ${from} ${to}`, 'report');
    return {
      ...numbersIn(line, ['live', 'pings', 'disorder', 'unstamped', 'recorded']),
      ...{ codes: (line['codes'] ?? {}) as Record<string, number>, latency: numbersIn(line, LATENCY) },
    };
  }

  /** Writes the records since the last dump to a file, which it returns. */
  async dump(file: string): Promise<string> {
    await this.child.ask(`dump ${file}`, 'dumped');
    return file;
  }

  /** Sends every hello at once; resolves with seconds and rows until all have caught up. */
  async replay(): Promise<Readonly<Record<'seconds' | 'rows', number>>> {
    return numbersIn(await this.child.ask('hello', 'replayed'), ['seconds', 'rows']);
  }

  async stop(): Promise<void> {
    await this.child.stop('SIGKILL');
  }
}
