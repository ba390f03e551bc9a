/** How long to wait before the next attempt (contract 11; specification, Events, rule 5). Pure: chance is handed in. */

/** A number from 0 (included) to 1 (excluded), as `Math.random` gives it. */
export type Random = () => number;

/** Between which waits a backoff grows. */
export interface BackoffLimits {
  /** Longest first wait, ms. */
  readonly firstMs: number;
  /** Longest wait of all, ms. */
  readonly maxMs: number;
}

/** Near 1 s at first, near 60 s at most. */
export const RECONNECT: BackoffLimits = { firstMs: 1_000, maxMs: 60_000 };

/** For a request that is tried again while its caller waits. */
export const RETRY: BackoffLimits = { firstMs: 250, maxMs: 8_000 };

/** The longest wait that a server may ask of what goes on in the background: it cannot switch a device off for a day. */
export const RETRY_AFTER_MAX_MS = 15 * 60_000;

/**
 * The wait before attempt `attempt` (0 is the first retry), in whole ms: it doubles up to the limit, and half of it is
 * chance, so that devices which lost the same server do not come back in step.
 */
export function backoffMs(attempt: number, limits: BackoffLimits, random: Random): number {
  const longest = Math.min(limits.maxMs, limits.firstMs * 2 ** Math.min(attempt, 30));
  return Math.round(longest * (0.5 + random() / 2));
}
