/** The error catalogue of the companion's commands and tools, and how any error maps to it. */
import * as sdk from '../sdk/errors.js';
import { networkReason } from '../sdk/node-certificate.js';
import { PayloadError } from '../sdk/payloads/shapes.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import { asError, errorCode } from '../protocol/error-code.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { CommandError, EXIT, type ExitCode } from '../terminal/terminal.js';

/**
 * Entries by the exit code. `hint`: what to do about it, for the user. `next`: what an agent does about it (which tool to
 * call, or what to tell the user), where that is something else.
 */
const entryOf =
  (exit: ExitCode) =>
  (hint: string, next = hint) => ({ exit, hint, next });
const failure = entryOf(EXIT.failure);
const usage = entryOf(EXIT.usage);
const notFound = entryOf(EXIT.notFound);
const unavailable = entryOf(EXIT.unavailable);
const refused = entryOf(EXIT.refused);
const untrusted = entryOf(EXIT.untrusted);
const interrupted = entryOf(EXIT.interrupted);

const PAIR_AGAIN = 'Run `service-mcp pair --force` on this machine, with the six words that another device shows.';
const LATER = 'Try again later.';
const CALL_AGAIN = 'Nothing was changed. Call again after a minute; if that fails too, tell the user.';
const UNPAIRED =
  'Tell the user: no tool works until this machine is paired again, by `service-mcp pair --force` at a terminal.';

/** Every code that a command or a tool fails with. The README of the package has a line for each. */
export const ERRORS = {
  not_paired: notFound('Run `service-mcp pair` on this machine, with the six words that another device shows.'),
  already_paired: refused('To replace it run `service-mcp pair --force`; to end it run `service-mcp unpair`.'),
  /** The file was written on another machine, or this one's identifier has changed. */
  other_machine: refused(PAIR_AGAIN),
  config_damaged: failure(PAIR_AGAIN),
  config_newer: failure('Install the newest version of @service/mcp.'),
  /** The file is a link, belongs to another user, or cannot be read or closed to others. */
  config_unsafe: failure('Make it a regular file that you own: `chmod 600` on the file.'),
  already_running: unavailable('End that one first: only one instance can run on a machine.'),
  /** This instance lost its lock to another one. */
  lock_lost: unavailable('Restart the MCP client that should use it.'),
  revoked: refused(PAIR_AGAIN, UNPAIRED),
  /** The server does not know this device: its database is not the one that the device was paired with. */
  unknown_device: refused(PAIR_AGAIN, UNPAIRED),
  usage: usage('See `service-mcp --help`.'),
  bad_words: usage('Compare the words with those on the other screen.'),
  unknown_code: notFound('Words work once and for five minutes. Show new ones on the other device, then pair again.'),
  pairing_expired: refused('Show new words on the other device, then pair again.'),
  pairing_rejected: refused('Show new words on the other device, then pair again.'),
  password_required: refused('Run `service-mcp pair` at a terminal, where it is asked for.'),
  password_invalid: refused('Pair again with the right one. The words are still valid.'),
  device_limit: refused('Revoke a device that is no longer used, then try again.'),
  interrupted: interrupted('Nothing was changed.', 'Nothing was changed. Call again if it is still wanted.'),
  unreachable: unavailable('Check that the server is up and the address is right.', CALL_AGAIN),
  server_trouble: unavailable(LATER, CALL_AGAIN),
  rate_limited: unavailable(LATER, 'Nothing was changed. Wait, then call again, and less often.'),
  /** The response is not of this service. */
  bad_answer: failure(
    'Is the address right? A proxy in between can also answer like this.',
    'Do not call again: tell the user that the address, or a proxy, may be wrong.',
  ),
  /** A signature, a certificate or a key does not verify. */
  untrusted: untrusted(
    'Nothing was done. If it happens again, somebody may be in between.',
    'Nothing was done. Do not call again: tell the user that somebody may be in between.',
  ),
  uncertified_device: untrusted(
    'On another device revoke it, or, where it is yours and new, compare the fingerprint and certify it.',
    'Nothing was stored. Tell the user to revoke it on another device, or, where it is theirs and new, to compare its fingerprint and certify it; sb_list_items and sb_search still work.',
  ),
  tenant_suspended: refused(
    'Reading works. Writing works again when the account is paid for.',
    'Nothing was changed. Tell the user that the account must be paid for; sb_list_items and sb_search still work.',
  ),
  payment_required: refused(
    'The account is inactive until it is paid for.',
    'Tell the user that the account must be paid for: no tool works until then.',
  ),
  storage_full: refused(
    'Delete what is no longer needed.',
    'Nothing was stored. Tell the user, and delete nothing to make room unless the user names it.',
  ),
  /** No other device is left that could pair this one again. */
  last_device: refused(
    'To forget the pairing on this machine only, run `service-mcp unpair --force`; the twelve words restore access.',
  ),
  /** An environment variable has an invalid value. */
  bad_setting: usage('Correct the variable where the MCP client starts this program.'),
  /** The arguments do not fit the tool's schema. */
  bad_input: usage('Call the same tool again with arguments that fit its input schema.'),
  bad_payload: usage(
    'Nothing was stored. Correct the payload, which has an example for each type in the input schema, and call sb_put_item again.',
  ),
  too_large: usage('Nothing was stored. Split the content, and call sb_put_item once for each part.'),
  bin_not_found: notFound('Call again with one of the bins that sb_list_items lists, by name, slug or id.'),
  /** A cursor that no page returned, or with arguments other than those of its page. */
  bad_cursor: usage(
    'Call again without cursor, which starts with the newest. A cursor is valid only with the same other arguments.',
  ),
  /** Several bins have the name or slug. */
  bin_ambiguous: usage('Call again with the id as bin; where it is not clear which one is meant, ask the user.'),
  bin_not_allowed: refused(
    'Call again with one of the bins that sb_list_items lists. Only the person who runs this program can allow others.',
  ),
  item_not_found: notFound('Call sb_search or sb_list_items, and take the id from there.'),
  read_only: refused(
    'Only sb_list_items and sb_search work here. Only the person who runs this program can change that.',
  ),
  /** The change is kept in this program and sent when the server is back. */
  queued: unavailable(
    'Do not call again for the same change: it would be made twice. A note of sb_list_items says whether it is still waiting.',
  ),
  clock_wrong: failure("Set this machine's clock.", "Nothing was stored. Tell the user to set this machine's clock."),
  /** Too many concurrent calls. */
  busy: unavailable('Wait until an earlier call is answered, then call again.'),
  /** A refusal of the server that has no code of its own in this catalogue; the message quotes it. */
  refused: refused(
    'The message is from the server.',
    'Nothing was changed. Do not repeat the call as it is: tell the user the code.',
  ),
  disk: failure('Nothing was changed. Make room, or fix the permissions, then try again.'),
  internal: failure(
    'This is a bug in the companion. Please report it.',
    'Tell the user that standard error of this program has details. Call again at most once.',
  ),
};

