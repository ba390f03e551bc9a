/** Any error as one of the catalogue: the one place where the client library's errors get the companion's codes. */
import { ApiError, ClientError, isPassing, NetworkError, PairingError, ProtocolError } from '../client/errors.js';
import { QueuedError, UncertifiedDeviceError, type ClientFailure, type PairingFailure } from '../client/errors.js';
import { asError } from '../client/events.js';
import { networkReason } from '../client/network-reason.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import { CommandError } from '../device/terminal.js';
import { errorCode } from '../protocol/error-code.js';
import { harmless } from '../protocol/harmless.js';
import { ERRORS, McpError, type McpCode } from './errors.js';

/** The server's codes (the reference, Errors) that have a meaning of their own here. `says` absent: the server's message. */
const API: Readonly<Record<string, { readonly code: McpCode; readonly says?: string }>> = {
  device_revoked: { code: 'revoked', says: 'this machine was revoked: it has no access any more' },
  device_not_found: { code: 'unknown_device', says: 'the server does not know this machine' },
  password_required: { code: 'password_required', says: 'an account password is set, and none was given' },
  password_invalid: { code: 'password_invalid', says: 'that is not the account password' },
  device_limit: { code: 'device_limit' },
  last_device: { code: 'last_device', says: 'this is the last device of the account, which cannot be revoked' },
  rate_limited: { code: 'rate_limited', says: 'the server asks for a slower pace' },
  tenant_suspended: { code: 'tenant_suspended', says: 'the account is suspended' },
  payment_required: { code: 'payment_required', says: 'the account is not paid for' },
  storage_cap_exceeded: { code: 'storage_full', says: 'the storage of this account is full' },
};

const PAIRING: Readonly<Record<PairingFailure, { readonly code: McpCode; readonly says: string }>> = {
  rejected: { code: 'pairing_rejected', says: 'the other device refused the pairing' },
  cancelled: { code: 'interrupted', says: 'the pairing was cancelled' },
  unknown_code: { code: 'unknown_code', says: 'no device shows these words' },
  expired: { code: 'pairing_expired', says: 'the five minutes of the words are over' },
  no_code: { code: 'server_trouble', says: 'the server found every code in use' },
  bad_request: { code: 'untrusted', says: 'the device that answered does not prove that it knows the words' },
  password_required: { code: 'password_required', says: 'an account password is set, and none was given' },
};

/** What the companion calls of the client library can end with. */
const CLIENT: Readonly<Partial<Record<ClientFailure, McpCode>>> = {
  revoked: 'revoked',
  closed: 'interrupted',
  cancelled: 'interrupted',
};

/** What the system says of a full, read-only or closed disk. */
const DISK: ReadonlySet<string> = new Set([
  'ENOSPC',
  'EDQUOT',
  'EACCES',
  'EPERM',
  'EROFS',
  'EIO',
  'ENOTDIR',
  'EISDIR',
  'EMFILE',
]);

/** See above. An `McpError` stays what it is; what nobody foresaw becomes `internal`, its message kept. */
export function failureOf(thrown: unknown): McpError {
  const error = asError(thrown);
  if (error instanceof McpError) return error;
  // What is shared with `service-device`: its codes are in the catalogue too.
  if (error instanceof CommandError && Object.hasOwn(ERRORS, error.code))
    return new McpError(error.code as McpCode, error.message, { cause: error, hint: error.hint });
  return ofClient(error) ?? ofSystem(error) ?? new McpError('internal', harmless(error.message), { cause: error });
}

function ofClient(error: Error): McpError | undefined {
  const as = (code: McpCode, says: string, hint?: string): McpError => new McpError(code, says, { cause: error, hint });
  if (error instanceof ApiError) return ofApi(error);
  if (error instanceof NetworkError) return ofNetwork(error, { quoted: true });
  if (error instanceof PairingError) return as(PAIRING[error.code].code, PAIRING[error.code].says);
  if (error instanceof UncertifiedDeviceError) return as('uncertified_device', harmless(error.message));
  if (error instanceof ClientError) return as(CLIENT[error.code] ?? 'internal', harmless(error.message));
  if (error instanceof QueuedError) return failureOf(error.cause);
  if (error instanceof CryptoRefusal) {
    if (error.reason === 'bad_words') return as('bad_words', harmless(error.message));
    if (error.reason === 'empty_password') return as('password_invalid', 'an empty password is none');
    return as('untrusted', `something does not verify: ${harmless(error.message)}`);
  }
  if (error instanceof ProtocolError) {
    return as('bad_answer', `the server's answer is not one of this service: ${harmless(error.message)}`);
  }
  return undefined;
}

/** `quoted`: with the names in a certificate that does not hold. */
export function ofNetwork(error: NetworkError, options: { readonly quoted: boolean }): McpError {
  if (error.code === 'aborted') return new McpError('interrupted', 'interrupted', { cause: error });
  const why = networkReason(error, options);
  return new McpError('unreachable', `the server cannot be reached${why === '' ? '' : ` (${why})`}`, { cause: error });
}

function ofApi(error: ApiError): McpError {
  // The code is the server's: `constructor` must not find what every object has.
  const known = Object.hasOwn(API, error.code) ? API[error.code] : undefined;
  const request = error.requestId === null ? '' : ` (request ${harmless(error.requestId)})`;
  const said = harmless(error.message).slice(0, 500);
  if (error.code === 'rate_limited' && error.retryAfter !== null) {
    const hint = `Try again in ${error.retryAfter} s.`;
    return new McpError('rate_limited', 'the server asks for a slower pace', { cause: error, hint });
  }
  if (known !== undefined) return new McpError(known.code, known.says ?? said, { cause: error });
  const code: McpCode = isPassing(error) ? 'server_trouble' : 'refused';
  const says = code === 'refused' ? 'the server refused' : 'the server is in trouble';
  return new McpError(code, `${says}: ${said}${request}`, { cause: error });
}

function ofSystem(error: Error): McpError | undefined {
  const code = errorCode(error);
  if (!DISK.has(code)) return undefined;
  return new McpError('disk', harmless(error.message), { cause: error });
}
