/** Reads the export of another program from the disk: a file, or a folder of Markdown. */
import { createReadStream, type Stats } from 'node:fs';
import { stat } from 'node:fs/promises';
import { retryMistyped, secretFrom } from '../../device/newcomer.js';
import { readBytes, withFile } from '../../files/read.js';
import { ForeignError, WrongPassword } from '../../import/entries.js';
import type { ForeignEntries, ForeignProgram, Secrets } from '../../import/entries.js';
import { expectFewBins, readForeignFile } from '../../import/formats.js';
import { KEY_FILE_MAX } from '../../import/keepass.js';
import { errorCode } from '../../protocol/error-code.js';
import { sanitizeText } from '../../terminal/output.js';
import { readCapped } from '../../terminal/read-capped.js';
import type { CommandOptions } from '../../terminal/program.js';
import { CommandError, EXIT, type Terminal, usageError } from '../../terminal/terminal.js';
import { readMarkdown } from './markdown.js';

/** Where the secrets of a locked source come from. `passwordFile` `-`: standard input; absent: it is asked for. */
interface SecretSources extends CommandOptions<'passwordFile' | 'keyFile'> {
  readonly terminal: Terminal;
}

/**
 * Reads the export of another program; undefined where the path is an archive or a plain export of a vault, or of no
 * known form. Throws `CommandError` for a source that cannot be read, is not of the program `from`, or is damaged; the
 * message names the entry.
 */
export async function readForeign(path: string, from: ForeignProgram | undefined, sources: SecretSources) {
  const stats = await stat(path).catch((error: unknown) => {
    const why = errorCode(error) === 'ENOENT' ? 'does not exist' : `cannot be read (${errorCode(error)})`;
    throw new CommandError(EXIT.usage, `${path} ${why}.`, undefined, { cause: error });
  });
  try {
    const found = stats.isDirectory() ? await readFolder(path) : await readOne(path, stats, secretsOf(sources));
    if (from !== undefined && found?.program !== from)
      throw new ForeignError('', found === undefined ? `it is not from ${from}` : `it is ${found.title}, not ${from}`);
    return found === undefined ? undefined : { ...found, time: Math.floor(stats.mtimeMs) };
  } catch (error) {
    if (error instanceof WrongPassword)
      throw new CommandError(EXIT.untrusted, error.message, undefined, { cause: error });
    if (!(error instanceof ForeignError)) throw error;
    const where = error.where === '' ? '' : ` at ${sanitizeText(error.where.slice(0, 200))}`;
    throw new CommandError(EXIT.untrusted, `${path} is refused${where}: ${error.why}.`, error.hint, { cause: error });
  }
}

async function readFolder(path: string): Promise<ForeignEntries> {
  const entries = await readMarkdown(path);
  expectFewBins(entries);
  return { program: 'markdown', title: 'folder of Markdown', entries };
}

async function readOne(path: string, stats: Stats, secrets: Secrets): Promise<ForeignEntries | undefined> {
  if (!stats.isFile()) throw usageError(`${path} is not a file.`);
  return withFile(path, (handle) =>
    readForeignFile({ size: stats.size, read: (length) => readBytes(handle, 0, length) }, secrets),
  );
}

/** The password, typed without echo or read from a file; a wrong one may be typed again. */
const secretsOf = ({ terminal, passwordFile, keyFile }: SecretSources): Secrets => ({
  unlock: async (program, open) => {
    if (passwordFile !== undefined) return open(await secretFrom(terminal, passwordFile));
    const keyed = program === 'keepass' && keyFile !== undefined;
    // A script that names a key file alone has no password to give.
    if (keyed && !terminal.interactive) return open('');
    const what = program === 'keepass' ? 'database' : 'Bitwarden export';
    const question = `The password of this ${what}${keyed ? ' (none: only the key file)' : ''}: `;
    const attempt = async () => open(await terminal.ask(question, { hidden: true }));
    return retryMistyped(terminal, attempt, (error) =>
      error instanceof WrongPassword ? `${error.message} Try again.` : undefined,
    );
  },
  keyFile: async () => {
    if (keyFile === undefined) return undefined;
    const { bytes, whole } = await readCapped(createReadStream(keyFile), KEY_FILE_MAX);
    if (!whole) throw usageError(`${keyFile} is not a key file: it has more than ${KEY_FILE_MAX} bytes.`);
    return new Uint8Array(bytes);
  },
});
