/**
 * The error catalogue (reference, Errors): every refusal of an endpoint, upgrade or frame has its entry. The code is
 * stable, the message is for users, `details` is for programs.
 */

import { errorCode } from './error-code.js';
import type { ErrorDetailsReply } from './replies.js';

interface Entry {
  readonly status: number;
  /** One sentence for the reference. */
  readonly when: string;
  /** The code on the wire; default: the entry's name. */
  readonly code?: string | undefined;
}

const entry = (status: number, when: string, code?: string): Entry => ({ status, when, code });

/** Internal name to the wire form of shape A, from which `IN_B` names the differences of shape B. */
export const CATALOGUE = {
  validation: entry(400, 'The request does not fit its schema; the message names path and rule.'),
  item_too_large: entry(400, 'Inline ciphertext over 65,536 bytes; use the blob flow.'),
  unknown_type: entry(400, 'The item type is not one of the ten content types.'),
  pair_expired: entry(400, 'The pairing code has expired.'),
  pair_invalid: entry(400, 'The pairing code or attestation is wrong, or the request was rejected.'),
  blob_not_found: entry(400, 'The item names a blob that was never uploaded, or that another item has.'),
  webhook_invalid: entry(400, 'The signature of a billing webhook is wrong, missing or stale.'),
  no_token: entry(401, 'No bearer token on a protected route.', 'unauthorized'),
  bad_token: entry(401, 'The token is invalid here: bad signature, unknown device, other tenant.', 'unauthorized'),
  expired_token: entry(401, 'The token is past its lifetime; re-authenticate.'),
  payment_required: entry(402, 'The tenant is inactive.'),
  device_revoked: entry(403, "The token's device was revoked."),
  tenant_suspended: entry(403, 'The tenant is suspended: reads work, writes do not.'),
  forbidden: entry(403, 'This caller is not permitted to do this.'),
  password_required: entry(403, 'An account password is set; verify it first.'),
  password_invalid: entry(403, 'The account password is wrong.'),
  url_invalid: entry(403, 'A signed blob URL was altered, has expired, or was not used as signed.'),
  not_found: entry(404, 'No such route or resource.'),
  no_blob: entry(404, 'There is no such blob, or it was not uploaded.', 'blob_not_found'),
  item_not_found: entry(404, 'The item is unknown or was purged.'),
  bin_not_found: entry(404, 'The bin does not exist or was deleted.'),
  tenant_not_found: entry(404, 'No tenant belongs to this host.'),
  device_not_found: entry(404, 'No such device.'),
  method_not_allowed: entry(405, 'The route exists, but not with this method; see Allow.'),
  bootstrap_already_done: entry(410, 'The server is already claimed (alias: bootstrap_locked).'),
  version_conflict: entry(
    409,
    'Other content or another version of this item is stored; details say which.',
    'conflict',
  ),
  slug_taken: entry(409, 'The slug is in use.', 'conflict'),
  conflict: entry(409, 'The request contradicts what is stored.'),
  epoch_mismatch: entry(409, 'The write is based on another history; catch up, and base it on this one.'),
  upload_offset: entry(409, 'The part does not begin at the offset of the upload; ask for the offset.'),
  device_exists: entry(409, 'A device with this id is already registered.'),
  last_device: entry(409, 'The last device cannot be revoked.'),
  device_limit: entry(409, 'The tenant has as many devices as MAX_DEVICES allows.'),
  blob_too_large: entry(413, 'The blob is over MAX_BLOB_SIZE_MB.'),
  storage_cap_exceeded: entry(413, 'The write would exceed the storage cap.'),
  payload_too_large: entry(413, 'The request body is larger than the endpoint accepts.'),
  range_invalid: entry(416, 'The range is outside the blob; Content-Range gives its size.'),
  rate_limited: entry(429, 'Too many requests; wait for the time in Retry-After.'),
  internal: entry(500, 'Unexpected error; the log has the cause under the request id.'),
  storage_unavailable: entry(503, 'The blob store is unreachable; try again.'),
  unavailable: entry(503, 'The database is down or the server is shedding load; try again.'),
} as const satisfies Record<string, Entry>;

export type ErrorName = keyof typeof CATALOGUE;

/** Status and codes of shape B where they differ from those of shape A. */
const IN_B: Readonly<Partial<Record<ErrorName, Partial<Pick<Entry, 'status' | 'code'>>>>> = {
  validation: { code: 'invalid_payload' },
  no_token: { code: 'missing_token' },
  bad_token: { code: 'invalid_token' },
  bootstrap_already_done: { status: 409 },
  version_conflict: { code: 'version_conflict' },
  slug_taken: { code: 'slug_taken' },
};

/** For programs; only documented fields. Bytes are encoded by shape. */
type ErrorDetails = Readonly<Partial<Record<keyof ErrorDetailsReply, unknown>>>;

/** A refusal. Only the HTTP and socket layers turn it into a reply. */
export class ServiceError extends Error {
  override readonly name = 'ServiceError';

  constructor(
    readonly error: ErrorName,
    message?: string,
    readonly details?: ErrorDetails,
    /** Whole seconds for Retry-After, at least 1. */
    readonly retryAfter?: number,
  ) {
    super(message ?? CATALOGUE[error].when);
  }
}

/** A `validation` error that names the field and the violated rule. */
export function invalid(path: string, rule: string, details: ErrorDetails = {}): ServiceError {
  return new ServiceError('validation', `${path}: ${rule}`, { path, rule, ...details });
}

/** Retry-After of a server that cannot serve a client now, in whole seconds. */
export const COME_BACK_S = 2;

/** The database is down or a queue is full: the client should retry after `retryAfter` seconds. */
export const unavailable = (message?: string, retryAfter = COME_BACK_S): ServiceError =>
  new ServiceError('unavailable', message, undefined, retryAfter);

/** The client has used up what it is admitted: it should retry after `seconds`. */
export const rateLimited = (message: string | undefined, seconds: number): ServiceError =>
  new ServiceError('rate_limited', message, undefined, Math.max(1, Math.ceil(seconds)));

/** The object store fails: 503, with the cause for the log. */
export function storageUnavailable(cause: unknown): ServiceError {
  const full = errorCode(cause) === 'ENOSPC' ? 'The disk of the blob store is full.' : undefined;
  const error = new ServiceError('storage_unavailable', full, undefined, COME_BACK_S);
  error.cause = cause;
  return error;
}

/** HTTP status of an error in a shape. */
export const statusOf = (name: ErrorName, shape: 'a' | 'b'): number =>
  (shape === 'b' ? IN_B[name]?.status : undefined) ?? CATALOGUE[name].status;

/** Wire code of an error in a shape. */
export const codeOf = (name: ErrorName, shape: 'a' | 'b'): string =>
  (shape === 'b' ? IN_B[name]?.code : undefined) ?? CATALOGUE[name].code ?? name;
