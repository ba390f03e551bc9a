/** `service-device import`: writes an archive or a plain export into the vault. */
import { type ArchivedItem, ArchiveError, type ArchiveRecord } from '../../sdk/archive/records.js';
import { fingerprintOfMaster } from '../../crypto/fingerprint.js';
import type { Context, DeviceCommand, OpenDevice } from '../context.js';
import { ImportSource, type Survey } from '../import-source.js';
import { Importer, type ImportCounts } from '../importer.js';
import { askSeed } from '../phrase.js';
import { counted, sanitizeText, throttledProgress } from '../../terminal/output.js';
import { Spool } from '../spool.js';
import { CommandError, EXIT, type ExitCode } from '../../terminal/terminal.js';

/** Options of `import`. */
export interface ImportOptions {
  readonly file: string;
  /** Replaces different items, also newer ones. */
  readonly overwrite?: boolean;
  /** Accepts an export of another vault. */
  readonly foreign?: boolean;
  readonly phraseStdin?: boolean;
}

/** `import <file>`. */
export function registerImport(program: DeviceCommand): void {
  program
    .command('import')
    .summary('what export wrote, into this vault')
    .description('Bring an archive, or a plain export, into this vault')
    .argument('<file>', 'the file that `export` wrote')
    .option('--overwrite', 'replace what differs here, also where it is newer here')
    .option('--foreign', 'take an export of another vault')
    .option('--phrase-stdin', "read the archive's twelve words from standard input instead of asking")
    .examples('import vault.archive', 'import vault.json --overwrite')
    .does((context, file: string, options: Omit<ImportOptions, 'file'>) => importVault(context, { ...options, file }));
}

/** Imports a file. The whole file is read and verified before anything is written. Throws `CommandError`. */
export async function importVault(context: Context, options: ImportOptions): Promise<ExitCode> {
  const { sodium } = context.platform;
  const source = await ImportSource.open(options.file);
  let seed = new Uint8Array(0);
  try {
    if (source.encrypted) {
      const question = 'The twelve words under which this archive was made: ';
      const fromInput = options.phraseStdin === true;
      seed = new Uint8Array(await askSeed(sodium, context.terminal, { question, fromInput }));
    }
    const survey = await surveyed(context, source, seed);
    return await context.withDevice(async (open) => {
      expectOwn(context, options, { survey, open });
      return importRecords(context, options, { source, seed, survey, open });
    });
  } catch (error) {
    throw error instanceof ArchiveError ? refusal(options.file, error) : error;
  } finally {
    context.terminal.progress('');
    sodium.memzero(seed);
    await source.close();
  }
}

async function surveyed({ platform, terminal }: Context, source: ImportSource, seed: Uint8Array): Promise<Survey> {
  const tell = throttledProgress(terminal);
  const survey = await source.survey(platform.sodium, seed, (share) => {
    tell(() => `Verifying: ${Math.floor(share * 100)} %`);
    if (terminal.interrupted.aborted) throw new CommandError(EXIT.interrupted, 'Interrupted. Nothing was written.');
  });
  terminal.progress('');
  return survey;
}

function expectOwn(
  { platform }: Context,
  { foreign, file }: ImportOptions,
  { survey, open }: { readonly survey: Survey; readonly open: OpenDevice },
): void {
  const own = fingerprintOfMaster(platform.sodium, open.identity.masterKey);
  if (survey.manifest.masterFingerprint === own || foreign === true) return;
  throw new CommandError(
    EXIT.untrusted,
    `${file} is of another vault (fingerprint ${survey.manifest.masterFingerprint}, this one has ${own}). Nothing was written.`,
    'Say --foreign if it is yours all the same.',
  );
}

/** A plain export is read at once, so its progress is reported by items. */
const PROGRESS_EVERY = 100;

async function importRecords(
  context: Context,
  options: ImportOptions,
  from: { source: ImportSource; seed: Uint8Array; survey: Survey; open: OpenDevice },
): Promise<ExitCode> {
  const { terminal, platform } = context;
  const { source, seed, survey, open } = from;
  const importer = new Importer(context, open, options.overwrite === true);
  try {
    await importer.bins(survey.bins);
    let taken = 0;
    let read = 0;
    const progress = throttledProgress(terminal);
    const text = (): string => `Imported ${taken} of ${survey.items} items  ${read} % of the file`;
    const records = source.records(platform.sodium, seed, (share) => {
      read = Math.floor(share * 100);
      progress(text);
    });
    // Not `for await`: the records that follow an item are read as its content.
    for (let next = await records.next(); next.done !== true; next = await records.next()) {
      if (next.value.record !== 'item') continue;
      await importItem(context, importer, { item: next.value, records });
      if (++taken % PROGRESS_EVERY === 0) terminal.progress(text());
    }
    await importer.finish();
    terminal.progress('');
    return report(context, options, importer.counts);
  } catch (error) {
    terminal.progress('');
    await importer.finish().catch(() => undefined);
    if (importer.counts.written > 0)
      terminal.note(`${importer.counts.written} items were imported before this. Running it again goes on from there.`);
    throw error;
  } finally {
    importer.close();
  }
}

async function importItem(
  { platform }: Context,
  importer: Importer,
  { item, records }: { readonly item: ArchivedItem; readonly records: AsyncGenerator<ArchiveRecord> },
): Promise<void> {
  if (!(await importer.wants(item))) return importer.take(item);
  const content = await Spool.of(platform.sodium, contentOf(records, item.content ?? 0));
  try {
    await importer.take(item, content);
  } finally {
    await content.close();
  }
}

/** The content of the item just read: the survey has verified that parts of `length` bytes follow it. */
async function* contentOf(records: AsyncGenerator<ArchiveRecord>, length: number): AsyncGenerator<Uint8Array> {
  for (let left = length; left > 0;) {
    const next = await records.next();
    if (next.done === true || next.value.record !== 'part')
      throw new ArchiveError('bad_record', 'the content of an item is not whole');
    left -= next.value.data.length;
    yield next.value.data;
  }
}

/** Prints the counts. */
export function report({ terminal }: Context, { file }: ImportOptions, counts: ImportCounts): ExitCode {
  const refused = [...counts.refused].map(([code, items]) => ({ code, items }));
  if (terminal.json) terminal.data({ file, ...counts, refused });
  else terminal.print(`${file}: ${counted(counts.written, 'item')} imported, ${counts.same} were here already.`);
  const notes: readonly (readonly [count: number, note: string])[] = [
    [counts.renamed, 'items were deleted here and came back under new ids: a deleted id cannot be used again.'],
    [counts.newer, 'items were changed here later and stay as they are (--overwrite replaces them).'],
    [counts.blobs, 'items are files whose content is not in this export, and were left out.'],
    [counts.waiting, 'items wait here and go out when the server is back: run any command then.'],
    ...refused.map(({ code, items }) => [items, `items were refused: ${sanitizeText(code)}.`] as const),
  ];
  for (const [count, note] of notes) if (count > 0) terminal.note(`${count} ${note}`);
  if (refused.length > 0) return EXIT.refused;
  return counts.waiting > 0 ? EXIT.unavailable : EXIT.ok;
}

function refusal(file: string, error: ArchiveError): CommandError {
  const hints: Readonly<Partial<Record<ArchiveError['code'], string>>> = {
    wrong_words: 'Were they the words of the vault that was exported?',
    unsupported: 'Update this program, or take another copy of the file.',
  };
  const hint = hints[error.code] ?? 'Nothing was written. Take another copy of the file.';
  return new CommandError(EXIT.untrusted, `${file} is refused: ${error.message}.`, hint);
}
