/** The operator's command line as a whole. */
import { newProgram, type ProgramCall, type Run, runCall } from '../../terminal/program.js';
import { type Release, releaseText } from '../../terminal/output.js';
import type { ExitCode } from '../../terminal/terminal.js';
import { registerBackup } from './commands/backup.js';
import { registerCheckStorage } from './commands/check-storage.js';
import { registerDatabase, registerEpoch } from './commands/database.js';
import { registerInstances } from './commands/instances.js';
import { registerPurge } from './commands/purge.js';
import { registerAccess, registerTenants } from './commands/tenants.js';
import { registerVerify } from './commands/verify.js';
import { ADMIN_NAME, AdminContext, type AdminCommand } from './context.js';
import { adminFailureOf } from './failure.js';

/** Every command, in the order in which help lists them. */
const COMMANDS: readonly ((program: AdminCommand) => void)[] = [
  ...[registerBackup, registerVerify, registerCheckStorage, registerDatabase, registerInstances, registerPurge],
  ...[registerTenants, registerAccess, registerEpoch],
];

/** The program with all its commands; a test compares the reference with it. */
export function adminProgramOf(run: Run<AdminContext>, version = ''): AdminCommand {
  const about = 'Backups, tenants and repairs of a server, on the database that its environment names.';
  const program = newProgram(ADMIN_NAME, about, run)
    .option('--json', 'results as JSON, for scripts')
    .version(version, '-V, --version', 'the version of this program')
    .examples(
      'backup service.tar.gz     # while the server runs',
      'verify service.tar.gz     # is the file whole?',
      'restore service.tar.gz    # into an empty database, with the server stopped',
      'tenants list',
    );
  for (const register of COMMANDS) register(program);
  return program;
}

/** Runs one call of the program. Does not reject. */
export const runAdmin = (call: ProgramCall & Release): Promise<ExitCode> =>
  runCall<AdminContext>(call, {
    failureOf: adminFailureOf,
    programOf: (run) => adminProgramOf(run, releaseText(call)),
    contextOf: (terminal) => new AdminContext(terminal, call.version),
  });
