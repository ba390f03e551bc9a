/**
 * The time to reconnect, in the header `Retry-After` and in the reason of a close frame with 1012 or 1013 (reference,
 * Sockets, Close codes), because a script in a browser can read neither status nor headers of a refused upgrade.
 */

/** The longest time that our server sends, seconds. */
const RETRY_AFTER_MAX_S = 600;

/**
 * Sockets per second that the other instances are expected to accept when one closes its sockets. If it closes them
 * faster, it sends later times, so that the devices reconnect at this rate.
 */
export const TAKEN_PER_S = 500;

/** The reason of a close frame: whole seconds, from 1 to `RETRY_AFTER_MAX_S`. */
export const retryAfterReason = (seconds: number): string =>
  `retry-after=${Math.min(RETRY_AFTER_MAX_S, Math.max(1, Math.ceil(seconds)))}`;

/** The seconds in a reason, at least 1; undefined if it has none. Does not limit the server's value. */
export function retryAfterOf(reason: string): number | undefined {
  const [, digits = ''] = /^retry-after=([1-9]\d{0,8})$/.exec(reason) ?? [];
  return digits === '' ? undefined : Number(digits);
}

/** The seconds of a `Retry-After` header; undefined if it is absent or a date. */
export const retryAfterSeconds = (header: string | null | undefined): number | undefined =>
  /^\d{1,9}$/.test(header ?? '') ? Number(header) : undefined;
