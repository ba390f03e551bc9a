/** `service-admin verify`: the consistency of the database and its blobs, or of a backup. */
import { systemClock } from '../../../protocol/clock.js';
import { counted, sanitizeText, show, table } from '../../../terminal/output.js';
import { EXIT, type ExitCode, type Terminal } from '../../../terminal/terminal.js';
import { withStore } from '../../app/object-store.js';
import { Reaper, type Comparison } from '../../blobs/reaper.js';
import { verifyArchive } from '../backup/archive.js';
import { aboutBackup } from '../backup/manifest.js';
import { aboutList, listData } from '../bucket-list.js';
import { type AdminContext, type AdminCommand } from '../context.js';
import { countsLine, progressOf, sized, titled } from '../progress.js';
import type { Discrepancy } from '../store.js';

export function registerVerify(program: AdminCommand): void {
  program
    .command('verify')
    .summary('compare the figures of the database with its rows, and blobs with their store; or check a backup')
    .description(
      'Compare what the database counts of each tenant (items, versions, storage) with its rows, find rows that ' +
        'belong to nobody, and compare the blobs with their store, both ways; with a file, compare a backup with its ' +
        'manifest instead. Changes nothing',
    )
    .argument('[file]', 'a backup')
    .examples('verify', 'verify service.tar.gz')
    .does((context, file?: string) => (file === undefined ? verifyRows(context) : verifyFile(context, file)));
}

async function verifyFile({ terminal }: AdminContext, file: string): Promise<ExitCode> {
  const manifest = await verifyArchive(file, progressOf(terminal, 'Verifying'));
  const about = aboutBackup(manifest);
  const { objects } = manifest;
  show(terminal, { file, whole: true, ...about, objects: listData(objects) }, () => [
    `${file} is whole: every part matches its manifest.`,
    `Made ${about.createdAt} by version ${sanitizeText(about.version)}, schema ${about.schema}.`,
    objects !== undefined && `It has the ${aboutList(objects)}.`,
  ]);
  return EXIT.ok;
}

async function verifyRows({ terminal, withReady, config }: AdminContext): Promise<ExitCode> {
  const { counts, discrepancies, blobs } = await withReady(({ store: operator, pool, url }) =>
    withStore(config(), async (store) => ({
      counts: await reported(terminal, 'Counting', operator.counts()),
      discrepancies: await reported(terminal, 'Comparing the figures with the rows', operator.discrepancies()),
      blobs: await reported(
        terminal,
        'Comparing the blobs with their store',
        new Reaper(store, pool, url, systemClock).compare(false, terminal.interrupted),
      ),
    })),
  );
  // The JSON output names foreign objects `strangers`. `done` is left out, since nothing is removed here.
  const { foreign: strangers, done: _, ...found } = blobs;
  show(terminal, { ...counts, discrepancies, blobs: { ...found, strangers } }, () => [
    ...figureLines(terminal, countsLine(counts), discrepancies),
    ...blobLines(terminal, blobs),
  ]);
  return discrepancies.length === 0 && blobs.missing === 0 ? EXIT.ok : EXIT.untrusted;
}

/** Runs a step without measurable progress, showing only its name. */
async function reported<T>(terminal: Terminal, what: string, step: Promise<T>): Promise<T> {
  terminal.progress(`${what} ...`);
  try {
    return await step;
  } finally {
    terminal.progress('');
  }
}

function figureLines(terminal: Terminal, counts: string, discrepancies: readonly Discrepancy[]): readonly string[] {
  if (discrepancies.length === 0) return [`${counts}: every figure matches its rows.`];
  const columns = titled('Tenant', 'What', 'Stored', 'Counted');
  const rows = discrepancies.map((row) => [row.tenantId, row.what, String(row.stored), String(row.counted)]);
  return [`${counts}. These figures do not match their rows:`, ...table(terminal, columns, rows)];
}

function blobLines(terminal: Terminal, found: Comparison): readonly (string | false)[] {
  const { objects, strays, strayBytes, foreign, unremoved, missing, examples, whole } = found;
  if (!whole) return ['The comparison of the blobs was stopped.'];
  const columns = titled('Tenant', 'Blob', 'Bytes', 'Item');
  const rows = examples.map(({ tenantId, ref, size, itemId }) => [tenantId, ref, String(size), itemId ?? '']);
  const unknown = foreign === 0 ? '' : `, ${foreign} of them from tenants that this database never had`;
  const kept = `${counted(unremoved.count, 'blob')} (${sized(unremoved.bytes)}) without an item could not be removed`;
  const first = missing > rows.length ? '; the first of them' : '';
  return [
    `${counted(objects, 'object')} in the blob store${strays === 0 ? ', each belonging to a blob' : ''}.`,
    strays > 0 &&
      `${counted(strays, 'object')} (${sized(strayBytes)}) without a blob${unknown}: the nightly job removes old ones.`,
    unremoved.count > 0 &&
      `${kept} from the store: is the server allowed to remove there? The nightly job tries again; see the log.`,
    missing === 0 ? 'No blob is missing.' : `${counted(missing, 'blob')} missing in the store${first}:`,
    ...(missing === 0 ? [] : table(terminal, columns, rows)),
    missing > 0 && objects === 0 && 'The store is empty: is DATA_DIR, or the bucket, the one that the server uses?',
  ];
}
