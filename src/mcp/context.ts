/** The environment of the companion's commands: files, platform, terminal. */
import { homedir } from 'node:os';
import { isAbsolute, join } from 'node:path';
import { withCertificateErrors } from '../sdk/node-certificate.js';
import type { Platform, SocketPort } from '../sdk/platform.js';
import { loadBrowserSodium } from '../crypto/sodium-browser.js';
import { systemClock } from '../protocol/clock.js';
import { SERVICE_NAME } from '../protocol/limits.js';
import type { Release } from '../terminal/output.js';
import type { Terminal as DeviceTerminal } from '../terminal/terminal.js';
import { systemMachine, type Machine } from './machine.js';

export type Env = Readonly<Record<string, string | undefined>>;

/** Where the companion keeps its files, and the machine that its secrets are bound to. */
export interface Paths {
  /** `~/.config/service`, `$XDG_CONFIG_HOME/service` or `%APPDATA%/service` (MCP-07). */
  readonly folder: string;
  /** The pairing: `mcp.json` in `folder`. */
  readonly configPath: string;
  /** The machine that the pairing is bound to. */
  readonly machine: Machine;
}

export interface Context extends Release {
  readonly paths: Paths;
  readonly platform: Platform;
  readonly env: Env;
  /** Aborted by SIGINT, SIGTERM or SIGHUP. */
  readonly interrupted: AbortSignal;
  /** Prints a line for the user on standard error: standard output is for the protocol, or a command's result. */
  readonly note: (text: string) => void;
}

/** Where a command prints and prompts; it prompts only if `interactive`. */
export type Terminal = Pick<DeviceTerminal, 'interactive' | 'print' | 'note' | 'progress' | 'ask' | 'openInput'>;

/** The context of every command but `serve`: these may prompt. */
export interface CommandContext extends Context {
  readonly terminal: Terminal;
}

/**
 * The folder is `$XDG_CONFIG_HOME/service`, on Windows `%APPDATA%\service`, else `~/.config/service`. A relative
 * `XDG_CONFIG_HOME` is ignored, as the XDG base directory specification requires: an MCP client may start the program
 * in any folder.
 */
export function pathsOf(env: Env, machine: Machine = systemMachine(), platform = process.platform): Paths {
  const set = platform === 'win32' ? env['APPDATA'] : env['XDG_CONFIG_HOME'];
  const base = set !== undefined && isAbsolute(set) ? set : join(env['HOME'] ?? homedir(), '.config');
  const folder = join(base, SERVICE_NAME);
  return { folder, configPath: join(folder, 'mcp.json'), machine };
}

/** The companion polls and opens no socket (MCP-70): an attempt is reported as closed. */
const noSockets: SocketPort = {
  open: (_url, events) => {
    queueMicrotask(() => events.closed(1000, 'the companion holds no socket'));
    return { send: () => undefined, close: () => undefined };
  },
};

/**
 * libsodium as WebAssembly, so that the package installs on any system without a native module; `fetch`; the system's
 * clock. Rejects where WebAssembly cannot be loaded.
 */
export const mcpPlatform = async (): Promise<Platform> => ({
  sodium: await loadBrowserSodium(),
  fetch: withCertificateErrors((url, init) => fetch(url, init)),
  sockets: noSockets,
  clock: systemClock,
  random: Math.random,
});
