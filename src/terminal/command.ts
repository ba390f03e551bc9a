/** How a command is hung into its program: with examples in its help, and work that is given the context of the call. */
import { Command } from 'commander';
import type { ExitCode } from './terminal.js';

/** A command's work. What it resolves with is the program's exit code; nothing is `EXIT.ok`. */
export type Work<C, A extends readonly unknown[]> = (context: C, ...args: A) => Promise<void> | Promise<ExitCode>;

/**
 * Makes commander's action out of a command's work: gives it the context of this call, and turns what it throws into
 * message and exit code. The arguments are commander's own: arguments, options, command.
 */
export type Run<C> = <A extends readonly unknown[]>(work: Work<C, A>) => (...args: A) => Promise<void>;

/** A program, or one of its commands, whose work is given a `C`. */
export class ProgramCommand<C> extends Command {
  constructor(
    private readonly run: Run<C>,
    name?: string,
  ) {
    super(name);
  }

  override createCommand(name?: string): ProgramCommand<C> {
    return new ProgramCommand(this.run, name);
  }

  /** Ends the help with examples. The program's name is put where `$0` stands, else at the beginning. */
  examples(...lines: readonly string[]): this {
    const name = programName(this);
    const typed = lines.map((line) => (line.includes('$0') ? line.replace('$0', name) : `${name} ${line}`));
    return this.addHelpText('after', `\nExamples:\n${typed.map((line) => `  $ ${line}`).join('\n')}\n`);
  }

  /** What the command does. */
  does<A extends readonly unknown[]>(work: Work<C, A>): this {
    return this.action(this.run(work));
  }
}

const programName = (command: Command): string =>
  command.parent === null ? command.name() : programName(command.parent);

/** A program without its commands and options. Help and errors are written by whoever runs it. */
export const newProgram = <C>(name: string, description: string, run: Run<C>): ProgramCommand<C> =>
  new ProgramCommand<C>(run, name)
    .description(description)
    .configureHelp({ showGlobalOptions: true, sortSubcommands: false })
    .exitOverride()
    .configureOutput({ writeErr: () => undefined });
