/**
 * One device's socket as the actor sees it. The phase is a union, so that a field exists only where it means something.
 */
import type { SocketPort } from './ports.js';

/** Open, but `hello` has not come. */
interface Awaiting {
  readonly kind: 'awaiting';
}

/** Being brought up from its cursor: after a `hello`, or silently after it fell behind. */
export interface Replaying {
  readonly kind: 'replaying';
  /** Every version up to this one is sent, or was never owed. */
  cursor: number;
  readonly acks: boolean;
  /** After `hello`: a `caught_up` is owed, and the device's own changes are sent too. */
  readonly greeting: boolean;
  /** A head that was read from the database since this replay began: `caught_up` must not lie below it. */
  committed: number | null;
  /** True while no page is read because the socket's buffer has to drain first. */
  draining: boolean;
  /** Bytes of a row, on average over the last page; undefined before the first. */
  rowBytes?: number;
  /** True while the database is unreachable: the replay resumes when it is back. */
  stalled: boolean;
}

type Beginning = Pick<Replaying, 'cursor' | 'acks' | 'greeting' | 'draining'>;

/** A replay that begins. Each field by its name: a spread would copy them one by one, for every device of a storm. */
export const beginReplay = ({ cursor, acks, greeting, draining }: Beginning): Replaying => ({
  kind: 'replaying',
  cursor,
  acks,
  greeting,
  committed: null,
  draining,
  stalled: false,
});

/** At the actor's position, or ahead of it (`Session.cursor`). Gets each version as it is delivered. */
export interface Live {
  readonly kind: 'live';
  readonly acks: boolean;
}

interface Closed {
  readonly kind: 'closed';
}

type Phase = Awaiting | Replaying | Live | Closed;

const AWAITING: Awaiting = Object.freeze({ kind: 'awaiting' });
export const CLOSED: Closed = Object.freeze({ kind: 'closed' });
/** All live sessions share these: a million of them may be held. */
export const LIVE: Live = Object.freeze({ kind: 'live', acks: false });
export const LIVE_WITH_ACKS: Live = Object.freeze({ kind: 'live', acks: true });

/**
 * The phase of a replay is replaced, never reused: an answer that comes back carrying a phase which is no longer the
 * session's belongs to an earlier `hello` and is dropped.
 */
export class Session {
  phase: Phase = AWAITING;
  /** While live: every version up to this one is sent, or was never owed. */
  cursor = 0;
  /** When the last `hello` was taken, the lower 32 bits of the ms: no heap object. Undefined before the first. */
  helloAt: number | undefined;

  constructor(readonly port: SocketPort) {}

  get deviceId(): string {
    return this.port.deviceId;
  }

  /** True once a `hello` was taken: only then does the session get frames of any kind. */
  get greeted(): boolean {
    return this.phase.kind === 'replaying' || this.phase.kind === 'live';
  }
}
