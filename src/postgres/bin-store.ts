/** Bins in PostgreSQL (sql/0005_bins.sql). */
import type pg from 'pg';
import type { BinPatch, BinRecord, BinStore as BinStorePort, NewBin } from '../bins/ports.js';
import { ask, askOne } from './ask.js';

type CreateVerdict = Awaited<ReturnType<BinStorePort['create']>>;
type PatchVerdict = Awaited<ReturnType<BinStorePort['patch']>>;
type CloseVerdict = Awaited<ReturnType<BinStorePort['close']>>;

const COLUMNS = 'b.id, b.slug, b.meta, b.created_at AS "createdAt", b.updated_at AS "updatedAt"';

export class BinStore implements BinStorePort {
  constructor(private readonly pool: pg.Pool) {}

  bins(tenantId: string): Promise<BinRecord[]> {
    return ask<BinRecord>(this.pool, {
      text: `SELECT ${COLUMNS}, coalesce(n.count, 0) AS "itemCount" FROM bins b
        LEFT JOIN (
          SELECT bin_id, count(*) FROM items
          WHERE tenant_id = $1 AND version > 0 AND deleted_at IS NULL GROUP BY bin_id
        ) n ON n.bin_id = b.id
        WHERE b.tenant_id = $1 AND b.deleted_at IS NULL ORDER BY b.created_at, b.id`,
      values: [tenantId],
    });
  }

  async bin(tenantId: string, id: string): Promise<BinRecord | undefined> {
    const [row] = await ask<BinRecord>(this.pool, {
      text: `SELECT ${COLUMNS}, (
          SELECT count(*) FROM items i
          WHERE i.tenant_id = $1 AND i.version > 0 AND i.bin_id = b.id AND i.deleted_at IS NULL
        ) AS "itemCount"
        FROM bins b WHERE b.tenant_id = $1 AND b.id = $2 AND b.deleted_at IS NULL`,
      values: [tenantId, id],
    });
    return row;
  }

  async create(bin: NewBin): Promise<CreateVerdict> {
    const row = await askOne<{ verdict: CreateVerdict }>(this.pool, {
      text: 'SELECT * FROM create_bin($1, $2, $3, $4, $5, $6)',
      values: [bin.tenantId, bin.id, bin.slug, bin.meta, bin.maxBins, bin.now],
    });
    return row.verdict;
  }

  async patch(patch: BinPatch): Promise<PatchVerdict> {
    const row = await askOne<{ verdict: PatchVerdict }>(this.pool, {
      text: 'SELECT * FROM patch_bin($1, $2, $3, $4, $5, $6)',
      values: [patch.tenantId, patch.id, patch.slug ?? null, patch.meta !== undefined, patch.meta ?? null, patch.now],
    });
    return row.verdict;
  }

  async close({ tenantId, id, force, now }: Parameters<BinStorePort['close']>[0]): Promise<CloseVerdict> {
    const row = await askOne<{ verdict: CloseVerdict }>(this.pool, {
      text: 'SELECT * FROM close_bin($1, $2, $3, $4)',
      values: [tenantId, id, force, now],
    });
    return row.verdict;
  }

  async deleteItems({
    tenantId,
    id,
    after,
    limit,
    now,
  }: Parameters<BinStorePort['deleteItems']>[0]): ReturnType<BinStorePort['deleteItems']> {
    return askOne<{ deleted: number; last: number; done: boolean }>(this.pool, {
      text: 'SELECT * FROM delete_bin_items($1, $2, $3, $4, $5, NULL)',
      values: [tenantId, id, after, limit, now],
    });
  }
}
