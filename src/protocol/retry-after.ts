/**
 * The time to come back: in the header `Retry-After`, and in the reason of a close frame with 1012 or 1013 (reference,
 * Sockets, Close codes): a browser's script reads neither the status nor the headers of an upgrade that was refused.
 */

/** The longest time that our server names, seconds. */
export const RETRY_AFTER_MAX_S = 600;

/**
 * Sockets a second that instances are expected to take of those that one of them sends away. Where they go faster, later
 * times are named: the devices come back at this rate.
 */
export const TAKEN_PER_S = 500;

/** The reason of a close frame: whole seconds, from 1 to `RETRY_AFTER_MAX_S`. */
export const retryAfterReason = (seconds: number): string =>
  `retry-after=${Math.min(RETRY_AFTER_MAX_S, Math.max(1, Math.ceil(seconds)))}`;

/** The seconds that a reason names, at least 1; undefined where it names none. What a server says is not bounded here. */
export function retryAfterOf(reason: string): number | undefined {
  const [, digits = ''] = /^retry-after=([1-9]\d{0,8})$/.exec(reason) ?? [];
  return digits === '' ? undefined : Number(digits);
}

/** The seconds of a `Retry-After` header; undefined where there is none, or a date. */
export const retryAfterSeconds = (header: string | null | undefined): number | undefined =>
  /^\d{1,9}$/.test(header ?? '') ? Number(header) : undefined;
