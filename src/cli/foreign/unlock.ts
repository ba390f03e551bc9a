/** The password of a locked export: typed without echo, or read from a file; a wrong one may be typed again. */
import { readFile, stat } from 'node:fs/promises';
import { retried } from '../../device/newcomer.js';
import type { Context } from '../context.js';
import { secretFrom } from '../newcomer.js';
import { CommandError, EXIT, usageError } from '../../terminal/terminal.js';

/** How a locked source is opened. */
export interface Secrets {
  readonly terminal: Context['terminal'];
  /** `-`: standard input. Undefined: it is asked for. */
  readonly passwordFile?: string | undefined;
  readonly keyFile?: string | undefined;
}

/** The source does not open with this password. */
export class WrongPassword extends CommandError {
  constructor(options?: ErrorOptions) {
    super(
      EXIT.untrusted,
      'The file does not open: another password or key file, or it is damaged.',
      undefined,
      options,
    );
  }
}

const KEY_FILE_MAX = 1024 * 1024;

/** The result of `open` with the password. Throws `WrongPassword` after the last attempt, and what `open` throws. */
export async function unlocked<T>(
  { terminal, passwordFile }: Secrets,
  question: string,
  open: (password: string) => Promise<T>,
): Promise<T> {
  if (passwordFile !== undefined) return open(await secretFrom(terminal, passwordFile));
  const attempt = async (): Promise<T> => open(await terminal.ask(question, { hidden: true }));
  return retried(terminal, attempt, (error) =>
    error instanceof WrongPassword ? `${error.message} Try again.` : undefined,
  );
}

/** The bytes of the key file; undefined where none was named. Throws `CommandError`, or the error of the file system. */
export async function keyFileOf({ keyFile }: Secrets): Promise<Uint8Array | undefined> {
  if (keyFile === undefined) return undefined;
  const { size } = await stat(keyFile);
  if (size > KEY_FILE_MAX) throw usageError(`${keyFile} is not a key file: it has ${size} bytes.`);
  return new Uint8Array(await readFile(keyFile));
}
