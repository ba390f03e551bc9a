/**
 * The embedded database over a major version of PostgreSQL: its rows are read by the old programs and written by the
 * new ones, straight from one server into the other, in the form of a backup (dump.ts; the package brings no pg_dump).
 *
 * Invariants. The old folder is never written to but for one row, and always usable: `postgres` until the new one is
 * whole, verified, stopped and named `postgres.upgraded`; its kept name after that. The history's name (epoch) goes
 * over, since the rows and their versions are the same, so devices go on where they were; and it is taken from the old
 * database before the new one can be started, so that the old one, put back, tells another history: its versions would
 * be given a second time. Killed in between, neither has it, and devices replay: that is safe.
 */
import { rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import type pg from 'pg';
import { ulid } from 'ulid';
import { hasTable, withClient } from '../database.js';
import {
  type Dump,
  dumpDatabase,
  requireFitting,
  type Restored,
  restoreDatabase,
  tableFigures,
  type TableFigures,
} from '../dump.js';
import { EmbeddedPostgres } from './embedded.js';
import { isMade, runningPostmaster, upgradedFolder } from './process.js';
import { migrate } from '../migrate.js';
import { syncFolder } from '../../../files/durable.js';
import { UpgradeError, type UpgradePlan } from './upgrade-plan.js';

/** What is done next. The old folder is usable before and after each. */
export const UPGRADE_STEPS = ['sweep', 'start', 'make', 'copy', 'compare', 'retire', 'name', 'keep', 'place'] as const;
export type UpgradeStep = (typeof UPGRADE_STEPS)[number];

/** What `upgrade` needs besides its plan. */
export interface UpgradeOptions {
  /** Of the database's superuser, in both. */
  readonly password: string;
  /** Folder of the migrations. */
  readonly migrations: string;
  /** Called before each step. What it throws ends the upgrade, with the old folder in its place, until `keep`. */
  readonly onStep: (step: UpgradeStep) => void;
  /** Told while rows are copied: bytes done of about so many. What it throws ends the upgrade. */
  readonly onProgress: (done: number, total: number) => void;
}

/** What an upgrade did. */
export interface Upgraded {
  readonly epoch: string;
  readonly figures: readonly TableFigures[];
}

/** How long a killed postmaster is waited for. */
const STOP_MAX_MS = 10_000;

/** A half-made cluster that a killed upgrade left. One at a time works on a DATA_DIR, so it is nobody's. */
async function removeCluster(folder: string): Promise<void> {
  const running = isMade(folder) ? await runningPostmaster(folder) : null;
  if (running !== null) {
    process.kill(running.pid, 'SIGKILL');
    await running.ended(STOP_MAX_MS);
  }
  await rm(folder, { recursive: true, force: true, maxRetries: 5 });
}

const newFolder = (dataDir: string): string => join(dataDir, 'postgres.new');
/** Rows that are loaded into a new table in one transaction need no log: the checkpoint at the stop makes them durable. */
const LOADING = { wal_level: 'minimal', max_wal_senders: '0' };
/** Of our connections. */
const NAME = 'service upgrade';
const silent = (): void => undefined;

/**
 * Does it. The caller sees to it that no other process does the same. Rejects with `DataDirInUseError` while a server
 * runs, with `UpgradeError` where the old database is changed meanwhile; the old folder is in its place then.
 */
export async function upgrade(plan: UpgradePlan, options: UpgradeOptions): Promise<Upgraded> {
  const { dataDir, folder, keptAs } = plan;
  const { onStep } = options;
  onStep('sweep');
  // Whole as it may be, a leftover is of no use once the old database may have been written to; without an old one it
  // is the database.
  if (!isMade(folder)) throw new UpgradeError('changed', `${folder} is gone`, 'Run this again.');
  await removeCluster(newFolder(dataDir));
  await removeCluster(upgradedFolder(dataDir));
  let upgraded: Upgraded;
  try {
    onStep('start');
    upgraded = await fromOldToNew(plan, options);
    onStep('name');
    await rename(newFolder(dataDir), upgradedFolder(dataDir));
    await syncFolder(dataDir);
  } catch (error) {
    await rm(newFolder(dataDir), { recursive: true, force: true, maxRetries: 5 });
    throw error;
  }
  onStep('keep');
  await rename(folder, keptAs);
  await syncFolder(dataDir);
  onStep('place');
  // A server that is started in this moment does the same (finishUpgrade).
  if (!isMade(folder)) await rename(upgradedFolder(dataDir), folder);
  await syncFolder(dataDir);
  return upgraded;
}

async function fromOldToNew(plan: UpgradePlan, options: UpgradeOptions): Promise<Upgraded> {
  const { dataDir, oldBinaries, newBinaries, user } = plan;
  const { password, onStep } = options;
  const old = await EmbeddedPostgres.start({ dataDir, password, onLog: silent, binaries: oldBinaries });
  try {
    await requireAlone(old.url);
    onStep('make');
    const made = await EmbeddedPostgres.start({
      ...{ dataDir, password, onLog: silent, binaries: newBinaries, settings: LOADING },
      place: { folder: newFolder(dataDir), user },
    });
    let upgraded: Upgraded;
    try {
      upgraded = await copy(old.url, made.url, options);
    } finally {
      await made.stop();
    }
    onStep('retire');
    await withClient(old.url, NAME, async (client) => {
      if (await hasTable(client, 'installation')) await client.query('DELETE FROM installation');
    });
    return upgraded;
  } finally {
    await old.stop();
  }
}

async function copy(from: string, to: string, options: UpgradeOptions): Promise<Upgraded> {
  const { migrations: folder, onStep, onProgress } = options;
  const epoch = await withClient(from, NAME, async (client) =>
    (await hasTable(client, 'installation')) ? epochOf(client, ulid()) : undefined,
  );
  // A cluster whose very first start was cut off: nobody's data is in it.
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
    const carried = await epochOf(client, epoch);
    // A large database takes longer to write out than a stop waits.
    await client.query('CHECKPOINT');
    return { epoch: carried, figures: after };
  });
}

/** Every table of the old database, with its bytes counted on their way. */
async function* rowsOf(dump: Dump, onProgress: UpgradeOptions['onProgress']): AsyncGenerator<Restored> {
  let done = 0;
  for (const table of dump.tables) {
    const { columns, rows } = await dump.read(table);
    async function* counted(): AsyncGenerator<Buffer> {
      for await (const chunk of rows) {
        onProgress((done += (chunk as Buffer).length), dump.bytes);
        yield chunk as Buffer;
      }
    }
    yield { table, columns, rows: Readable.from(counted(), { objectMode: false }) };
  }
}

/** The epoch that a server would find here; `fresh` where the history has no name yet. */
async function epochOf(client: pg.Client, fresh: string): Promise<string> {
  const { rows } = await client.query<{ epoch: string }>('SELECT claim_epoch($1) AS epoch', [fresh]);
  const [found] = rows;
  if (found === undefined) throw new Error('the database did not tell its epoch');
  return found.epoch;
}

/** Instances of a parent that was killed may still be at work, and so may a person. */
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
