/** What can happen to a tenant, and what it wants done. The actor's whole life is messages in, effects out. */
import type { ServiceError } from '../protocol/errors.js';
import type { ItemWrite, Summary } from '../protocol/item.js';
import type { Packed } from './packed.js';
import type { Change, HintedGeneration, LogPage, Outcome, TenantSnapshot } from './ports.js';
import type { Replaying, Session } from './session.js';

/** A change is stored (or was already): the item's version and when, ms. */
export interface Acknowledged {
  readonly id: string;
  readonly version: number;
  readonly serverTs: number;
}

/** Where the answer to a request goes. Used exactly once. */
export interface Reply {
  /** When the request came, ms of `performance.now()`; where it is not known nothing is measured. */
  readonly since?: number;
  resolve(value: Acknowledged): void;
  reject(error: Error): void;
}

/** A change as a device asks for it. */
export type Ask =
  | { readonly kind: 'write'; readonly write: ItemWrite; readonly packed: Packed; readonly deviceId: string }
  | { readonly kind: 'delete'; readonly id: string; readonly sig: Uint8Array | null; readonly deviceId: string }
  | {
      readonly kind: 'move';
      readonly id: string;
      readonly binId: string;
      readonly version: number;
      readonly sig: Uint8Array;
      readonly deviceId: string;
    };

/** A change under way, with what has to be known when its verdict comes. */
export interface Pending extends Change {
  readonly ask: Ask;
  readonly reply: Reply;
  readonly refusal: ServiceError | null;
  /** How often it was checked anew because the tenant changed meanwhile. */
  readonly rechecks: number;
}

export type Message =
  | { readonly kind: 'ask'; readonly ask: Ask; readonly reply: Reply }
  | {
      readonly kind: 'committed';
      readonly outcomes: readonly Outcome<Pending>[];
      readonly summary: Summary;
      readonly generation: number;
    }
  | { readonly kind: 'failed'; readonly changes: readonly Pending[]; readonly error: Error }
  | { readonly kind: 'snapshot'; readonly snapshot: TenantSnapshot }
  | { readonly kind: 'snapshot-failed'; readonly error: Error }
  | { readonly kind: 'nudge'; readonly head: number; readonly generation: HintedGeneration }
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
  /** `away`: the database is out of reach at present. */
  | { readonly kind: 'replay-failed'; readonly session: Session; readonly phase: Replaying; readonly away: boolean }
  | { readonly kind: 'sent'; readonly session: Session; readonly phase: Replaying; readonly congested: boolean }
  | { readonly kind: 'congested'; readonly session: Session }
  | { readonly kind: 'drained'; readonly session: Session }
  | { readonly kind: 'closed'; readonly session: Session };

export type Effect =
  | { readonly kind: 'resolve'; readonly reply: Reply; readonly value: Acknowledged }
  | { readonly kind: 'reject'; readonly reply: Reply; readonly error: Error }
  | { readonly kind: 'commit'; readonly change: Pending }
  /** Read the tenant's devices, bins and pairings anew; answered by `snapshot` or `snapshot-failed`. */
  | { readonly kind: 'reload' }
  /** Read what others committed above `since`; answered by `gap` or `gap-failed`. */
  | { readonly kind: 'read-gap'; readonly since: number }
  /** Ask the database for the head; answered by `head` or `replay-failed`. */
  | { readonly kind: 'read-head'; readonly session: Session; readonly phase: Replaying }
  /** Read a replay page above the phase's cursor; answered by `page` or `replay-failed`. */
  | { readonly kind: 'read-page'; readonly session: Session; readonly phase: Replaying }
  /**
   * Send frames. With `phase`, part of a replay: answered by `sent`. Without: `congested` if the buffer is too full.
   * `since`: when the oldest of the changes came that were made here and are pushed with it (see `Reply`).
   */
  | {
      readonly kind: 'send';
      readonly session: Session;
      readonly frames: readonly string[];
      readonly phase?: Replaying;
      readonly since?: number;
    }
  | { readonly kind: 'close'; readonly session: Session; readonly code: number; readonly reason: string }
  | { readonly kind: 'announce'; readonly head: number; readonly generation: number }
  | { readonly kind: 'purge-keys'; readonly deviceId: string };

/** Who waits for what this message brings: each must get an answer, also where the message cannot be applied. */
export function waitersOf(message: Message): readonly Reply[] {
  switch (message.kind) {
    case 'ask':
      return [message.reply];
    case 'committed':
      return message.outcomes.map((outcome) => outcome.change.reply);
    case 'failed':
      return message.changes.map((change) => change.reply);
    default:
      return [];
  }
}
