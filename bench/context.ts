/** What every scenario is given: options, drivers, databases and a folder, made when first asked for. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Child, numberIn } from './child.js';
import { Cluster, CONNECTIONS_EACH } from './database.js';
import type { Drivers } from './drivers.js';

export type ScenarioId =
  'S1' | 'S2' | 'S3' | 'S4' | 'S5' | 'S6' | 'S7' | 'S8' | 'S9' | 'BLOBS' | 'MIX' | 'LONG' | 'ROLL';

export interface Options {
  readonly scenarios: ReadonlySet<ScenarioId>;
  readonly rounds: number;
  /** Measured seconds of each leg. */
  readonly seconds: number;
  readonly markdown: boolean;
  readonly node: boolean;
  /** Instances on one port that serve S1 to S4. */
  readonly instances: number;
  /** Sockets of S9 and ROLL; left out: as many as the scenario has usually. And for how many seconds S9 holds them. */
  readonly sockets: number | undefined;
  readonly hold: number;
  /** How long LONG goes on. */
  readonly minutes: number;
  /** Smaller populations and shorter crashes, for a look in a minute or two; not for figures to quote. */
  readonly quick: boolean;
}

export class Context {
  readonly folder: string;
  private fastCluster: Promise<Cluster> | undefined;
  private slowCluster: Promise<Cluster> | undefined;
  private bareServer: Promise<{ child: Child; port: number }> | undefined;

  constructor(
    readonly options: Options,
    readonly drivers: Drivers,
  ) {
    this.folder = mkdtempSync(join(tmpdir(), 'service-bench-'));
    // Also after an error or Ctrl-C.
    process.once('exit', () => rmSync(this.folder, { recursive: true, force: true }));
  }

  /** Those of its instances, of one beside them, and of the references. */
  private get connections(): number {
    return CONNECTIONS_EACH * (this.options.instances + 2);
  }

  /** PostgreSQL on the disk as it is. */
  async fast(): Promise<Cluster> {
    return await (this.fastCluster ??= Cluster.start('fast', { connections: this.connections }));
  }

  /** PostgreSQL on a disk whose flush takes 1 ms longer. */
  async slow(): Promise<Cluster> {
    const { slowFlush } = this.drivers;
    if (slowFlush === undefined) throw new Error('S4 needs a C compiler: the slow disk is a C library');
    return await (this.slowCluster ??= Cluster.start('slow', { slowFlush, connections: this.connections }));
  }

  /** The bare uWebSockets.js server. */
  async bare(): Promise<{ child: Child; port: number }> {
    return await (this.bareServer ??= startBare());
  }

  /** A line about what is going on, for who waits. */
  tell(text: string): void {
    process.stderr.write(`${text}\n`);
  }

  async close(): Promise<void> {
    await (await this.bareServer)?.child.stop();
    await Promise.all([this.fastCluster, this.slowCluster].map(async (cluster) => (await cluster)?.remove()));
  }
}

/** A bare server of its own; with a port, one of several that share it. */
export async function startBare(shared?: number): Promise<{ child: Child; port: number }> {
  const script = fileURLToPath(new URL('./reference/bare-uws.js', import.meta.url));
  const child = new Child('bare uWS', [process.execPath, '--expose-gc', script, `port=${shared ?? 0}`]);
  return { child, port: numberIn(await child.next('listening'), 'port') };
}
