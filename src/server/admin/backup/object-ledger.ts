/** The list of objects of a backup in a temporary table, while a bucket is compared with it (src/server/admin/backup/compare.ts). */
import type pg from 'pg';
import type { Lost, LostObject, ObjectLedger } from './compare.js';
import type { ListedObject } from './ports.js';
import { TemporaryTable } from '../../storage/temporary-table.js';

interface RecordedRow {
  readonly tenantId: string;
  readonly ref: string;
  readonly size: number;
  readonly checksum: Readonly<Record<string, string>> | null;
}

/** See `ObjectLedger`. It has a connection of the pool to itself until it is closed. */
export class PostgresObjectLedger extends TemporaryTable implements ObjectLedger {
  /** Throws `unavailable`. */
  static async open(pool: pg.Pool): Promise<PostgresObjectLedger> {
    return new PostgresObjectLedger(await TemporaryTable.make(pool, 'recorded', 'size bigint, checksum json'));
  }

  async add(objects: readonly ListedObject[]): Promise<void> {
    await this.ask(
      `INSERT INTO recorded SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::json[])
       ON CONFLICT DO NOTHING`,
      [
        objects.map(({ tenantId }) => tenantId),
        objects.map(({ ref }) => ref),
        objects.map(({ size }) => size),
        objects.map(({ checksum }) => (checksum === undefined ? null : JSON.stringify(checksum))),
      ],
    );
  }

  async take(page: readonly ListedObject[]): Promise<readonly ListedObject[]> {
    const rows = await this.ask<RecordedRow>(
      `DELETE FROM recorded r USING unnest($1::text[], $2::text[]) AS p (tenant_id, ref)
       WHERE r.tenant_id = p.tenant_id AND r.ref = p.ref
       RETURNING r.tenant_id AS "tenantId", r.ref, r.size, r.checksum`,
      [page.map(({ tenantId }) => tenantId), page.map(({ ref }) => ref)],
    );
    return rows.map(listedOf);
  }

  async left(examples: number): Promise<Lost> {
    const withItems = `recorded r
      LEFT JOIN blobs b ON b.tenant_id = r.tenant_id AND b.ref = r.ref AND b.state = 'ready'
      LEFT JOIN items i ON i.tenant_id = b.tenant_id AND i.id = b.item_id AND i.blob_ref = b.ref`;
    const [counts] = await this.ask<{ readonly count: number; readonly named: number }>(
      `SELECT count(*) AS count, count(i.id) AS named FROM ${withItems}`,
      [],
    );
    const rows = await this.ask<RecordedRow & { readonly itemId: string | null }>(
      `SELECT r.tenant_id AS "tenantId", r.ref, r.size, r.checksum, i.id AS "itemId" FROM ${withItems}
       ORDER BY i.id IS NULL, r.tenant_id, r.ref LIMIT $1`,
      [examples],
    );
    const lost: LostObject[] = rows.map((row) => ({ ...listedOf(row), itemId: row.itemId }));
    return { count: counts?.count ?? 0, named: counts?.named ?? 0, examples: lost };
  }
}

const listedOf = ({ tenantId, ref, size, checksum }: RecordedRow): ListedObject =>
  checksum === null ? { tenantId, ref, size } : { tenantId, ref, size, checksum };
