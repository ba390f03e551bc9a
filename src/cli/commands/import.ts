/** `service-device import`: writes an archive, a plain export or the export of another program into the vault. */
import { Option } from 'commander';
import { Importer, type ImportCounts, surveyOf, type Survey } from '../../sdk/archive/importer.js';
import { ArchiveError } from '../../sdk/archive/records.js';
import { isTransient } from '../../sdk/errors.js';
import { DEFAULT_BIN } from '../../protocol/limits.js';
import { fingerprintOfMaster } from '../../crypto/fingerprint.js';
import type { Context, DeviceCommand, OpenDevice } from '../context.js';
import { type Account, accountOf } from '../../import/account.js';
import { type Entry, PROGRAMS, type ForeignProgram, type ForeignSource } from '../../import/entries.js';
import { type Incoming, incomingOf } from '../../import/records.js';
import { readForeign } from '../foreign/source.js';
import { type ImportSource, withSource } from '../import-source.js';
import { askSeed } from '../phrase.js';
import { counted, sanitizeText, show, table, throttledProgress } from '../../terminal/output.js';
import { Spool } from '../spool.js';
import { CommandError, EXIT, type ExitCode, type Terminal } from '../../terminal/terminal.js';
import type { CommandOptions } from '../../terminal/program.js';

type Flag = 'dryRun' | 'overwrite' | 'foreign' | 'phraseStdin';

/** Options of `import`. `from`: the program whose export it must be; absent: detected from the content. */
interface ImportOptions extends CommandOptions<'passwordFile' | 'keyFile', Flag> {
  readonly file: string;
  readonly from?: ForeignProgram;
}

/** `account`: of a file of another program. */
type ImportRun = ImportOptions & { readonly account?: Account };

export function registerImport(program: DeviceCommand): void {
  program
    .command('import')
    .summary('import an export of a vault, or of another program, into this vault')
    .description(
      'Brings an archive, a plain export, or what another program exported into this vault: Bitwarden JSON and CSV, Chrome ' +
        'and Firefox CSV, KeePass KDBX, vCard, a folder of Markdown. What no field here holds becomes a note with the ' +
        'original beside it.',
    )
    .argument('<file>', 'the file that `export` wrote, a file of another program, or a folder of Markdown')
    .addOption(
      new Option('--from <program>', 'the program it must be from; without it the content decides').choices(PROGRAMS),
    )
    .option('--dry-run', 'only show what would be imported; write nothing')
    .option('--overwrite', 'replace items that differ here, even newer ones')
    .option('--foreign', 'accept an export of another vault')
    .option('--phrase-stdin', "read the archive's twelve words from standard input instead of asking")
    .option('--password-file <path>', 'the password of a locked export, for scripts ("-": standard input)')
    .option('--key-file <path>', 'the key file of a KeePass database')
    .examples('import vault.archive', 'import bitwarden.json --dry-run', 'import passwords.kdbx', 'import ~/notes')
    .changes((context, file: string, options: Omit<ImportOptions, 'file'>) =>
      importVault(context, { ...options, file }),
    );
}

/** Imports a file. The whole file is read and verified before anything is written. Throws `CommandError`. */
export async function importVault(context: Context, options: ImportOptions): Promise<ExitCode> {
  const { file, from, passwordFile, keyFile } = options;
  const foreign = await readForeign(file, from, { terminal: context.terminal, passwordFile, keyFile });
  if (foreign !== undefined) return importForeign(context, options, foreign);
  return withSource(file, (source) => importOwn(context, options, source));
}

async function importForeign(context: Context, options: ImportOptions, source: ForeignSource): Promise<ExitCode> {
  const { terminal, platform } = context;
  const account = accountOf(source);
  if (options.dryRun === true) {
    const { file } = options;
    show(terminal, { file, dryRun: true, ...account, each: source.entries.map(entryFacts) }, () => [
      `${sanitizeText(file)}: ${account.from}, ${counted(account.entries, 'entry', 'entries')}, which become ${counted(account.items, 'item')} in ${counted(account.bins, 'bin')}.`,
      ...accountLines(terminal, account),
      NOTHING_WRITTEN,
    ]);
    return EXIT.ok;
  }
  return context.withDevice(async (open) => {
    const { masterKey } = open.identity;
    const incoming = incomingOf(source, platform, masterKey);
    return importRecords(context, { ...options, account }, incoming, open);
  });
}

