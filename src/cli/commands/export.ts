/** `service-device export`: the whole vault in one file, encrypted under the twelve words, or plain on request. */
import { Option } from 'commander';
import { BINS_MAX } from '../../protocol/limits.js';
import { ArchiveWriter } from '../../sdk/archive/archive.js';
import { isLacking, partsOf } from '../../sdk/archive/content-parts.js';
import * as records from '../../sdk/archive/records.js';
import { isDamaged, isTransient } from '../../sdk/errors.js';
import type { ItemView } from '../../sdk/events.js';
import { NewFile } from '../../terminal/new-file.js';
import { counted, sanitizeText, show, throttledProgress } from '../../terminal/output.js';
import { CommandError, EXIT, type ExitCode, usageError } from '../../terminal/terminal.js';
import type { CommandOptions } from '../../terminal/program.js';
import { documentOutput, type DocumentForm, type Output } from '../export-document.js';
import { bitwardenForm } from '../foreign/bitwarden-export.js';
import { expectNoFolder, folderOutput } from '../foreign/folder-export.js';
import { PROGRAM_NAME, type Context, type DeviceCommand, type OpenDevice } from '../context.js';
import { askSeed } from '../phrase.js';
import { Spool } from '../spool.js';
import { sizeText } from '../transfer.js';

const TARGETS = ['bitwarden', 'folder'] as const;
const FORMS = 'write a form that another program reads, readable by anyone: JSON, or a folder of files';

/** Options of `export`. `files` false: the content of files is left out. */
interface ExportOptions extends CommandOptions<never, 'plain' | 'files' | 'force' | 'phraseStdin'> {
  /** `-` for standard output, plain only. */
  readonly file: string;
  /** A form for another program; unencrypted, like `plain`. */
  readonly to?: (typeof TARGETS)[number];
}

export function registerExport(program: DeviceCommand): void {
  program
    .command('export')
    .summary('the whole vault as one file, encrypted under the twelve words')
    .description('Writes the whole vault into one file, encrypted under your twelve words.')
    .argument('<file>', 'the file to write; - is standard output, with --plain and --to bitwarden only')
    .option('--plain', 'write readable JSON instead: anyone with the file can read everything')
    .addOption(new Option('--to <program>', FORMS).choices(TARGETS))
    .option('--no-files', 'leave the content of files out: what describes them is there')
    .option('--force', 'replace a file of that name')
    .option('--phrase-stdin', 'read the twelve words from standard input instead of asking')
    .examples(
      'export vault.archive',
      'export --plain vault.json',
      'export --to bitwarden vault.json',
      'export --to folder vault',
    )
    .does((context, file: string, options: Omit<ExportOptions, 'file'>) => exportVault(context, { ...options, file }));
}

/** Writes the vault into a file. Throws `CommandError`; no file is left behind then. */
export async function exportVault(context: Context, options: ExportOptions): Promise<ExitCode> {
  const { terminal } = context;
  expectAllowed(context, options);
  if (options.to === 'folder') await expectNoFolder(options.file);
  else if (options.file !== '-') await NewFile.expectFree(options.file, options.force === true);
  return context.withDevice(async (open) => {
    const isWhole = await comparedWith(context, open);
    const output = await outputOf(context, options, open);
    try {
      const exporter = new Exporter(context, open, { output, files: options.files !== false });
      await exporter.run();
      await output.finish();
      const { counts } = exporter;
      for (const note of output.notes?.() ?? []) terminal.note(note);
      report(context, options, counts);
      // Scripts must see that the export is incomplete.
      return counts.lacking + counts.damaged > 0 || !isWhole ? EXIT.untrusted : EXIT.ok;
    } catch (error) {
      await output.abandon();
      throw error;
    }
  });
}

/**
 * False where the server counts items that it does not list, and where it was reached but not compared with: an export
 * without them must not look like a whole one, and a server could hide them by not answering.
 */
async function comparedWith({ terminal }: Context, { device, current }: OpenDevice): Promise<boolean> {
  if (!current) {
    terminal.note('The server could not be reached: only what is here is exported.');
    return true;
  }
  const isComplete = await device.check().catch((error: unknown) => {
    if (terminal.interrupted.aborted || !isTransient(error)) throw error;
    return null;
  });
  if (isComplete === false)
    terminal.note(
      'Warning: the server counts other items than are here: the export is incomplete. `doctor` says more.',
    );
  if (isComplete === null)
    terminal.note(
      'Warning: what is here could not be compared with the server: only that is exported, and it may be incomplete.',
    );
  return isComplete === true;
}

