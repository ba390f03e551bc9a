/** The folder in which the system keeps the settings of its user's programs. */
import { userInfo } from 'node:os';
import { isAbsolute, join } from 'node:path';
import { SERVICE_NAME } from '../protocol/limits.js';

/**
 * The folder of all our programs: `$XDG_CONFIG_HOME/service`, on Windows `%APPDATA%\service`, else `~/.config/service`.
 * A relative `XDG_CONFIG_HOME` is ignored, as the XDG base directory specification requires, and a relative `HOME`: it
 * would be another folder for each folder in which a program is started.
 */
export function configFolder(env: Readonly<Record<string, string | undefined>>, platform = process.platform): string {
  const set = absolute(platform === 'win32' ? env['APPDATA'] : env['XDG_CONFIG_HOME']);
  return join(set ?? join(absolute(env['HOME']) ?? userInfo().homedir, '.config'), SERVICE_NAME);
}

const absolute = (path = ''): string | undefined => (isAbsolute(path) ? path : undefined);
