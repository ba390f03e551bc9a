/** The context of the commands of `service-load`. */
import type { ProgramCommand } from '../terminal/program.js';
import type { Release } from '../terminal/output.js';
import type { Terminal } from '../terminal/terminal.js';

export interface LoadContext {
  readonly terminal: Terminal;
  readonly release: Release;
}

/** The program, or one of its commands. */
export type LoadCommand = ProgramCommand<LoadContext>;

/** Options of a command as text: those that are required or have a default, and those that may be absent. */
export type Texts<Given extends string, Optional extends string> = Readonly<
  Record<Given, string> & Partial<Record<Optional, string>>
>;
