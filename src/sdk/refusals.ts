/** What a refusal of a change means for it. */
import { TS_AHEAD_MAX_MS } from '../protocol/limits.js';
import { isConflict, type ApiError } from './errors.js';
import { isCount } from './reader.js';

/**
 * Refusals that a retry does not change. All others (storage full, tenant suspended, an uncertified device) may be
 * temporary, and must not cost the user a change.
 */
export const FINAL_REFUSALS: ReadonlySet<string> = new Set([
  'validation',
  'unknown_type',
  'item_too_large',
  'payload_too_large',
  'blob_not_found',
  'bin_not_found',
  'item_not_found',
  'conflict',
]);

/** The state that a conflict named. */
export type StateMet = Readonly<Record<'version' | 'ts', number>>;

/**
 * The state that a conflict named, if it is plausible; a deleted item cannot be overwritten. Its time is unsigned and
 * determines that of the write: with the latest possible time a server could make an item unchangeable.
 */
export function stateMet(error: unknown, now: number): StateMet | null {
  if (!isConflict(error)) return null;
  const { version, ts } = error.details;
  const sound = isCount(version) && isCount(ts) && version > 0 && ts <= now + TS_AHEAD_MAX_MS;
  return sound ? { version, ts } : null;
}

/** The time of the write is too far ahead of the server's clock, which the refusal tells. */
export const isTimeRefusal = ({ details }: ApiError): boolean => isCount(details['serverTime']);
