/** What bins need from outside: PostgreSQL in the server. Every call is one statement (contract 13). */

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

export interface NewBin {
  readonly tenantId: string;
  readonly id: string;
  readonly slug: string;
  readonly meta: Uint8Array | null;
  readonly maxBins: number;
  readonly now: number;
}

/** Fields that are undefined stay as they are; a null meta is removed. */
export interface BinPatch {
  readonly tenantId: string;
  readonly id: string;
  readonly slug?: string;
  readonly meta?: Uint8Array | null;
  readonly now: number;
}

export interface BinStore {
  /** Bins that are not deleted, oldest first; one that is being deleted is among them. */
  bins(tenantId: string): Promise<BinRecord[]>;
  bin(tenantId: string, id: string): Promise<BinRecord | undefined>;
  create(bin: NewBin): Promise<'ok' | 'tenant_not_found' | 'conflict' | 'slug_taken' | 'bin_limit'>;
  patch(patch: BinPatch): Promise<'ok' | 'bin_not_found' | 'slug_taken'>;
  /** `deleted`: it was empty. `closed`: it takes no more writes, and its items have to go. `conflict`: it holds items. */
  close(closing: {
    readonly tenantId: string;
    readonly id: string;
    readonly force: boolean;
    readonly now: number;
  }): Promise<'deleted' | 'closed' | 'conflict' | 'bin_not_found'>;
  /**
   * Deletes up to `limit` items of a closed bin above the version `after`; with the last of them the bin itself.
   * `last`: where the next batch goes on. `done`: nothing is left.
   */
  deleteItems(batch: {
    readonly tenantId: string;
    readonly id: string;
    readonly after: number;
    readonly limit: number;
    readonly now: number;
  }): Promise<{ readonly deleted: number; readonly last: number; readonly done: boolean }>;
}
