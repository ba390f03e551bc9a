/** What every command of `service-load` gets. */
import type { ProgramCommand } from '../terminal/program.js';
import type { Release } from '../terminal/output.js';
import type { Terminal } from '../terminal/terminal.js';

/** The name of the program. */
export const LOAD_NAME = 'service-load';

/** The context of a command. */
export interface LoadContext {
  readonly terminal: Terminal;
  readonly release: Release;
}

/** The program, or one of its commands. */
export type LoadCommand = ProgramCommand<LoadContext>;
