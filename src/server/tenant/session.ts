/** One device's socket as seen by the actor. The phase is a union, so that a field exists only where it applies. */
import type { SocketPort } from './ports.js';

/** Being brought up to date from its cursor: after a `hello`, or silently after it fell behind. */
export interface Replaying {
  readonly kind: 'replaying';
  /** Every version up to this one was sent, or did not have to be. */
  cursor: number;
  readonly acks: boolean;
  /** After `hello`: a `caught_up` is owed, and the device's own changes are sent too. */
  readonly greeting: boolean;
  /** A head read from the database since this replay began: `caught_up` must not be below it. */
  committed: number | null;
  /** True while no page is read because the socket's buffer must drain first. */
  draining: boolean;
  /** Average bytes per row of the last page; undefined before the first. */
  rowBytes?: number;
  /** True while the database is unreachable: the replay resumes when it is back. */
  stalled: boolean;
}

type Beginning = Pick<Replaying, 'cursor' | 'acks' | 'greeting' | 'draining'>;

/** A new replay. Fields are named individually: a spread copies one by one, for every device of a reconnect storm. */
export function beginReplay({ cursor, acks, greeting, draining }: Beginning): Replaying {
  return { kind: 'replaying', cursor, acks, greeting, committed: null, draining, stalled: false };
}

/** At the actor's position, or ahead of it (`Session.cursor`). Gets each version as it is delivered. */
export interface Live {
  readonly kind: 'live';
  readonly acks: boolean;
}

/** `awaiting`: open, but `hello` was not received yet. */
type Phase = { readonly kind: 'awaiting' } | Replaying | Live | { readonly kind: 'closed' };

const AWAITING: Phase = Object.freeze({ kind: 'awaiting' });
export const CLOSED: Phase = Object.freeze({ kind: 'closed' });
/** All live sessions share these: a million of them may be held. */
export const LIVE: Live = Object.freeze({ kind: 'live', acks: false });
export const LIVE_WITH_ACKS: Live = Object.freeze({ kind: 'live', acks: true });

/**
 * The phase of a replay is replaced, never reused: a result whose phase is no longer the session's belongs to an
 * earlier `hello` and is dropped.
 */
export class Session {
  phase: Phase = AWAITING;
  /** While live: every version up to this one was sent, or did not have to be. */
  cursor = 0;
  /**
   * When the last `hello` was accepted, lower 32 bits of the ms, to avoid a heap object. Undefined before the first.
   */
  helloAt: number | undefined;

  constructor(readonly port: SocketPort) {}

  get deviceId(): string {
    return this.port.deviceId;
  }

  /** True once a `hello` was accepted: only then does the session get frames of any kind. */
  get greeted(): boolean {
    return this.phase.kind === 'replaying' || this.phase.kind === 'live';
  }
}
