/** A profile: its folder, the identity in it (`secrets.ts`), and the lock that lets one command at a time write to it. */
import { readdir, rm, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { configFolder } from '../files/config-folder.js';
import type { FileLock } from '../files/lock.js';
import { privateFolder } from '../files/private.js';
import { errorCode } from '../protocol/error-code.js';
import type { Platform } from '../sdk/platform.js';
import { waitForLock } from '../terminal/lock.js';
import { CommandError, EXIT, type Terminal, usageError } from '../terminal/terminal.js';
import type { Context, Profile } from './context.js';
import { systemKeychain } from './keychain.js';
import { keychainSetting, Secrets } from './secrets.js';

const PROFILE_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;
/** In a profile's folder: held by the command that works on it. */
export const LOCK_FILE = 'lock';
/** In a profile's folder: the local copy. */
export const STORE_FOLDER = 'store';
/** A wait longer than this is reported. */
const REPORT_AFTER_MS = 1_000;

/** The profile of a name. Throws `CommandError` `usage` for a name that cannot be a folder's. */
export function profileOf(
  name: string,
  { sodium, clock }: Pick<Platform, 'sodium' | 'clock'>,
  terminal: Pick<Terminal, 'env' | 'note'>,
): Profile {
  if (!PROFILE_NAME.test(name))
    throw usageError('a profile name is 1 to 64 letters, digits, dots, hyphens and underscores');
  const folder = join(configFolder(terminal.env), 'device', name);
  const secrets = new Secrets({
    ...{ sodium, folder },
    keychain: systemKeychain({
      clock,
      onWait: () => terminal.note('Waiting for the keychain; it may be asking for its password in another window.'),
    }),
    setting: keychainSetting(terminal.env),
    warn: (text) => terminal.note(`Warning: ${text}`),
  });
  return {
    name,
    folder,
    identity: () => secrets.read(),
    keep: (identity) => secrets.keep(identity),
    renew: (identity) => secrets.renew(identity),
    forget: async () => {
      // The identity first: an interruption must not leave a device that can still write.
      await secrets.forget();
      // The caller holds the lock, so it stays.
      for (const each of await readdir(folder))
        if (each !== LOCK_FILE) await rm(join(folder, each), { recursive: true, force: true });
    },
  };
}

/**
 * Runs `work` while no other command works on the profile, whose folder is created; one that then holds no more than the
 * lock is removed. The store has a lock of its own, which fails at once; this one makes the next command wait. Throws
 * `CommandError` with code `busy` after 30 s, `interrupted` when the user interrupts the wait.
 */
export async function withLock<T>(context: Context, work: () => Promise<T>): Promise<T> {
  const { folder } = context.profile;
  const lock = await locked(context);
  return work().finally(async () => {
    const left = await readdir(folder).catch(() => []);
    if (left.some((name) => name !== LOCK_FILE)) return lock.release();
    lock.remove();
    // It stays where another command has taken the lock by now.
    await rmdir(folder).catch(() => undefined);
  });
}

async function locked(context: Context): Promise<FileLock> {
  const { terminal, platform, profile } = context;
  await privateFolder(profile.folder, (text) => terminal.note(`Warning: ${text}`));
  const hint = 'Wait for it to end, or use another profile (--profile NAME).';
  try {
    return await waitForLock(join(profile.folder, LOCK_FILE), {
      clock: platform.clock,
      signal: terminal.interrupted,
      refusal: () =>
        new CommandError(EXIT.unavailable, 'another command is using this profile', hint, { code: 'busy' }),
      onWait: (ms) => {
        if (ms >= REPORT_AFTER_MS) terminal.progress('Waiting for another command of this profile to finish ...');
      },
    });
  } catch (error) {
    // The command that held the lock has removed the folder.
    if (errorCode(error) === 'ENOENT') return await locked(context);
    throw error;
  } finally {
    terminal.progress('');
  }
}
