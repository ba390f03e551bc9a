/** What bins need from outside: PostgreSQL in the server. Every call is one statement. */

/** A bin as it is stored. Times are milliseconds since 1970. */
export interface BinRecord {
  readonly id: string;
  readonly slug: string;
  /** Opaque to the server, at most 4 KiB. */
  readonly meta: Uint8Array | null;
  readonly createdAt: number;
  readonly updatedAt: number;
  /** Live items. */
  readonly itemCount: number;
}

/** The bins of a tenant that are not deleted. */
export interface BinList {
  /** Oldest first; one that is being deleted is among them. */
  readonly bins: BinRecord[];
  /** Ids of those that are closed: their deletion has begun and is not finished. */
  readonly closed: readonly string[];
}

/** A change of a bin, with the device that asks for it: one that was revoked meanwhile is refused. */
export interface BinCall {
  readonly tenantId: string;
  readonly id: string;
  /** The device that asks. */
  readonly by: string;
  readonly now: number;
}

/** A bin to be made. */
export interface NewBin extends BinCall {
  readonly slug: string;
  readonly meta: Uint8Array | null;
  readonly maxBins: number;
}

/** Fields that are undefined stay as they are; a null meta is removed. */
export interface BinPatch extends BinCall {
  readonly slug?: string;
  readonly meta?: Uint8Array | null;
}

/** First step of a deletion. */
export interface BinClosing extends BinCall {
  /** Also with live items. */
  readonly force: boolean;
}

/** Items to be deleted under one hold of the tenant's lock. */
export interface BinBatch {
  readonly tenantId: string;
  readonly id: string;
  /** The device whose change it is; null: nobody's, where a deletion that was cut short goes on. */
  readonly by: string | null;
  /** Only items above this version. */
  readonly after: number;
  readonly limit: number;
  readonly now: number;
}

/** The bin as it was committed, or a refusal by the error catalogue's name. */
export type BinChanged<Refusal extends string> =
  { readonly verdict: 'ok'; readonly bin: BinRecord } | { readonly verdict: Refusal };

/** Bins as the service reads and changes them. All calls throw `unavailable` when the database is out of reach. */
export interface BinStore {
  bins(tenantId: string): Promise<BinList>;
  create(
    bin: NewBin,
  ): Promise<BinChanged<'tenant_not_found' | 'device_revoked' | 'conflict' | 'slug_taken' | 'bin_limit'>>;
  patch(patch: BinPatch): Promise<BinChanged<'bin_not_found' | 'device_revoked' | 'slug_taken'>>;
  /** `deleted`: it was empty. `closed`: it takes no more writes, and its items have to go. `conflict`: it holds items. */
  close(closing: BinClosing): Promise<'deleted' | 'closed' | 'conflict' | 'bin_not_found' | 'device_revoked'>;
  /**
   * Deletes up to `limit` items of a closed bin above the version `after`; with the last of them the bin itself.
   * `last`: where the next batch goes on. `done`: nothing is left.
   */
  deleteItems(batch: BinBatch): Promise<{ readonly deleted: number; readonly last: number; readonly done: boolean }>;
}
