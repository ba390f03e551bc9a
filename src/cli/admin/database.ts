/** The database that an operator's command works on: external, of the running server, or started for the command. */
import type pg from 'pg';
import { pino } from 'pino';
import { startEmbedded, type Stop } from '../../compose/database.js';
import type { Config } from '../../config/config.js';
import { keptSecret } from '../../config/secrets.js';
import { createPool } from '../../postgres/database.js';
import { EmbeddedPostgres } from '../../postgres/embedded/embedded.js';

/** Where the database is, and whether a server may be at work on it. */
export interface OperatorDatabase {
  readonly url: string;
  readonly pool: pg.Pool;
  /** Embedded and started for this command alone: no server runs on it. */
  readonly alone: boolean;
}

/**
 * Runs `work` with the database of this configuration. An embedded one that no server has running is started for it
 * and stopped again.
 */
export async function withDatabase<T>(config: Config, work: (database: OperatorDatabase) => Promise<T>): Promise<T> {
  const stops: Stop[] = [];
  try {
    const { url, alone } = await locate(config, stops);
    const pool = createPool({ url, name: 'service admin', size: 2, onIdleError: () => undefined });
    stops.push(() => pool.end());
    return await work({ url, pool, alone });
  } finally {
    for (const stop of stops.reverse()) await stop();
  }
}

async function locate(config: Config, stops: Stop[]): Promise<{ url: string; alone: boolean }> {
  if (config.databaseUrl !== null) return { url: config.databaseUrl, alone: false };
  const { dataDir } = config;
  const running = await EmbeddedPostgres.runningUrl({
    dataDir,
    password: await keptSecret(dataDir, 'database-password'),
  });
  if (running !== null) return { url: running, alone: false };
  return { url: await startEmbedded({ config, log: pino({ level: 'silent' }) }, stops), alone: true };
}
