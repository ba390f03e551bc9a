/**
 * The system's keychain as a port, and its binding. The native library is asked in a process of its own: a keychain
 * that hangs (one that waits for a password on a screen that nobody sees) is given up by ending that process, and
 * nothing of it keeps the command from ending. What passes is on pipes, never in arguments.
 */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import type { Clock } from '../protocol/clock.js';

/** A keychain could not be asked. `absent`: there is none here. `silent`: no answer in time. */
export class KeychainError extends Error {
  override readonly name = 'KeychainError';

  constructor(
    readonly code: 'absent' | 'silent',
    message: string,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** Small secrets by name, kept by the system for this user. Calls reject with `KeychainError`. */
export interface Keychain {
  get(account: string): Promise<string | undefined>;
  set(account: string, secret: string): Promise<void>;
  /** Of a name that is not there it does nothing. */
  delete(account: string): Promise<void>;
}

/** What the process is asked, as one JSON text on its standard input. */
export interface KeychainRequest {
  readonly op: 'get' | 'set' | 'delete';
  readonly account: string;
  readonly secret?: string;
}

/** What it answers on its standard output. */
export type KeychainAnswer =
  { readonly ok: true; readonly secret: string | null } | { readonly ok: false; readonly message: string };

/** How the binding is made; tests give another child. */
export interface SystemKeychainOptions {
  readonly clock: Clock;
  /** Told when the keychain has not answered for a while: it may wait for the user. */
  readonly onWait: () => void;
  /** Path of the script that is run; default: the one beside this file. */
  readonly child?: string;
}

/** A keychain that is locked asks its user, who needs time to type. */
const ANSWER_WITHIN_MS = 60_000;
const TELL_AFTER_MS = 2_000;
/** An answer holds one key; anything longer is none. */
const ANSWER_MAX = 64 * 1024;

const CHILD = fileURLToPath(new URL('./keychain-child.js', import.meta.url));

/** The keychain of this user and this system. */
export function systemKeychain(options: SystemKeychainOptions): Keychain {
  const ask = async (request: KeychainRequest): Promise<string | null> => {
    const answer = await run(options, request);
    if (!answer.ok) throw new KeychainError('absent', answer.message);
    return answer.secret;
  };
  return {
    get: async (account) => (await ask({ op: 'get', account })) ?? undefined,
    set: (account, secret) => ask({ op: 'set', account, secret }).then(() => undefined),
    delete: (account) => ask({ op: 'delete', account }).then(() => undefined),
  };
}

function run({ clock, onWait, child }: SystemKeychainOptions, request: KeychainRequest): Promise<KeychainAnswer> {
  return new Promise((resolve, reject) => {
    const tell = clock.setTimer(TELL_AFTER_MS, onWait);
    const giveUp = clock.setTimer(ANSWER_WITHIN_MS, () => {
      tell.cancel();
      asked.kill('SIGKILL');
      reject(new KeychainError('silent', `the keychain did not answer within ${ANSWER_WITHIN_MS / 1_000} s`));
    });
    // What is wrong with a child that ends without an answer is not for anybody: there is no keychain here, then.
    const asked = execFile(process.execPath, [child ?? CHILD], { maxBuffer: ANSWER_MAX }, (_error, answer) => {
      tell.cancel();
      giveUp.cancel();
      resolve(answerOf(answer));
    });
    // A child that ends before it has read makes the pipe break.
    asked.stdin?.on('error', () => undefined);
    asked.stdin?.end(JSON.stringify(request));
  });
}

function answerOf(text: string): KeychainAnswer {
  try {
    const value = JSON.parse(text) as Partial<{ ok: unknown; secret: unknown; message: unknown }>;
    if (value.ok === true && (value.secret === null || typeof value.secret === 'string'))
      return { ok: true, secret: value.secret };
    if (value.ok === false && typeof value.message === 'string') return { ok: false, message: value.message };
  } catch {
    // Not JSON: the library is not there for this system, or the process was ended.
  }
  return { ok: false, message: 'there is no keychain that can be asked here' };
}
