/** The bench's PostgreSQL servers: the service's embedded one in a temporary folder, on a fast or slow disk. */
import { execFile } from 'node:child_process';
import { chmodSync, copyFileSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import pg from 'pg';
import { Child, nodeScript, numberIn, textIn } from './child.js';
import { childrenOf, cpuOfFamily } from './machine.js';

const UP_MS = 60_000;
/** Connections per instance: its pool, lanes, listener, and those opened at start. */
export const CONNECTIONS_EACH = 20;

export class Cluster {
  private constructor(
    private readonly keeper: Child,
    private readonly base: string,
    private postmaster: number,
  ) {}

  /** `slowFlush`: path of the library that makes each flush 1 ms longer. `connections`: how many it admits. */
  static async start(name: string, options: { slowFlush?: string; connections: number }): Promise<Cluster> {
    const { slowFlush, connections } = options;
    const folder = mkdtempSync(join(tmpdir(), `service-bench-${name}-`));
    // PostgreSQL runs as its own user, who must be able to reach data and library.
    chmodSync(folder, 0o755);
    const library = join(folder, 'slow-flush.so');
    if (slowFlush !== undefined) copyFileSync(slowFlush, library);
    const keeper = new Child(`postgres ${name}`, nodeScript('cluster', { folder, connections }), {
      tidies: true,
      env: { ...process.env, ...(slowFlush !== undefined && { LD_PRELOAD: library }) },
    });
    const up = await keeper.next('up', UP_MS);
    return new Cluster(keeper, textIn(up, 'url'), numberIn(up, 'pid'));
  }

  url(database: string): string {
    const url = new URL(this.base);
    url.pathname = `/${database}`;
    return url.href;
  }

  /** Runs `work` with a connection of its own. */
  async with<T>(database: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
    const client = new pg.Client({ connectionString: this.url(database) });
    client.on('error', () => undefined);
    await client.connect();
    try {
      return await work(client);
    } finally {
      await client.end();
    }
  }

  async create(database: string): Promise<void> {
    await this.with('postgres', async (client) => client.query(`CREATE DATABASE ${database}`));
  }

  /**
   * Flushes everything written so far to disk, so that no leg pays for an earlier one: of this server, then of the others and
   * of the drivers, whose records the kernel would write back during the leg.
   */
  async checkpoint(): Promise<void> {
    await this.with('postgres', async (client) => client.query('CHECKPOINT'));
    await promisify(execFile)('sync');
  }

  async version(): Promise<string> {
    return await this.with('postgres', async (client) => {
      const { rows } = await client.query<{ server_version: string }>('SHOW server_version');
      return rows[0]?.server_version ?? '';
    });
  }

  cpuSeconds(): number {
    return cpuOfFamily(this.postmaster);
  }

  /** kill -9 of every process of the server, like a power failure except for the disk cache. */
  kill(): void {
    for (const pid of [this.postmaster, ...childrenOf(this.postmaster)]) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch (error) {
        // A child of a dead postmaster may have exited in the meantime.
        if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error;
      }
    }
  }

  /** Simulates the loss of the machine: no answers for `ms`, not even refusals; then a start with crash recovery. */
  async silence(ms: number): Promise<void> {
    for (const pid of [this.postmaster, ...childrenOf(this.postmaster)]) process.kill(pid, 'SIGSTOP');
    await sleep(ms);
    this.kill();
    await this.recovered();
  }

  /** Waits until the killed server, restarted by its supervisor, has recovered. */
  async recovered(): Promise<void> {
    const before = this.postmaster;
    const until = performance.now() + UP_MS;
    while (this.postmaster === before) {
      if (performance.now() > until) throw new Error('the database did not come back');
      await sleep(100);
      this.postmaster = numberIn(await this.keeper.ask('pid', 'pid'), 'pid');
    }
  }

  /** Stops it and removes its folder. */
  async remove(): Promise<void> {
    await this.keeper.stop();
  }
}
