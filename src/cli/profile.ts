/** A profile's folder: where it is, and the identity in it (see `secrets.ts`). */
import { readdir, rm } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { SERVICE_NAME } from '../protocol/limits.js';
import type { Context, Profile } from './context.js';
import { systemKeychain } from './keychain.js';
import { LOCK_FILE } from './lock.js';
import { keychainSetting, Secrets } from './secrets.js';
import { CommandError, EXIT, type Terminal } from '../terminal/terminal.js';

const PROFILE_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;
/** The profile where none is named. */
export const DEFAULT_PROFILE = 'default';

/** The folder of all profiles: `XDG_CONFIG_HOME`, `%APPDATA%`, else `~/.config`. */
function profilesFolder(env: Terminal['env']): string {
  const set = process.platform === 'win32' ? env['APPDATA'] : env['XDG_CONFIG_HOME'];
  const base = set !== undefined && set !== '' ? set : join(env['HOME'] ?? homedir(), '.config');
  return join(base, SERVICE_NAME, 'device');
}

/** The profile of a name. Throws `CommandError` `usage` for a name that is no folder's. */
export function profileOf(name: string, { platform, terminal }: Pick<Context, 'platform' | 'terminal'>): Profile {
  if (!PROFILE_NAME.test(name)) {
    throw new CommandError(EXIT.usage, 'a profile name is 1 to 64 letters, digits, dots, hyphens and underscores');
  }
  const { env } = terminal;
  const folder = join(profilesFolder(env), name);
  const secrets = new Secrets({
    sodium: platform.sodium,
    folder,
    keychain: systemKeychain({
      clock: platform.clock,
      onWait: () => terminal.note('Waiting for the keychain; it may be asking for its password in another window.'),
    }),
    setting: keychainSetting(env),
    warn: (text) => terminal.note(`Warning: ${text}`),
  });
  return {
    name,
    folder,
    identity: () => secrets.read(),
    keep: (identity) => secrets.keep(identity),
    renew: (identity) => secrets.renew(identity),
    forget: async () => {
      // The identity first: what is cut off in the middle must not leave a device that can still write.
      await secrets.forget();
      // The lock is held for just this.
      for (const each of await readdir(folder))
        if (each !== LOCK_FILE) await rm(join(folder, each), { recursive: true, force: true });
    },
  };
}
