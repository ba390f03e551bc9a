/** `service-admin migrate`: the schema, without starting a server. */
import type { Command } from 'commander';
import { migrate } from '../../../postgres/migrate.js';
import { SQL_FOLDER } from '../../../root.js';
import { show } from '../../device/output.js';
import { examples } from '../../device/run.js';
import { ADMIN_NAME, type AdminContext, type AdminRun } from '../context.js';

/** Adds the command. */
export function registerMigrate(program: Command, run: AdminRun): void {
  program
    .command('migrate')
    .summary('bring the database to the schema of this version')
    .description('Bring the database to the schema of this version, as a server does when it starts')
    .option('--dry-run', 'say what would be applied, and apply nothing')
    .addHelpText('after', examples(`${ADMIN_NAME} migrate --dry-run`, `${ADMIN_NAME} migrate`))
    .action(run(migrateNow));
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
  if (altered.length > 0) {
    terminal.note(`Warning: these migrations are not the ones that were applied: ${altered.join(', ')}`);
  }
}