export type McpCode = keyof typeof ERRORS;

/** A failure: a code, a sentence on what is wrong, and a hint on what to do. No text contains a secret or payload. */
export class McpError extends CommandError {
  override readonly name = 'McpError';
  declare readonly code: McpCode;
  declare readonly hint: string;
  private readonly given: string | undefined;

  constructor(code: McpCode, message: string, options?: ErrorOptions & { readonly hint?: string | undefined }) {
    super(ERRORS[code].exit, message, options?.hint ?? ERRORS[code].hint, { ...options, code });
    this.given = options?.hint;
  }

  /** What to do, for an agent: the hint of the thrower, then what the catalogue says to call. */
  get next(): string {
    const { next } = ERRORS[this.code];
    return this.given === undefined ? next : `${this.given} ${next}`;
  }
}

const TOO_LARGE = 'the content is larger than the server accepts';

/** The server's codes (reference, Errors) that have a code of their own here. Without `says`: the server's message. */
const API: Readonly<Record<string, { readonly code: McpCode; readonly says?: string }>> = {
  device_revoked: { code: 'revoked', says: 'this machine was revoked: it no longer has access' },
  device_not_found: { code: 'unknown_device', says: 'the server does not know this machine' },
  password_required: { code: 'password_required', says: 'an account password is set, and none was given' },
  password_invalid: { code: 'password_invalid', says: 'that is not the account password' },
  device_limit: { code: 'device_limit' },
  last_device: { code: 'last_device', says: 'this is the last device of the account, which cannot be revoked' },
  rate_limited: { code: 'rate_limited', says: 'the server is rate-limiting requests' },
  tenant_suspended: { code: 'tenant_suspended', says: 'the account is suspended' },
  payment_required: { code: 'payment_required', says: 'the account is not paid for' },
  bin_not_found: { code: 'bin_not_found', says: 'there is no such bin (any more)' },
  item_not_found: { code: 'item_not_found', says: 'the server does not know this item (any more)' },
  item_too_large: { code: 'too_large', says: TOO_LARGE },
  payload_too_large: { code: 'too_large', says: TOO_LARGE },
  blob_too_large: { code: 'too_large', says: TOO_LARGE },
  storage_cap_exceeded: { code: 'storage_full', says: 'the storage of this account is full' },
};

const PAIRING: Readonly<Record<sdk.PairingFailure, McpCode>> = {
  rejected: 'pairing_rejected',
  cancelled: 'interrupted',
  withdrawn: 'pairing_rejected',
  unknown_code: 'unknown_code',
  expired: 'pairing_expired',
  no_code: 'server_trouble',
  bad_request: 'untrusted',
  password_required: 'password_required',
};

/** The SDK's failures that the companion can run into. Without `says` the SDK's message is used. */
const CLIENT: Readonly<Partial<Record<sdk.ClientFailure, { readonly code: McpCode; readonly says?: string }>>> = {
  revoked: { code: 'revoked' },
  closed: { code: 'interrupted' },
  cancelled: { code: 'interrupted' },
  unknown_item: { code: 'item_not_found', says: 'there is no such item (any more)' },
  deleted_item: { code: 'item_not_found', says: 'there is no such item (any more)' },
};