const NOTHING_WRITTEN = 'Nothing was written: this was a dry run.';

/** Reports what an archive or plain export of this service holds, for `--dry-run`. */
function showSurvey({ terminal }: Context, { file }: ImportOptions, { types, items }: Survey): ExitCode {
  const kinds = [...types].map(([type, entries]) => ({ kind: type, becomes: type, entries }));
  const rows = kinds.map(({ kind, entries }) => [String(entries), kind]);
  show(terminal, { file, dryRun: true, entries: items, items, kinds }, () => [
    `${sanitizeText(file)}: ${counted(items, 'item')}.`,
    ...table(terminal, [{ title: 'ITEMS' }, { title: 'TYPE' }], rows),
    NOTHING_WRITTEN,
  ]);
  return EXIT.ok;
}

async function importOwn(context: Context, options: ImportOptions, source: ImportSource): Promise<ExitCode> {
  const { sodium } = context.platform;
  let seed: Uint8Array = new Uint8Array(0);
  try {
    if (source.encrypted) {
      const question = 'The twelve words of this archive: ';
      const fromInput = options.phraseStdin === true;
      seed = await askSeed(sodium, context.terminal, { question, fromInput });
    }
    const survey = await surveyed(context, source, seed);
    if (options.dryRun === true) return showSurvey(context, options, survey);
    return await context.withDevice(async (open) => {
      expectOwn(context, options, survey, open);
      const records: Incoming['records'] = (onRead) => source.records(sodium, seed, onRead);
      return importRecords(context, options, { ...survey, records }, open);
    });
  } catch (error) {
    throw error instanceof ArchiveError ? refusal(options.file, error) : error;
  } finally {
    sodium.memzero(seed);
  }
}

async function surveyed({ platform, terminal }: Context, source: ImportSource, seed: Uint8Array): Promise<Survey> {
  const progress = throttledProgress(terminal);
  const records = source.records(platform.sodium, seed, (share) => {
    progress(() => `Verifying: ${Math.floor(share * 100)} %`);
    if (terminal.interrupted.aborted) throw new CommandError(EXIT.interrupted, 'Interrupted. Nothing was written.');
  });
  const survey = await surveyOf(records);
  terminal.progress('');
  return survey;
}

function expectOwn({ platform }: Context, { foreign, file }: ImportOptions, survey: Survey, open: OpenDevice): void {
  const own = fingerprintOfMaster(platform.sodium, open.identity.masterKey);
  const { masterFingerprint } = survey.manifest;
  if (masterFingerprint === own || foreign === true) return;
  const other = `from another vault (fingerprint ${masterFingerprint}, this one has ${own}). Nothing was written.`;
  throw new CommandError(EXIT.untrusted, `${file} is ${other}`, 'Add --foreign if it is yours anyway.');
}

const PROGRESS_EVERY = 100;

async function importRecords(context: Context, options: ImportRun, incoming: Incoming, open: OpenDevice) {
  const { terminal, platform } = context;
  const { device } = open;
  const importer = new Importer(device, {
    ...{ sodium: platform.sodium, clock: platform.clock, overwrite: options.overwrite === true },
    spool: (content) => Spool.of(platform.sodium, content),
    onPatience: () => terminal.note('The server is rate-limiting. Waiting.'),
    signal: terminal.interrupted,
  });
  try {
    const existing = await device.bins.list().catch(unlessTransient);
    if (existing === undefined) await expectKnown(open, [...incoming.bins.keys()]);
    else await importer.bins(incoming.bins, existing);
    let taken = 0;
    const progress = throttledProgress(terminal);
    const text = (): string => `Imported ${taken} of ${incoming.items} items`;
    // Also while the content of one item is read, which may take long.
    const records = incoming.records(() => progress(text));
    await importer.items(records, () => {
      if (++taken % PROGRESS_EVERY === 0) terminal.progress(text());
      if (terminal.interrupted.aborted)
        throw new CommandError(EXIT.interrupted, 'Interrupted.', 'Run the same command again to continue.');
    });
    await importer.finish();
    terminal.progress('');
  } catch (error) {
    await importer.finish().catch(() => undefined);
    const { written } = importer.counts;
    if (written > 0)
      terminal.note(`${written} items were imported before this. Running it again continues from there.`);
    throw error;
  } finally {
    importer.close();
  }
  report(context, options, importer.counts);
  return EXIT.ok;
}

