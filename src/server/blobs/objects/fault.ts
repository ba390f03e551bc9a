/** What goes wrong between this server and a store, and how it is told: `storage_unavailable`, with a cause for the log. */
import { ServiceError } from '../../../protocol/errors.js';

/**
 * Why a store did not do what it was asked, as far as its answer shows:
 * `credentials` absent or not the store's · `denied` known, but not permitted to do this · `bucket` not there · `region`
 * another one than the bucket's · `clock` ours and the store's differ · `unreachable` no connection · `timeout` no answer in
 * time · `broken` an answer that cannot be used, or the store's own fault · `refused` anything else that it refused.
 */
export type FaultReason =
  'credentials' | 'denied' | 'bucket' | 'region' | 'clock' | 'unreachable' | 'timeout' | 'broken' | 'refused';

/** One failed call, in words that may be logged: never an URL, a header, a key, or a text that the store wrote. */
export class StoreFault extends Error {
  override readonly name = 'StoreFault';

  constructor(
    readonly reason: FaultReason,
    /** Such as `s3 head: 403 AccessDenied`. */
    message: string,
    /** Of the connection, such as ECONNREFUSED, or of the store's answer, such as NoSuchBucket. */
    readonly code?: string,
  ) {
    super(message);
  }
}

/** Of the server's log, what the stores write to. */
export interface StoreLog {
  warn(fields: object, message: string): void;
}

/** The fault behind a refusal of a store, where there is one. */
export function faultOf(error: unknown): StoreFault | undefined {
  if (error instanceof StoreFault) return error;
  return error instanceof ServiceError && error.cause instanceof StoreFault ? error.cause : undefined;
}

const TIMEOUTS: ReadonlySet<string> = new Set(['ETIMEDOUT', 'ESOCKETTIMEDOUT', 'TimeoutError', 'AbortError']);

/** Names of errors are letters and digits; anything else is somebody's text. */
const nameLike = (value: unknown): string | undefined =>
  typeof value === 'string' && /^[A-Za-z][A-Za-z0-9_.-]{0,63}$/.test(value) ? value : undefined;

/** The code of an error, else its name; undefined where neither may be shown. Node gives several failed addresses as one. */
export function codeOfError(error: unknown): string | undefined {
  if (!(error instanceof Error)) return undefined;
  const own = 'code' in error ? nameLike(error.code) : undefined;
  const first: unknown = error instanceof AggregateError ? error.errors[0] : undefined;
  return own ?? (first === undefined ? undefined : codeOfError(first)) ?? nameLike(error.name);
}

/** A fault of the connection: the name could not be resolved, nobody listens there, it was cut, it takes too long. */
export function connectionFault(call: string, error: unknown): StoreFault | undefined {
  const code = codeOfError(error);
  if (code === undefined) return undefined;
  if (TIMEOUTS.has(code)) return new StoreFault('timeout', `${call}: no answer in time`, code);
  if (/^(E[A-Z_]+|CERT_[A-Z_]+|[A-Z_]*(?:CERT|TLS|SSL)[A-Z_]*)$/.test(code) && code !== 'ENOENT' && code !== 'EACCES') {
    return new StoreFault('unreachable', `${call}: ${code}`, code);
  }
  return undefined;
}
