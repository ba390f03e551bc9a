/**
 * The system's keychain. The native library runs in a child process: a keychain that hangs (waiting for a password in a
 * window that nobody sees) is abandoned by killing the child, and cannot keep the command from ending. Secrets are
 * passed through pipes, never as arguments.
 */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import type { Clock } from '../protocol/clock.js';
import { CodedError } from '../sdk/errors.js';
import { nullable, object, string, type Read } from '../sdk/reader.js';

/** A call to the keychain failed. `absent`: there is none. `silent`: it did not answer in time. */
export class KeychainError extends CodedError<'absent' | 'silent'> {
  override readonly name = 'KeychainError';
}

/** Small secrets by name, stored by the system for this user. Calls reject with `KeychainError`. */
export interface Keychain {
  get(account: string): Promise<string | undefined>;
  set(account: string, secret: string): Promise<void>;
  /** Deleting a missing entry does nothing. */
  delete(account: string): Promise<void>;
}

/** The JSON text that the child reads from its standard input. */
export interface KeychainRequest {
  readonly op: 'get' | 'set' | 'delete';
  readonly account: string;
  readonly secret?: string;
}

/** The JSON text that the child writes to its standard output. `failure`: empty where the call succeeded. */
const readAnswer = object({ secret: nullable(string), failure: string });
export type KeychainAnswer = Read<typeof readAnswer>;

interface KeychainOptions {
  readonly clock: Clock;
  /** Called when a call takes long: the keychain may be waiting for the user. */
  readonly onWait: () => void;
  /** Path of the child's script, for tests. */
  readonly child?: string;
}

/** A locked keychain asks the user for a password, which takes time to type. */
const TIMEOUT_MS = 60_000;
const REPORT_AFTER_MS = 2_000;
/** An answer holds one key. */
const ANSWER_MAX = 64 * 1024;

const CHILD = fileURLToPath(new URL('./keychain-child.js', import.meta.url));

export function systemKeychain(options: KeychainOptions): Keychain {
  const call = async (request: KeychainRequest): Promise<string | null> => {
    const { secret, failure } = await run(options, request);
    if (failure !== '') throw new KeychainError('absent', failure);
    return secret;
  };
  return {
    get: async (account) => (await call({ op: 'get', account })) ?? undefined,
    set: (account, secret) => call({ op: 'set', account, secret }).then(() => undefined),
    delete: (account) => call({ op: 'delete', account }).then(() => undefined),
  };
}

function run({ clock, onWait, child }: KeychainOptions, request: KeychainRequest): Promise<KeychainAnswer> {
  return new Promise((resolve, reject) => {
    const report = clock.setTimer(REPORT_AFTER_MS, onWait);
    const timeout = clock.setTimer(TIMEOUT_MS, () => {
      report.cancel();
      running.kill('SIGKILL');
      reject(new KeychainError('silent', `the keychain did not answer within ${TIMEOUT_MS / 1_000} s`));
    });
    // The exit code is ignored: a child that ends without an answer means that there is no keychain.
    const running = execFile(process.execPath, [child ?? CHILD], { maxBuffer: ANSWER_MAX }, (_error, answer) => {
      report.cancel();
      timeout.cancel();
      resolve(answerOf(answer));
    });
    // EPIPE of a child that ends before it has read its input; its missing answer is what counts.
    running.stdin?.on('error', () => undefined);
    running.stdin?.end(JSON.stringify(request));
  });
}

function answerOf(text: string): KeychainAnswer {
  try {
    return readAnswer(JSON.parse(text), 'answer');
  } catch {
    // Not an answer: the library does not support this system, or the child was killed.
    return { secret: null, failure: 'no keychain is available here' };
  }
}
