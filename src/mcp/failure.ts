/** Maps any error to the catalogue: the codes of the SDK and of the server to the companion's. */
import {
  ApiError,
  ClientError,
  isPassing,
  NetworkError,
  PairingError,
  ProtocolError,
  QueuedError,
  UncertifiedDeviceError,
  type ClientFailure,
  type PairingFailure,
} from '../sdk/errors.js';
import { networkReason } from '../sdk/node-certificate.js';
import { PayloadError } from '../sdk/payloads/shapes.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import { CommandError } from '../terminal/terminal.js';
import { asError, errorCode } from '../protocol/error-code.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { ERRORS, McpError, type McpCode } from './errors.js';

const TOO_LARGE = 'the content is larger than the server accepts';

/**
 * The server's codes (reference, Errors) that have their own code here. Without `says` the server's message is used.
 */
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

const PAIRING: Readonly<Record<PairingFailure, { readonly code: McpCode; readonly says: string }>> = {
  rejected: { code: 'pairing_rejected', says: 'the other device refused the pairing' },
  cancelled: { code: 'interrupted', says: 'the pairing was cancelled' },
  unknown_code: { code: 'unknown_code', says: 'no device shows these words' },
  expired: { code: 'pairing_expired', says: 'the words have expired after five minutes' },
  no_code: { code: 'server_trouble', says: 'the server found every code in use' },
  bad_request: { code: 'untrusted', says: 'the device that answered does not prove that it knows the words' },
  password_required: { code: 'password_required', says: 'an account password is set, and none was given' },
};

/** The SDK's failures that the companion can run into. Without `says` the SDK's message is used. */
const CLIENT: Readonly<Partial<Record<ClientFailure, { readonly code: McpCode; readonly says?: string }>>> = {
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
export const failureOf = (thrown: unknown): McpError => failure(asError(thrown), true);

/**
 * For an agent. Quotes no text of the server: the server is not trusted with content, so it must not be able to prompt
 * an agent that reads it. The message of `internal` has no details; its cause has.
 */
export const toolFailure = (thrown: unknown): McpError => failure(asError(thrown), false);

/** `quoted`: may include text of the server and of its certificate, escaped. */
function failure(error: Error, quoted: boolean): McpError {
  if (error instanceof McpError) return error;
  // Thrown by code shared with `service-device`; the catalogue has its codes too.
  if (error instanceof CommandError && Object.hasOwn(ERRORS, error.code))
    return new McpError(error.code as McpCode, error.message, { cause: error, hint: error.hint });
  const found = ofClient(error, quoted) ?? ofSystem(error);
  if (found !== undefined && (quoted || found.code !== 'internal')) return found;
  const says = quoted
    ? sanitizeText(error.message)
    : 'something went wrong in the companion: standard error has details';
  return new McpError('internal', says, { cause: error });
}

function ofClient(error: Error, quoted: boolean): McpError | undefined {
  const as = (code: McpCode, says: string, hint?: string): McpError => new McpError(code, says, { cause: error, hint });
  if (error instanceof ApiError) return ofApi(error, quoted);
  if (error instanceof NetworkError) {
    if (error.code === 'aborted') return as('interrupted', 'interrupted');
    const why = networkReason(error, { quoted });
    return as('unreachable', `the server cannot be reached${why === '' ? '' : ` (${why})`}`);
  }
  if (error instanceof PairingError) return as(PAIRING[error.code].code, PAIRING[error.code].says);
  if (error instanceof UncertifiedDeviceError) return as('uncertified_device', sanitizeText(error.message));
  if (error instanceof ClientError) {
    const { code, says = sanitizeText(error.message) } = CLIENT[error.code] ?? { code: 'internal' };
    return as(code, says);
  }
  if (error instanceof PayloadError) return as('bad_payload', error.message, error.hint);
  if (error instanceof QueuedError) {
    const kept = `the change of item ${error.id} is kept in this program and will be sent when the server is back`;
    return as('queued', `${kept}, as long as this program runs (${failure(asError(error.cause), quoted).message})`);
  }
  if (error instanceof CryptoRefusal) {
    if (error.reason === 'bad_words') return as('bad_words', sanitizeText(error.message));
    if (error.reason === 'empty_password') return as('password_invalid', 'the password is empty');
    if (error.reason === 'too_large') return as('too_large', error.message);
    return as('untrusted', `something does not verify: ${sanitizeText(error.message)}`);
  }
  if (error instanceof ProtocolError) {
    if (!quoted) return as('bad_answer', `the server's answer breaks the protocol (${error.code})`);
    return as('bad_answer', `the server's answer is not from this service: ${sanitizeText(error.message)}`);
  }
  return undefined;
}

function ofApi(error: ApiError, quoted: boolean): McpError {
  const as = (code: McpCode, says: string, hint?: string): McpError => new McpError(code, says, { cause: error, hint });
  // The server chooses the code: `constructor` must not match an inherited property.
  const known = Object.hasOwn(API, error.code) ? API[error.code] : undefined;
  if (error.code === 'rate_limited' && error.retryAfter !== null)
    return as('rate_limited', 'the server is rate-limiting requests', `Try again in ${error.retryAfter} s.`);
  if (known?.says !== undefined) return as(known.code, known.says);
  const code = known?.code ?? (isPassing(error) ? 'server_trouble' : 'refused');
  const says = code === 'server_trouble' ? 'the server has a problem' : 'the server refused';
  if (!quoted) {
    const hint = code === 'refused' ? "The code is explained in the service's reference, under Errors." : undefined;
    return as(code, `${says} (${CODE.test(error.code) ? error.code : 'an invalid code'})`, hint);
  }
  const said = sanitizeText(error.message).slice(0, 500);
  const request = error.requestId === null ? '' : ` (request ${sanitizeText(error.requestId)})`;
  return as(code, known === undefined ? `${says}: ${said}${request}` : said);
}

function ofSystem(error: Error): McpError | undefined {
  if (!DISK.includes(errorCode(error))) return undefined;
  return new McpError('disk', sanitizeText(error.message), { cause: error });
}