function unlessTransient(error: unknown): undefined {
  if (!isTransient(error)) throw error;
}

/** Throws `CommandError`: without a server no bin can be created, and its items would be refused later, unnoticed. */
async function expectKnown({ store }: OpenDevice, wanted: readonly string[]): Promise<void> {
  const known = new Set([DEFAULT_BIN]);
  for await (const entry of store.entries()) if (entry.state === 'live') known.add(entry.row.binId);
  const missing = wanted.filter((id) => !known.has(id));
  if (missing.length === 0) return;
  const why = `The server cannot be reached, and ${missing.length} of the bins are not known here. Nothing was written.`;
  throw new CommandError(EXIT.unavailable, why, 'Run the command again when the server is back.');
}

/** Prints the counts. Throws `CommandError` where items were refused. */
export function report({ terminal }: Context, { file, account }: ImportRun, counts: ImportCounts): void {
  const refused = [...counts.refused].map(([code, items]) => ({ code, items }));
  show(terminal, { file, ...counts, refused, account }, () => [
    `${sanitizeText(file)}: ${counted(counts.written, 'item')} imported, ${counts.same} were here already.`,
    ...(account === undefined ? [] : accountLines(terminal, account)),
  ]);
  const notes: readonly (readonly [count: number, note: string])[] = [
    [counts.renamed, 'items had been deleted here and are here under new ids: a deleted id cannot be used again.'],
    [counts.newer, 'items were changed here later and stay as they are (--overwrite replaces them).'],
    [counts.blobs, 'items are files whose content is not in this export, and were left out.'],
    [counts.waiting, 'items wait here and are sent when the server is back: run any command then.'],
  ];
  for (const [count, note] of notes) if (count > 0) terminal.note(`${count} ${note}`);
  if (refused.length === 0) return;
  const reasons = refused.map(({ code, items }) => `${counted(items, 'item')} refused: ${sanitizeText(code)}`);
  throw new CommandError(EXIT.refused, `${reasons.join(', ')}.`, 'The others are counted above.');
}

function refusal(file: string, error: ArchiveError): CommandError {
  const hints: Readonly<Partial<Record<ArchiveError['code'], string>>> = {
    wrong_words: 'Were they the words of the vault that was exported?',
    unsupported: 'Update this program, or take another copy of the file.',
  };
  const hint = hints[error.code] ?? 'Nothing was written. Take another copy of the file.';
  const { code, message } = error;
  return new CommandError(EXIT.untrusted, `${file} is refused: ${message}.`, hint, { code });
}

const SHOWN_MAX = 200;

/** Each entry for `--json`. */
const entryFacts = (entry: Entry) => ({
  where: entry.where.slice(0, SHOWN_MAX),
  kind: entry.kind,
  name: entry.name.slice(0, SHOWN_MAX),
  bin: entry.folder.slice(0, SHOWN_MAX),
  becomes: entry.made.map(({ part, type }) => ({ part, type })),
  noField: entry.unplaced,
  leftOut: entry.left ?? null,
  marks: entry.marks,
});

/** The account as lines: a table, then notes. */
function accountLines(terminal: Terminal, { kinds, marks, withOriginal }: Account): readonly string[] {
  const counts = (entries: number): string => counted(entries, 'entry', 'entries');
  const rows = kinds.map(({ kind, becomes, entries }) => [String(entries), kind, becomes]);
  const beside = 'with data that no field holds: a note lists it, the original is beside it.';
  return [
    ...table(terminal, [{ title: 'ENTRIES' }, { title: 'KIND' }, { title: 'BECOMES' }], rows),
    ...(withOriginal === 0 ? [] : [`${counts(withOriginal)} ${beside}`]),
    ...marks.map(({ mark, entries }) => `Not imported: ${sanitizeText(mark)} (${counts(entries)}).`),
  ];
}