/** System errors of a full, read-only or inaccessible disk. */
const DISK = ['ENOSPC', 'EDQUOT', 'EACCES', 'EPERM', 'EROFS', 'EIO', 'ENOTDIR', 'EISDIR', 'EMFILE'];

const CODE = /^[a-z0-9_]{1,64}$/;

/** For the user. An `McpError` is returned as it is; an unexpected error becomes `internal` with its own message. */
export const failureOf = (thrown: unknown): McpError => failureFor(asError(thrown), true);

/**
 * For an agent. Quotes no text of the server: the server is not trusted with content, so it must not be able to prompt
 * an agent that reads it. The message of `internal` has no details; its cause has.
 */
export const toolFailure = (thrown: unknown): McpError => failureFor(asError(thrown), false);

/** `quoted`: may include text of the server and of its certificate, escaped. */
function failureFor(error: Error, quoted: boolean): McpError {
  if (error instanceof McpError) return error;
  // Thrown by code shared with `service-device`; the catalogue has its codes too.
  if (error instanceof CommandError && Object.hasOwn(ERRORS, error.code))
    return new McpError(error.code as McpCode, error.message, { cause: error, hint: error.hint });
  const found = knownFailure(error, quoted);
  if (found !== undefined && (quoted || found.code !== 'internal')) return found;
  const says = quoted
    ? sanitizeText(error.message)
    : 'something went wrong in the companion: standard error has details';
  return new McpError('internal', says, { cause: error });
}

type As = (code: McpCode, says: string, hint?: string) => McpError;

function knownFailure(error: Error, quoted: boolean): McpError | undefined {
  const as: As = (code, says, hint) => new McpError(code, says, { cause: error, hint });
  if (error instanceof sdk.ApiError) return ofApi(error, quoted, as);
  if (error instanceof sdk.NetworkError) {
    if (error.code === 'aborted') return as('interrupted', 'interrupted');
    const why = networkReason(error, { quoted });
    return as('unreachable', `the server cannot be reached${why === '' ? '' : ` (${why})`}`);
  }
  if (error instanceof sdk.PairingError) return as(PAIRING[error.code], error.message);
  if (error instanceof sdk.UncertifiedDeviceError) {
    // The server chose the names of these devices.
    const unnamed = new sdk.UncertifiedDeviceError(error.devices.map((one) => ({ ...one, name: 'a device' })));
    return as('uncertified_device', sanitizeText((quoted ? error : unnamed).message));
  }
  if (error instanceof sdk.ClientError) {
    const { code, says = sanitizeText(error.message) } = CLIENT[error.code] ?? { code: 'internal' };
    return as(code, says);
  }
  if (error instanceof PayloadError) return as('bad_payload', error.message, error.hint);
  if (error instanceof sdk.QueuedError) {
    const kept = `the change of item ${error.id} is kept in this program and will be sent when the server is back`;
    return as('queued', `${kept}, as long as this program runs (${failureFor(asError(error.cause), quoted).message})`);
  }
  if (error instanceof CryptoRefusal) {
    if (error.reason === 'bad_words') return as('bad_words', sanitizeText(error.message));
    if (error.reason === 'empty_password') return as('password_invalid', 'the password is empty');
    if (error.reason === 'too_large') return as('too_large', error.message);
    return as('untrusted', `something does not verify: ${sanitizeText(error.message)}`);
  }
  if (error instanceof sdk.ProtocolError) {
    if (!quoted) return as('bad_answer', `the server's answer breaks the protocol (${error.code})`);
    return as('bad_answer', `the server's answer is not from this service: ${sanitizeText(error.message)}`);
  }
  return DISK.includes(errorCode(error)) ? as('disk', sanitizeText(error.message)) : undefined;
}

function ofApi(error: sdk.ApiError, quoted: boolean, as: As): McpError {
  // The server chooses the code: `constructor` must not match an inherited property.
  const known = Object.hasOwn(API, error.code) ? API[error.code] : undefined;
  if (error.code === 'rate_limited' && error.retryAfter !== null)
    return as('rate_limited', 'the server is rate-limiting requests', `Try again in ${error.retryAfter} s.`);
  if (known?.says !== undefined) return as(known.code, known.says);
  const code = known?.code ?? (sdk.isTransient(error) ? 'server_trouble' : 'refused');
  const says = code === 'server_trouble' ? 'the server has a problem' : 'the server refused';
  if (!quoted) {
    const hint = code === 'refused' ? "The code is explained in the service's reference, under Errors." : undefined;
    return as(code, `${says} (${CODE.test(error.code) ? error.code : 'an invalid code'})`, hint);
  }
  const said = sanitizeText(error.message).slice(0, 500);
  const request = error.requestId === null ? '' : ` (request ${sanitizeText(error.requestId)})`;
  return as(code, known === undefined ? `${says}: ${said}${request}` : said);
}
