/** Where the companion's files are (MCP-07). */
import { homedir } from 'node:os';
import { isAbsolute, join } from 'node:path';
import { SERVICE_NAME } from '../protocol/limits.js';
import type { Env, Place } from './context.js';
import { systemMachine, type Machine } from './machine.js';

/**
 * The folder is `$XDG_CONFIG_HOME/service`, on Windows `%APPDATA%\service`, else `~/.config/service`. A relative
 * `XDG_CONFIG_HOME` is ignored, as the XDG base directory specification demands: an MCP client starts the program in any
 * folder.
 */
export function placeOf(env: Env, machine: Machine = systemMachine(), platform = process.platform): Place {
  const set = platform === 'win32' ? env['APPDATA'] : env['XDG_CONFIG_HOME'];
  const base = set !== undefined && isAbsolute(set) ? set : join(env['HOME'] ?? homedir(), '.config');
  const folder = join(base, SERVICE_NAME);
  return { folder, configPath: join(folder, 'mcp.json'), machine };
}
