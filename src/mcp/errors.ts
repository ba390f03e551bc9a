/** The error catalogue of the companion's commands and tools. */
import { CommandError, EXIT, type ExitCode } from '../terminal/terminal.js';

interface ErrorEntry {
  readonly exit: ExitCode;
  /** What to do about it, unless the thrower gives a better hint. */
  readonly hint: string;
}

const PAIR_AGAIN = 'Run `service-mcp pair --force` on this machine, with the six words that another device shows.';
const LATER = 'Try again later.';

/** Every code that a command or a tool fails with. The README of the package has a line for each. */
export const ERRORS = {
  not_paired: {
    exit: EXIT.notFound,
    hint: 'Run `service-mcp pair` on this machine, with the six words that another device shows.',
  },
  already_paired: {
    exit: EXIT.refused,
    hint: 'To replace it run `service-mcp pair --force`; to end it run `service-mcp unpair`.',
  },
  /** The file was written on another machine, or this one's identifier has changed. */
  other_machine: { exit: EXIT.refused, hint: PAIR_AGAIN },
  config_damaged: { exit: EXIT.failure, hint: PAIR_AGAIN },
  config_newer: { exit: EXIT.failure, hint: 'Install the newest version of @service/mcp.' },
  /** The file is a link, belongs to another user, or cannot be read or closed to others. */
  config_unsafe: { exit: EXIT.failure, hint: 'Make it a plain file of your own: `chmod 600` on the file.' },
  already_running: { exit: EXIT.unavailable, hint: 'End that one first: one instance runs on a machine.' },
  /** This instance lost its lock to another one. */
  lock_lost: { exit: EXIT.unavailable, hint: 'Restart the MCP client that should have it.' },
  revoked: { exit: EXIT.refused, hint: PAIR_AGAIN },
  /** The server does not know this device: its database is another one. */
  unknown_device: { exit: EXIT.refused, hint: PAIR_AGAIN },
  usage: { exit: EXIT.usage, hint: 'See `service-mcp --help`.' },
  bad_words: { exit: EXIT.usage, hint: 'Compare the words with those on the other screen.' },
  unknown_code: {
    exit: EXIT.notFound,
    hint: 'Words work once and for five minutes. Show new ones on the other device, then pair again.',
  },
  pairing_expired: { exit: EXIT.refused, hint: 'Show new words on the other device, then pair again.' },
  pairing_rejected: { exit: EXIT.refused, hint: 'Show new words on the other device, then pair again.' },
  password_required: { exit: EXIT.refused, hint: 'Run `service-mcp pair` at a terminal, where it is asked for.' },
  password_invalid: { exit: EXIT.refused, hint: 'Pair again with the right one. The words are still good.' },
  device_limit: { exit: EXIT.refused, hint: 'Revoke a device that is no longer used, then try again.' },
  interrupted: { exit: EXIT.interrupted, hint: 'Nothing was changed.' },
  unreachable: { exit: EXIT.unavailable, hint: 'Look whether the server is up and the address is right.' },
  server_trouble: { exit: EXIT.unavailable, hint: LATER },
  rate_limited: { exit: EXIT.unavailable, hint: LATER },
  /** The response is not of this service. */
  bad_answer: { exit: EXIT.failure, hint: 'Is the address right? A proxy in between answers like this too.' },
  /** A signature, a certificate or a key does not verify. */
  untrusted: { exit: EXIT.untrusted, hint: 'Nothing was done. If it happens again, somebody may be in between.' },
  uncertified_device: {
    exit: EXIT.untrusted,
    hint: 'On another device compare the fingerprint and certify it, or revoke it.',
  },
  tenant_suspended: { exit: EXIT.refused, hint: 'Reading works. Writing works again when the account is paid for.' },
  payment_required: { exit: EXIT.refused, hint: 'The account is inactive until it is paid for.' },
  storage_full: { exit: EXIT.refused, hint: 'Delete what is no longer needed.' },
  /** No other device is left that could pair this one again. */
  last_device: {
    exit: EXIT.refused,
    hint: 'To leave this machine only run `service-mcp unpair --force`; the twelve words bring you back.',
  },
  /** An environment variable has an invalid value. */
  bad_setting: { exit: EXIT.usage, hint: 'Correct the variable where the MCP client starts this program.' },
  /** The arguments do not fit the tool's schema. */
  bad_input: { exit: EXIT.usage, hint: "Correct the arguments: the tool's input schema says what it takes." },
  bad_payload: { exit: EXIT.usage, hint: 'Correct the payload and call again.' },
  too_large: { exit: EXIT.usage, hint: 'Put it in several smaller items.' },
  bin_not_found: { exit: EXIT.notFound, hint: 'Name a bin by its name, slug or id.' },
  /** Several bins have the name or slug. */
  bin_ambiguous: { exit: EXIT.usage, hint: 'Name it by its id.' },
  bin_not_allowed: { exit: EXIT.refused, hint: 'Only the person who runs this program can change SERVICE_BINS.' },
  item_not_found: { exit: EXIT.notFound, hint: 'Take the id from a list or a search.' },
  read_only: { exit: EXIT.refused, hint: 'Only the person who runs this program can change SERVICE_READ_ONLY.' },
  /** The change is kept in this program and sent when the server is back. */
  queued: { exit: EXIT.unavailable, hint: 'Do not call again for the same change: it would be made twice.' },
  clock_wrong: { exit: EXIT.failure, hint: "Set this machine's clock." },
  /** Too many concurrent calls. */
  busy: { exit: EXIT.unavailable, hint: 'Wait for the calls that are under way, then call again.' },
  /** A refusal of the server without a code of its own here; the message quotes it. */
  refused: { exit: EXIT.refused, hint: "The message is the server's." },
  disk: { exit: EXIT.failure, hint: 'Nothing was changed. Make room, or mend the permissions, then try again.' },
  internal: { exit: EXIT.failure, hint: 'This is a fault of the companion. Please report it.' },
} as const satisfies Readonly<Record<string, ErrorEntry>>;

/** A code of the catalogue. */
export type McpCode = keyof typeof ERRORS;

/**
 * A failure with a code, a sentence on what is wrong, and a hint on what to do. Neither contains a secret or a payload.
 */
export class McpError extends CommandError {
  override readonly name = 'McpError';
  declare readonly code: McpCode;
  declare readonly hint: string;

  constructor(code: McpCode, message: string, options?: ErrorOptions & { readonly hint?: string | undefined }) {
    super(ERRORS[code].exit, message, options?.hint ?? ERRORS[code].hint, { ...options, code });
  }
}
