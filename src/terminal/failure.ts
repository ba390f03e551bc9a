/** What went wrong, as a person or a script is told: one message, a way on, and an exit code. No stack, no secret. */
import { CommanderError } from 'commander';
import { asError, errorCode } from '../protocol/error-code.js';
import { sanitizeText, sanitizeLines } from './output.js';
import { CommandError, EXIT, type ExitCode } from './terminal.js';

/** How a command ended. `code` is what scripts match on (the reference, Command line). */
export interface Failure {
  readonly exitCode: ExitCode;
  readonly code: string;
  readonly message: string;
  readonly hint?: string;
}

/** Codes of the file system, as a person knows them. */
const SYSTEM: Readonly<Record<string, string>> = {
  ENOSPC: 'the disk is full',
  EACCES: 'access is denied',
  EPERM: 'access is denied',
  EROFS: 'the disk is read-only',
  ENOENT: 'no such file or folder',
  EISDIR: 'that is a folder',
  ENOTDIR: 'that is no folder',
  EMFILE: 'too many files are open',
};

const ROOM = 'Nothing was changed. Make room, and run it again; `service-device status` shows the folder.';

/**
 * Any error as a failure; `known`: those that a program's own parts throw. Whatever of a server's words is in its message
 * is made harmless here, for every caller.
 */
export function failureFrom(thrown: unknown, known: (error: Error) => Failure | undefined): Failure {
  const { exitCode, code, message, hint } = found(asError(thrown), known);
  return { exitCode, code, message: sanitizeLines(message), ...(hint === undefined ? {} : { hint }) };
}

function found(error: Error, known: (error: Error) => Failure | undefined): Failure {
  if (error instanceof CommandError) return error;
  if (error instanceof CommanderError) return { exitCode: EXIT.usage, code: 'usage', message: plain(error.message) };
  return known(error) ?? ofSystem(error) ?? unexpected(error);
}

function ofSystem(error: Error): Failure | undefined {
  const code = errorCode(error);
  const said = SYSTEM[code];
  if (said === undefined) return undefined;
  const path = 'path' in error && typeof error.path === 'string' ? `${sanitizeText(error.path)}: ` : '';
  const hint = code === 'ENOSPC' ? ROOM : undefined;
  return { exitCode: EXIT.failure, code: code.toLowerCase(), message: `${path}${said}`, hint };
}

const unexpected = (error: Error): Failure => ({
  exitCode: EXIT.failure,
  code: 'failure',
  message: `something unexpected happened: ${sanitizeText(error.message)}`,
  hint: 'Run it again with SERVICE_DEBUG=1 to see where, and report it.',
});

/** Commander begins its messages with `error: `. */
const plain = (message: string): string => sanitizeText(message.replace(/^error: /, ''));
