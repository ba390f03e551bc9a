/** What a person is asked before a machine becomes a device: which server, which words, which password; and its name. */
import { hostname } from 'node:os';
import { isLocalHost, serverAddress } from '../sdk/address.js';
import { ApiError } from '../sdk/errors.js';
import type { Platform } from '../sdk/platform.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import { decodeWords } from '../crypto/words.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { isDisplayName } from '../protocol/ids.js';
import { NAME_MAX } from '../protocol/limits.js';
import { CommandError, EXIT, type Terminal } from '../terminal/terminal.js';

/** Who is asked. */
type Asked = Pick<Terminal, 'interactive' | 'note' | 'ask'>;

/** Words and passwords may be mistyped so often, less one. */
const TRIES = 3;

/** This machine's name with `suffix`, as the other devices will see it; `otherwise` where it has none that can be shown. */
export function ownName(suffix: string, otherwise: string): string {
  const host = sanitizeText(hostname().split('.')[0] ?? '').slice(0, NAME_MAX - suffix.length);
  return isDisplayName(host) ? `${host}${suffix}` : otherwise;
}

/** The server's address, given or asked for, in the client's form. Throws `missing()` where nobody can be asked. */
export async function serverFrom(terminal: Asked, given: string | undefined, missing: () => Error): Promise<string> {
  let typed = given ?? '';
  if (typed.trim() === '' && terminal.interactive) typed = await terminal.ask('Address of the server: ');
  if (typed.trim() === '') throw missing();
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

/** Words with a checksum, as typed: asked for until they hold, before anything is sent. */
export function askedWords(
  { terminal, platform }: { readonly terminal: Asked; readonly platform: Pick<Platform, 'sodium'> },
  asking: { readonly count: number; readonly question: string; readonly hidden: boolean },
): Promise<string> {
  const attempt = async (): Promise<string> => {
    const typed = await terminal.ask(asking.question, { hidden: asking.hidden });
    decodeWords(platform.sodium, typed, asking.count);
    return typed;
  };
  return oftener(terminal, attempt, (error) =>
    error instanceof CryptoRefusal ? `${error.message}. Once more.` : undefined,
  );
}

/** Lets a person who mistyped the account password try again. A wrong password spends neither words nor phrase. */
export const forgiving = <T>(
  { terminal }: { readonly terminal: Asked },
  attempt: () => Promise<T>,
  mistyped = 'That is not the account password. Once more.',
): Promise<T> =>
  oftener(terminal, attempt, (error) =>
    error instanceof ApiError && error.code === 'password_invalid' && terminal.interactive ? mistyped : undefined,
  );

/** Another attempt after a failure of which `mistyped` has something to say to the person. */
async function oftener<T>(
  terminal: Asked,
  attempt: () => Promise<T>,
  mistyped: (error: unknown) => string | undefined,
): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await attempt();
    } catch (error) {
      const said = tries < TRIES ? mistyped(error) : undefined;
      if (said === undefined) throw error;
      terminal.note(said);
    }
  }
}
