/** The terminal as a command sees it: a port, so that commands run in tests without one. */

/** What a command ends with (documented in the reference, Command line). */
export const EXIT = {
  ok: 0,
  /** Something failed that fits no other line; or the person said no. */
  failure: 1,
  /** Wrong arguments. */
  usage: 2,
  /** No item, bin or device of that name, or no device here yet. */
  notFound: 3,
  /** The server cannot be reached, or is in trouble: try again later. What was written waits in the outbox. */
  unavailable: 4,
  /** The server refused: revoked, forbidden, conflict. */
  refused: 5,
  /** Something does not verify: an item, a device, a server that lies. */
  untrusted: 6,
  /** Interrupted by the user. */
  interrupted: 130,
} as const;
export type ExitCode = (typeof EXIT)[keyof typeof EXIT];

/** An end that the user caused or can mend: its message is all that is printed. `hint`: what to type next. */
export class CommandError extends Error {
  override readonly name: string = 'CommandError';
  /** `error.code` of the JSON form. */
  readonly code: string;

  constructor(
    readonly exitCode: ExitCode,
    message: string,
    readonly hint?: string,
    options?: ErrorOptions & { readonly code?: string },
  ) {
    super(message, options);
    this.code = options?.code ?? KINDS[exitCode];
  }
}

/** The person said no: that is told as what it is, not as an error (CLI-41). */
export class Declined extends CommandError {
  constructor(message: string, exitCode: ExitCode = EXIT.failure, options: ErrorOptions & { code?: string } = {}) {
    super(exitCode, message, undefined, { code: 'declined', ...options });
  }
}

/** For what was waited for until the person interrupted it. Throws `CommandError`. */
export function endInterrupted(cause: unknown): never {
  throw new CommandError(EXIT.interrupted, 'interrupted', undefined, { cause });
}

/** What a script reads as `error.code` where nothing more exact is known. */
const KINDS: Readonly<Record<ExitCode, string>> = {
  [EXIT.ok]: 'ok',
  [EXIT.failure]: 'failure',
  [EXIT.usage]: 'usage',
  [EXIT.notFound]: 'not_found',
  [EXIT.unavailable]: 'unavailable',
  [EXIT.refused]: 'refused',
  [EXIT.untrusted]: 'untrusted',
  [EXIT.interrupted]: 'interrupted',
};

/** Where a command reads and prints. With `json` nothing but JSON goes to standard output, one document a command, or one a line. */
export interface Terminal {
  readonly json: boolean;
  /** True where a person sits at both ends: questions may be asked. */
  readonly interactive: boolean;
  readonly colours: boolean;
  /** True where standard output is a screen: what must not be seen there is refused or masked. Absent: as `interactive`. */
  readonly outputIsTerminal?: boolean;
  /** Columns. */
  readonly width: number;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** A line of the result, on standard output. */
  print(text: string): void;
  /** Bytes of the result, on standard output; resolves when there is room for more. */
  write(bytes: Uint8Array): Promise<void>;
  /** A JSON document of the result, on standard output; called with `json` only. */
  data(value: unknown): void;
  /** A line for the person, on standard error: progress, warnings, what to type next. */
  note(text: string): void;
  /** Overwrites its own last text on a terminal; elsewhere prints nothing. An empty text ends it. */
  progress(text: string): void;
  /** Asks for a line; what was typed before the question was shown is no answer. Throws `CommandError` `usage` where nobody can be asked. `hidden`: not echoed. */
  ask(question: string, options?: { readonly hidden?: boolean }): Promise<string>;
  /** All of standard input, at most `max` bytes; throws `CommandError` above. */
  readInput(max: number): Promise<Buffer>;
  /** Standard input as it comes, once. */
  openInput(): AsyncIterable<Uint8Array>;
  /** Aborted by SIGINT or SIGTERM. */
  readonly interrupted: AbortSignal;
}
