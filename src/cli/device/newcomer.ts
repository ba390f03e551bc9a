/** What `claim`, `join` and `recover` have in common: where, under which name, and keeping the identity they end with. */
import { readFile, stat } from 'node:fs/promises';
import { hostname } from 'node:os';
import { basename } from 'node:path';
import type { Command } from 'commander';
import { Option } from 'commander';
import { isLocalHost, serverAddress } from '../../client/address.js';
import { backoffMs, delay, RECONNECT } from '../../client/platform.js';
import type { AskPassword, NewDevice } from '../../client/enrol.js';
import { ApiError, isUndecided } from '../../client/errors.js';
import type { Identity } from '../../client/identity.js';
import { CryptoRefusal } from '../../crypto/refusal.js';
import { decodeWords } from '../../crypto/words.js';
import { isDisplayName } from '../../protocol/ids.js';
import type { Glyph } from '../../protocol/requests.js';
import { errorCode } from '../../protocol/error-code.js';
import type { Context } from './context.js';
import { failureOf } from './failure.js';
import { harmless } from './output.js';
import { CommandError, EXIT, type Terminal } from './terminal.js';

/** The glyphs of the specification. */
export const GLYPHS: readonly Glyph[] = ['laptop', 'phone', 'tablet', 'globe'];

/** Options of every newcomer. */
export interface NewcomerOptions {
  readonly name?: string;
  readonly glyph: Glyph;
  readonly passwordFile?: string;
}

const NAME_MAX = 64;
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
  const serverUrl = await serverOf(terminal, url);
  const name = options.name?.trim() ?? defaultName();
  if (!isDisplayName(name)) {
    throw new CommandError(
      EXIT.usage,
      'a device name is 1 to 64 characters, something to see among them, and no control characters',
    );
  }
  return { platform, serverUrl, name, glyph: options.glyph };
}

function defaultName(): string {
  const host = harmless(hostname().split('.')[0] ?? '').slice(0, NAME_MAX);
  return isDisplayName(host) ? host : 'terminal';
}

async function serverOf(terminal: Terminal, given: string | undefined): Promise<string> {
  let typed = given ?? terminal.env['SERVICE_HOST'] ?? '';
  if (typed.trim() === '' && terminal.interactive) typed = await terminal.ask('Address of the server: ');
  if (typed.trim() === '') {
    throw new CommandError(EXIT.usage, 'which server?', 'Give its address, or set SERVICE_HOST.');
  }
  const url = addressOf(typed);
  if (url.startsWith('http://') && !isLocalHost(new URL(url).hostname)) {
    terminal.note(
      'Warning: this address is not https. Your items are encrypted all the same, but others can see when you write.',
    );
  }
  return url;
}

/** See `serverAddress`. Throws `CommandError` `usage`. */
export function addressOf(typed: string): string {
  try {
    return serverAddress(typed);
  } catch (cause) {
    const hint = 'It looks like https://sync.example.org';
    throw new CommandError(EXIT.usage, 'that is not the address of a server', hint, { cause });
  }
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

const PASSWORD_TRIES = 3;

/** Lets a person who mistyped the account password try again. A wrong password spends neither words nor phrase. */
export async function forgiving<T>({ terminal }: Pick<Context, 'terminal'>, attempt: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await attempt();
    } catch (error) {
      const mistyped = error instanceof ApiError && error.code === 'password_invalid' && terminal.interactive;
      if (!mistyped || tries >= PASSWORD_TRIES) throw error;
      terminal.note('That is not the account password. Once more.');
    }
  }
}

/** Words with a checksum, as typed: asked for until they hold, before anything is sent. */
export async function askedWords(
  { terminal, platform }: Context,
  asking: { readonly count: number; readonly question: string; readonly hidden: boolean },
): Promise<string> {
  for (let tries = 1; ; tries++) {
    const typed = await terminal.ask(asking.question, { hidden: asking.hidden });
    try {
      decodeWords(platform.sodium, typed, asking.count);
      return typed;
    } catch (error) {
      if (!(error instanceof CryptoRefusal) || tries >= PASSWORD_TRIES) throw error;
      terminal.note(`${error.message}. Once more.`);
    }
  }
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
