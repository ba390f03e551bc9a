/** What a client's calls throw. */
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

/** A refusal by the server, as its error body says it (the reference, Errors). */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  readonly code: string;
  /** HTTP status; 0 for a refusal inside a batch, which has none of its own. */
  readonly status: number;
  readonly details: Readonly<Record<string, unknown>>;
  /** Whole seconds from `Retry-After`, or null. */
  readonly retryAfter: number | null;
  /** `X-Request-Id`, under which the server's log has the cause of a 5xx. */
  readonly requestId: string | null;

  constructor(
    fields: Pick<ApiError, 'code' | 'status' | 'message'> &
      Partial<Pick<ApiError, 'details' | 'retryAfter' | 'requestId'>>,
  ) {
    super(`${fields.code}: ${fields.message}`);
    this.code = fields.code;
    this.status = fields.status;
    this.details = fields.details ?? {};
    this.retryAfter = fields.retryAfter ?? null;
    this.requestId = fields.requestId ?? null;
  }
}

/** No answer came: the server is out of reach, or too slow. The request may have been carried out all the same. */
export class NetworkError extends CodedError<'network' | 'timeout' | 'aborted'> {
  override readonly name = 'NetworkError';
  /** True where asking again at once is of no use: whoever asks has just looked whether the server is there. */
  readonly final: boolean;

  constructor(
    code: NetworkError['code'],
    message: string,
    { final = false, ...options }: ErrorOptions & { readonly final?: boolean } = {},
  ) {
    super(code, message, options);
    this.final = final;
  }
}

/** What a server did that the protocol forbids: no honest one does, so it is broken or it lies. */
export type ProtocolFault =
  /** An answer or a frame without the form that it must have. */
  | 'malformed'
  /** An answer larger than any the protocol has. */
  | 'too_large'
  /** The reply to a write speaks of another item, or of a version that this write cannot have. */
  | 'wrong_reply'
  /** An `ack` of a version that the server does not have. */
  | 'bad_ack'
  /** The stream brought something new under a version that it had passed. */
  | 'bad_order'
  /** Two states of an item under one version. */
  | 'version_reused'
  /** A page whose rows do not rise, or which ends elsewhere than its last row. */
  | 'bad_listing'
  /** The history changes its name in the middle, or begins anew again and again. */
  | 'epoch_changed'
  /** More items that do not verify than a device takes. */
  | 'quarantine_full'
  /** A replay or listing that goes on and on and brings nothing. */
  | 'endless_replay'
  /** The address for a blob is none that a client may use, or leads elsewhere. */
  | 'bad_url';

/** An answer or a frame that breaks the protocol. */
export class ProtocolError extends CodedError<ProtocolFault> {
  override readonly name = 'ProtocolError';

  constructor(
    message: string,
    { code = 'malformed', ...options }: ErrorOptions & { readonly code?: ProtocolFault } = {},
  ) {
    super(code, message, options);
  }
}

/** A device that the server lists and nobody with the master key vouches for. */
export interface Uncertified {
  readonly id: string;
  readonly name: string;
  readonly pairedAt: number;
  /** What to compare with the fingerprint that the device itself shows. */
  readonly fingerprint: string;
}

/** Devices that a message names. */
const NAMED_MAX = 10;

/**
 * The server lists a device without a valid certificate, so nothing is sealed and nothing is written.
 * The way out: compare the fingerprint with the one on that device and call `certify`, or call `revoke`.
 */
export class UncertifiedDeviceError extends Error {
  override readonly name = 'UncertifiedDeviceError';
  readonly code = 'uncertified_device' satisfies RefusalReason;

  constructor(readonly devices: readonly Uncertified[]) {
    const named = devices
      .slice(0, NAMED_MAX)
      .map(({ id, name, fingerprint }) => `${JSON.stringify(name)} (${id}, fingerprint ${fingerprint})`);
    const others = devices.length - named.length;
    super(
      `Nothing was written: the server lists ${named.join(', ')}${others > 0 ? ` and ${others} more` : ''}, which no device of yours has vouched for. ` +
        'If it is yours, compare the fingerprint with the one it shows and certify it; if it is not, revoke it.',
    );
  }
}

