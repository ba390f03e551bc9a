/** What `claim`, `join` and `recover` have in common: where, under which name, and keeping the identity they end with. */
import { readFile, stat } from 'node:fs/promises';
import { basename } from 'node:path';
import type { Command } from 'commander';
import { Option } from 'commander';
import { delay } from '../protocol/clock.js';
import { backoffMs, RECONNECT } from '../sdk/platform.js';
import type { AskPassword, NewDevice } from '../sdk/enrol.js';
import { isUndecided } from '../sdk/errors.js';
import type { Identity } from '../sdk/identity.js';
import { ownName, serverFrom } from '../device/newcomer.js';
import { isDisplayName } from '../protocol/ids.js';
import type { Glyph } from '../protocol/requests.js';
import { errorCode } from '../protocol/error-code.js';
import type { Context } from './context.js';
import { failureOf } from './failure.js';
import { CommandError, EXIT, type Terminal } from '../terminal/terminal.js';

/** The pictures that a device can have. */
export const GLYPHS: readonly Glyph[] = ['laptop', 'phone', 'tablet', 'globe'];

/** Options of every newcomer. */
export interface NewcomerOptions {
  readonly name?: string;
  readonly glyph: Glyph;
  readonly passwordFile?: string;
}

const SECRET_FILE_MAX = 4_096;
/** Tries of a registration whose outcome is not known: about ten minutes. */
const REGISTER_TRIES = 14;

/** Adds what `NewcomerOptions` holds. */
export const newcomerOptions = (command: Command): Command =>
  command
    .option('--name <name>', "this device's name, as the others see it (default: this machine's name)")
    .addOption(new Option('--glyph <glyph>', 'its picture').choices(GLYPHS).default('laptop'));

/** Adds the password of scripts. */
export const passwordOption = (command: Command): Command =>
  command.option('--password-file <path>', 'the account password, for scripts ("-": standard input)');

/** Client options of a new device. Throws `CommandError` where address or name cannot be. */
export async function newcomer(
  context: Context,
  url: string | undefined,
  options: NewcomerOptions,
): Promise<NewDevice> {
  const { terminal, platform } = context;
  const missing = () => new CommandError(EXIT.usage, 'which server?', 'Give its address, or set SERVICE_HOST.');
  const serverUrl = await serverFrom(terminal, url ?? terminal.env['SERVICE_HOST'], missing);
  const name = options.name?.trim() ?? ownName('', 'terminal');
  if (!isDisplayName(name)) {
    throw new CommandError(
      EXIT.usage,
      'a device name is 1 to 64 characters, something to see among them, and no control characters',
    );
  }
  return { platform, serverUrl, name, glyph: options.glyph };
}

/** Throws where this profile is a device already: its identity would be lost. */
export async function expectNobody({ profile }: Context): Promise<void> {
  const there = await profile.identity();
  if (there === undefined) return;
  throw new CommandError(
    EXIT.refused,
    `profile ${profile.name} is a device of ${there.serverUrl} already`,
    'Use another profile (--profile NAME), or forget this one first (`service-device forget`).',
    { code: 'device_here' },
  );
}

/**
 * Registers as often as it takes: while nobody can tell whether the server has registered this device, the same keys are
 * tried again. `stands` is said where it gives up: what the user should then do.
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
      terminal.note(`No sure answer: ${message}. Trying again in ${Math.ceil(wait / 1000)} s ...`);
      await delay(platform.clock, wait, terminal.interrupted).catch((cause: unknown) => {
        throw new CommandError(EXIT.interrupted, 'interrupted', stands, { cause });
      });
    }
  }
}

/** How the account password is got, where one is set. */
export const passwordFrom =
  ({ terminal }: Pick<Context, 'terminal'>, file: string | undefined): AskPassword =>
  async () => {
    if (file !== undefined) return secretFrom(terminal, file);
    if (!terminal.interactive) return null;
    return terminal.ask('Account password: ', { hidden: true });
  };

/** The first line of a file, or of standard input: for scripts, which cannot be asked. */
export async function secretFrom(terminal: Terminal, path: string): Promise<string> {
  const bytes = path === '-' ? await terminal.readInput(SECRET_FILE_MAX) : await readWhole(path, SECRET_FILE_MAX);
  const line = bytes?.toString('utf8').split(/\r?\n/)[0] ?? '';
  if (line.trim() === '') throw new CommandError(EXIT.usage, 'the file with the secret is missing or empty');
  return line;
}

/** A file's bytes, undefined where there is none. Rejects for one over `max` bytes: a file of a few words is not. */
async function readWhole(path: string, max: number): Promise<Buffer | undefined> {
  try {
    if ((await stat(path)).size > max) throw new Error(`${basename(path)} is larger than any secret`);
    return await readFile(path);
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw error;
  }
}
