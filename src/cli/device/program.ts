/** The command line as a whole: every command, what they have in common, and how a call of it ends. */
import { Command, Option } from 'commander';
import type { Platform } from '../../client/platform.js';
import { runCall, type ProgramCall } from '../call.js';
import { COMMANDS } from './commands.js';
import type { Context } from './context.js';
import { failureOf } from './failure.js';
import { PROGRAM_NAME } from './names.js';
import { contextOf } from './open-device.js';
import { DEFAULT_PROFILE, profileOf } from './profile.js';
import { examples, type Run } from './run.js';
import { EXIT, type ExitCode, type Terminal } from '../../device/terminal.js';

/** What a call of the program is given. */
export interface Call extends ProgramCall {
  readonly platform: Platform;
  readonly version: string;
}

interface GlobalOptions {
  readonly json?: boolean;
  readonly profile?: string;
}

/** The program with all its commands. `run` as in `Run`; completion and the reference's test read it too. */
export function programOf(run: Run, version = ''): Command {
  const program = new Command(PROGRAM_NAME);
  program
    .description('Notes, links and secrets that only your own devices can read, from the terminal.')
    .configureHelp({ showGlobalOptions: true, sortSubcommands: false })
    .exitOverride()
    .configureOutput({ writeErr: () => undefined })
    .addOption(new Option('--profile <name>', 'which of your devices on this machine').env('SERVICE_PROFILE'))
    .option('--json', 'results as JSON, for scripts')
    .version(version, '-V, --version', 'the version of this program')
    .addHelpText(
      'after',
      examples(
        `${PROGRAM_NAME} claim https://sync.example.org     # the first device of a new server`,
        `${PROGRAM_NAME} join https://sync.example.org      # another one; "pair" on the first shows the words`,
        `${PROGRAM_NAME} put "milk, bread"                  # write`,
        `${PROGRAM_NAME} list                               # read`,
        `${PROGRAM_NAME} watch                              # see what the others write, as they do`,
      ),
    );
  for (const register of COMMANDS) register(program, run);
  return program;
}

/** Runs one call to its end. Never rejects: whatever happens is told on the terminal and in the exit code. */
export function runProgram(call: Call): Promise<ExitCode> {
  return runCall(call, {
    failureOf,
    build: (terminal, done) => {
      const run: Run =
        (work) =>
        async (...args) => {
          const { profile } = program.opts<GlobalOptions>();
          done((await work(contextFor(call, terminal, profile), ...args)) ?? EXIT.ok);
        };
      const program = programOf(run, call.version);
      return program;
    },
  });
}

function contextFor(call: Call, terminal: Terminal, profile: string | undefined): Context {
  const name = profile === undefined || profile === '' ? DEFAULT_PROFILE : profile;
  return contextOf({
    terminal,
    platform: call.platform,
    profile: profileOf(name, { platform: call.platform, terminal }),
  });
}
