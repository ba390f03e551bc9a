/** Command-line programs: commands with examples in their help, and one call from arguments to exit code. */
import { Command, CommanderError, type OptionValues } from 'commander';
import { type Failure, HELP } from './failure.js';
import { paletteOf, sanitizeLines } from './output.js';
import { Declined, EXIT, INTERRUPTED, type ExitCode, type Terminal } from './terminal.js';

/** The implementation of a command. It resolves with the exit code; nothing means `EXIT.ok`. */
type Work<C, A extends readonly unknown[]> = (context: C, ...args: A) => Promise<void> | Promise<ExitCode>;

/** Options of a command, each of which may be absent: texts, and flags. */
export type CommandOptions<Text extends string, Flag extends string = never> = Readonly<
  Partial<Record<Text, string> & Record<Flag, boolean>>
>;

/** Turns an implementation into a commander action. The arguments are commander's: arguments, options, command. */
export type Run<C> = <A extends readonly unknown[]>(work: Work<C, A>) => (...args: A) => Promise<void>;

/** A program or one of its commands; implementations get a `C`. */
export class ProgramCommand<C> extends Command {
  /** See `changes`. */
  keepsOn = false;

  constructor(
    private readonly run: Run<C>,
    name?: string,
  ) {
    super(name);
  }

  override createCommand(name?: string): ProgramCommand<C> {
    return new ProgramCommand(this.run, name);
  }

  /** Appends examples to the help. The program's name replaces `$0`; without `$0` it is put in front. */
  examples(...lines: readonly string[]): this {
    const name = programName(this);
    const typed = lines.map((line) => (line.includes('$0') ? line.replace('$0', name) : `${name} ${line}`));
    return this.addHelpText('after', `\nExamples:\n${typed.map((line) => `  $ ${line}`).join('\n')}\n`);
  }

  does<A extends readonly unknown[]>(work: Work<C, A>): this {
    return this.action(this.run(work));
  }

  /** `does`, for a command that changes something: it goes on to its end where nobody reads its output any more. */
  changes<A extends readonly unknown[]>(work: Work<C, A>): this {
    this.keepsOn = true;
    return this.does(work);
  }
}

const programName = (command: Command): string =>
  command.parent === null ? command.name() : programName(command.parent);

/** A program without commands and options. `runCall` writes its help and its errors. */
export const newProgram = <C>(name: string, description: string, run: Run<C>): ProgramCommand<C> =>
  new ProgramCommand<C>(run, name)
    .description(description)
    .configureHelp({ showGlobalOptions: true, sortSubcommands: false });

export interface ProgramCall {
  /** Without the program's own name. */
  readonly argv: readonly string[];
  readonly env: Terminal['env'];
  /** Opens the terminal once the output format is known. */
  readonly terminal: (json: boolean) => Terminal;
  /** Writes help and version to standard output. */
  readonly write: (text: string) => void;
  /** Called before a command that goes on to its end where nobody reads its output any more. */
  readonly keepOn?: () => void;
  /** Writes the error of a call with `--json` to standard error. */
  readonly fail: (value: unknown) => void;
}

/** Runs one call to its end. Never rejects: errors are reported on the terminal and in the exit code. */
export async function runCall<C>(
  call: ProgramCall,
  program: {
    readonly programOf: (run: Run<C>) => Command;
    /** `options`: those of the program, not of the command. */
    readonly contextOf: (terminal: Terminal, options: OptionValues) => C;
    readonly failureOf: (error: unknown) => Failure;
  },
): Promise<ExitCode> {
  // Not commander's option: errors found before commander has parsed the arguments are reported as JSON too.
  const end = call.argv.indexOf('--');
  const json = (end === -1 ? call.argv : call.argv.slice(0, end)).includes('--json');
  const terminal = call.terminal(json);
  let code: ExitCode = EXIT.ok;
  const command = program.programOf((work) => async (...args) => {
    // The last argument of an action is its command.
    const called: unknown = args.at(-1);
    if (called instanceof ProgramCommand && called.keepsOn) call.keepOn?.();
    code = (await work(program.contextOf(terminal, command.opts()), ...args)) ?? EXIT.ok;
  });
  redirect(command, call.write, json);
  try {
    if (call.argv.length === 0) {
      command.outputHelp();
      return EXIT.usage;
    }
    await command.parseAsync([...call.argv], { from: 'user' });
    return terminal.interrupted.aborted ? EXIT.interrupted : code;
  } catch (error) {
    return report(error, call, terminal, program.failureOf(error));
  }
}

/** Makes every command throw instead of exit, and write its help to `write`; errors are written by `report` only. */
function redirect(command: Command, write: ProgramCall['write'], json: boolean): void {
  // The help of a command that lacks its sub-command is an error to commander; `--json` has a document instead.
  const writeErr = json ? (): void => undefined : write;
  command.exitOverride().configureOutput({ writeOut: write, writeErr, outputError: () => undefined });
  for (const child of command.commands) redirect(child, write, json);
}

function report(error: unknown, call: ProgramCall, terminal: Terminal, failure: Failure): ExitCode {
  if (error instanceof CommanderError && error.exitCode === 0) return EXIT.ok;
  if (error instanceof CommanderError && error.code === 'commander.help') {
    if (terminal.json)
      call.fail({ error: { code: 'usage', message: 'the command is missing or unknown', hint: HELP } });
    return EXIT.usage;
  }
  // What fails after an interruption fails because of it, as calls of a closed device do.
  const isCut = terminal.interrupted.aborted && failure.exitCode !== EXIT.interrupted;
  const { message, hint, code, exitCode } = isCut ? INTERRUPTED : failure;
  terminal.progress('');
  if (terminal.json) call.fail({ error: { code, message, hint } });
  else if (exitCode === EXIT.interrupted) {
    terminal.note('Interrupted.');
    if (hint !== undefined) terminal.note(hint);
  } else if (error instanceof Declined) terminal.note(message);
  else {
    const { bad } = paletteOf({ colours: terminal.colours && terminal.onScreen });
    terminal.note(`${bad('Error:')} ${message}`);
    if (hint !== undefined) terminal.note(hint);
  }
  if ((call.env['SERVICE_DEBUG'] ?? '') !== '' && error instanceof Error)
    terminal.note(sanitizeLines(error.stack ?? error.message));
  return exitCode;
}
