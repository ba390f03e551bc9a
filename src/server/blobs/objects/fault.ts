/** Failures of calls to an object store: causes of `storage_unavailable`, for the log and for `service-admin`. */
import { ServiceError } from '../../../protocol/errors.js';

/**
 * Why a call failed, as far as the answer shows: `credentials` absent or unknown to the store · `denied` known, but
 * without permission · `bucket` absent · `region` another one than the bucket's · `clock` ours and the store's differ ·
 * `unreachable` no connection · `timeout` no answer in time · `broken` an unusable answer, or an error of the store itself ·
 * `refused` any other refusal.
 */
export type FaultReason =
  | 'credentials'
  | 'denied'
  | 'bucket'
  | 'region'
  | 'clock'
  | 'unreachable'
  | 'timeout'
  | 'broken'
  | 'refused';

/** A failed call. Its texts may be logged: they hold no URL, header, key, or text from the store. */
export class StoreFault extends Error {
  override readonly name = 'StoreFault';

  constructor(
    readonly reason: FaultReason,
    /** Such as `s3 head: 403 AccessDenied`. */
    message: string,
    /** The code of the connection, such as ECONNREFUSED, or of the answer, such as NoSuchBucket. */
    readonly code?: string,
  ) {
    super(message);
  }
}

/** The error itself, or its cause, if that is a fault; undefined: the error is of another kind. */
export function faultOf(error: unknown): StoreFault | undefined {
  if (error instanceof StoreFault) return error;
  return error instanceof ServiceError && error.cause instanceof StoreFault ? error.cause : undefined;
}

const TIMEOUTS: ReadonlySet<string> = new Set(['ETIMEDOUT', 'ESOCKETTIMEDOUT', 'TimeoutError', 'AbortError']);

/** Names of errors are letters and digits; anything else may be text from outside. */
const nameLike = (value: unknown): string | undefined =>
  typeof value === 'string' && /^[A-Za-z][A-Za-z0-9_.-]{0,63}$/.test(value) ? value : undefined;

/** The code of an error, else its name; undefined: neither may be logged. Of several failed addresses, the first's. */
export function codeOfError(error: unknown): string | undefined {
  if (!(error instanceof Error)) return undefined;
  const own = 'code' in error ? nameLike(error.code) : undefined;
  const first: unknown = error instanceof AggregateError ? error.errors[0] : undefined;
  return own ?? (first === undefined ? undefined : codeOfError(first)) ?? nameLike(error.name);
}

/** The fault of an error of the connection (name resolution, refused, cut, too slow); undefined for another error. */
export function connectionFault(call: string, error: unknown): StoreFault | undefined {
  const code = codeOfError(error);
  if (code === undefined) return undefined;
  if (TIMEOUTS.has(code)) return new StoreFault('timeout', `${call}: no answer in time`, code);
  if (/^(E[A-Z_]+|CERT_[A-Z_]+|[A-Z_]*(?:CERT|TLS|SSL)[A-Z_]*)$/.test(code) && code !== 'ENOENT' && code !== 'EACCES')
    return new StoreFault('unreachable', `${call}: ${code}`, code);
  return undefined;
}

/** Codes of S3, compatible stores and Google's XML API. A HEAD's answer has none, so a bare 403 is `denied`. */
const S3_CODES: Readonly<Partial<Record<FaultReason, string>>> = {
  credentials: `CredentialsProviderError TokenProviderError InvalidAccessKeyId SignatureDoesNotMatch InvalidToken
    ExpiredToken InvalidSecurity Unauthorized`,
  denied: 'AccessDenied AllAccessDisabled',
  bucket: 'NoSuchBucket InvalidBucketName',
  region: 'PermanentRedirect AuthorizationHeaderMalformed IllegalLocationConstraintException',
  clock: 'RequestTimeTooSkewed RequestExpired',
};
const S3_REASONS: ReadonlyMap<string, FaultReason> = new Map(
  Object.entries(S3_CODES).flatMap(([reason, codes]) =>
    codes.split(/\s+/).map((code) => [code, reason as FaultReason] as const),
  ),
);

/** The reason that a code of S3 indicates; undefined: the code is unknown. */
export const reasonOfS3Code = (code: string): FaultReason | undefined => S3_REASONS.get(code);

/** The reason that a status indicates if there is no code. */
export function reasonOfStatus(status: number): FaultReason {
  if (status === 401) return 'credentials';
  if (status === 403) return 'denied';
  return status >= 400 && status < 500 && status !== 408 && status !== 429 ? 'refused' : 'broken';
}
