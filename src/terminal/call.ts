/** How one call of a command-line program runs and ends: arguments to commander, errors to message and exit code. */
import { CommanderError, type Command, type OptionValues } from 'commander';
import type { Run } from './command.js';
import type { Failure } from './failure.js';
import { onScreen, paletteOf } from './output.js';
import { Declined, EXIT, type ExitCode, type Terminal } from './terminal.js';

/** What a call of a program is given. */
export interface ProgramCall {
  /** Without the program's own name. */
  readonly argv: readonly string[];
  readonly env: Terminal['env'];
  /** The terminal, once it is known whether JSON is wanted. */
  readonly terminal: (json: boolean) => Terminal;
  /** Help and version, as text, on standard output. */
  readonly write: (text: string) => void;
  /** The error of a call with `--json`, as a document on standard error. */
  readonly fail: (value: unknown) => void;
}

/** The program that is called. */
export interface CalledProgram<C> {
  readonly programOf: (run: Run<C>) => Command;
  /** What each command is given; `options`: those of the program. */
  readonly contextOf: (terminal: Terminal, options: OptionValues) => C;
  readonly failureOf: (error: unknown) => Failure;
}

/** Runs one call to its end. Never rejects: whatever happens is told on the terminal and in the exit code. */
export async function runCall<C>(call: ProgramCall, called: CalledProgram<C>): Promise<ExitCode> {
  // Also for what goes wrong before commander has understood the arguments.
  const json = call.argv.slice(0, endOfOptions(call.argv)).includes('--json');
  const terminal = call.terminal(json);
  let code: ExitCode = EXIT.ok;
  const program = called.programOf((work) => async (...args) => {
    code = (await work(called.contextOf(terminal, program.opts()), ...args)) ?? EXIT.ok;
  });
  quietly(program, call.write);
  try {
    if (call.argv.length === 0) {
      program.outputHelp();
      return EXIT.usage;
    }
    await program.parseAsync([...call.argv], { from: 'user' });
    return terminal.interrupted.aborted ? EXIT.interrupted : code;
  } catch (error) {
    return ended(error, call, { terminal, failure: called.failureOf(error) });
  }
}

const endOfOptions = (argv: readonly string[]): number => {
  const at = argv.indexOf('--');
  return at === -1 ? argv.length : at;
};

/** Every command writes where the call says; errors are told once, by `ended`. */
function quietly(command: Command, write: (text: string) => void): void {
  command.exitOverride().configureOutput({ writeOut: write, writeErr: () => undefined });
  for (const child of command.commands) quietly(child, write);
}

function ended(
  error: unknown,
  call: ProgramCall,
  { terminal, failure }: { readonly terminal: Terminal; readonly failure: Failure },
): ExitCode {
  if (error instanceof CommanderError && error.exitCode === 0) return EXIT.ok;
  // `program help nothing` and a command without its sub-command print help: that is their message.
  if (error instanceof CommanderError && error.code === 'commander.help') return EXIT.usage;
  const { message, hint, code } = failure;
  const exitCode = terminal.interrupted.aborted ? EXIT.interrupted : failure.exitCode;
  terminal.progress('');
  if (terminal.json) call.fail({ error: { code, message, hint } });
  else if (exitCode === EXIT.interrupted) terminal.note('Interrupted.');
  else if (error instanceof Declined) terminal.note(message);
  else {
    const { bad } = paletteOf({ colours: terminal.colours && onScreen(terminal) });
    terminal.note(`${bad('Error:')} ${message}`);
    if (hint !== undefined) terminal.note(hint);
  }
  if ((call.env['SERVICE_DEBUG'] ?? '') !== '' && error instanceof Error) terminal.note(error.stack ?? error.message);
  return exitCode;
}
