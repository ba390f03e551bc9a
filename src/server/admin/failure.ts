/** Errors as failures of the program, for an operator or a script. */
import { ArchiveError } from './backup/manifest.js';
import { ConfigError } from '../config/config.js';
import { isUnavailable } from '../storage/database.js';
import { RestoreError } from '../storage/dump.js';
import { DataDirInUseError } from '../storage/embedded/embedded.js';
import { ClusterVersionError } from '../storage/embedded/binaries.js';
import { MigrationError } from '../storage/migrate.js';
import { errorCode } from '../../protocol/error-code.js';
import { ServiceError } from '../../protocol/errors.js';
import { failureFrom, type Failure } from '../../terminal/failure.js';
import { sanitizeText } from '../../terminal/output.js';
import { EXIT } from '../../terminal/terminal.js';

const BACKUP_HINT = 'Nothing was changed. Is it the right file? If so, use another backup.';

type ErrorClass = abstract new (...args: never[]) => Error;

/** Errors that the operator can act on, and how the program ends with each. */
const KNOWN: readonly (readonly [error: ErrorClass, how: Omit<Failure, 'message'>])[] = [
  [ConfigError, { exitCode: EXIT.usage, code: 'config' }],
  [MigrationError, { exitCode: EXIT.refused, code: 'schema' }],
  [ArchiveError, { exitCode: EXIT.untrusted, code: 'damaged', hint: BACKUP_HINT }],
  [RestoreError, { exitCode: EXIT.untrusted, code: 'damaged', hint: BACKUP_HINT }],
  [ClusterVersionError, { exitCode: EXIT.refused, code: 'postgres_version' }],
  [DataDirInUseError, { exitCode: EXIT.unavailable, code: 'busy' }],
];

/** Any error as a failure. None of these errors contains a connection string, which would hold a password. */
export const adminFailureOf = (thrown: unknown): Failure =>
  failureFrom(thrown, (error) => {
    const known = KNOWN.find(([kind]) => error instanceof kind);
    return known === undefined ? ofDatabase(error) : { ...known[1], message: error.message };
  });

/** An unreachable database: the error itself, or the cause of a store's `unavailable`. */
function ofDatabase(error: Error): Failure | undefined {
  const cause = error instanceof ServiceError ? error.cause : error;
  if (!(cause instanceof Error) || !isUnavailable(cause)) return undefined;
  const code = errorCode(cause);
  const reason = cause.message === '' ? 'no connection' : sanitizeText(cause.message);
  return {
    exitCode: EXIT.unavailable,
    code: 'unavailable',
    message: `the database cannot be used at present: ${reason}${code === '' ? '' : ` (${code})`}`,
    hint: 'Is it running, and is DATABASE_URL the one that the server uses?',
  };
}
