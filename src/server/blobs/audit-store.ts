/** A listing of the object store in a temporary table, compared with the rows (sql/0010_blobs.sql). */
import type pg from 'pg';
import type { ObjectName, StoredObject } from './ports.js';
import type { BlobAudit, Missing, Stray } from './rows.js';
import { TemporaryTable } from '../storage/temporary-table.js';

/** See `BlobAudit`. It has a connection of the pool to itself until it is closed. */
export class PostgresBlobAudit extends TemporaryTable implements BlobAudit {
  /** Throws `unavailable`. */
  static async open(pool: pg.Pool): Promise<PostgresBlobAudit> {
    return new PostgresBlobAudit(await TemporaryTable.make(pool, 'listed', 'size bigint, modified_at bigint'));
  }

  async add(page: readonly StoredObject[]): Promise<void> {
    await this.ask(
      'INSERT INTO listed SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) ON CONFLICT DO NOTHING',
      [
        page.map(({ tenantId }) => tenantId),
        page.map(({ ref }) => ref),
        page.map(({ size }) => size),
        page.map(({ modifiedAt }) => modifiedAt),
      ],
    );
  }

  takeStrays(before: number, limit: number): Promise<Stray[]> {
    return this.ask<Stray>(
      `WITH stray AS (
        SELECT l.tenant_id, l.ref FROM listed l
        WHERE l.modified_at < $1
          AND NOT EXISTS (SELECT 1 FROM blobs b WHERE b.tenant_id = l.tenant_id AND b.ref = l.ref)
        LIMIT $2
      )
      DELETE FROM listed l USING stray s WHERE l.tenant_id = s.tenant_id AND l.ref = s.ref
      RETURNING l.tenant_id AS "tenantId", l.ref, l.size,
        EXISTS (SELECT 1 FROM tenants t WHERE t.id = l.tenant_id)
          OR EXISTS (SELECT 1 FROM gone_tenants g WHERE g.tenant_id = l.tenant_id) AS ours`,
      [before, limit],
    );
  }

  missing(before: number, after: ObjectName, limit: number): Promise<Missing[]> {
    return this.ask<Missing>(
      `SELECT b.tenant_id AS "tenantId", b.ref, b.size, i.id AS "itemId" FROM blobs b
      LEFT JOIN items i ON i.tenant_id = b.tenant_id AND i.id = b.item_id AND i.blob_ref = b.ref
      WHERE b.state = 'ready' AND b.created_at < $1 AND (b.tenant_id, b.ref) > ($2, $3)
        AND NOT EXISTS (
          SELECT 1 FROM listed l WHERE l.tenant_id = b.tenant_id AND l.ref = b.ref AND l.size = b.size
        )
      ORDER BY b.tenant_id, b.ref LIMIT $4`,
      [before, after.tenantId, after.ref, limit],
    );
  }
}
