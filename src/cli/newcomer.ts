/** What `claim`, `join` and `recover` share: address, name and password of the new device, and its registration. */
import { readFile, stat } from 'node:fs/promises';
import { basename } from 'node:path';
import { Option } from 'commander';
import { delay } from '../protocol/clock.js';
import { backoffMs, RECONNECT } from '../sdk/platform.js';
import type { AskPassword, NewDevice } from '../sdk/enrol.js';
import { isUndecided } from '../sdk/errors.js';
import type { Identity } from '../sdk/identity.js';
import { forgiving, ownName, serverFrom } from '../device/newcomer.js';
import { isDisplayName } from '../protocol/ids.js';
import type { Glyph } from '../protocol/requests.js';
import { errorCode } from '../protocol/error-code.js';
import type { Context, DeviceCommand } from './context.js';
import { failureOf } from './failure.js';
import { CommandError, EXIT, type Terminal, usageError } from '../terminal/terminal.js';

const GLYPHS: readonly Glyph[] = ['laptop', 'phone', 'tablet', 'globe'];

/** Options of every new device. */
export interface NewcomerOptions {
  readonly name?: string;
  readonly glyph: Glyph;
  readonly passwordFile?: string;
}

const SECRET_FILE_MAX = 4_096;
/** Retries of a registration with an unknown outcome: about ten minutes. */
const REGISTER_TRIES = 14;

/** Adds name and glyph. */
export const newcomerOptions = (command: DeviceCommand): DeviceCommand =>
  command
    .option('--name <name>', "this device's name, as the others see it (default: this machine's name)")
    .addOption(new Option('--glyph <glyph>', 'its picture').choices(GLYPHS).default('laptop'));

/** Adds the account password for scripts. */
export const passwordOption = (command: DeviceCommand): DeviceCommand =>
  command.option('--password-file <path>', 'the account password, for scripts ("-": standard input)');

/** The SDK's options for a new device. Throws `CommandError` for an invalid address or name. */
export async function newcomer(
  context: Context,
  url: string | undefined,
  options: NewcomerOptions,
): Promise<NewDevice> {
  const { terminal, platform } = context;
  const missing = () => usageError('which server?', 'Give its address, or set SERVICE_HOST.');
  const serverUrl = await serverFrom(terminal, url ?? terminal.env['SERVICE_HOST'], missing);
  const name = checkedName('device', options.name ?? ownName('', 'terminal'));
  return { platform, serverUrl, name, glyph: options.glyph };
}

/** The name without white space around it. Throws `CommandError` for an invalid one. */
export function checkedName(of: 'device' | 'bin', typed: string): string {
  const name = typed.trim();
  if (isDisplayName(name)) return name;
  const rule = 'name must have 1 to 64 characters, at least one of them visible, and no control characters';
  throw usageError(`a ${of} ${rule}`);
}

/** Throws where the profile is a device already, whose identity would be lost. */
export async function expectNobody({ profile }: Context): Promise<void> {
  const there = await profile.identity();
  if (there === undefined) return;
  const message = `profile ${profile.name} is already a device of ${there.serverUrl}`;
  const hint = 'Use another profile (--profile NAME), or forget this one first (`service-device forget`).';
  throw new CommandError(EXIT.refused, message, hint, { code: 'device_here' });
}

/**
 * Registers the device. While it is unknown whether the server has registered it, this retries with the same keys.
 * `stands`: the hint after the last retry, since the registration may have succeeded.
 */
export async function registered(
  { terminal, platform }: Context,
  register: () => Promise<Identity>,
  stands: string,
): Promise<Identity> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await register();
    } catch (error) {
      if (!isUndecided(error) || terminal.interrupted.aborted) throw error;
      const { code, message } = failureOf(error);
      if (attempt >= REGISTER_TRIES) throw new CommandError(EXIT.unavailable, message, stands, { cause: error, code });
      const wait = backoffMs(attempt, RECONNECT, platform.random);
      terminal.note(`No clear answer: ${message}. Trying again in ${Math.ceil(wait / 1000)} s ...`);
      await delay(platform.clock, wait, terminal.interrupted).catch((cause: unknown) => {
        throw new CommandError(EXIT.interrupted, 'interrupted', stands, { cause });
      });
    }
  }
}

/** Asks for the account password, or reads it from `file`. */
export const passwordFrom =
  ({ terminal }: Pick<Context, 'terminal'>, file: string | undefined): AskPassword =>
  async () => {
    if (file !== undefined) return secretFrom(terminal, file);
    if (!terminal.interactive) return null;
    return terminal.ask('Account password: ', { hidden: true });
  };

/** Lets the user retry a wrong account password. One from a file is not retried: the server counts each attempt. */
export const forgivingTyped = <T>(
  context: Context,
  { passwordFile }: Pick<NewcomerOptions, 'passwordFile'>,
  attempt: () => Promise<T>,
): Promise<T> => (passwordFile === undefined ? forgiving(context, attempt) : attempt());

/** The first line of a file, or of standard input (`-`). */
export async function secretFrom(terminal: Terminal, path: string): Promise<string> {
  const bytes = path === '-' ? await terminal.readInput(SECRET_FILE_MAX) : await readSecretFile(path);
  const line = bytes.toString('utf8').split(/\r?\n/)[0] ?? '';
  if (line.trim() === '') throw usageError('the file with the secret is missing or empty');
  return line;
}

/** Empty where there is no such file. */
async function readSecretFile(path: string): Promise<Buffer> {
  try {
    if ((await stat(path)).size > SECRET_FILE_MAX) throw usageError(`${basename(path)} is larger than any secret`);
    return await readFile(path);
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return Buffer.alloc(0);
    throw error;
  }
}
