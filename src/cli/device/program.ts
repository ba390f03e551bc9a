/** The command line as a whole: every command, what they have in common, and how a call of it ends. */
import { Command, CommanderError, Option } from 'commander';
import type { Platform } from '../../client/platform.js';
import { COMMANDS } from './commands.js';
import type { Context } from './context.js';
import { failureOf } from './failure.js';
import { PROGRAM_NAME } from './names.js';
import { contextOf } from './open-device.js';
import { onScreen, paletteOf } from './output.js';
import { DEFAULT_PROFILE, profileOf } from './profile.js';
import { examples, type Run } from './run.js';
import { EXIT, type ExitCode, type Terminal } from './terminal.js';

/** What a call of the program is given. */
export interface Call {
  /** Without the program's own name. */
  readonly argv: readonly string[];
  readonly env: Terminal['env'];
  readonly platform: Platform;
  readonly version: string;
  /** The terminal, once it is known whether JSON is wanted. */
  readonly terminal: (json: boolean) => Terminal;
  /** Help and version, as text, on standard output. */
  readonly write: (text: string) => void;
  /** The error of a call with `--json`, as a document on standard error. */
  readonly fail: (value: unknown) => void;
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
export async function runProgram(call: Call): Promise<ExitCode> {
  // Also for what goes wrong before commander has understood the arguments.
  const json = call.argv.slice(0, endOfOptions(call.argv)).includes('--json');
  const terminal = call.terminal(json);
  let program: Command | undefined = undefined;
  let code: ExitCode = EXIT.ok;
  const run: Run =
    (work) =>
    async (...args) => {
      const { profile } = program?.opts<GlobalOptions>() ?? {};
      code = (await work(contextFor(call, terminal, profile), ...args)) ?? EXIT.ok;
    };
  program = programOf(run, call.version);
  quietly(program, call.write);
  try {
    if (call.argv.length === 0) {
      program.outputHelp();
      return EXIT.usage;
    }
    await program.parseAsync([...call.argv], { from: 'user' });
    return terminal.interrupted.aborted ? EXIT.interrupted : code;
  } catch (error) {
    return ended(error, terminal, call);
  }
}

const endOfOptions = (argv: readonly string[]): number => {
  const at = argv.indexOf('--');
  return at === -1 ? argv.length : at;
};

function contextFor(call: Call, terminal: Terminal, profile: string | undefined): Context {
  const name = profile === undefined || profile === '' ? DEFAULT_PROFILE : profile;
  return contextOf({
    terminal,
    platform: call.platform,
    profile: profileOf(name, { platform: call.platform, terminal }),
  });
}

/** Every command writes where the call says; errors are told once, by `ended`. */
function quietly(command: Command, write: (text: string) => void): void {
  command.exitOverride().configureOutput({ writeOut: write, writeErr: () => undefined });
  for (const child of command.commands) quietly(child, write);
}

function ended(error: unknown, terminal: Terminal, call: Call): ExitCode {
  if (error instanceof CommanderError && error.exitCode === 0) return EXIT.ok;
  // `program help nothing` and a command without its sub-command print help: that is their message.
  if (error instanceof CommanderError && error.code === 'commander.help') return EXIT.usage;
  const failure = failureOf(error);
  const { message, hint, code } = failure;
  const exitCode = terminal.interrupted.aborted ? EXIT.interrupted : failure.exitCode;
  terminal.progress('');
  if (terminal.json) call.fail({ error: { code, message, ...(hint === undefined ? {} : { hint }) } });
  else if (exitCode === EXIT.interrupted) terminal.note('Interrupted.');
  else {
    const { bad } = paletteOf({ colours: terminal.colours && onScreen(terminal) });
    terminal.note(`${bad('Error:')} ${message}`);
    if (hint !== undefined) terminal.note(hint);
  }
  if ((call.env['SERVICE_DEBUG'] ?? '') !== '' && error instanceof Error) terminal.note(error.stack ?? error.message);
  return exitCode;
}
