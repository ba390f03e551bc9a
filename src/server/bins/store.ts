/** Bins in PostgreSQL (sql/0005_bins.sql). */
import type {
  BinBatch,
  BinChanged,
  BinClosing,
  BinList,
  BinPatch,
  BinRecord,
  BinStore as BinStorePort,
  NewBin,
} from './ports.js';
import { Store } from '../storage/ask.js';

type Created = Awaited<ReturnType<BinStorePort['create']>>;
type Patched = Awaited<ReturnType<BinStorePort['patch']>>;
type CloseVerdict = Awaited<ReturnType<BinStorePort['close']>>;

/** Columns of a bin out of `from`: an alias, or a value of the row's type in parentheses. */
const columns = (from: string): string =>
  `${from}.id, ${from}.slug, ${from}.meta, ${from}.created_at AS "createdAt", ${from}.updated_at AS "updatedAt"`;

/** A function's row: the bin's columns are set with `ok`. */
type ChangeRow<Verdict extends string> = BinRecord & { readonly verdict: Verdict };

function changed<Refusal extends string>(row: ChangeRow<'ok' | Refusal>): BinChanged<Refusal> {
  const { id, slug, meta, createdAt, updatedAt, itemCount } = row;
  if (row.verdict !== 'ok') return { verdict: row.verdict };
  return { verdict: 'ok', bin: { id, slug, meta, createdAt, updatedAt, itemCount } };
}

/** The bins of all tenants. Whatever changes one is one call of one function, which decides under the tenant's lock. */
export class BinStore extends Store implements BinStorePort {
  async bins(tenantId: string): Promise<BinList> {
    const rows = await this.rows<BinRecord & { closing: boolean }>(
      `SELECT ${columns('b')}, coalesce(n.count, 0) AS "itemCount", b.closed_at IS NOT NULL AS closing FROM bins b
        LEFT JOIN (
          SELECT bin_id, count(*) FROM items
          WHERE tenant_id = $1 AND version > 0 AND deleted_at IS NULL GROUP BY bin_id
        ) n ON n.bin_id = b.id
        WHERE b.tenant_id = $1 AND b.deleted_at IS NULL ORDER BY b.created_at, b.id`,
      [tenantId],
    );
    return {
      bins: rows.map(({ id, slug, meta, createdAt, updatedAt, itemCount }) => {
        return { id, slug, meta, createdAt, updatedAt, itemCount };
      }),
      closed: rows.filter(({ closing }) => closing).map(({ id }) => id),
    };
  }

  async create(bin: NewBin): Promise<Created> {
    return changed(
      await this.one<ChangeRow<Created['verdict']>>(
        `SELECT f.verdict, ${columns('(f.bin)')}, 0 AS "itemCount"
          FROM create_bin($1, $2, $3, $4, $5, $6, $7) f`,
        [bin.tenantId, bin.id, bin.by, bin.slug, bin.meta, bin.maxBins, bin.now],
      ),
    );
  }

  async patch(patch: BinPatch): Promise<Patched> {
    const { tenantId, id, by, slug, meta, now } = patch;
    return changed(
      await this.one<ChangeRow<Patched['verdict']>>(
        `SELECT f.verdict, ${columns('(f.bin)')}, f.item_count AS "itemCount"
          FROM patch_bin($1, $2, $3, $4, $5, $6, $7) f`,
        [tenantId, id, by, slug ?? null, meta !== undefined, meta ?? null, now],
      ),
    );
  }

  async close({ tenantId, id, by, force, now }: BinClosing): Promise<CloseVerdict> {
    return this.value<CloseVerdict>('SELECT * FROM close_bin($1, $2, $3, $4, $5)', [tenantId, id, by, force, now]);
  }

  async deleteItems({ tenantId, id, by, after, limit, now }: BinBatch): ReturnType<BinStorePort['deleteItems']> {
    return this.one<{ deleted: number; last: number; done: boolean }>(
      'SELECT * FROM delete_bin_items($1, $2, $3, $4, $5, $6)',
      [tenantId, id, after, limit, now, by],
    );
  }
}