/** True where the output is not an encrypted archive. */
const isReadable = ({ plain, to }: ExportOptions): boolean => plain === true || to !== undefined;

function expectAllowed({ terminal }: Context, options: ExportOptions): void {
  const { file, to, plain } = options;
  if (plain === true && to !== undefined) throw usageError('--plain and --to are two forms: give one of them.');
  if (file === '-' && to === 'folder') throw usageError('A folder has many files.', 'Give the name of a folder.');
  if (file === '-' && !isReadable(options))
    throw usageError('An archive is binary, and is written to a file.', 'Give a file name.');
  const readable = 'A plain export is not written to a screen: everything in the vault would be readable there.';
  const instead = 'Give a file name, or pipe the output into another program.';
  if (file === '-' && terminal.onScreen) throw usageError(readable, instead);
  if (isReadable(options))
    terminal.note('Warning: a plain export is not encrypted. Anyone with this file can read the whole vault.');
}

async function outputOf(context: Context, options: ExportOptions, open: OpenDevice): Promise<Output> {
  const { sodium, clock } = context.platform;
  const manifest = records.manifestOf(sodium, open.identity, clock.now());
  if (options.to === 'folder') return folderOutput(options.file, manifest);
  if (isReadable(options)) return documentOutput(context.terminal, options, formOf(options, manifest));
  const seed = await askSeed(sodium, context.terminal, {
    question: 'The twelve words of this vault: ',
    fromInput: options.phraseStdin === true,
    masterKey: open.identity.masterKey,
  });
  const file = await NewFile.create(options.file, options.force === true).catch((error: unknown) => {
    sodium.memzero(seed);
    throw error;
  });
  try {
    const writer = await ArchiveWriter.create(sodium, seed, file.write);
    const abandon = (): Promise<void> => {
      writer.end();
      return file.abandon();
    };
    await writer.add(manifest);
    const finish = async (): Promise<void> => {
      await writer.finish();
      await file.finish();
    };
    return { content: 'all', add: (record) => writer.add(record), finish, abandon };
  } catch (error) {
    await file.abandon();
    throw error;
  } finally {
    sodium.memzero(seed);
  }
}

/** The form of an export that is one document. */
function formOf({ to }: ExportOptions, manifest: records.ArchiveManifest): DocumentForm {
  if (to === 'bitwarden') return bitwardenForm();
  const { createdAt, tenantId, masterFingerprint } = manifest;
  const head = { format: records.PLAIN_FORMAT, version: 1, createdAt, tenantId, masterFingerprint };
  return { head, bins: 'bins', entry: records.plainRecord };
}

/** Ids and bins of all live items: their content is not held in memory. */
async function inventoryOf({ store }: OpenDevice) {
  const binOf = new Map<string, string>();
  for await (const entry of store.entries()) if (entry.state === 'live') binOf.set(entry.id, entry.row.binId);
  for (const pending of await store.pending()) if (pending.kind !== 'delete') binOf.set(pending.id, pending.row.binId);
  return { ids: [...binOf.keys()].sort(), binIds: new Set(binOf.values()) };
}

/** The bins with their names; without the server, the bins of the items. */
async function binsOf({ terminal }: Context, { device }: OpenDevice, binIds: ReadonlySet<string>) {
  try {
    const bins = await device.bins.list();
    // The server decides the length of the list, and an import refuses a longer one: bins with items come first.
    const used = bins.filter(({ id }) => binIds.has(id));
    const others = bins.filter(({ id }) => !binIds.has(id));
    return [...used, ...others].slice(0, BINS_MAX).map(({ id, slug, label }) => records.binRecord(id, slug, label));
  } catch (error) {
    if (!isTransient(error)) throw error;
    terminal.note('The names of the bins are not in the export: they are read from the server.');
    return [...binIds].sort().map((id) => records.binRecord(id, '', null));
  }
}

class Exporter {
  readonly counts = {
    bins: 0,
    items: 0,
    /** Files whose content was left out, as requested. */
    blobs: 0,
    /** Blobs that the server does not have, or has in a form that does not verify. */
    lacking: 0,
    /** Items that verified when they were received and cannot be decrypted now. */
    damaged: 0,
    /** Items that do not verify. */
    hidden: 0,
  };
  private bytes = 0;
  private total = 0;
  private readonly progress: ReturnType<typeof throttledProgress>;

