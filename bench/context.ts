/** The context of every scenario: options, drivers, and databases and a folder, which are created on first use. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Child, nodeScript, numberIn } from './child.js';
import { Cluster, CONNECTIONS_EACH } from './database.js';
import type { Drivers } from './drivers.js';

export type ScenarioId =
  | 'S1'
  | 'S2'
  | 'S3'
  | 'S4'
  | 'S5'
  | 'S6'
  | 'S7'
  | 'S8'
  | 'S9'
  | 'BLOBS'
  | 'MIX'
  | 'LONG'
  | 'ROLL';

export interface Options {
  readonly scenarios: ReadonlySet<ScenarioId>;
  readonly rounds: number;
  /** Measured seconds of each leg. */
  readonly seconds: number;
  readonly markdown: boolean;
  readonly node: boolean;
  /** Instances that serve S1 to S4 and LONG. */
  readonly instances: number;
  /** How devices are spread over them; undefined: by the kernel, on one port. */
  readonly placed: 'together' | undefined;
  /** Sockets of S9 and ROLL; undefined: the scenario's default. */
  readonly sockets: number | undefined;
  /** Seconds for which S9 holds its sockets. */
  readonly hold: number;
  /** Duration of LONG. */
  readonly minutes: number;
  /** Smaller populations and shorter crashes, for a check of a minute or two; not for figures to quote. */
  readonly quick: boolean;
}

export class Context {
  readonly folder: string;
  private fastCluster: Promise<Cluster> | undefined;
  private slowCluster: Promise<Cluster> | undefined;

  constructor(
    readonly options: Options,
    readonly drivers: Drivers,
  ) {
    this.folder = mkdtempSync(join(tmpdir(), 'service-bench-'));
    // Also after an error or Ctrl-C.
    process.once('exit', () => rmSync(this.folder, { recursive: true, force: true }));
  }

  /** Connections of its instances, of one further instance, and of the references. */
  private get connections(): number {
    return CONNECTIONS_EACH * (this.options.instances + 2);
  }

  /** PostgreSQL on the machine's disk. */
  async fast(): Promise<Cluster> {
    return await (this.fastCluster ??= Cluster.start('fast', { connections: this.connections }));
  }

  /** PostgreSQL on a disk whose flushes take 1 ms longer. */
  async slow(): Promise<Cluster> {
    const { slowFlush } = this.drivers;
    if (slowFlush === undefined) throw new Error('S4 needs a C compiler: the slow disk is a C library');
    return await (this.slowCluster ??= Cluster.start('slow', { slowFlush, connections: this.connections }));
  }

  /** The size of a population, or a fifth of it in a quick run. */
  scaled(count: number): number {
    return this.options.quick ? count / 5 : count;
  }

  /** Prints a line of progress. */
  tell(text: string): void {
    process.stderr.write(`${text}\n`);
  }

  async close(): Promise<void> {
    await Promise.all([this.fastCluster, this.slowCluster].map(async (cluster) => (await cluster)?.remove()));
  }
}

/** Starts a bare server; with `shared`, one of several on that port. */
export async function startBare(shared = 0): Promise<{ child: Child; port: number }> {
  const child = new Child('bare uWS', nodeScript('reference/bare-uws', { port: shared }, ['--expose-gc']));
  return { child, port: numberIn(await child.next('listening'), 'port') };
}
