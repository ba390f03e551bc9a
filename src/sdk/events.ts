/** What a device tells its user's program as it happens. */
import { asError } from '../protocol/error-code.js';
import type { JsonObject } from '../crypto/payload.js';
import type { ContentType, LiveItem } from '../protocol/item.js';
import type { ProtocolError, Uncertified } from './errors.js';
import type { DeviceEntry } from './replies.js';
import type { Held, QuarantineReason } from './store/store.js';

/** An item, decrypted. `payload` null: a blob without metadata. */
export interface ItemView {
  readonly id: string;
  readonly binId: string;
  readonly type: ContentType;
  /** Client clock of who wrote it, ms. */
  readonly ts: number;
  /** Who wrote the content, as the server says; no tag covers it. */
  readonly senderDevice: string;
  /** The server's version; 0 while this device's change is not acknowledged. */
  readonly version: number;
  /** True while this is this device's own change and the server has not acknowledged it. */
  readonly pending: boolean;
  readonly payload: JsonObject | null;
  /**
   * Null: everything is in `payload`. Else there is a blob; `holds` `file`: a file, which `payload` describes (read it by
   * `Device.blob`); `payload`: the whole payload, and the one here has its long texts cut (read it by `Device.payload`).
   */
  readonly blob: { readonly ref: string; readonly holds: 'file' | 'payload' } | null;
}

/** An item and a version of it. */
export interface Named {
  readonly id: string;
  readonly version: number;
}

/** What a user gives a bin. */
export interface BinLabel {
  readonly name: string;
  readonly emoji?: string;
}

/** A bin as its user sees it. Times are ms. */
export interface BinView {
  readonly id: string;
  readonly slug: string;
  readonly createdAt: number;
  readonly updatedAt: number;
  /** Live items, as the server counts; null where the reply does not say. */
  readonly itemCount: number | null;
  /** Null: nobody has named the bin, or its name does not open (see `readable`). */
  readonly label: BinLabel | null;
  /** False: there is a label and it does not verify. */
  readonly readable: boolean;
}

/** How far re-wrapping is: items gone through, of those that lacked something when it began. */
export interface RewrapProgress {
  readonly done: number;
  readonly total: number;
}

/** A row of a listing that was newer than what is held; `held`: the version that is, null where there was nothing. */
export interface Listed {
  readonly id: string;
  readonly version: number;
  readonly held: number | null;
}

/** How the line stands; `retryInMs` from now. */
export type LineState =
  | { readonly state: 'connecting' }
  | { readonly state: 'connected' }
  | { readonly state: 'waiting'; readonly retryInMs: number; readonly reason: string }
  | { readonly state: 'closed' };

/** Event name to what its listeners get. */
export interface DeviceEvents {
  /** An item came or changed, from another device (or from this one, in a replay). `live`: after `caught_up`. */
  readonly item: ItemView & { readonly live: boolean };
  readonly delete: { readonly id: string; readonly version: number; readonly live: boolean };
  /** An item does not verify: it is not shown. */
  readonly quarantined: { readonly id: string; readonly version: number; readonly reason: QuarantineReason };
  /** A delete without a valid tag: the item is hidden, its last content kept, and the user should hear of it. */
  readonly untagged_delete: { readonly id: string; readonly version: number; readonly reason: 'no_sig' | 'bad_sig' };
  /**
   * Everything up to `version` is here. `complete`: the server's count and version sum fit what is held; null after a
   * `pull`, which brings neither.
   */
  readonly caught_up: { readonly version: number; readonly complete: boolean | null };
  /**
   * A completeness check failed, everything was listed again, and this was lacking here and is now there: `items`, up
   * to 1,000 of them, of `count` in all. `held`: the version that was here instead, null where there was none.
   */
  readonly repaired: { readonly count: number; readonly items: readonly Listed[] };
  /**
   * Reading everything again did not help: items are missing, or too many. `unlisted`: held here, not there.
   * `lacking`: how many items, and which sum of versions, the server counts and does not hand out (negative: it counts
   * fewer than it hands out). `named`: what can be said of them: the unlisted with the versions they had, and, where
   * exactly one item is lacking, its version, which is the difference of the sums; nobody can say its id.
   */
  readonly missing: {
    readonly expected: Held;
    readonly held: Held;
    readonly unlisted: readonly string[];
    readonly lacking: Held;
    readonly named: readonly { readonly id: string | null; readonly version: number }[];
  };
  /** The server's history is another one (a restored database). All versions are forgotten; replay follows. */
  readonly reset: { readonly epoch: string };
  /** After a reset: items held here that the new history does not know. `republish` writes them again, `discard` drops them. */
  readonly orphaned: { readonly ids: readonly string[] };
  /** A change that waited in the outbox is with the server now. */
  readonly sent: { readonly id: string; readonly version: number };
  /** A change that waited in the outbox was refused for good and is dropped; `row` is what it would have written. */
  readonly rejected: { readonly id: string; readonly error: Error; readonly row: LiveItem | null };
  readonly devices: { readonly devices: readonly DeviceEntry[] };
  /** The server lists devices that nobody vouches for: no write goes out until they are certified or revoked. */
  readonly uncertified: { readonly devices: readonly Uncertified[] };
  /** The bins as they were read just now: one changed, or this device was away. */
  readonly bins: {
    readonly reason: 'changed' | 'caught_up';
    readonly bins: readonly BinView[];
    /** Bins of items held here that the list does not have: in passing while one is deleted, else the server hides them. */
    readonly unlisted: readonly string[];
  };
  /** Keys are being added for devices that joined: `done` of `total` items were gone through. Begins with 0. */
  readonly rewrap_progress: RewrapProgress;
  /** All items that this device can mend have their keys; it added some to `items` of them. */
  readonly rewrapped: { readonly items: number };
  readonly line: LineState;
  /**
   * The server is not read any more: what it sends is not the user's and has no end. What is here stays; `connect` or
   * `resync` begin anew.
   */
  readonly halted: { readonly error: ProtocolError };
  /** This device was revoked. Nothing works any more. */
  readonly revoked: { readonly deviceId: string };
  /** Something failed in the background, and goes on or is tried again. */
  readonly problem: { readonly error: Error };
}

/** Names of the events above. */
export type EventName = keyof DeviceEvents;
/** Gets an event. */
export type Listener<N extends EventName> = (event: DeviceEvents[N]) => void;

/** Sends an event. */
export type Emit = <N extends EventName>(name: N, event: DeviceEvents[N]) => void;

/** Listeners by event. A listener that throws disturbs neither the others nor the sender; its error goes to `report`. */
export class Emitter {
  private readonly listeners = new Map<EventName, Set<(event: never) => void>>();

  constructor(private readonly report: (error: Error) => void) {}

  /** Adds a listener; the result removes it. */
  on<N extends EventName>(name: N, listener: Listener<N>): () => void {
    const known = this.listeners.get(name) ?? new Set();
    this.listeners.set(name, known);
    known.add(listener);
    return () => known.delete(listener);
  }

  readonly emit: Emit = (name, event) => {
    for (const listener of [...(this.listeners.get(name) ?? [])]) {
      try {
        (listener as Listener<typeof name>)(event);
      } catch (error) {
        this.report(asError(error));
      }
    }
  };
}
