/** The errors of the client. */
import type { RefusalReason } from '../crypto/refusal.js';

/** An error with a code. Callers match on the class and on `code`, never on a message. */
export class CodedError<Code extends string> extends Error {
  constructor(
    readonly code: Code,
    message: string,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** A refusal by the server, with the fields of its error body (the reference, Errors). */
export class ApiError extends CodedError<string> {
  override readonly name = 'ApiError';
  /** HTTP status; 0 for a refusal inside a batch, which has none. */
  readonly status: number;
  readonly details: Readonly<Record<string, unknown>>;
  /** Whole seconds from `Retry-After`, or null. */
  readonly retryAfter: number | null;
  /** `X-Request-Id`: the server logs the cause of a 5xx under it. */
  readonly requestId: string | null;

  constructor(
    fields: Pick<ApiError, 'code' | 'status' | 'message'> &
      Partial<Pick<ApiError, 'details' | 'retryAfter' | 'requestId'>>,
  ) {
    super(fields.code, `${fields.code}: ${fields.message}`);
    this.status = fields.status;
    this.details = fields.details ?? {};
    this.retryAfter = fields.retryAfter ?? null;
    this.requestId = fields.requestId ?? null;
  }
}

/** No answer: the server is unreachable or too slow. The request may have been executed nevertheless. */
export class NetworkError extends CodedError<'network' | 'timeout' | 'aborted'> {
  override readonly name = 'NetworkError';
  /** True where a repeat is useless, because the caller has just found the server unreachable. */
  readonly final: boolean;
  /** Of the transfer of a blob: the host and port of its URL, which may be another than the server's. */
  readonly store: string | undefined;

  constructor(
    code: NetworkError['code'],
    message: string,
    { final = false, store, ...options }: ErrorOptions & Partial<Pick<NetworkError, 'final' | 'store'>> = {},
  ) {
    super(code, message, options);
    this.final = final;
    this.store = store;
  }
}

/** Violations of the protocol by the server, which is broken or malicious. */
export type ProtocolFault =
  /** A reply or frame of the wrong form. */
  | 'malformed'
  /** A reply or list above its size limit. */
  | 'too_large'
  /** The reply to a write names another item, or a version that this write cannot have. */
  | 'wrong_reply'
  /** An `ack` of a version that the server does not have. */
  | 'bad_ack'
  /** The stream brought a new change at or below the cursor. */
  | 'bad_order'
  /** Two states of an item under one version. */
  | 'version_reused'
  /** A page whose versions do not rise, or whose cursor is not that of its last row. */
  | 'bad_listing'
  /** The epoch changed during a listing or replay, or repeatedly. */
  | 'epoch_changed'
  /** More items that do not verify than a device stores. */
  | 'quarantine_full'
  /** A replay or listing that continues without bringing anything new. */
  | 'endless_replay'
  /** Versions whose sum is above 2^53-1: the completeness check would not be exact. */
  | 'bad_sum'
  /** The URL of a blob is not allowed, or redirects. */
  | 'bad_url'
  /** The reported offset of an upload is impossible: beyond its end, or repeatedly back at its beginning. */
  | 'bad_upload';

/** A reply or frame that violates the protocol. */
export class ProtocolError extends CodedError<ProtocolFault> {
  override readonly name = 'ProtocolError';

  constructor(
    message: string,
    { code = 'malformed', ...options }: ErrorOptions & { readonly code?: ProtocolFault } = {},
  ) {
    super(code, message, options);
  }
}

/** A device in the server's list without a valid certificate. */
export interface Uncertified {
  readonly id: string;
  readonly name: string;
  readonly pairedAt: number;
  /** To be compared with the fingerprint that the device itself shows. */
  readonly fingerprint: string;
  /** It was revoked, and is listed as active again: it can be revoked only. */
  readonly wasRevoked: boolean;
}

/** Most devices named in a message. */
const NAMED_MAX = 10;

const namesOf = (devices: readonly Uncertified[]): string => {
  const named = devices
    .slice(0, NAMED_MAX)
    .map(({ id, name, fingerprint }) => `${JSON.stringify(name)} (${id}, fingerprint ${fingerprint})`);
  const others = devices.length - named.length;
  return `${named.join(', ')}${others > 0 ? ` and ${others} more` : ''}`;
};

/**
 * The server lists a device without a valid certificate, so nothing is sealed and nothing is written. To continue,
 * compare the fingerprint with the one on that device and call `certify`, or call `revoke`.
 */
export class UncertifiedDeviceError extends Error {
  override readonly name = 'UncertifiedDeviceError';
  readonly code = 'uncertified_device' satisfies RefusalReason;

  constructor(readonly devices: readonly Uncertified[]) {
    const revoked = devices.filter(({ wasRevoked }) => wasRevoked);
    const unknown = devices.filter(({ wasRevoked }) => !wasRevoked);
    let message = 'Nothing was written.';
    if (unknown.length > 0)
      message +=
        ` The server lists ${namesOf(unknown)}, which no device of yours has vouched for. ` +
        'If it is yours, compare the fingerprint with the one it shows and certify it; if it is not, revoke it.';
    if (revoked.length > 0)
      message += ` The server lists ${namesOf(revoked)} as active, which was revoked. Revoke it again.`;
    super(message);
  }
}

/** Why a pairing or a recovery ended without a device. */
export type PairingFailure =
  /** Refused by the user or the caller. */
  | 'rejected'
  | 'cancelled'
  /** The user of the new device has stopped, or another pairing of this device began, before this device approved it. */
  | 'withdrawn'
  /** No device shows this code. */
  | 'unknown_code'
  /** The five minutes are over, by this device's clock or the server's. */
  | 'expired'
  /** Every code drawn was in use. */
  | 'no_code'
  /** The request does not verify: see `cause`. */
  | 'bad_request'
  /** An account password is set and none was given. */
  | 'password_required';

const PAIRING: Readonly<Record<PairingFailure, string>> = {
  rejected: 'the pairing was refused',
  cancelled: 'the pairing was cancelled',
  withdrawn: 'the request is gone: the new device has withdrawn it, or another pairing began',
  unknown_code: 'no device shows these words',
  expired: 'the five minutes of the words are over',
  no_code: 'the server found every code in use',
  bad_request: 'the device that answered does not prove that it knows the words',
  password_required: 'an account password is set, and none was given',
};

/** A pairing that ended without a device. No key was released. The message is for the user. */
export class PairingError extends CodedError<PairingFailure> {
  override readonly name = 'PairingError';

  constructor(code: PairingFailure, options?: ErrorOptions) {
    super(code, PAIRING[code], options);
  }
}

/** The message shown to the user of a revoked device. */
export const REVOKED =
  'this device was revoked: nothing it does reaches the server any more. What is here stays readable; to take part ' +
  'again it must be paired anew from another device, or recover with the phrase';

/** Why a call cannot be executed. */
export type ClientFailure =
  /** The device was closed, or its connection was. */
  | 'closed'
  | 'revoked'
  /** The server's history was replaced while a change was under way. */
  | 'reset'
  | 'unknown_item'
  /** There is no restore (RETRY-02). */
  | 'deleted_item'
  /** `inbox` cannot be deleted. */
  | 'default_bin'
  /** The item no longer opens, although it did when it was stored. */
  | 'damaged_item'
  | 'unknown_device'
  /** The device was revoked, which is final: it cannot be certified again. */
  | 'revoked_device'
  /** The fingerprint given is not that of the device. */
  | 'fingerprint'
  /** Ended by the caller. */
  | 'cancelled'
  /** The item has no blob. */
  | 'no_blob'
  /** The source of an upload changed since it began. */
  | 'source_changed'
  /** More live queries or subscriptions than a device allows, or more bins than a tenant. */
  | 'too_many'
  /** The value given is not an identity. */
  | 'bad_identity'
  /** The function exists on the other platform only. */
  | 'wrong_platform';

/** A call that cannot be executed in the current state of this device. */
export class ClientError extends CodedError<ClientFailure> {
  override readonly name = 'ClientError';
}

/** True for the error of one item that no longer opens, which need not end the work on others. */
export const isDamaged = (error: unknown): boolean => error instanceof ClientError && error.code === 'damaged_item';

/** A write that could not be sent now. It waits in the outbox and is sent when the server is reachable. */
export class QueuedError extends CodedError<'queued'> {
  override readonly name = 'QueuedError';

  constructor(
    readonly id: string,
    cause: Error,
  ) {
    super('queued', `The change of ${id} waits in the outbox: ${cause.message}`, { cause });
  }
}

/** Codes of refusals that are not caused by the request. A refusal inside a batch has a code and no status. */
const TRANSIENT: ReadonlySet<string> = new Set([
  ...['rate_limited', 'internal', 'storage_unavailable', 'unavailable'],
  // Ends with the replay of the new history, which gives the change another base.
  'epoch_mismatch',
]);

/** True for a transient failure: no answer, too many requests, or a server (or its proxy) in trouble. */
export function isTransient(error: unknown): error is NetworkError | ApiError {
  if (error instanceof NetworkError) return error.code !== 'aborted';
  // A proxy's error page has a status but none of our codes.
  return error instanceof ApiError && (TRANSIENT.has(error.code) || error.status === 429 || error.status >= 500);
}

/**
 * True where the outcome of the request is unknown: no answer, an unreadable one, or one of a server or proxy in
 * trouble, which may be sent after the request was executed. Only the server's state shows the outcome.
 */
export const isUndecided = (error: unknown): boolean =>
  error instanceof NetworkError || error instanceof ProtocolError || isTransient(error);

/** The wait requested by the server (`Retry-After`), ms; 0 if none. */
export const retryAfterMs = (error: unknown): number =>
  error instanceof ApiError ? (error.retryAfter ?? 0) * 1_000 : 0;

/** True for the refusal that ends a device permanently. */
export const isRevoked = (error: unknown): boolean => error instanceof ApiError && error.code === 'device_revoked';

/** True where another device changed the item first: it is no longer at the version that this change was based on. */
export const isConflict = (error: unknown): error is ApiError => error instanceof ApiError && error.code === 'conflict';
