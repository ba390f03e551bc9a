/** The outcome of a change: written, or queued because the server cannot be reached. */
import { QueuedError } from '../sdk/errors.js';
import type { Stored } from '../sdk/replies.js';
import { failureOf } from './failure.js';
import { CommandError, type Terminal } from '../terminal/terminal.js';

/** `version` null: the change is in the outbox and is sent by the next command that reaches the server. */
export interface Written {
  readonly id: string;
  readonly version: number | null;
  readonly queued: boolean;
}

/** Waits for a change. A queued one is no failure. */
export async function written(change: Promise<Stored>): Promise<Written> {
  try {
    const { id, version } = await change;
    return { id, version, queued: false };
  } catch (error) {
    if (!(error instanceof QueuedError)) throw error;
    return { id: error.id, version: null, queued: true };
  }
}

export function noteQueued(terminal: Terminal, changes: readonly Written[], why = 'the server cannot be reached') {
  const waiting = changes.filter(({ queued }) => queued).length;
  if (waiting > 0) terminal.note(`queued: ${why}; kept here, and sent by the next command that gets through.`);
}

/** Waits for all changes; then throws the first failure, with the number of those that succeeded. */
export async function allWritten(changes: readonly Promise<Written>[]): Promise<readonly Written[]> {
  const outcomes = await Promise.allSettled(changes);
  const done = outcomes.flatMap((outcome) => (outcome.status === 'fulfilled' ? [outcome.value] : []));
  const failed = outcomes.filter((outcome) => outcome.status === 'rejected');
  if (failed[0] === undefined) return done;
  const reason: unknown = failed[0].reason;
  if (done.length === 0) throw reason;
  const { exitCode, message, hint, code } = failureOf(reason);
  const what = `${done.length} of ${outcomes.length} were done; then: ${message}`;
  throw new CommandError(exitCode, what, hint, { cause: reason, code });
}
