/** The operator's command line as a whole. */
import { Command } from 'commander';
import { runCall, type ProgramCall } from '../call.js';
import { examples } from '../device/run.js';
import { EXIT, type ExitCode } from '../../device/terminal.js';
import { registerBackup } from './commands/backup.js';
import { registerBootstrapRestart } from './commands/bootstrap-restart.js';
import { registerCheckStorage } from './commands/check-storage.js';
import { registerClaimToken } from './commands/claim-token.js';
import { registerEpoch } from './commands/epoch.js';
import { registerMigrate } from './commands/migrate.js';
import { registerPasswordReset } from './commands/password-reset.js';
import { registerPurge } from './commands/purge.js';
import { registerRestore } from './commands/restore.js';
import { registerTenants } from './commands/tenants.js';
import { registerUpgradePostgres } from './commands/upgrade-postgres.js';
import { registerVerify } from './commands/verify.js';
import { ADMIN_NAME, adminContext, type AdminRegister, type AdminRun } from './context.js';
import { adminFailureOf } from './failure.js';

const COMMANDS: readonly AdminRegister[] = [
  registerBackup,
  registerRestore,
  registerVerify,
  registerCheckStorage,
  registerMigrate,
  registerUpgradePostgres,
  registerPurge,
  registerTenants,
  registerClaimToken,
  registerPasswordReset,
  registerBootstrapRestart,
  registerEpoch,
];

/** The program with all its commands; the reference's test reads it too. */
export function adminProgramOf(run: AdminRun, version = ''): Command {
  const program = new Command(ADMIN_NAME);
  program
    .description('Backups, tenants and repairs of a server, on the database that its environment names.')
    .configureHelp({ showGlobalOptions: true, sortSubcommands: false })
    .exitOverride()
    .configureOutput({ writeErr: () => undefined })
    .option('--json', 'results as JSON, for scripts')
    .version(version, '-V, --version', 'the version of this program')
    .addHelpText(
      'after',
      examples(
        `${ADMIN_NAME} backup service.tar.gz     # while the server runs`,
        `${ADMIN_NAME} verify service.tar.gz     # is the file whole?`,
        `${ADMIN_NAME} restore service.tar.gz    # into an empty database, with the server stopped`,
        `${ADMIN_NAME} tenants list`,
      ),
    );
  for (const register of COMMANDS) register(program, run);
  return program;
}

/** Runs one call to its end. Never rejects. */
export function runAdmin(call: ProgramCall & { readonly version: string }): Promise<ExitCode> {
  return runCall(call, {
    failureOf: adminFailureOf,
    build: (terminal, done) => {
      const run: AdminRun =
        (work) =>
        async (...args) =>
          done((await work(adminContext(terminal, call.version), ...args)) ?? EXIT.ok);
      return adminProgramOf(run, call.version);
    },
  });
}
