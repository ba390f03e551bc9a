/** `service-device import`: brings an archive or a plain export into the vault. */
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
  /** What differs here is replaced, also where it is newer here. */
  readonly overwrite?: boolean;
  /** Takes an export of another vault. */
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
      seed = new Uint8Array(
        await askSeed(sodium, context.terminal, { question, fromInput: options.phraseStdin === true }),
      );
    }
    const survey = await surveyed(context, source, seed);
    return await context.withDevice(async (open) => {
      expectOwn(context, options, { survey, open });
      return bring(context, { options, source, seed, survey, open });
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

/** A plain file is read at once: its items tell how far the import is. */
const PROGRESS_EVERY = 100;

interface Bringing {
  readonly options: ImportOptions;
  readonly source: ImportSource;
  readonly seed: Uint8Array;
  readonly survey: Survey;
  readonly open: OpenDevice;
}

async function bring(context: Context, { options, source, seed, survey, open }: Bringing): Promise<ExitCode> {
  const { terminal, platform } = context;
  const importer = new Importer(context, open, options.overwrite === true);
  try {
    await importer.bins(survey.bins);
    let taken = 0;
    const tell = throttledProgress(terminal);
    let read = 0;
    const said = (): string => `Imported ${taken} of ${survey.items} items  ${read} % of the file`;
    const records = source.records(platform.sodium, seed, (share) => {
      read = Math.floor(share * 100);
      tell(said);
    });
    // By hand: an item's content is taken from what follows it.
    for (let next = await records.next(); next.done !== true; next = await records.next()) {
      if (next.value.record !== 'item') continue;
      await bringItem(context, { importer, item: next.value, records });
      if (++taken % PROGRESS_EVERY === 0) terminal.progress(said());
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

async function bringItem(
  { platform }: Context,
  from: {
    readonly importer: Importer;
    readonly item: ArchivedItem;
    readonly records: AsyncGenerator<ArchiveRecord>;
  },
): Promise<void> {
  const { importer, item, records } = from;
  if (!(await importer.wants(item))) {
    await importer.take(item);
    return;
  }
  const content = await Spool.of(platform.sodium, contentOf(records, item.content ?? 0));
  try {
    await importer.take(item, content);
  } finally {
    await content.close();
  }
}

/** The content of the item before: the order of records was checked, so that parts of so many bytes follow. */
async function* contentOf(records: AsyncGenerator<ArchiveRecord>, length: number): AsyncGenerator<Uint8Array> {
  for (let left = length; left > 0;) {
    const next = await records.next();
    if (next.done === true || next.value.record !== 'part')
      throw new ArchiveError('bad_record', 'the content of an item is not whole');
    left -= next.value.data.length;
    yield next.value.data;
  }
}

const several = (count: number, text: string): readonly string[] => (count === 0 ? [] : [`${count} ${text}`]);

/** Says what became of the items; codes of refusals are the server's words. */
export function report({ terminal }: Context, { file }: ImportOptions, counts: ImportCounts): ExitCode {
  const refused = [...counts.refused].map(([code, items]) => ({ code, items }));
  if (terminal.json) terminal.data({ file, ...counts, refused });
  else terminal.print(`${file}: ${counted(counts.written, 'item')} imported, ${counts.same} were here already.`);
  const notes = [
    ...several(
      counts.renamed,
      'items were deleted here and came back under new ids: a deleted id cannot be used again.',
    ),
    ...several(counts.newer, 'items were changed here later and stay as they are (--overwrite replaces them).'),
    ...several(counts.blobs, 'items are files whose content is not in this export, and were left out.'),
    ...several(counts.waiting, 'items wait here and go out when the server is back: run any command then.'),
    ...refused.map(({ code, items }) => `${items} items were refused: ${sanitizeText(code)}.`),
  ];
  for (const note of notes) terminal.note(note);
  if (refused.length > 0) return EXIT.refused;
  return counts.waiting > 0 ? EXIT.unavailable : EXIT.ok;
}

function refusal(file: string, error: ArchiveError): CommandError {
  const message = `${file} is refused: ${error.message}.`;
  if (error.code === 'wrong_words')
    return new CommandError(EXIT.untrusted, message, 'Were they the words of the vault that was exported?');
  if (error.code === 'unsupported')
    return new CommandError(EXIT.untrusted, message, 'Update this program, or take another copy of the file.');
  return new CommandError(EXIT.untrusted, message, 'Nothing was written. Take another copy of the file.');
}
