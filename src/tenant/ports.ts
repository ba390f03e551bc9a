/** What the tenant actor needs from outside. Implemented in `postgres/` and `front/`, or in memory by the tests. */
import type { Shape } from '../protocol/shape.js';
import type { FrameBin, FrameDevice, PairRequestFrame } from '../protocol/frames.js';
import type { ContentType, Item, ItemWrite, Summary } from '../protocol/item.js';
import type { Packed } from './packed.js';

/** A device as the actor knows it. */
export interface DeviceStanding {
  readonly id: string;
  /** The epoch its tokens must carry (contract 4). */
  readonly tokenEpoch: number;
  readonly revoked: boolean;
  /** False from a revocation until its entries are gone from the stored keys. */
  readonly keysPurged: boolean;
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
      /** The bin as `GET /bins` shows it; counted only where its frame is to be told. */
      readonly view: FrameBin;
    }
  /** `deletedAt`: when it went, ms. */
  | { readonly deletedAt: number; readonly view: null }
);

/** A pairing that waits for its existing device (contract 9, step S): the frame's fields. */
export interface PairRequest {
  readonly lookupId: string;
  readonly existingDevice: string;
  readonly expiresAt: number;
  readonly frame: PairRequestFrame;
}

/** What a tenant is made of beside its items, all read in one snapshot. */
export interface TenantSnapshot {
  readonly tenantId: string;
  readonly state: string;
  readonly generation: number;
  readonly summary: Summary;
  readonly devices: readonly (DeviceStanding & { readonly view: FrameDevice })[];
  readonly bins: readonly BinChange[];
  readonly pairRequests: readonly PairRequest[];
}

/** Reads tenants; concurrent calls are batched into one statement. */
export interface TenantDirectory {
  /**
   * The tenant, or undefined when there is none. `known`: the generation that the reader has; the views of bins that
   * changed above it carry their `itemCount`, for their frames.
   */
  load(tenantId: string, known?: number): Promise<TenantSnapshot | undefined>;
  /** Where the tenant's history stands in the database now, at or after the moment of the call. */
  head(tenantId: string): Promise<Summary>;
}

/** Where tenants stand, for the comparison that finds lost notifications. */
export interface TenantStandings {
  standings(tenantIds: readonly string[]): Promise<readonly { tenantId: string; head: number; generation: number }[]>;
}

/** A stored change: the item's latest state and the device whose change it was. */
export interface LogRow {
  readonly item: Item;
  readonly changedBy: string | null;
  /** Where it was made on this instance: when its request came (see `Reply`). */
  readonly since?: number;
}

/** Rows above a version in version order, and where the history stood in the same snapshot. */
export interface LogPage {
  readonly rows: readonly LogRow[];
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
  /** One page in one snapshot. Throws `bin_not_found` for an unknown bin, `unavailable` when the database is out of reach. */
  page(request: PageRequest): Promise<LogPage>;
}

/** A change on its way into the database. `generation` is what it was checked against (contract 13). */
export interface Change {
  readonly kind: 'write' | 'delete' | 'move';
  readonly tenantId: string;
  readonly generation: number;
  readonly id: string;
  readonly deviceId: string;
  /** Write and move. */
  readonly binId: string | null;
  /** Write: null asks nothing. Move: the version its sig was made over. */
  readonly ifVersion: number | null;
  /** The checks refuse it, but a retry of what is stored must still succeed, so the commit is asked all the same. */
  readonly refused: boolean;
  /** The bin it names is all that is wrong with it: a re-wrap does not apply that (contract 5, decision 4). */
  readonly refusedForBin: boolean;
  /** Write only. */
  readonly write: ItemWrite | null;
  readonly type: ContentType | null;
  /** Move: the new tag. Delete: the delete's tag, or null. */
  readonly sig: Uint8Array | null;
  /** The write's bytes with the hash of what was received, or the tag alone. */
  readonly packed: Packed;
}

export type Verdict =
  | 'same'
  | 'insert'
  | 'replace'
  | 'rewrap'
  | 'delete'
  | 'move'
  | 'stale'
  | 'conflict'
  | 'missing'
  | 'refused'
  | 'no_blob'
  | 'cap';

/** What the commit function said of one change. `version` and `ts` are the stored item's, where there is one. */
export interface Outcome<C extends Change = Change> {
  readonly change: C;
  readonly verdict: Verdict;
  readonly version: number | null;
  readonly ts: number | null;
  /** When the change became durable, ms. */
  readonly at: number;
  /** After a re-wrap or a move, the stored item: most of it came with an earlier write. */
  readonly stored?: LogRow | null;
}

/** Told of every change it submitted: exactly once, or again by `failed` where it threw. */
export interface CommitSink<C extends Change = Change> {
  /** Outcomes of one transaction in version order, and where the tenant stood after it. */
  committed(outcomes: readonly Outcome<C>[], standing: { summary: Summary; generation: number }): void;
  /** Not known to be stored: the client may try again. */
  failed(changes: readonly C[], error: Error): void;
}

export interface CommitLanes {
  /** Queues a change. Throws `unavailable` when the queue is full or the database is known to be down. */
  submit<C extends Change>(change: C, sink: CommitSink<C>): void;
}

/** One open socket, seen from the actor. */
export interface SocketPort {
  readonly deviceId: string;
  readonly tokenEpoch: number;
  readonly shape: Shape;
  /** Writes the frames in order under one cork. Returns the bytes that wait in the socket's buffer afterwards. */
  send(frames: readonly string[]): number;
  /** Closes with a code of contract 11. */
  close(code: number, reason: string): void;
}

/** The generation that a hint tells of. `newer`: whoever tells does not know it, but it is above any that was read. */
export type HintedGeneration = number | 'newer';

/** Tells other instances that a tenant's head or generation rose. A hint only: it may be lost (contract 13). */
export interface ChangeAnnouncer {
  announce(tenantId: string, head: number, generation: HintedGeneration): void;
}

/** Removes a revoked device's entries from the stored keys, in the background (contract 5). */
export interface KeyPurger {
  purge(tenantId: string, deviceId: string): void;
}
