/** The database itself: its schema, its epoch, and the version of the embedded PostgreSQL. */
import { join } from 'node:path';
import { keptSecret } from '../../config/secrets.js';
import { planUpgrade, requireSpace, UpgradeError, type UpgradePlan } from '../../storage/embedded/upgrade-plan.js';
import { upgrade, type UpgradeStep } from '../../storage/embedded/upgrade.js';
import { migrate } from '../../storage/migrate.js';
import { SQL_FOLDER } from '../../../root.js';
import { waitForLock } from '../../../terminal/lock.js';
import { show } from '../../../terminal/output.js';
import { CommandError, EXIT, type ExitCode, type Terminal, usageError } from '../../../terminal/terminal.js';
import { throwIfInterrupted, type AdminContext, type AdminCommand } from '../context.js';
import { countsLine, sized, stoppable } from '../progress.js';

export function registerDatabase(program: AdminCommand): void {
  program
    .command('migrate')
    .summary('bring the database to the schema of this version')
    .description('Bring the database to the schema of this version, as a server does when it starts')
    .option('--dry-run', 'show what would be applied, and apply nothing')
    .examples('migrate --dry-run', 'migrate')
    .changes(migrateNow);
  program
    .command('upgrade-postgres')
    .summary('move the embedded database to another major version of PostgreSQL')
    .description(
      'Move the embedded database to the major version of PostgreSQL that this version brings, with all servers ' +
        'stopped. The old folder is kept, whatever happens; devices continue where they were',
    )
    .option('--old-binaries <folder>', 'programs of the old PostgreSQL, if they are not found automatically')
    .option('--dry-run', 'show what would be done, and do nothing')
    .examples('upgrade-postgres --dry-run', 'upgrade-postgres --old-binaries /usr/lib/postgresql/17')
    .changes(upgradePostgres);
}

async function migrateNow(
  { terminal, withAny }: AdminContext,
  { dryRun = false }: { readonly dryRun?: boolean },
): Promise<void> {
  const report = await withAny(({ url }) => migrate({ url, folder: SQL_FOLDER, dryRun }));
  const { applied, altered, schema } = report;
  show(terminal, { dryRun, applied, altered, schema }, () =>
    applied.length === 0
      ? [`Nothing to do: the schema is ${schema}.`]
      : [dryRun ? 'Would be applied:' : 'Applied:', ...applied.map((name) => `  ${name}`)],
  );
  if (altered.length > 0)
    terminal.note(`Warning: these migrations differ from the ones that were applied: ${altered.join(', ')}`);
}

export function registerEpoch(program: AdminCommand): void {
  const epoch = program
    .command('epoch')
    .summary('begin a new history')
    .description('The history of the database')
    .examples('epoch new');
  epoch
    .command('new')
    .summary('begin a new history: every device replays from the start')
    .description(
      'Begin a new history. For a database that was copied or restored by other means than `restore`: every device ' +
        'reads everything again. Running servers learn of it at once',
    )
    .examples('epoch new')
    .changes(async ({ terminal, withReady }) => {
      const epoch = await withReady(({ store }) => store.newEpoch());
      const text = `The epoch is ${epoch} now. Every device replays from the start when it connects.`;
      show(terminal, { epoch }, () => [text]);
    });
}

async function upgradePostgres(
  { terminal, config }: AdminContext,
  { oldBinaries, dryRun }: { readonly oldBinaries?: string; readonly dryRun?: boolean },
): Promise<void> {
  const { databaseUrl, dataDir } = config();
  if (databaseUrl !== null) {
    throw usageError(
      'DATABASE_URL names a separate database',
      'Its operator upgrades it (pg_upgrade, or the provider); this command is for the embedded one.',
    );
  }
  try {
    const plan = await planUpgrade(dataDir, oldBinaries);
    if ('current' in plan) {
      show(terminal, { done: false, from: plan.current, to: plan.current }, () => [
        `Nothing to do: the database is on PostgreSQL ${plan.current}.`,
      ]);
      return;
    }
    requireSpace(plan);
    if (dryRun === true) showPlan(terminal, plan);
    else await work(terminal, plan);
  } catch (error) {
    if (!(error instanceof UpgradeError)) throw error;
    throw new CommandError(EXIT_OF[error.reason], error.message, error.hint, { code: error.reason, cause: error });
  }
}

const EXIT_OF: Readonly<Record<UpgradeError['reason'], ExitCode>> = {
  no_database: EXIT.notFound,
  old_binaries: EXIT.usage,
  folder: EXIT.refused,
  space: EXIT.refused,
  in_use: EXIT.refused,
  changed: EXIT.untrusted,
};

function showPlan(terminal: Terminal, plan: UpgradePlan): void {
  const { from, to, folder, keptAs, needBytes, freeBytes, oldBinaries } = plan;
  const { postgres: oldPostgres } = oldBinaries;
  show(terminal, { dryRun: true, from, to, folder, keptAs, needBytes, freeBytes, oldPostgres }, () => [
    `Would move ${folder} from PostgreSQL ${from} to ${to}, and keep the old folder as ${keptAs}.`,
    `It takes about ${sized(needBytes)}; ${sized(freeBytes)} are free. The old database is read by ${oldPostgres}.`,
  ]);
}

const STEP_TEXTS: Readonly<Partial<Record<UpgradeStep, string>>> = {
  'start-old': 'Starting the old database',
  'create-new': 'Making the new database',
  compare: 'Comparing both',
};

async function work(terminal: Terminal, plan: UpgradePlan): Promise<void> {
  const { dataDir, from, to, keptAs } = plan;
  const password = await keptSecret(dataDir, 'database-password');
  const { epoch, figures } = await withUpgradeLock(plan, terminal, () =>
    upgrade(plan, {
      password,
      migrations: SQL_FOLDER,
      onStep: (step) => {
        // The last two steps take only moments and are not interrupted.
        if (step !== 'move-old' && step !== 'move-new') throwIfInterrupted(terminal);
        terminal.progress(STEP_TEXTS[step] ?? '');
      },
      onProgress: stoppable(terminal, 'Copying'),
    }),
  );
  const rows = Object.fromEntries(figures.map((one) => [one.table, one.rows]));
  show(terminal, { done: true, from, to, keptAs, epoch, rows }, () => [
    `Moved from PostgreSQL ${from} to ${to}: ${countsLine(rows)} (deleted ones too).`,
    `The old database is kept in ${keptAs}; remove it when all is well. Devices continue where they were.`,
  ]);
}

/** One upgrade at a time on this DATA_DIR. */
async function withUpgradeLock<T>({ dataDir }: UpgradePlan, terminal: Terminal, work: () => Promise<T>): Promise<T> {
  const refusal = (): Error =>
    new CommandError(EXIT.unavailable, 'another upgrade is under way', 'Wait for it to end.', { code: 'busy' });
  const options = { refusal, timeoutMs: 0, signal: terminal.interrupted };
  const lock = await waitForLock(join(dataDir, 'postgres.upgrade-lock'), options);
  return work().finally(() => lock.remove());
}
