/** Bins in PostgreSQL (sql/0005_bins.sql). */
import type { ErrorName } from '../../protocol/errors.js';
import { DELETED_BINS_MAX } from '../../protocol/limits.js';
import type { Bin } from '../../protocol/replies.js';
import { Store, type DeviceCall, type Outcome } from '../storage/query.js';

type BinRecord = Bin<Uint8Array>;

type BinCall = DeviceCall & { readonly now: number };

/** A closed bin that is deleted. `by`: the device whose change it is; null for a deletion that is resumed. */
export interface EmptiedBin extends Pick<BinCall, 'tenantId' | 'id'> {
  readonly by: string | null;
}

/** Deleted bins that are removed with the making of one. */
const FORGOTTEN_AT_ONCE = 500;

export type BinOutcome = Outcome<BinRecord>;

/** Columns of a bin out of `from`: an alias, or a value of the row's type in parentheses. */
const columns = (from: string): string =>
  `${from}.id, ${from}.slug, ${from}.meta, ${from}.created_at AS "createdAt", ${from}.updated_at AS "updatedAt"`;

/** Only the fields of the bin, without other columns of the row. */
export function binOf({ id, slug, meta, createdAt, updatedAt, itemCount }: BinRecord): BinRecord {
  return { id, slug, meta, createdAt, updatedAt, itemCount };
}

/**
 * The bins of all tenants. Every call is one statement; those that change a bin call one function, which decides under
 * the tenant's lock. All throw `unavailable` when the database is out of reach.
 */
export class BinStore extends Store {
  /** Oldest first, with those that are being deleted. `closed`: ids of bins whose deletion has begun. */
  async bins(tenantId: string): Promise<{ readonly bins: BinRecord[]; readonly closed: readonly string[] }> {
    const rows = await this.rows<BinRecord & { closing: boolean }>(
      `SELECT ${columns('b')}, coalesce(n.count, 0) AS "itemCount", b.closed_at IS NOT NULL AS closing FROM bins b
        LEFT JOIN (
          SELECT bin_id, count(*) FROM items
          WHERE tenant_id = $1 AND version > 0 AND deleted_at IS NULL GROUP BY bin_id
        ) n ON n.bin_id = b.id
        WHERE b.tenant_id = $1 AND b.deleted_at IS NULL ORDER BY b.created_at, b.id`,
      [tenantId],
    );
    return { bins: rows.map(binOf), closed: rows.filter(({ closing }) => closing).map(({ id }) => id) };
  }

  /** Makes a bin. `conflict`: the id is in use; `bin_limit`: the tenant has `maxBins`. */
  async create(
    bin: BinCall & { slug: string; meta: Uint8Array | null; maxBins: number },
  ): Promise<BinOutcome | { readonly verdict: 'bin_limit' }> {
    await this.forgetDeleted(bin.tenantId);
    return this.one(
      `SELECT f.verdict, ${columns('(f.bin)')}, 0 AS "itemCount"
          FROM create_bin($1, $2, $3, $4, $5, $6, $7) f`,
      [bin.tenantId, bin.id, bin.by, bin.slug, bin.meta, bin.maxBins, bin.now],
    );
  }

  /**
   * Removes deleted bins but the latest: a device that makes and deletes bins would otherwise fill the database, beyond
   * any cap (BIN-19). Without the tenant's lock: a bin that is made again meanwhile is not deleted any more, and stays.
   */
  private async forgetDeleted(tenantId: string): Promise<void> {
    await this.rows(
      `DELETE FROM bins b WHERE b.tenant_id = $1 AND b.deleted_at IS NOT NULL AND b.id = ANY (ARRAY(
          SELECT d.id FROM bins d WHERE d.tenant_id = $1 AND d.deleted_at IS NOT NULL
          ORDER BY d.changed_at_generation DESC OFFSET ${DELETED_BINS_MAX} LIMIT ${FORGOTTEN_AT_ONCE}))`,
      [tenantId],
    );
  }

  /**
   * An undefined slug or meta stays as it is; a null meta is removed. Items are counted before the change and without
   * the tenant's lock, which writes need: a change that is stored must not fail for a count.
   */
  async patch(patch: BinCall & { slug: string | undefined; meta: Uint8Array | null | undefined }): Promise<BinOutcome> {
    const { tenantId, id, by, slug, meta, now } = patch;
    const { itemCount } = await this.one<{ itemCount: number }>(
      `SELECT count(*) AS "itemCount" FROM items
        WHERE tenant_id = $1 AND version > 0 AND bin_id = $2 AND deleted_at IS NULL`,
      [tenantId, id],
    );
    const outcome = await this.one<BinOutcome>(
      `SELECT f.verdict, ${columns('(f.bin)')} FROM change_bin($1, $2, $3, $4, $5, $6, $7) f`,
      [tenantId, id, by, slug ?? null, meta !== undefined, meta ?? null, now],
    );
    return outcome.verdict === 'ok' ? { ...outcome, itemCount } : outcome;
  }

  /**
   * First step of a deletion; `force`: also with live items. `deleted`: the bin was empty. `closed`: it accepts no more
   * writes, and its items have to be deleted. `conflict`: it holds items.
   */
  close(closing: BinCall & { force: boolean }): Promise<'deleted' | 'closed' | ErrorName> {
    const { tenantId, id, by, force, now } = closing;
    return this.value('close_bin', tenantId, id, by, force, now);
  }

  /**
   * Deletes up to `limit` items of a closed bin above the version `after`, and with the last of them the bin itself.
   * `last`: the `after` of the next batch. `done`: nothing is left.
   */
  deleteItems(
    batch: EmptiedBin & { after: number; limit: number; now: number },
  ): Promise<{ readonly last: number; readonly done: boolean }> {
    const { tenantId, id, by, after, limit, now } = batch;
    return this.call('delete_bin_items', tenantId, id, after, limit, now, by);
  }
}
