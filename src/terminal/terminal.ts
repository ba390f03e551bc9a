/** The terminal as an interface, so that tests run commands without one; exit codes, and errors that have them. */

/** Exit codes (the reference, Command line). */
export const EXIT = {
  ok: 0,
  /** A failure of no other kind, or an action that the user declined. */
  failure: 1,
  usage: 2,
  /** No such item, bin or device, or no device in this profile yet. */
  notFound: 3,
  /** The server cannot be reached or fails: try again later. Writes stay in the outbox. */
  unavailable: 4,
  /** Refused by the server: revoked, forbidden, conflict. */
  refused: 5,
  /** An item, a device or the server does not verify. */
  untrusted: 6,
  interrupted: 130,
} as const;
export type ExitCode = (typeof EXIT)[keyof typeof EXIT];

/** A failure that the user caused or can fix: message and hint are printed, no stack. `hint`: what to type next. */
export class CommandError extends Error {
  override readonly name: string = 'CommandError';
  /** `error.code` in the JSON output. */
  readonly code: string;

  constructor(
    readonly exitCode: ExitCode,
    message: string,
    readonly hint?: string,
    options?: ErrorOptions & { readonly code?: string },
  ) {
    super(message, options);
    this.code = options?.code ?? kindOf(exitCode);
  }
}

/** A failure of wrong arguments. `code`: `error.code` in the JSON output, where it is not `usage`. */
export const usageError = (message: string, hint?: string, code?: string): CommandError =>
  new CommandError(EXIT.usage, message, hint, { code });

/** The user declined. It is reported as a note, not as an error (CLI-41). */
export class Declined extends CommandError {
  constructor(message: string, exitCode: ExitCode = EXIT.failure, options: ErrorOptions & { code?: string } = {}) {
    super(exitCode, message, undefined, { code: 'declined', ...options });
  }
}

/** The failure of a command that a signal, or Ctrl-C, has ended. */
export const INTERRUPTED = new CommandError(EXIT.interrupted, 'interrupted');

/** Rejection handler of an interrupted wait. Throws `CommandError`. */
export function endInterrupted(cause: unknown): never {
  throw new CommandError(EXIT.interrupted, 'interrupted', undefined, { cause });
}

/** The default `error.code` of an exit code: its name. */
function kindOf(exitCode: ExitCode): string {
  const [name = ''] = Object.entries(EXIT).find(([, code]) => code === exitCode) ?? [];
  return name === 'notFound' ? 'not_found' : name;
}

/** A terminal that interprets control sequences. */
export interface Screen {
  /** Its file descriptor, for a child process that writes to it later. */
  readonly fd: number;
  write(sequence: string): void;
}

/** Input and output of a command. With `json`, standard output has JSON only: one document, or one per line. */
export interface Terminal {
  readonly json: boolean;
  /** Input and output are terminals: the user can be asked. */
  readonly interactive: boolean;
  readonly colours: boolean;
  /** Standard output is a screen: secrets are masked or refused. */
  readonly onScreen: boolean;
  /** Columns. */
  readonly width: number;
  /** The screen, for control sequences that show nothing; absent where no stream is a terminal. */
  readonly screen?: Screen | undefined;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** A line of the result, on standard output. */
  print(text: string): void;
  /** Bytes of the result, on standard output; resolves when the stream accepts more. */
  write(bytes: Uint8Array): Promise<void>;
  /** A JSON document of the result, on standard output; with `json` only. */
  data(value: unknown): void;
  /** A line on standard error: progress, warnings, what to type next. */
  note(text: string): void;
  /** Progress on standard error: on a terminal in place of the last text, elsewhere a line now and then. '' ends it. */
  progress(text: string): void;
  /** Asks for a line; earlier input is discarded. Throws `CommandError` `usage` without a terminal. `hidden`: no echo. */
  ask(question: string, options?: { readonly hidden?: boolean }): Promise<string>;
  /** All of standard input. Throws `CommandError` for more than `max` bytes. */
  readInput(max: number): Promise<Buffer>;
  /** Standard input as a stream, once. */
  openInput(): AsyncIterable<Uint8Array>;
  /** Aborted by SIGINT, SIGTERM, SIGHUP or Ctrl-C. */
  readonly interrupted: AbortSignal;
}
