/** What blobs ask of the database (sql/0010_blobs.sql; src/server/blobs/store.ts). Times are ms since 1970. */
import type { ObjectName, StoredObject } from './ports.js';

/** A blob's row. Its states, and who moves it from one to the next: README.md. */
export interface BlobRow {
  /** Bytes, as declared. */
  readonly size: number;
  readonly state: 'reserved' | 'ready' | 'orphan' | 'dying';
  /** So long is its upload URL good. */
  readonly expiresAt: number;
}

/** Room for an upload. */
export interface Reservation extends ObjectName {
  /** The device that asks. */
  readonly by: string;
  readonly size: number;
  readonly contentType: string;
  /** Bytes that the tenant may hold; 0: any. */
  readonly cap: number;
  /** Reservations that the tenant may have open at once. */
  readonly openMax: number;
  readonly now: number;
  readonly expiresAt: number;
  /** So long its upload counts as under way, though nobody tells of it; 0: the server sees it, and will say so. */
  readonly uploadingUntil: number;
}

/** How a reservation ended. `cap`: it would pass the cap. `too_many`: so many are open already. */
export type ReserveVerdict = 'ok' | 'cap' | 'too_many' | 'device_revoked' | 'tenant_not_found';

/**
 * Which rows are taken next: those that were tried longest ago, at most `limit`, and none that was tried since `since`;
 * they count as tried at `now`. So what a store refuses keeps nothing else from its turn, in this run and in the next.
 */
export interface Turn {
  readonly since: number;
  readonly now: number;
  readonly limit: number;
}

/** Blobs that nobody may name any more, and that a store was asked to remove in vain so far. */
export interface Unremoved {
  readonly count: number;
  readonly bytes: number;
}

/** The table of blobs. Every call throws `unavailable` while the database is down. */
export interface BlobRows {
  /** Adds the row, and its size to the tenant's storage, under the tenant's lock. */
  reserve(reservation: Reservation): Promise<ReserveVerdict>;
  find(name: ObjectName): Promise<BlobRow | undefined>;
  /** Its object is there with this size. False: it is not reserved (any more), or its size is another. */
  markReady(name: ObjectName, size: number): Promise<boolean>;
  /**
   * An upload of a reserved blob is under way until then. False: it is not reserved, or its URL was out of time at `now`
   * (null: not asked).
   */
  uploading(name: ObjectName, until: number, now: number | null): Promise<boolean>;
  /** Reservations whose URL is out of time and whose upload is not under way; of one tenant, or of all (null). */
  takeExpired(tenantId: string | null, turn: Turn): Promise<(ObjectName & { readonly size: number })[]>;
  /** Marks such a reservation as dying. False: it is none any more. */
  giveUp(name: ObjectName, now: number): Promise<boolean>;
  /** Marks blobs that nobody uses, and that no item took before then, as dying; gives them, and those that are dying. */
  takeUnused(before: number, turn: Turn): Promise<ObjectName[]>;
  unremoved(): Promise<Unremoved>;
  /** Removes rows that are dying, and their sizes from the tenants' storage. Gives their number. */
  free(names: readonly ObjectName[]): Promise<number>;
}

/** An object that no row names. */
export interface Stray extends ObjectName {
  readonly size: number;
  /** Its tenant is here, or was: else it is somebody else's, and stays. */
  readonly ours: boolean;
}

/** A blob whose object is not there, or has another size than its row. */
export interface Missing extends ObjectName {
  readonly size: number;
  /** The item that names it; null: none does. */
  readonly itemId: string | null;
}

/** A listing of the store beside the rows, held by the database: it may be longer than the memory is large. */
export interface BlobAudit {
  /** A page of the listing. */
  add(page: readonly StoredObject[]): Promise<void>;
  /** Objects that were last changed before then and have no row; each is given once. */
  takeStrays(before: number, limit: number): Promise<Stray[]>;
  /** Ready blobs, older than `before`, that were not listed with their size; those after a name, in order of names. */
  missing(before: number, after: ObjectName, limit: number): Promise<Missing[]>;
  close(): Promise<void>;
}
