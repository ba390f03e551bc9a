/** How a command is hung into the program: `register(program, run)`, one file a command. */
import type { Command } from 'commander';
import type { Context } from './context.js';
import type { ExitCode } from '../../device/terminal.js';

/** A command's work. What it resolves with is the program's exit code; nothing is `EXIT.ok`. */
export type Work<A extends readonly unknown[]> = (context: Context, ...args: A) => Promise<void> | Promise<ExitCode>;

/**
 * Makes commander's action out of a command's work: gives it the context of this call, and turns what it throws into
 * message and exit code. The arguments are commander's own: arguments, options, command.
 */
export type Run = <A extends readonly unknown[]>(work: Work<A>) => (...args: A) => Promise<void>;

/** What a command's file exports. */
export type Register = (program: Command, run: Run) => void;

/** Help that ends with examples, one a line. */
export const examples = (...lines: readonly string[]): string =>
  `\nExamples:\n${lines.map((line) => `  $ ${line}`).join('\n')}\n`;
