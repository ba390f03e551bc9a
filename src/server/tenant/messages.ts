/** The messages that a tenant's actor receives, and the effects that it requests. */
import type { Summary } from '../../protocol/item.js';
import type { Change, Position } from './change.js';
import type { ItemRow } from './codec.js';
import type { FrameBytes, LogPage, TenantUpdate } from './ports.js';
import type { Replaying, Session } from './session.js';

export type Message =
  | { readonly kind: 'change'; readonly change: Change }
  /** The changes were decided in one transaction, and are in version order. */
  | ({ readonly kind: 'committed'; readonly changes: readonly Change[] } & Position)
  | { readonly kind: 'failed'; readonly changes: readonly Change[]; readonly error: Error }
  | { readonly kind: 'reloaded'; readonly update: TenantUpdate }
  | { readonly kind: 'reload-failed'; readonly error: Error }
  /** The tenant has at least this head and generation; `generation` is Infinity to force a reload. */
  | { readonly kind: 'head-hint'; readonly head: number; readonly generation: number }
  | {
      readonly kind: 'published';
      /** Rows of another instance's transaction, or some of them: consecutive versions in order. */
      readonly rows: readonly ItemRow[];
      readonly generation: number;
      /** The sums at the last row; null if unknown. */
      readonly summary: Summary | null;
    }
  | { readonly kind: 'gap'; readonly page: LogPage }
  | { readonly kind: 'gap-failed' }
  | {
      readonly kind: 'hello';
      readonly session: Session;
      readonly since: number;
      readonly epoch: string | null;
      readonly acks: boolean;
    }
  | { readonly kind: 'head'; readonly session: Session; readonly phase: Replaying; readonly summary: Summary }
  | { readonly kind: 'page'; readonly session: Session; readonly phase: Replaying; readonly page: LogPage }
  /** `away`: the database is currently unreachable. */
  | { readonly kind: 'replay-failed'; readonly session: Session; readonly phase: Replaying; readonly away: boolean }
  | { readonly kind: 'sent'; readonly session: Session; readonly phase: Replaying; readonly congested: boolean }
  | { readonly kind: 'congested'; readonly session: Session }
  | { readonly kind: 'drained'; readonly session: Session }
  | { readonly kind: 'closed'; readonly session: Session };

export type MessageOf<K extends Message['kind']> = Extract<Message, { kind: K }>;

export type Effect =
  /** The answer to a change: exactly one of the two, exactly once. */
  | { readonly kind: 'stored'; readonly change: Change }
  | { readonly kind: 'refused'; readonly change: Change; readonly error: Error }
  | { readonly kind: 'commit'; readonly change: Change }
  /** Reload the tenant's devices, bins and pairings; answered by `reloaded` or `reload-failed`. */
  | { readonly kind: 'reload' }
  /** Read what others committed above `since`; answered by `gap` or `gap-failed`. */
  | { readonly kind: 'read-gap'; readonly since: number }
  /** Read the head from the database; answered by `head` or `replay-failed`. */
  | { readonly kind: 'read-head'; readonly session: Session; readonly phase: Replaying }
  /** Read a replay page above the phase's cursor; answered by `page` or `replay-failed`. */
  | { readonly kind: 'read-page'; readonly session: Session; readonly phase: Replaying }
  /**
   * Send frames. With `phase` they are part of a replay, and answered by `sent`; without, they are answered by
   * `congested` if the socket's buffer is too full, else not at all. `since`: arrival time of the oldest pushed change
   * that was made on this instance (see `ItemRow`).
   */
  | {
      readonly kind: 'send';
      readonly session: Session;
      readonly frames: readonly FrameBytes[];
      readonly phase?: Replaying;
      readonly since?: number;
    }
  /** Send the same frames to live sessions; see `send`. */
  | {
      readonly kind: 'push';
      readonly sessions: readonly Session[];
      readonly frames: readonly FrameBytes[];
      readonly since: number;
    }
  | { readonly kind: 'close'; readonly session: Session; readonly code: number; readonly reason: string }
  /** Notify the other instances. The rows' bytes may belong to a change that is answered by a later effect. */
  | { readonly kind: 'publish'; readonly rows: readonly ItemRow[]; readonly position: Position }
  | { readonly kind: 'purge-keys'; readonly deviceId: string };
