/** `service-admin verify`: is the database sound, or a backup whole? */
import type { Command } from 'commander';
import { verifyArchive } from '../../../backup/archive.js';
import { show, table } from '../../device/output.js';
import { examples } from '../../device/run.js';
import { EXIT, type ExitCode } from '../../device/terminal.js';
import { ADMIN_NAME, type AdminContext, type AdminRun } from '../context.js';
import { aboutBackup, countsLine, countsOf } from '../figures.js';
import { progressOf } from '../progress.js';

/** Adds the command. */
export function registerVerify(program: Command, run: AdminRun): void {
  program
    .command('verify')
    .summary('compare the figures of the database with its rows, or a backup with its manifest')
    .description(
      'Compare what the database counts of each tenant (items, versions, storage) with its rows, and find rows that ' +
        'belong to nobody; with a file, compare a backup with its manifest instead. Changes nothing',
    )
    .argument('[file]', 'a backup')
    .addHelpText('after', examples(`${ADMIN_NAME} verify`, `${ADMIN_NAME} verify service.tar.gz`))
    .action(run((context, file?: string) => (file === undefined ? verifyRows(context) : verifyFile(context, file))));
}

async function verifyFile({ terminal }: AdminContext, file: string): Promise<ExitCode> {
  const manifest = await verifyArchive(file, progressOf(terminal, 'Verifying'));
  terminal.progress('');
  const about = aboutBackup(manifest);
  show(terminal, { file, whole: true, ...about }, () => [
    `${file} is whole: every part is what its manifest says.`,
    `Made ${about.createdAt} by version ${about.version}, schema ${about.schema}.`,
  ]);
  return EXIT.ok;
}

async function verifyRows({ terminal, withReady }: AdminContext): Promise<ExitCode> {
  const { counts, discrepancies } = await withReady(async ({ store, pool }) => ({
    counts: await countsOf(pool),
    discrepancies: await store.discrepancies(),
  }));
  show(terminal, { ...counts, discrepancies }, () => {
    if (discrepancies.length === 0) return [`${countsLine(counts)}: every figure fits its rows.`];
    const columns = [{ title: 'Tenant' }, { title: 'What' }, { title: 'Stored' }, { title: 'Counted' }];
    const rows = discrepancies.map(({ tenantId, what, stored, counted: rows }) => [
      ...[tenantId, what],
      ...[String(stored), String(rows)],
    ]);
    return [`${countsLine(counts)}. These figures do not fit their rows:`, ...table(terminal, columns, rows)];
  });
  return discrepancies.length === 0 ? EXIT.ok : EXIT.untrusted;
}
