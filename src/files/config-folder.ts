/** Where the system has the files of a program that are its user's. */
import { homedir } from 'node:os';
import { isAbsolute, join } from 'node:path';
import { SERVICE_NAME } from '../protocol/limits.js';

/**
 * The folder of all our programs: `$XDG_CONFIG_HOME/service`, on Windows `%APPDATA%\service`, else `~/.config/service`.
 * A relative `XDG_CONFIG_HOME` is ignored, as the XDG base directory specification requires: it would be another folder
 * for each folder in which a program is started.
 */
export function configFolder(env: Readonly<Record<string, string | undefined>>, platform = process.platform): string {
  const set = platform === 'win32' ? env['APPDATA'] : env['XDG_CONFIG_HOME'];
  const base = set !== undefined && isAbsolute(set) ? set : join(env['HOME'] ?? homedir(), '.config');
  return join(base, SERVICE_NAME);
}
