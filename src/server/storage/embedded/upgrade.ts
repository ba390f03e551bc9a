/**
 * Upgrades the embedded database over a major version of PostgreSQL: the old programs read its rows and the new ones
 * write them, straight from one server into the other, in the format of a backup (dump.ts; the package has no pg_dump).
 *
 * Invariants. The old folder stays usable, and only one of its rows is changed: it is `postgres` until the new cluster
 * is complete, verified, stopped and named `postgres.upgraded`, and is kept under another name after that. The epoch,
 * which names the history, is copied, since rows and versions are the same: devices continue where they were. It is
 * deleted from the old database before the new one can be started: the old one, put back, would assign the same
 * versions a second time, so it must report another epoch. If the upgrade is killed in between, neither database has
 * the epoch, and devices replay, which is safe.
 */
import { rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import type pg from 'pg';
import { ulid } from 'ulid';
import { hasTable, valueOf, withClient } from '../database.js';
import {
  type Dump,
  dumpDatabase,
  requireFitting,
  type Restored,
  restoreDatabase,
  tableFigures,
  type TableFigures,
  tapped,
} from '../dump.js';
import { EmbeddedPostgres } from './embedded.js';
import { isCluster, runningPostmaster, upgradedFolder } from './process.js';
import { migrate } from '../migrate.js';
import { syncFolder } from '../../../files/durable.js';
import { UpgradeError, type UpgradePlan } from './upgrade-plan.js';

/** The steps in order; the old folder is usable before and after each. The last three are renames of folders. */
export const UPGRADE_STEPS = [
  'remove-leftovers',
  'start-old',
  'create-new',
  'copy',
  'compare',
  'delete-old-epoch',
  'name-new',
  'move-old',
  'move-new',
] as const;
export type UpgradeStep = (typeof UPGRADE_STEPS)[number];

interface UpgradeOptions {
  /** The database superuser's password, in both clusters. */
  readonly password: string;
  /** Folder of the migrations. */
  readonly migrations: string;
  /** Called before each step. If it throws before `move-old`, the upgrade ends with the old folder in its place. */
  readonly onStep: (step: UpgradeStep) => void;
  /** Called while rows are copied: bytes done, of approximately `total`. If it throws, the upgrade ends. */
  readonly onProgress: (done: number, total: number) => void;
}

interface Upgraded {
  readonly epoch: string;
  readonly figures: readonly TableFigures[];
}

/** How long to wait for a killed postmaster. */
const STOP_MAX_MS = 10_000;

/** Removes an incomplete cluster left by a killed upgrade. Only one upgrade at a time runs on a DATA_DIR. */
async function removeCluster(folder: string): Promise<void> {
  const running = isCluster(folder) ? await runningPostmaster(folder) : null;
  if (running !== null) {
    process.kill(running.pid, 'SIGKILL');
    await running.ended(STOP_MAX_MS);
  }
  await rm(folder, { recursive: true, force: true, maxRetries: 5 });
}

const newFolder = (dataDir: string): string => join(dataDir, 'postgres.new');
/** Rows loaded into a new table in one transaction need no WAL: the checkpoint at the stop makes them durable. */
const LOADING = { wal_level: 'minimal', max_wal_senders: '0' };
/** The `application_name` of its connections. */
const NAME = 'service upgrade';

/**
 * The caller ensures that no other process upgrades the same folder. Rejects with `DataDirInUseError` while a server
 * runs, with `UpgradeError` if the old database is changed meanwhile; the old folder is then in its place.
 */
export async function upgrade(plan: UpgradePlan, options: UpgradeOptions): Promise<Upgraded> {
  const { dataDir, folder, keptAs } = plan;
  const { onStep } = options;
  onStep('remove-leftovers');
  // Even if complete, a leftover is useless once the old database may have been written to; but if there is no old
  // database, the leftover is the database.
  if (!isCluster(folder)) throw new UpgradeError('changed', `${folder} is gone`, 'Run this again.');
  await removeCluster(newFolder(dataDir));
  await removeCluster(upgradedFolder(dataDir));
  let upgraded: Upgraded;
  try {
    onStep('start-old');
    upgraded = await fromOldToNew(plan, options);
    onStep('name-new');
    await rename(newFolder(dataDir), upgradedFolder(dataDir));
    await syncFolder(dataDir);
  } catch (error) {
    await rm(newFolder(dataDir), { recursive: true, force: true, maxRetries: 5 });
    throw error;
  }
  onStep('move-old');
  await rename(folder, keptAs);
  await syncFolder(dataDir);
  onStep('move-new');
  // A server that starts at this moment does the same (finishUpgrade).
  if (!isCluster(folder)) await rename(upgradedFolder(dataDir), folder);
  await syncFolder(dataDir);
  return upgraded;
}

/** Runs a database for `work`, which gets its URL. */
async function withDatabase<T>(
  settings: Omit<Parameters<typeof EmbeddedPostgres.start>[0], 'onLog'>,
  work: (url: string) => Promise<T>,
): Promise<T> {
  const database = await EmbeddedPostgres.start({ ...settings, onLog: () => undefined });
  try {
    return await work(database.url);
  } finally {
    await database.stop();
  }
}

function fromOldToNew(plan: UpgradePlan, options: UpgradeOptions): Promise<Upgraded> {
  const { dataDir, oldBinaries, newBinaries, user } = plan;
  const { password, onStep } = options;
  return withDatabase({ dataDir, password, binaries: oldBinaries }, async (old) => {
    await requireAlone(old);
    onStep('create-new');
    const place = { folder: newFolder(dataDir), user };
    const settings = { dataDir, password, binaries: newBinaries, settings: LOADING, place };
    const upgraded = await withDatabase(settings, (created) => copy(old, created, options));
    onStep('delete-old-epoch');
    await withClient(old, NAME, async (client) => {
      if (await hasTable(client, 'installation')) await client.query('DELETE FROM installation');
    });
    return upgraded;
  });
}

async function copy(from: string, to: string, options: UpgradeOptions): Promise<Upgraded> {
  const { migrations: folder, onStep, onProgress } = options;
  const epoch = await withClient(from, NAME, async (client) =>
    (await hasTable(client, 'installation')) ? epochOf(client, ulid()) : undefined,
  );
  // A cluster whose very first start was interrupted: it contains no data.
  if (epoch === undefined) return { epoch: '', figures: [] };
  await migrate({ url: from, folder, dryRun: true }); // refuses a schema that this version does not know
  onStep('copy');
  await dumpDatabase(from, async (dump) => {
    await migrate({ url: to, folder, upTo: dump.about.schema });
    await restoreDatabase(to, rowsOf(dump, onProgress));
  });
  onStep('compare');
  const [before, after] = [await tableFigures(from), await tableFigures(to)];
  if (JSON.stringify(before) !== JSON.stringify(after)) {
    throw new UpgradeError(
      'changed',
      'the new database does not hold what the old one does',
      'Something wrote into the old database meanwhile. The old folder is in its place; stop everything and try again.',
    );
  }
  await migrate({ url: to, folder });
  return withClient(to, NAME, async (client) => {
    await requireFitting(client);
    await client.query('ANALYZE');
    const copied = await epochOf(client, epoch);
    // Writing out a large database takes longer than a stop waits.
    await client.query('CHECKPOINT');
    return { epoch: copied, figures: after };
  });
}

/** The rows of every table of the old database; reports their bytes as they pass. */
async function* rowsOf(dump: Dump, onProgress: UpgradeOptions['onProgress']): AsyncGenerator<Restored> {
  let done = 0;
  for (const table of dump.tables) {
    const { columns, rows } = await dump.read(table);
    const counted = tapped(rows, (chunk) => onProgress((done += chunk.length), dump.bytes));
    yield { table, columns, rows: Readable.from(counted, { objectMode: false }) };
  }
}

/** The epoch that a server would find here; `fresh` if the history has no name yet. */
const epochOf = (client: pg.Client, fresh: string): Promise<string> =>
  valueOf(client, 'SELECT claim_epoch($1)', [fresh]);

/** Instances of a killed parent process, or a person, may still be connected. */
async function requireAlone(url: string): Promise<void> {
  const others = await withClient(url, NAME, async (client) => {
    const { rows } = await client.query<{ name: string }>(
      `SELECT DISTINCT application_name AS name FROM pg_stat_activity
       WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`,
    );
    return rows.map(({ name }) => name || 'without a name');
  });
  if (others.length === 0) return;
  throw new UpgradeError(
    'in_use',
    `something is connected to the database: ${others.join(', ')}`,
    'Stop all servers and close all other connections first.',
  );
}
