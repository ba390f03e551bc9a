/** Blobs in PostgreSQL (sql/0010_blobs.sql). */
import type pg from 'pg';
import type { ObjectName } from '../../blobs/ports.js';
import type { BlobRow, BlobRows, Reservation, ReserveVerdict } from '../../blobs/rows.js';
import { ask, askOne } from '../ask.js';

/** A name out of a row that has its columns. */
const NAME = 'tenant_id AS "tenantId", ref';

/** The blobs of all tenants. What changes the accounting is one call of one function, under the tenant's lock. */
export class BlobStore implements BlobRows {
  constructor(private readonly pool: pg.Pool) {}

  async reserve(reservation: Reservation): Promise<ReserveVerdict> {
    const { tenantId, by, ref, size, contentType, cap, openMax, now, expiresAt } = reservation;
    const row = await askOne<{ verdict: ReserveVerdict }>(this.pool, {
      text: 'SELECT reserve_blob($1, $2, $3, $4, $5, $6, $7, $8, $9) AS verdict',
      values: [tenantId, by, ref, size, contentType, cap, openMax, now, expiresAt],
    });
    return row.verdict;
  }

  async find({ tenantId, ref }: ObjectName): Promise<BlobRow | undefined> {
    const [row] = await ask<BlobRow>(this.pool, {
      text: 'SELECT size, state, expires_at AS "expiresAt" FROM blobs WHERE tenant_id = $1 AND ref = $2',
      values: [tenantId, ref],
      readOnly: true,
    });
    return row;
  }

  // The states of a blob that no item names change without the tenant's lock: each of these changes asks for the state
  // that it comes from, so that of two only one is done, and none changes what a commit counts.

  async markReady({ tenantId, ref }: ObjectName, size: number): Promise<boolean> {
    return this.changed(
      `UPDATE blobs SET state = 'ready' WHERE tenant_id = $1 AND ref = $2 AND size = $3 AND state = 'reserved'`,
      [tenantId, ref, size],
    );
  }

  async uploading({ tenantId, ref }: ObjectName, until: number, now: number | null): Promise<boolean> {
    return this.changed(
      `UPDATE blobs SET uploading_until = greatest(uploading_until, $3)
        WHERE tenant_id = $1 AND ref = $2 AND state = 'reserved' AND ($4::bigint IS NULL OR expires_at > $4)`,
      [tenantId, ref, until, now],
    );
  }

  expired(tenantId: string | null, now: number, limit: number): Promise<(ObjectName & { readonly size: number })[]> {
    return ask(this.pool, {
      text: `SELECT ${NAME}, size FROM blobs
        WHERE state = 'reserved' AND expires_at <= $2 AND uploading_until <= $2 AND ($1::text IS NULL OR tenant_id = $1)
        ORDER BY tenant_id, expires_at LIMIT $3`,
      values: [tenantId, now, limit],
    });
  }

  async giveUp({ tenantId, ref }: ObjectName, now: number): Promise<boolean> {
    return this.changed(
      `UPDATE blobs SET state = 'dying'
        WHERE tenant_id = $1 AND ref = $2 AND state = 'reserved' AND expires_at <= $3 AND uploading_until <= $3`,
      [tenantId, ref, now],
    );
  }

  takeUnused(before: number, limit: number): Promise<ObjectName[]> {
    return ask(this.pool, { text: `SELECT ${NAME} FROM take_unused_blobs($1, $2)`, values: [before, limit] });
  }

  async free(names: readonly ObjectName[]): Promise<number> {
    if (names.length === 0) return 0;
    const row = await askOne<{ freed: number }>(this.pool, {
      text: 'SELECT free_blobs($1, $2) AS freed',
      values: [names.map(({ tenantId }) => tenantId), names.map(({ ref }) => ref)],
    });
    return row.freed;
  }

  private async changed(text: string, values: readonly unknown[]): Promise<boolean> {
    return (await ask(this.pool, { text: `${text} RETURNING 1`, values })).length > 0;
  }
}
