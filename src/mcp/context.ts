/** The environment of the companion's commands: files, platform, terminal. */
import { join } from 'node:path';
import { configFolder } from '../files/config-folder.js';
import { withCertificateErrors } from '../sdk/node-certificate.js';
import type { Platform, SocketPort } from '../sdk/platform.js';
import { loadBrowserSodium } from '../crypto/sodium-browser.js';
import { systemClock } from '../protocol/clock.js';
import type { Release } from '../terminal/output.js';
import type { Terminal as DeviceTerminal } from '../terminal/terminal.js';
import { systemMachine, type Machine } from './machine.js';

export type Env = Readonly<Record<string, string | undefined>>;

/** Where the companion keeps its files, and the machine that its secrets are bound to. */
export interface Paths {
  /** See `configFolder` (MCP-07). */
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

export function pathsOf(env: Env, machine: Machine = systemMachine(), platform = process.platform): Paths {
  const folder = configFolder(env, platform);
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
