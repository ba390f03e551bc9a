/** What the tenant actor needs from outside. Implemented in `storage/` and `realtime/`, or in memory by the tests. */
import type { Shape } from '../../protocol/shape.js';
import type { FrameBin, FrameDevice, PairRequestFrame } from '../../protocol/frames.js';
import type { Summary } from '../../protocol/item.js';
import type { Arena, Change, CommitSink, Position } from './change.js';
import type { ItemRow } from './codec.js';

/** A device as the actor knows it. */
export interface DeviceState {
  readonly id: string;
  /** The epoch its tokens must carry (reference, HTTP, Tokens). */
  readonly tokenEpoch: number;
  readonly revoked: boolean;
  /** False from a revocation until its entries are gone from the stored keys. */
  readonly keysPurged: boolean;
  /** When this instance last noted that the device was seen, s. */
  notedAt?: number;
}

/** A bin that changed. */
export type BinChange = {
  readonly id: string;
  readonly changedAtGeneration: number;
  /** It takes writes. */
  readonly open: boolean;
} & (
  | {
      readonly deletedAt: null;
      /** The bin as `GET /bins` shows it; its items are counted only where its frame is sent. */
      readonly view: FrameBin;
    }
  /** `deletedAt`: when it went, ms. */
  | { readonly deletedAt: number; readonly view: null }
);

/** A pairing that waits for its existing device (reference, Pairing, Pairing a new device): the frame's fields. */
export interface PairRequest {
  readonly lookupId: string;
  readonly existingDevice: string;
  readonly expiresAt: number;
  readonly frame: PairRequestFrame;
}

/** What is kept in memory of a tenant beside its items, all read in one snapshot. */
export interface TenantSnapshot {
  readonly tenantId: string;
  readonly state: string;
  readonly generation: number;
  readonly summary: Summary;
  readonly devices: readonly DeviceState[];
  /** At least those that are open. */
  readonly bins: readonly Pick<BinChange, 'id' | 'open'>[];
  readonly pairRequests: readonly PairRequest[];
}

/** The same with what the frames about its changes show. */
export interface TenantUpdate extends TenantSnapshot {
  readonly devices: readonly (DeviceState & { readonly view: FrameDevice })[];
  readonly bins: readonly BinChange[];
}

/** How far a tenant is known. */
export interface KnownPosition {
  readonly tenantId: string;
  readonly delivered: number;
  readonly generation: number;
}

/** How far a tenant is in the database. `head` is null where there is no such tenant. */
export interface StoredPosition {
  readonly tenantId: string;
  readonly head: number | null;
  readonly generation: number;
}

/** Reads tenants; concurrent calls are batched into one statement. */
export interface TenantLoader {
  /** The tenant, or undefined when there is none. In a reconnect storm the read waits a moment for more of them. */
  load(tenantId: string): Promise<TenantSnapshot | undefined>;
  /** The loads that are asked for do not wait for more. */
  hurry(): void;
  /**
   * The same for a reader who has the generation `known`: the views of bins that changed above it carry their
   * `itemCount`, for their frames.
   */
  reload(tenantId: string, known: number): Promise<TenantUpdate | undefined>;
  /** Where the tenant's history stands in the database now, at or after the moment of the call. */
  head(tenantId: string): Promise<Summary>;
  /**
   * For the comparison that finds lost notifications: of the tenants given, at least those that are gone or further.
   */
  positions(known: readonly KnownPosition[]): Promise<readonly StoredPosition[]>;
}

/** Rows above a version in version order, and where the history stood in the same snapshot. */
export interface LogPage {
  readonly rows: readonly ItemRow[];
  /** True when the snapshot holds more rows above the last one. */
  readonly more: boolean;
  readonly summary: Summary;
}

export interface PageRequest {
  readonly tenantId: string;
  /** Rows with a version above this one. */
  readonly since: number;
  /** At most so many rows; the page also ends early at about 4 MiB, or at `maxBytes`. */
  readonly limit: number;
  readonly maxBytes?: number;
  /** Only this bin. */
  readonly binId?: string;
  /** Few rows are expected: it may be read together with other tenants' pages, and then ends earlier. */
  readonly small?: boolean;
}

export interface ItemLog {
  /**
   * One page in one snapshot. Throws `bin_not_found` for an unknown bin, `unavailable` when the database is out of
   * reach.
   */
  page(request: PageRequest): Promise<LogPage>;
}

/** Group commit, and the memory that holds the bytes of queued changes. */
export interface CommitLanes {
  /** The arena for the bytes of the tenant's changes. */
  arenaOf(tenantId: string): Arena;
  /** Queues a change. Throws `unavailable` when the queue is full or the database is known to be down. */
  submit(change: Change, sink: CommitSink): void;
}

/** A frame as it is sent: a text, or the bytes of one. */
export type FrameBytes = string | Uint8Array;

/** One open socket, seen from the actor. */
export interface SocketPort {
  readonly deviceId: string;
  readonly tokenEpoch: number;
  readonly shape: Shape;
  /** Writes the frames in order under one cork. Returns the bytes that wait in the socket's buffer afterwards. */
  send(frames: readonly FrameBytes[]): number;
  /** Closes with a code of the protocol (reference, Sockets, Close codes). */
  close(code: number, reason: string): void;
}

/**
 * Between these times, ms, whatever another instance notified was received here, in order: what was read from the
 * database after `since` and is not told to be older is the state of `until`. That is so of a tenant's devices, bins and
 * state. Not of its items: a socket that was just opened may hear of some seconds later, and what comes over a link has
 * no order with what is notified. Empty while nothing was heard yet.
 */
export interface Heard {
  readonly since: number;
  readonly until: number;
}

/** Notifies other instances of a tenant's changes, and says how far their notifications were received. */
export interface ChangeAnnouncer {
  readonly heard: Heard;
  /** The tenant's head or generation is at least this; or something of it has changed that has no number (0). */
  announce(tenantId: string, head: number, generation: number): void;
  /** Rows of one transaction in version order, for the instances that subscribe. Their bytes are copied where they are kept. */
  publish(tenantId: string, rows: readonly ItemRow[], position: Position): void;
  /** The tenant's first socket was opened: other instances are to send here what they write from `since` on, ms. */
  subscribe(tenantId: string, since: number): void;
}

/** Removes a revoked device's entries from the stored keys, in the background (reference, HTTP, Writing an item). */
export interface KeyPurger {
  purge(tenantId: string, deviceId: string): void;
}
