/** The questions before a machine becomes a device: server, words and password; and its default name. */
import { createReadStream } from 'node:fs';
import { hostname } from 'node:os';
import { errorCode } from '../protocol/error-code.js';
import { isLocalHost } from '../protocol/local-host.js';
import { serverAddress } from '../sdk/address.js';
import type { AskPassword } from '../sdk/enrol.js';
import { ApiError } from '../sdk/errors.js';
import type { Platform } from '../sdk/platform.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import { decodeWords } from '../crypto/words.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { isDisplayName } from '../protocol/ids.js';
import { NAME_MAX } from '../protocol/limits.js';
import { CommandError, EXIT, type Terminal, usageError } from '../terminal/terminal.js';

type Prompts = Pick<Terminal, 'interactive' | 'note' | 'ask'>;

const TRIES = 3;
/** Longest line that is read as a secret, bytes. */
const SECRET_MAX = 4_096;
const LINE_BREAK = 0x0a;

/** This machine's name with `suffix`, as the other devices will show it; `otherwise` where it has no valid one. */
export function ownName(suffix: string, otherwise: string): string {
  const host = sanitizeText(hostname().split('.')[0] ?? '').slice(0, NAME_MAX - suffix.length);
  return isDisplayName(host) ? `${host}${suffix}` : otherwise;
}

/** The server's address, given or typed, normalized. Throws `missing()` without an address and without a terminal. */
export async function serverFrom(terminal: Prompts, given: string | undefined, missing: () => Error): Promise<string> {
  let typed = given ?? '';
  if (typed.trim() === '' && terminal.interactive) typed = await terminal.ask('Address of the server: ');
  if (typed.trim() === '') throw missing();
  const url = addressOf(typed);
  if (url.startsWith('http://') && !isLocalHost(new URL(url).hostname))
    terminal.note(
      'Warning: this address is not https. Your items are encrypted anyway, but others can see when you write.',
    );
  return url;
}

/** See `serverAddress`. Throws `CommandError` `usage`. */
export function addressOf(typed: string): string {
  try {
    return serverAddress(typed);
  } catch (cause) {
    const hint = 'It looks like https://sync.example.org, without a user name and a password.';
    throw new CommandError(EXIT.usage, 'that is not the address of a server', hint, { cause });
  }
}

/** The words as typed; the user is asked again while their checksum is wrong, before anything is sent. */
export function promptWords(
  { terminal, platform }: { readonly terminal: Prompts; readonly platform: Pick<Platform, 'sodium'> },
  asking: { readonly count: number; readonly question: string; readonly hidden: boolean },
): Promise<string> {
  const attempt = async (): Promise<string> => {
    const typed = await terminal.ask(asking.question, { hidden: asking.hidden });
    decodeWords(platform.sodium, typed, asking.count);
    return typed;
  };
  return retryMistyped(terminal, attempt, (error) =>
    error instanceof CryptoRefusal ? `${error.message}. Try again.` : undefined,
  );
}

/**
 * The first line of a file with a secret, or of standard input (`-`). Throws `CommandError` `usage` where it cannot be
 * read, is blank or too long.
 */
export async function secretFrom(terminal: Pick<Terminal, 'openInput'>, path: string): Promise<string> {
  const name = path === '-' ? 'standard input' : path;
  const chunks: Uint8Array[] = [];
  let size = 0;
  try {
    // May be a pipe, as in `<(pass show account)`. One byte more than a line may have shows one that is longer.
    const input: AsyncIterable<Uint8Array> =
      path === '-' ? terminal.openInput() : createReadStream(path, { end: SECRET_MAX });
    for await (const chunk of input) {
      chunks.push(chunk);
      size += chunk.length;
      if (size > SECRET_MAX || chunk.includes(LINE_BREAK)) break;
    }
  } catch (cause) {
    throw usageError(`${name} cannot be read (${errorCode(cause)})`);
  }
  const line = Buffer.concat(chunks).toString('utf8').split(/\r?\n/, 1)[0] ?? '';
  if (Buffer.byteLength(line) > SECRET_MAX)
    throw usageError(`the first line of ${name} is longer than ${SECRET_MAX} bytes`);
  if (line.trim() === '') throw usageError(`the first line of ${name} is empty`);
  return line;
}

/** Reads the account password from `file`, or asks for it without echo; null without a terminal. */
export const passwordFrom =
  (terminal: Prompts & Pick<Terminal, 'openInput'>, file: string | undefined): AskPassword =>
  async () => {
    if (file !== undefined) return secretFrom(terminal, file);
    return terminal.interactive ? terminal.ask('Account password: ', { hidden: true }) : null;
  };

/** The six digits of a pairing as they are shown: two groups are easier to compare. */
export const digitsText = (digits: string): string => `${digits.slice(0, 3)} ${digits.slice(3)}`;

/** What the user does with them, on the new device. */
export const COMPARE_DIGITS = 'The other device must show the same ones. Say yes there; if they differ, say no.';

/**
 * Lets the user retry a wrong account password, which uses up neither words nor phrase. One from a file is tried
 * once: the server counts each attempt.
 */
export const retryPassword = <T>(
  terminal: Prompts,
  passwordFile: string | undefined,
  attempt: () => Promise<T>,
  mistyped = 'That is not the account password. Try again.',
): Promise<T> =>
  retryMistyped(terminal, attempt, (error) => {
    const isWrong = error instanceof ApiError && error.code === 'password_invalid';
    return isWrong && terminal.interactive && passwordFile === undefined ? mistyped : undefined;
  });

/** Retries after failures for which `mistyped` has a message for the user. */
export async function retryMistyped<T>(
  terminal: Pick<Terminal, 'note'>,
  attempt: () => Promise<T>,
  mistyped: (error: unknown) => string | undefined,
): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await attempt();
    } catch (error) {
      const message = tries < TRIES ? mistyped(error) : undefined;
      if (message === undefined) throw error;
      terminal.note(message);
    }
  }
}
