/** Detects by its content which program a file is from, and reads its entries. */
import { BINS_MAX } from '../protocol/limits.js';
import { isArchive } from '../sdk/archive/archive.js';
import { PLAIN_FORMAT } from '../sdk/archive/records.js';
import { readBitwarden } from './bitwarden.js';
import { readCsv } from './csv.js';
import { type Entry, ForeignError, type ForeignEntries, foreignText, type Secrets } from './entries.js';
import { isKeepass, readKeepass } from './keepass.js';
import { readVcards } from './vcard.js';

/** Maximum size of a file, which is read as a whole. */
const FILE_MAX = 64 * 1024 * 1024;
const ZIP_MAGIC = 'PK\u0003\u0004';
/** The program is detected by this many first bytes. */
const HEAD_BYTES = 64 * 1024;

/** A file of another program. */
export interface ForeignFile {
  /** Bytes. */
  readonly size: number;
  /** The first `length` bytes, or all where there are fewer. */
  readonly read: (length: number) => Promise<Uint8Array>;
}

/** The entries of a file; undefined where it has no known form. Throws `ForeignError`, and as `secrets`. */
export async function readForeignFile(file: ForeignFile, secrets: Secrets): Promise<ForeignEntries | undefined> {
  const format = formatOf(await file.read(HEAD_BYTES));
  if (format === undefined) return undefined;
  if (file.size > FILE_MAX) {
    const most = `${FILE_MAX / 1024 / 1024} MiB`;
    throw new ForeignError('', `it has more than ${most}, the most that is read at once`);
  }
  const found = await entriesOf(format, await file.read(file.size), secrets);
  if (found !== undefined) expectFewBins(found.entries);
  return found;
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
function formatOf(head: Uint8Array): Format | undefined {
  if (isArchive(head)) return undefined;
  if (isKeepass(head)) return 'keepass';
  const start = new TextDecoder().decode(head);
  const unpack = 'Unpack it, and import the file that is in it. Nothing was written.';
  if (start.startsWith(ZIP_MAGIC)) throw new ForeignError('', 'it is a zip archive', unpack);
  const text = start.trimStart();
  if (/^BEGIN:VCARD/i.test(text)) return 'vcard';
  if (text.startsWith('{')) {
    // `encrypted` is Bitwarden's first field; the first field of a plain export of a vault is its format.
    const isPlainExport = new RegExp(`"format"\\s*:\\s*"${PLAIN_FORMAT}"`).test(text);
    return !isPlainExport && /"encrypted"\s*:\s*(?:true|false)/.test(text) ? 'json' : undefined;
  }
  const [first = ''] = text.split(/[\r\n]/);
  return /,/.test(first) && /password/i.test(first) ? 'csv' : undefined;
}

/** Throws `ForeignError` for more folders than a vault has bins. */
export function expectFewBins(entries: readonly Entry[]): void {
  const folders = new Set(entries.filter(({ made }) => made.length > 0).map(({ folder }) => folder)).size;
  if (folders > BINS_MAX)
    throw new ForeignError('', `it has ${folders} folders, and a vault has at most ${BINS_MAX} bins`);
}