  constructor(
    private readonly context: Context,
    private readonly open: OpenDevice,
    private readonly to: { readonly output: Output; readonly files: boolean },
  ) {
    this.progress = throttledProgress(context.terminal);
  }

  async run(): Promise<void> {
    const { context, open, counts } = this;
    const { ids, binIds } = await inventoryOf(open);
    this.total = ids.length;
    for (const bin of await binsOf(context, open, binIds)) {
      await this.to.output.add(bin);
      counts.bins++;
    }
    for (const id of ids) {
      if (context.terminal.interrupted.aborted)
        throw new CommandError(EXIT.interrupted, 'Interrupted. Nothing was written.');
      const item = await open.device.get(id).catch(unlessDamaged);
      if (item === 'damaged') counts.damaged++;
      else if (item !== undefined) await this.item(item);
    }
    counts.hidden = (await open.device.hidden()).length;
    context.terminal.progress('');
  }

  private async item(item: ItemView): Promise<void> {
    const { id, binId: bin, type, ts, payload } = item;
    const record = { record: 'item', id, bin, type, ts, payload, blob: item.blob !== null, content: null } as const;
    const { output, files } = this.to;
    const omitted = item.blob?.holds === 'file' && !(files && output.content !== 'none');
    if (omitted) this.counts.blobs++;
    if (omitted || item.blob === null) await output.add(record);
    else await this.itemOfBlob(record, output.content === 'all' || item.blob.holds === 'file');
    this.counts.items++;
    this.report();
  }

  /** Writes an item whose content is a blob: with the blob's bytes (`asContent`), else with its payload inline. */
  private async itemOfBlob(record: records.ArchivedItem, asContent: boolean): Promise<void> {
    const { device } = this.open;
    const { output } = this.to;
    const options = { signal: this.context.terminal.interrupted };
    try {
      if (asContent) await this.content(record, device.blob(record.id, options));
      else await output.add({ ...record, payload: await device.payload(record.id, options), blob: false });
    } catch (error) {
      if (!isLacking(error)) throw outOfReach(error);
      await output.add(record);
      this.counts.lacking++;
    }
  }

  /** The blob is spooled first: only at its end is it known to verify, and an archive cannot be rewound. */
  private async content(record: records.ArchivedItem, pieces: AsyncIterable<Uint8Array>): Promise<void> {
    const { output } = this.to;
    const spool = await Spool.of(this.context.platform.sodium, this.measured(pieces));
    try {
      await output.add({ ...record, content: spool.size });
      for await (const part of partsOf(spool)) await output.add(part);
    } finally {
      await spool.close();
    }
  }

  private async *measured(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
    for await (const piece of pieces) {
      this.bytes += piece.length;
      this.report();
      yield piece;
    }
  }

  private report(): void {
    const content = this.bytes === 0 ? '' : `, and ${sizeText(this.bytes)} of files`;
    this.progress(() => `Exported ${this.counts.items} of ${this.total} items${content}`);
  }
}

/** An item that cannot be decrypted does not stop the export. */
function unlessDamaged(error: unknown): 'damaged' {
  if (isDamaged(error)) return 'damaged';
  throw error;
}

function outOfReach(cause: unknown): unknown {
  const message = 'The content of a file cannot be read from the server. Nothing was written.';
  const hint = 'Run it again when the server is back, or add --no-files to leave the content of files out.';
  return isTransient(cause) ? new CommandError(EXIT.unavailable, message, hint, { cause }) : cause;
}

function report({ terminal }: Context, { file, plain, to }: ExportOptions, counts: Exporter['counts']): void {
  const { bins, items, blobs, lacking, damaged, hidden } = counts;
  const described = to === 'bitwarden' ? '.' : ': only its name is.';
  const again = `run \`${PROGRAM_NAME} sync\` and export again.`;
  const notes: readonly (readonly [count: number, note: string])[] = [
    [blobs, `${counted(blobs, 'item')} with a file on the server, which is not in the export${described}`],
    [
      lacking,
      `${counted(lacking, 'item')} with content that the server does not have as it was written: it is not here.`,
    ],
    [damaged, `${counted(damaged, 'item')} left out, since the copy here does not open: ${again}`],
    [hidden, `${counted(hidden, 'item')} left out, since not verified: \`doctor\` says which and why.`],
  ];
  for (const [count, note] of notes) if (count > 0) terminal.note(note);
  if (file === '-') return;
  show(terminal, { file, plain: plain === true, to, ...counts }, () => [
    `${sanitizeText(file)}: ${counted(items, 'item')} in ${counted(bins, 'bin')}.`,
  ]);
}
