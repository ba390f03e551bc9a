/** The program `service-device`: its commands, its global options, and one call of it. */
import { Option } from 'commander';
import { RELEASE } from '../root.js';
import { nodePlatform } from '../sdk/node-platform.js';
import type { Platform } from '../sdk/platform.js';
import { runProcess } from '../terminal/process.js';
import { newProgram, type ProgramCall, type Run, runCall } from '../terminal/program.js';
import { type Release, releaseText } from '../terminal/output.js';
import { registerBins } from './commands/bins.js';
import { registerClipboard } from './commands/clipboard.js';
import { registerDevices } from './commands/devices.js';
import { registerDoctor } from './commands/doctor.js';
import { registerClaim, registerForget, registerJoin, registerRecover } from './commands/enrol.js';
import { registerExport } from './commands/export.js';
import { registerGet } from './commands/get.js';
import { registerImport } from './commands/import.js';
import { registerChanges, registerLists } from './commands/items.js';
import { registerPair } from './commands/pair.js';
import { registerPassword } from './commands/password.js';
import { registerPut } from './commands/put.js';
import { registerStatus } from './commands/status.js';
import { registerUploads } from './commands/uploads.js';
import { registerVerifyWeb } from './commands/verify-web.js';
import { registerWatch } from './commands/watch.js';
import { registerCompletion } from './completions.js';
import { type Context, type DeviceCommand, PROGRAM_NAME } from './context.js';
import { failureOf } from './failure.js';
import { contextOf } from './open-device.js';
import { profileOf } from './profile.js';
import type { ExitCode } from '../terminal/terminal.js';

/** Every command, in the order of the help. */
const COMMANDS: readonly ((program: DeviceCommand) => void)[] = [
  ...[registerClaim, registerPair, registerJoin, registerRecover],
  ...[registerPut, registerGet, registerClipboard, registerLists, registerWatch, registerChanges, registerBins],
  registerUploads,
  ...[registerDevices, registerPassword, registerStatus, registerExport, registerImport, registerDoctor],
  ...[registerVerifyWeb, registerForget, registerCompletion],
];

export function programOf(run: Run<Context>, version = ''): DeviceCommand {
  const about = 'Notes, links and secrets that only your own devices can read, from the terminal.';
  const program = newProgram(PROGRAM_NAME, about, run)
    .addOption(new Option('--profile <name>', 'which of your devices on this machine').env('SERVICE_PROFILE'))
    .option('--json', 'results as JSON, for scripts')
    .version(version, '-V, --version', 'the version of this program')
    .examples(
      'claim https://sync.example.org     # the first device of a new server',
      'join https://sync.example.org      # another one; "pair" on the first shows the words',
      'put "milk, bread"                  # write',
      'list                               # read',
      'watch                              # see what the others write, as they do',
    );
  for (const register of COMMANDS) register(program);
  return program;
}

/** Runs one call to its end. Never rejects: errors are reported on the terminal and in the exit code. */
export const runProgram = (call: ProgramCall & Release & { readonly platform: Platform }): Promise<ExitCode> =>
  runCall<Context>(call, {
    failureOf,
    programOf: (run) => programOf(run, releaseText(call)),
    contextOf: (terminal, { profile }: { readonly profile?: string }) => {
      const { platform } = call;
      return contextOf({ terminal, platform, profile: profileOf(profile || 'default', platform, terminal) });
    },
  });

/** Runs one call with this process's arguments and streams, and ends the process. */
export async function runService(): Promise<never> {
  const platform = await nodePlatform();
  return runProcess({ failureOf, run: (call) => runProgram({ ...call, ...RELEASE, platform }) });
}
