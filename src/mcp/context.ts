/** What the companion's commands and its server share: where files are, what they run on, whom they tell. */
import type { Platform } from '../sdk/platform.js';
import type { Terminal as DeviceTerminal } from '../terminal/terminal.js';
import type { Machine } from './machine.js';

/** Where the companion keeps its files, and what its secrets are bound to. */
export interface Place {
  /** `~/.config/service`, `$XDG_CONFIG_HOME/service` or `%APPDATA%/service` (MCP-07). */
  readonly folder: string;
  /** `mcp.json` in it: the pairing. */
  readonly configPath: string;
  /** The machine that the pairing is bound to. */
  readonly machine: Machine;
}

/** What a command runs in. */
export interface Context {
  readonly place: Place;
  readonly platform: Platform;
  readonly env: Env;
  readonly version: string;
  /** Aborted by SIGINT, SIGTERM or SIGHUP. */
  readonly interrupted: AbortSignal;
  /** A line for the person, on standard error. Standard output belongs to the protocol, or to a command's result. */
  readonly note: (text: string) => void;
}

/** Where a command prints and asks; it asks only where it is `interactive`. */
export type Terminal = Pick<DeviceTerminal, 'interactive' | 'print' | 'note' | 'progress' | 'ask' | 'openInput'>;

/** What a command runs in that is not the server: somebody may be there to ask. */
export interface CommandContext extends Context {
  readonly terminal: Terminal;
}

/** Environment variables. */
export type Env = Readonly<Record<string, string | undefined>>;