/** Why a pairing or a recovery ended without a device. */
export type PairingFailure =
  /** The user, or the caller, said no. */
  | 'rejected'
  | 'cancelled'
  /** No device shows this code. */
  | 'unknown_code'
  /** The five minutes are over, by this device's clock or the server's. */
  | 'expired'
  /** Every code drawn was in use. */
  | 'no_code'
  /** The request that arrived does not hold: see `cause`. */
  | 'bad_request'
  /** An account password is set and none was given. */
  | 'password_required';

/** A pairing that ended without a device. Nothing was released. */
export class PairingError extends CodedError<PairingFailure> {
  override readonly name = 'PairingError';
}

/** What a revoked device says to its user. */
export const REVOKED =
  'this device was revoked: nothing it does reaches the server any more. What is here stays readable; to take part ' +
  'again it must be paired anew from another device, or recover with the phrase';

/** Why a call cannot be carried out. */
export type ClientFailure =
  /** The device was closed, or its connection was. */
  | 'closed'
  | 'revoked'
  /** The server's history was replaced while a change was under way. */
  | 'reset'
  | 'unknown_item'
  /** There is no restore (RETRY-02). */
  | 'deleted_item'
  /** The item does not open any more, though it did when it was stored. */
  | 'damaged_item'
  | 'unknown_device'
  /** The fingerprint given is not that device's. */
  | 'fingerprint'
  /** The caller ended it. */
  | 'cancelled'
  /** The item has no blob. */
  | 'no_blob'
  /** What is uploaded was changed meanwhile. */
  | 'source_changed'
  /** More live queries or subscriptions than a device keeps. */
  | 'too_many'
  /** What was given as an identity is none. */
  | 'bad_identity'
  /** A function of the other platform. */
  | 'wrong_platform';

/** A call that cannot be carried out as things stand on this device. */
export class ClientError extends CodedError<ClientFailure> {
  override readonly name = 'ClientError';
}

/** A write that could not be sent now. It waits in the outbox and goes out when the server is back. */
export class QueuedError extends CodedError<'queued'> {
  override readonly name = 'QueuedError';

  constructor(
    readonly id: string,
    cause: Error,
  ) {
    super('queued', `The change of ${id} waits in the outbox: ${cause.message}`, { cause });
  }
}

/** Codes of refusals that say nothing against the request. A refusal inside a batch has its code and no status. */
const PASSING: ReadonlySet<string> = new Set(['rate_limited', 'internal', 'storage_unavailable', 'unavailable']);

/** True for a failure that passes: no answer, too many requests, or a server (or its proxy) in trouble. */
export function isPassing(error: unknown): error is NetworkError | ApiError {
  if (error instanceof NetworkError) return error.code !== 'aborted';
  // A proxy's page has no code of ours, but a status.
  return error instanceof ApiError && (PASSING.has(error.code) || error.status === 429 || error.status >= 500);
}

/**
 * True where nobody can tell what became of the request: no answer, an answer that cannot be read, or one of a server
 * or proxy in trouble, which may come after the deed was done. Only another look at the server tells.
 */
export const isUndecided = (error: unknown): boolean =>
  error instanceof NetworkError || error instanceof ProtocolError || isPassing(error);

/** How long the server asks to be left alone, ms; 0 where it does not say. */
export const retryAfterMs = (error: unknown): number =>
  error instanceof ApiError ? (error.retryAfter ?? 0) * 1_000 : 0;

/** True for the refusal that ends a device for good. */
export const isRevoked = (error: unknown): boolean => error instanceof ApiError && error.code === 'device_revoked';

/** True where another device was faster: the item is not as this change took it to be. */
export const isConflict = (error: unknown): error is ApiError => error instanceof ApiError && error.code === 'conflict';
