/** The actor's dependencies. Implemented in `storage/` and `realtime/`, or in memory by the tests. */
import type { Shape } from '../../protocol/shape.js';
import type { FrameBin, FrameDevice, PairRequestFrame } from '../../protocol/frames.js';
import type { Summary } from '../../protocol/item.js';
import type { Arena, Change, CommitSink, Position } from './change.js';
import type { ItemRow } from './codec.js';

/** The database's history as currently known (see storage/epoch-guard.ts). */
export interface History {
  readonly epoch: string;
}

export interface DeviceState {
  readonly id: string;
  /** The epoch its tokens must carry (reference, HTTP, Tokens). */
  readonly tokenEpoch: number;
  readonly revoked: boolean;
  /** False from a revocation until the device's entries are removed from the stored keys. */
  readonly keysPurged: boolean;
  /** When this instance last recorded that the device was seen, s. */
  notedAt?: number;
}

export type BinChange = {
  readonly id: string;
  readonly changedAtGeneration: number;
  /** It accepts writes. */
  readonly open: boolean;
} & (
  | {
      readonly deletedAt: null;
      /** The bin as `GET /bins` shows it; its `meta` is null, and its items are not counted, unless its frame is sent. */
      readonly view: FrameBin;
    }
  | { readonly deletedAt: number; readonly view: null }
);

/** A pairing that waits for its existing device (reference, Pairing, Pairing a new device), and the frame for that. */
export interface PairRequest {
  readonly existingDevice: string;
  readonly frame: PairRequestFrame;
}

/** The in-memory state of a tenant apart from its items, all read in one snapshot. */
export interface TenantSnapshot {
  readonly tenantId: string;
  readonly state: string;
  readonly generation: number;
  readonly summary: Summary;
  readonly devices: readonly DeviceState[];
  /** At least the open bins. */
  readonly bins: readonly Pick<BinChange, 'id' | 'open'>[];
  readonly pairRequests: readonly PairRequest[];
}

/** The same, with the fields that frames about its changes show. */
export interface TenantUpdate extends TenantSnapshot {
  readonly devices: readonly (DeviceState & { readonly view: FrameDevice })[];
  readonly bins: readonly BinChange[];
}

/** The position of a tenant known here. */
export interface KnownPosition {
  readonly tenantId: string;
  readonly delivered: number;
  readonly generation: number;
}

/** The position of a tenant in the database. `head` is null if there is no such tenant. */
export interface StoredPosition {
  readonly tenantId: string;
  readonly head: number | null;
  readonly generation: number;
}

/** Reads tenants; concurrent calls are batched into one statement. */
export interface TenantLoader {
  /** The tenant, or undefined if there is none. In a reconnect storm the read waits briefly for more of them. */
  load(tenantId: string): Promise<TenantSnapshot | undefined>;
  /** Makes pending loads start without waiting for more. */
  hurry(): void;
  /**
   * The same for a reader that has the generation `known`: only the views of bins that changed above it contain their
   * `meta` and `itemCount`, for their frames.
   */
  reload(tenantId: string, known: number): Promise<TenantUpdate | undefined>;
  /** The tenant's position in the database, at or after the time of the call. */
  head(tenantId: string): Promise<Summary>;
  /**
   * For the comparison that finds lost notifications: of the given tenants, at least those deleted or further ahead.
   */
  positions(known: readonly KnownPosition[]): Promise<readonly StoredPosition[]>;
}

/** Rows above a version in version order, and the tenant's position in the same snapshot. */
export interface LogPage {
  readonly rows: readonly ItemRow[];
  /** True when the snapshot holds more rows above the last one or, with `upTo`, may hold more. */
  readonly more: boolean;
  /** A page of a bin that ended before it was full: the version up to which it looked, where the next page begins. */
  readonly upTo?: number;
  readonly summary: Summary;
}

export interface PageRequest {
  readonly tenantId: string;
  /** Rows with a version above this one. */
  readonly since: number;
  /** Maximum of rows; the page also ends early at about 4 MiB, or at `maxBytes`. */
  readonly limit: number;
  readonly maxBytes?: number;
  readonly binId?: string;
  /** Few rows are expected: the page may be read together with other tenants', and then ends earlier. */
  readonly small?: boolean;
}

export interface ItemLog {
  /**
   * One page in one snapshot. Throws `bin_not_found` for an unknown bin, `unavailable` if the database is unreachable.
   */
  page(request: PageRequest): Promise<LogPage>;
}

/** Group commit, and the memory that holds the bytes of queued changes. */
export interface CommitLanes {
  /** For the bytes of changes that are not answered yet. */
  readonly arena: Arena;
  /** Queues a change. Throws `unavailable` when the queue is full or the database is known to be down. */
  submit(change: Change, sink: CommitSink): void;
}

/** A frame to be sent, as text or its bytes. */
export type FrameBytes = string | Uint8Array;

/** One open socket as seen by the actor. */
export interface SocketPort {
  readonly deviceId: string;
  readonly tokenEpoch: number;
  readonly shape: Shape;
  /** It was closed, and its peer has not read yet what was sent before: nothing is sent any more. */
  readonly closing: boolean;
  /** Writes the frames in order under one cork. Returns the bytes left in the socket's buffer. */
  send(frames: readonly FrameBytes[]): number;
  /** Closes with a code of the protocol (reference, Sockets, Close codes). */
  close(code: number, reason: string): void;
}

/**
 * Every notification that other instances sent between these times, ms, was received here, in order: a state read from
 * the database after `since`, and not announced to be older, is the state at `until`. This applies to a tenant's
 * devices, bins and state, but not to its items: a socket just opened may receive some seconds later, and changes sent
 * over a link are not ordered with notifications. Empty until something was received.
 */
export interface Heard {
  readonly since: number;
  readonly until: number;
}

/** Notifies other instances of a tenant's changes, and reports how far their notifications were received. */
export interface ChangeAnnouncer {
  readonly heard: Heard;
  /** The tenant's head or generation is at least this; or something without a number has changed (0). */
  announce(tenantId: string, head: number, generation: number): void;
  /** Rows of one transaction in version order, for the instances that subscribe. Their bytes are copied if kept. */
  publish(tenantId: string, rows: readonly ItemRow[], position: Position): void;
  /** The tenant's first socket was opened: requests from other instances the changes they write from `since` on, ms. */
  subscribe(tenantId: string, since: number): void;
}

/** Removes a revoked device's entries from the stored keys, in the background (reference, HTTP, Writing an item). */
export interface KeyPurger {
  /** False: it has no room, so the purge has to be requested again. */
  purge(tenantId: string, deviceId: string): boolean;
}
