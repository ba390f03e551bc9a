/** The context of the commands of `service-admin`: configuration, database, and the checks before both are used. */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import type pg from 'pg';
import { pino } from 'pino';
import { ifThere } from '../../files/there.js';
import { errorCode } from '../../protocol/error-code.js';
import { startEmbedded } from '../app/database.js';
import { orStop, runStops, type Stop } from '../app/lifecycle.js';
import { readConfig, sessionDatabaseUrl, type Config } from '../config/config.js';
import { keptSecret } from '../config/secrets.js';
import { createPool, endPool } from '../storage/database.js';
import { EmbeddedPostgres } from '../storage/embedded/embedded.js';
import { hasCluster } from '../storage/embedded/process.js';
import { migrate } from '../storage/migrate.js';
import { OperatorStore } from './store.js';
import { SQL_FOLDER } from '../../root.js';
import type { ProgramCommand } from '../../terminal/program.js';
import { CommandError, EXIT, type Terminal } from '../../terminal/terminal.js';

export const ADMIN_NAME = 'service-admin';

/** A folder of another user looks as if it held no database, which would send its operator to another folder. */
async function requireReadable(dataDir: string): Promise<void> {
  try {
    await ifThere(() => stat(join(dataDir, 'postgres', 'PG_VERSION')));
  } catch (error) {
    throw new CommandError(
      EXIT.failure,
      `this user cannot look into ${dataDir} (${errorCode(error)})`,
      'Run the command as the user of the server, with its DATA_DIR.',
      { code: 'unreadable', cause: error },
    );
  }
}

/** The context of a command. */
export class AdminContext {
  constructor(
    readonly terminal: Terminal,
    readonly version: string,
  ) {}

  /** The environment, read as the server reads it. Throws `ConfigError`. */
  readonly config = (): Config => readConfig(this.terminal.env);

  /** `withDatabase`, for an existing database of any schema. Throws `CommandError` `no_database`. */
  readonly withAny = async <T>(work: (database: OperatorDatabase) => Promise<T>): Promise<T> => {
    const config = this.config();
    // Without this check a command in the wrong folder would create an empty database and work on it.
    if (config.databaseUrl === null && !hasCluster(config.dataDir)) {
      await requireReadable(config.dataDir);
      throw new CommandError(
        EXIT.notFound,
        `there is no database in ${config.dataDir}`,
        'Give the environment of the server: DATABASE_URL, or the DATA_DIR of its embedded database.',
        { code: 'no_database' },
      );
    }
    return withDatabase(config, work);
  };

  /** `withAny`, for this version's schema. Throws `CommandError` for an older one, `MigrationError` for a newer one. */
  readonly withReady = <T>(work: (database: OperatorDatabase) => Promise<T>): Promise<T> =>
    this.withAny(async (database) => {
      const { applied } = await migrate({ url: database.url, folder: SQL_FOLDER, dryRun: true });
      if (applied.length > 0) {
        throw new CommandError(
          EXIT.refused,
          `the database's schema is older than this version (${applied.length} migrations behind)`,
          `Make a backup with the version that wrote it, then run \`${ADMIN_NAME} migrate\` or start the server.`,
          { code: 'schema_old' },
        );
      }
      return work(database);
    });
}

/** The program, or one of its commands. */
export type AdminCommand = ProgramCommand<AdminContext>;

/** Id of the tenant with this name; without one, of the tenant of single mode. Throws `CommandError` if absent. */
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

/** Throws `CommandError` after an interruption. Called between steps, where a command may stop. */
export function throwIfInterrupted({ interrupted }: Terminal): void {
  if (interrupted.aborted) throw new CommandError(EXIT.interrupted, 'interrupted');
}

/** The database that a command works on. */
export interface OperatorDatabase {
  readonly url: string;
  readonly pool: pg.Pool;
  readonly store: OperatorStore;
  /** Embedded, and started for this command: no server runs on it. */
  readonly alone: boolean;
}

/**
 * Runs `work` with the database of this configuration. An embedded database that is not running is started before and
 * stopped afterwards.
 */
export async function withDatabase<T>(config: Config, work: (database: OperatorDatabase) => Promise<T>): Promise<T> {
  const stops: Stop[] = [];
  const run = async (): Promise<T> => {
    const { url, alone } = await locate(config, stops);
    // No time limit: `verify` and `restore` compare all rows, and the operator can interrupt any command.
    const limits = { size: 2, statementTimeoutMs: 0 };
    const pool = createPool({ url, name: 'service admin', ...limits, onIdleError: () => undefined });
    stops.push(() => endPool(pool));
    return work({ url, pool, store: new OperatorStore(pool), alone });
  };
  // The command's own error is the one that the operator needs.
  const result = await orStop(stops, run, () => undefined);
  await runStops(stops);
  return result;
}

async function locate(config: Config, stops: Stop[]): Promise<{ url: string; alone: boolean }> {
  const url = sessionDatabaseUrl(config);
  if (url !== null) return { url, alone: false };
  const { dataDir } = config;
  const password = await keptSecret(dataDir, 'database-password');
  const running = await EmbeddedPostgres.runningUrl(dataDir, password);
  if (running !== null) return { url: running, alone: false };
  return { url: await startEmbedded(config, pino({ level: 'silent' }), stops), alone: true };
}
