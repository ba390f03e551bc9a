/**
 * Where a client stands in the tenant's history (the reference, Sockets). Pure.
 *
 * The one rule: `since` says "I have everything up to here", so it moves only by what came through the ordered stream:
 * frames, `caught_up`, and pages of `GET /items`. It never moves to a version that is known from the reply to a write
 * of one's own: lower versions of other devices may still be on their way, and would be skipped for ever.
 * That is why there is no function here that takes a reply.
 */

/** A place in a history: number and name, since a number alone lies after a restore. */
export interface Cursor {
  /** The highest version up to which everything was applied. */
  readonly since: number;
  /** The name of the history that `since` counts in; null before the first answer. */
  readonly epoch: string | null;
}

/** A client that has seen nothing. */
export const FRESH: Cursor = { since: 0, epoch: null };

/**
 * The cursor after an `item`, `delete` or `ack` frame of `version`; undefined when that version was applied before
 * and the frame must change nothing.
 */
export const passed = (cursor: Cursor, version: number): Cursor | undefined =>
  version > cursor.since ? { ...cursor, since: version } : undefined;

/**
 * The cursor after `caught_up`, or after the last page of a listing: everything up to `version` was sent, own changes
 * and items of no interest included. Undefined when it names another history than the cursor counts in: the client
 * must start again from 0.
 */
export function caughtUp(cursor: Cursor, at: { readonly version: number; readonly epoch: string }): Cursor | undefined {
  if (cursor.epoch !== null && cursor.epoch !== at.epoch) return undefined;
  return { since: Math.max(cursor.since, at.version), epoch: at.epoch };
}

/** The cursor after `reset`: another history, of which nothing is known yet. */
export const restarted = (epoch: string): Cursor => ({ since: 0, epoch });
