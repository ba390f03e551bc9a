/** Detects by its content which program a file or a folder is from, and reads its entries. */
import type { Stats } from 'node:fs';
import { stat } from 'node:fs/promises';
import { isArchive } from '../../sdk/archive/archive.js';
import { PLAIN_FORMAT } from '../../sdk/archive/records.js';
import { errorCode } from '../../protocol/error-code.js';
import { BINS_MAX } from '../../protocol/limits.js';
import { sanitizeText } from '../../terminal/output.js';
import { CommandError, EXIT, usageError } from '../../terminal/terminal.js';
import { readBytes, withFile } from '../../files/read.js';
import { readBitwarden } from './bitwarden.js';
import { readCsv } from './csv.js';
import { ForeignError, foreignText } from './entries.js';
import type { Entry, ForeignEntries, ForeignProgram, Secrets } from './entries.js';
import { isKeepass, readKeepass } from './keepass.js';
import { readMarkdown } from './markdown.js';
import { readVcards } from './vcard.js';

/** Maximum size of a file, which is read as a whole. */
const FOREIGN_FILE_MAX = 64 * 1024 * 1024;
const ZIP_MAGIC = Buffer.from('PK\u0003\u0004', 'latin1');
/** The program is detected by this many first bytes. */
const HEAD_BYTES = 64 * 1024;

/**
 * Reads the export of another program; undefined where the path is an archive or a plain export of a vault, or of no
 * known form. Throws `CommandError` for a source that cannot be read, is not of the program `from`, or is damaged; the
 * message names the entry.
 */
export async function readForeign(path: string, from: ForeignProgram | undefined, secrets: Secrets) {
  const stats = await stat(path).catch((error: unknown) => {
    const why = errorCode(error) === 'ENOENT' ? 'does not exist' : `cannot be read (${errorCode(error)})`;
    throw new CommandError(EXIT.usage, `${path} ${why}.`, undefined, { cause: error });
  });
  try {
    const found: ForeignEntries | undefined = stats.isDirectory()
      ? { program: 'markdown', title: 'folder of Markdown', entries: await readMarkdown(path) }
      : await readFile(path, stats, secrets);
    if (from !== undefined && found?.program !== from)
      throw new ForeignError('', found === undefined ? `it is not from ${from}` : `it is ${found.title}, not ${from}`);
    if (found !== undefined) expectFewBins(found.entries);
    return found === undefined ? undefined : { ...found, time: Math.floor(stats.mtimeMs) };
  } catch (error) {
    if (!(error instanceof ForeignError)) throw error;
    const where = error.where === '' ? '' : ` at ${sanitizeText(error.where.slice(0, 200))}`;
    throw new CommandError(EXIT.untrusted, `${path} is refused${where}: ${error.why}.`, error.hint, { cause: error });
  }
}

async function readFile(path: string, stats: Stats, secrets: Secrets): Promise<ForeignEntries | undefined> {
  if (!stats.isFile()) throw usageError(`${path} is not a file.`);
  return withFile(path, async (handle) => {
    const format = formatOf(await readBytes(handle, 0, HEAD_BYTES));
    if (format === undefined) return undefined;
    if (stats.size > FOREIGN_FILE_MAX) {
      const most = `${FOREIGN_FILE_MAX / 1024 / 1024} MiB`;
      throw new ForeignError('', `it has more than ${most}, the most that is read at once`);
    }
    return entriesOf(format, await readBytes(handle, 0, stats.size), secrets);
  });
}

async function entriesOf(format: Format, bytes: Uint8Array, secrets: Secrets): Promise<ForeignEntries | undefined> {
  if (format === 'keepass')
    return { program: format, title: 'KeePass database', entries: await readKeepass(bytes, secrets) };
  const text = foreignText(bytes);
  if (format === 'csv') return readCsv(text);
  if (format === 'vcard') return { program: format, title: 'vCard', entries: readVcards(text) };
  return { program: 'bitwarden', title: 'Bitwarden JSON', entries: await readBitwarden(text, secrets) };
}

type Format = 'keepass' | 'json' | 'vcard' | 'csv';

/** The format of another program's export; undefined for any other file. Throws `ForeignError` for a zip archive. */
function formatOf(head: Buffer): Format | undefined {
  if (isArchive(head)) return undefined;
  if (isKeepass(head)) return 'keepass';
  const unpack = 'Unpack it, and import the file that is in it. Nothing was written.';
  if (head.subarray(0, ZIP_MAGIC.length).equals(ZIP_MAGIC)) throw new ForeignError('', 'it is a zip archive', unpack);
  const text = new TextDecoder().decode(head).trimStart();
  if (/^BEGIN:VCARD/i.test(text)) return 'vcard';
  if (text.startsWith('{')) {
    // `encrypted` is Bitwarden's first field; the first field of a plain export of a vault is its format.
    const isPlainExport = new RegExp(`"format"\\s*:\\s*"${PLAIN_FORMAT}"`).test(text);
    return !isPlainExport && /"encrypted"\s*:\s*(?:true|false)/.test(text) ? 'json' : undefined;
  }
  const [first = ''] = text.split(/[\r\n]/);
  return /,/.test(first) && /password/i.test(first) ? 'csv' : undefined;
}

function expectFewBins(entries: readonly Entry[]): void {
  const folders = new Set(entries.filter(({ made }) => made.length > 0).map(({ folder }) => folder)).size;
  if (folders > BINS_MAX)
    throw new ForeignError('', `it has ${folders} folders, and a vault has at most ${BINS_MAX} bins`);
}
