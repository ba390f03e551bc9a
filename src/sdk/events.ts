/** The events of a device. */
import { asError } from '../protocol/error-code.js';
import type { JsonObject } from '../crypto/payload.js';
import type { ContentType, LiveItem } from '../protocol/item.js';
import type { ProtocolError, Uncertified } from './errors.js';
import type { DeviceEntry } from './replies.js';
import type { Held, Pending, QuarantineReason } from './store/store.js';

/** An item, decrypted. `payload` null: a blob without metadata. */
export interface ItemView {
  readonly id: string;
  readonly binId: string;
  readonly type: ContentType;
  /** Clock of the client that wrote it, ms. */
  readonly ts: number;
  /** The device that wrote the content, according to the server; no tag covers it. */
  readonly senderDevice: string;
  /** The server's version; 0 while this device's change is not acknowledged. */
  readonly version: number;
  /** True for a change of this device that the server has not acknowledged. */
  readonly pending: boolean;
  readonly payload: JsonObject | null;
  /**
   * Null: everything is in `payload`. Else the item has a blob; `holds` `file`: a file, which `payload` describes
   * (read it with `Device.blob`); `payload`: the whole payload, of which `payload` holds a version with truncated
   * texts (read it with `Device.payload`).
   */
  readonly blob: { readonly ref: string; readonly holds: 'file' | 'payload' } | null;
}

/** An item and a version of it. */
export interface Named {
  readonly id: string;
  readonly version: number;
}

/** The label of a bin. */
export interface BinLabel {
  readonly name: string;
  readonly emoji?: string;
}

/** A bin with its decrypted label. Times are ms. */
export interface BinView {
  readonly id: string;
  readonly slug: string;
  readonly createdAt: number;
  readonly updatedAt: number;
  /** Live items according to the server; null if not reported. */
  readonly itemCount: number | null;
  /** Null: the bin has no label, or the label does not decrypt (see `readable`). */
  readonly label: BinLabel | null;
  /** False: there is a label and it does not decrypt. */
  readonly readable: boolean;
}

/** Progress of re-wrapping: items processed, of those that lacked a key at the start. */
export interface RewrapProgress {
  readonly done: number;
  readonly total: number;
}

/** A row of a listing that is newer than the stored entry; `held`: the stored version, null where there was none. */
export interface Listed extends Named {
  readonly held: number | null;
}

/** The state of the connection; `retryInMs` from now. */
export type ConnectionState =
  | { readonly state: 'connecting' }
  | { readonly state: 'connected' }
  | { readonly state: 'waiting'; readonly retryInMs: number; readonly reason: string }
  | { readonly state: 'closed' };

/** The payload of each event. */
export interface DeviceEvents {
  /** An item was added or changed, by another device (or by this one, in a replay). `live`: after `caught_up`. */
  readonly item: ItemView & { readonly live: boolean };
  readonly delete: { readonly id: string; readonly version: number; readonly live: boolean };
  /** An item does not verify, and is not shown. */
  readonly quarantined: { readonly id: string; readonly version: number; readonly reason: QuarantineReason };
  /** A delete without a valid tag: the item is hidden, its last content is kept, and the user should be informed. */
  readonly untagged_delete: { readonly id: string; readonly version: number; readonly reason: 'no_sig' | 'bad_sig' };
  /**
   * Everything up to `version` was applied. `complete`: count and version sum of the server equal those of the store;
   * null after a `pull`, which gets neither figure.
   */
  readonly caught_up: { readonly version: number; readonly complete: boolean | null };
  /**
   * A completeness check failed, everything was listed again, and `count` items were added or replaced; `items` names
   * up to 1,000 of them.
   */
  readonly repaired: { readonly count: number; readonly items: readonly Listed[] };
  /**
   * A listing of everything did not make the store complete. `unlisted`: stored here and not listed. `lacking`: number
   * and version sum of the items that the server counts but does not list (negative: it counts fewer than it lists).
   * `named`: the unlisted items with their former versions, and, where exactly one item is lacking, its version (the
   * difference of the sums) with id null, because the id is unknown.
   */
  readonly missing: {
    readonly expected: Held;
    readonly held: Held;
    readonly unlisted: readonly string[];
    readonly lacking: Held;
    readonly named: readonly { readonly id: string | null; readonly version: number }[];
  };
  /** The server's history was replaced (a restored database). All versions are forgotten; a replay follows. */
  readonly reset: { readonly epoch: string };
  /**
   * After a reset: items stored here that the new history does not have. `republish` writes them again, `discard`
   * drops them.
   */
  readonly orphaned: { readonly ids: readonly string[] };
  /** A change of this device is stored durably and is sent next: a crash no longer loses it. */
  readonly kept: { readonly id: string };
  /** A change that waited in the outbox was acknowledged. */
  readonly sent: { readonly id: string; readonly version: number };
  /**
   * A waiting change was refused permanently, or outdated by a reset, and dropped; `row`: its row, null for a delete. The
   * store keeps it until the promises that listeners return are fulfilled: a program that ends before is told again.
   */
  readonly rejected: Pick<Pending, 'id' | 'kind'> & { readonly error: Error; readonly row: LiveItem | null };
  readonly devices: { readonly devices: readonly DeviceEntry[] };
  /** The server lists uncertified devices: nothing is written until they are certified or revoked. */
  readonly uncertified: { readonly devices: readonly Uncertified[] };
  /** The bins, read because one changed or after a `caught_up`. */
  readonly bins: {
    readonly reason: 'changed' | 'caught_up';
    readonly bins: readonly BinView[];
    /** Bins of stored items missing from the list: briefly while a bin is deleted, otherwise the server hides them. */
    readonly unlisted: readonly string[];
  };
  /** Keys are being added for devices that joined: `done` of `total` items were processed. Starts with 0. */
  readonly rewrap_progress: RewrapProgress;
  /** All items that this device can re-wrap have their keys; `items` of them got some now. */
  readonly rewrapped: { readonly items: number };
  readonly connection: ConnectionState;
  /**
   * Reading from the server was stopped, because it sent too many changes that do not verify or bring nothing new. The
   * store is kept; `connect` or `resync` start again.
   */
  readonly halted: { readonly error: ProtocolError };
  /** This device was revoked. No call reaches the server any more. */
  readonly revoked: { readonly deviceId: string };
  /** Background work failed, and continues or is retried. */
  readonly problem: { readonly error: Error };
}

export type EventName = keyof DeviceEvents;
/** A listener of one event. */
export type Listener<N extends EventName> = (event: DeviceEvents[N]) => void;

/** Emits an event; returns what the listeners return. */
export type Emit = <N extends EventName>(name: N, event: DeviceEvents[N]) => readonly unknown[];

/** Calls a listener. What it throws, or its promise rejects with, goes to `report`, and affects nothing else. */
export function notify(report: (error: Error) => void, listener: () => unknown): unknown {
  try {
    const result = listener();
    if (result instanceof Promise) result.catch((error: unknown) => report(asError(error)));
    return result;
  } catch (error) {
    report(asError(error));
  }
}

/**
 * Listeners by event. A listener that throws affects neither the others nor the emitter; its error goes to `report`.
 */
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
    const listeners = [...(this.listeners.get(name) ?? [])];
    return listeners.map((listener) => notify(this.report, () => (listener as Listener<typeof name>)(event)));
  };
}
