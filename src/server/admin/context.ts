/** What every command of `service-admin` is given, the database it works on, and what all of them ask first. */
import type pg from 'pg';
import { pino } from 'pino';
import { startEmbedded, type Stop } from '../app/database.js';
import { readConfig, type Config } from '../config/config.js';
import { keptSecret } from '../config/secrets.js';
import { createPool } from '../storage/database.js';
import { EmbeddedPostgres } from '../storage/embedded/embedded.js';
import { hasCluster } from '../storage/embedded/process.js';
import { migrate } from '../storage/migrate.js';
import { OperatorStore } from './store.js';
import { SQL_FOLDER } from '../../root.js';
import type { ProgramCommand } from '../../terminal/program.js';
import { CommandError, EXIT, type Terminal } from '../../terminal/terminal.js';

/** The program's name, as it is typed. */
export const ADMIN_NAME = 'service-admin';

/** A database whose schema is the one this version works with, and the statements on it. */
interface ReadyDatabase extends OperatorDatabase {
  readonly store: OperatorStore;
}

/** What every command is given. */
export interface AdminContext {
  readonly terminal: Terminal;
  readonly version: string;
  /** The environment, read as the server reads it. Throws `ConfigError`. */
  config(): Config;
  /** `withDatabase`, where there is a database already, whatever its schema. Throws `CommandError` `not_found`. */
  withAny<T>(work: (database: OperatorDatabase) => Promise<T>): Promise<T>;
  /** The same, with this version's schema. Throws `CommandError` for an older one, `MigrationError` for a newer one. */
  withReady<T>(work: (database: ReadyDatabase) => Promise<T>): Promise<T>;
}

/** The program, or one of its commands. */
export type AdminCommand = ProgramCommand<AdminContext>;

/** See `AdminContext`. */
export function adminContext(terminal: Terminal, version: string): AdminContext {
  const config = (): Config => readConfig(terminal.env);
  const withAny: AdminContext['withAny'] = async (work) => {
    const read = config();
    requireDatabase(read);
    return withDatabase(read, work);
  };
  return {
    terminal,
    version,
    config,
    withAny,
    withReady: (work) =>
      withAny(async (database) => {
        await requireSchema(database);
        return work({ ...database, store: new OperatorStore(database.pool) });
      }),
  };
}

/** Is there an embedded database under this configuration's `DATA_DIR`? */
const hasEmbedded = ({ dataDir }: Pick<Config, 'dataDir'>): boolean => hasCluster(dataDir);

/** A command in the wrong folder would make a new, empty database, and tell of that one. */
function requireDatabase(config: Config): void {
  if (config.databaseUrl !== null || hasEmbedded(config)) return;
  throw new CommandError(
    EXIT.notFound,
    `there is no database in ${config.dataDir}`,
    'Give the environment of the server: DATABASE_URL, or the DATA_DIR of its embedded database.',
    { code: 'no_database' },
  );
}

async function requireSchema({ url }: OperatorDatabase): Promise<void> {
  const { applied } = await migrate({ url, folder: SQL_FOLDER, dryRun: true });
  if (applied.length === 0) return;
  throw new CommandError(
    EXIT.refused,
    `the database's schema is older than this version (${applied.length} migrations behind)`,
    `Make a backup with the version that wrote it, then run \`${ADMIN_NAME} migrate\` or start the server.`,
    { code: 'schema_old' },
  );
}

/** The tenant of a name; without one, the tenant of single mode. Throws `CommandError` where there is none. */
export async function tenantNamed(store: OperatorStore, slug: string | undefined): Promise<string> {
  const id = await store.tenantOf(slug);
  if (id !== undefined) return id;
  throw new CommandError(
    EXIT.notFound,
    slug === undefined ? 'there is no tenant without a name here' : `there is no tenant ${JSON.stringify(slug)}`,
    slug === undefined
      ? `Name it (\`${ADMIN_NAME} tenants list\`); only a server in single mode has one without a name.`
      : `See \`${ADMIN_NAME} tenants list\`.`,
    { code: 'tenant_not_found' },
  );
}

/** Throws where the person has interrupted: called between two steps that may be left undone. */
export function goOn({ interrupted }: Terminal): void {
  if (interrupted.aborted) throw new CommandError(EXIT.interrupted, 'interrupted');
}

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
