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
