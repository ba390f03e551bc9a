/** Errors as a user or a script sees them: a message, a hint and an exit code, without stack and secrets. */
import { CommanderError } from 'commander';
import { asError, errorCode } from '../protocol/error-code.js';
import { sanitizeLines, sanitizeText } from '../protocol/sanitize.js';
import { FULL } from './new-file.js';
import { CommandError, EXIT } from './terminal.js';

/** How a command failed. `code` is for scripts (the reference, Command line). */
export type Failure = Pick<CommandError, 'exitCode' | 'code' | 'message' | 'hint'>;

/** The hint where a call is refused for its arguments. */
export const HELP = 'Add --help to see what it takes.';

/** Codes of the file system in plain words. */
const SYSTEM_ERRORS: Readonly<Record<string, string>> = {
  ENOSPC: 'the disk is full',
  EDQUOT: 'your share of the disk is used up',
  EFBIG: 'the file is too large for the disk',
  EACCES: 'access is denied',
  EPERM: 'access is denied',
  EROFS: 'the disk is read-only',
  ENOENT: 'no such file or folder',
  EISDIR: 'that is a folder',
  ENOTDIR: 'that is not a folder',
  EMFILE: 'too many files are open',
};

/**
 * Any error as a failure. `known` translates the errors of the program's own parts; `whichFolder` says how its user finds
 * the folder on a full disk. The message is sanitized here, since parts of it may come from a server.
 */
export function failureFrom(thrown: unknown, known: (error: Error) => Failure | undefined, whichFolder = ''): Failure {
  const error = asError(thrown);
  const { exitCode, code, message, hint } =
    ofCommand(error) ?? known(error) ?? ofSystem(error, whichFolder) ?? unexpected(error);
  return { exitCode, code, message: sanitizeLines(message), ...(hint === undefined ? {} : { hint }) };
}

function ofCommand(error: Error): Failure | undefined {
  if (error instanceof CommandError) return error;
  if (!(error instanceof CommanderError)) return undefined;
  const message = sanitizeText(error.message.replace(/^error: /, ''));
  return { exitCode: EXIT.usage, code: 'usage', message, hint: HELP };
}

function ofSystem(error: Error, whichFolder: string): Failure | undefined {
  const code = errorCode(error);
  const reason = SYSTEM_ERRORS[code];
  if (reason === undefined) return undefined;
  const path = 'path' in error && typeof error.path === 'string' ? `${sanitizeText(error.path)}: ` : '';
  const hint = FULL.has(code) ? `Nothing was changed. Make room, and run it again${whichFolder}.` : undefined;
  return { exitCode: EXIT.failure, code: code.toLowerCase(), message: `${path}${reason}`, hint };
}

const unexpected = (error: Error): Failure => ({
  exitCode: EXIT.failure,
  code: 'failure',
  message: `something unexpected happened: ${sanitizeText(error.message)}`,
  hint: 'Run it again with SERVICE_DEBUG=1 to see where, and report it.',
});
