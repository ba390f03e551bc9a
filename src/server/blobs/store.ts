/** Blobs in PostgreSQL (sql/0010_blobs.sql). */
import type { ObjectName } from './ports.js';
import type { BlobRow, BlobRows, Reservation, ReserveVerdict, Turn, Unremoved } from './rows.js';
import { Store } from '../storage/ask.js';

/** The blobs of all tenants. What changes the accounting is one call of one function, under the tenant's lock. */
export class BlobStore extends Store implements BlobRows {
  async reserve(reservation: Reservation): Promise<ReserveVerdict> {
    const { tenantId, by, ref, size, contentType, cap, openMax, now, expiresAt, uploadingUntil } = reservation;
    const values = [tenantId, by, ref, size, contentType, cap, openMax, now, expiresAt, uploadingUntil];
    return this.value<ReserveVerdict>(
      'SELECT reserve_blob($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) AS verdict',
      values,
    );
  }

  async find({ tenantId, ref }: ObjectName): Promise<BlobRow | undefined> {
    const text = 'SELECT size, state, expires_at AS "expiresAt" FROM blobs WHERE tenant_id = $1 AND ref = $2';
    return this.first<BlobRow>(text, [tenantId, ref], { readOnly: true });
  }

  // The states of a blob that no item names change without the tenant's lock: each of these changes asks for the state
  // that it comes from, so that of two only one is done, and none changes what a commit counts.

  async markReady({ tenantId, ref }: ObjectName, size: number): Promise<boolean> {
    const text = `UPDATE blobs SET state = 'ready' WHERE tenant_id = $1 AND ref = $2 AND size = $3 AND state = 'reserved'`;
    return this.changed(text, [tenantId, ref, size]);
  }

  async uploading({ tenantId, ref }: ObjectName, until: number, now: number | null): Promise<boolean> {
    return this.changed(
      `UPDATE blobs SET uploading_until = greatest(uploading_until, $3)
        WHERE tenant_id = $1 AND ref = $2 AND state = 'reserved' AND ($4::bigint IS NULL OR expires_at > $4)`,
      [tenantId, ref, until, now],
    );
  }

  takeExpired(
    tenantId: string | null,
    { since, now, limit }: Turn,
  ): Promise<(ObjectName & { readonly size: number })[]> {
    return this.rows(
      // Rows that somebody changes just now are left out: two of these would wait for one another otherwise.
      `WITH due AS (
          SELECT tenant_id, ref FROM blobs
          WHERE state = 'reserved' AND expires_at <= $2 AND uploading_until <= $2
            AND ($1::text IS NULL OR tenant_id = $1) AND (tried_at < $3 OR tried_at > $2)
          ORDER BY tried_at, expires_at LIMIT $4 FOR UPDATE SKIP LOCKED
        )
        UPDATE blobs b SET tried_at = $2 FROM due d WHERE b.tenant_id = d.tenant_id AND b.ref = d.ref
        RETURNING b.tenant_id AS "tenantId", b.ref, b.size`,
      [tenantId, now, since, limit],
    );
  }

  async giveUp({ tenantId, ref }: ObjectName, now: number): Promise<boolean> {
    return this.changed(
      `UPDATE blobs SET state = 'dying'
        WHERE tenant_id = $1 AND ref = $2 AND state = 'reserved' AND expires_at <= $3 AND uploading_until <= $3`,
      [tenantId, ref, now],
    );
  }

  takeUnused(before: number, { since, now, limit }: Turn): Promise<ObjectName[]> {
    const text = 'SELECT tenant_id AS "tenantId", ref FROM take_unused_blobs($1, $2, $3, $4)';
    return this.rows(text, [before, since, now, limit]);
  }

  unremoved(): Promise<Unremoved> {
    const text = `SELECT count(*)::integer AS count, coalesce(sum(size), 0)::bigint AS bytes
      FROM blobs WHERE state = 'dying' AND tried_at > 0`;
    return this.one(text);
  }

  async free(names: readonly ObjectName[]): Promise<number> {
    if (names.length === 0) return 0;
    const values = [names.map(({ tenantId }) => tenantId), names.map(({ ref }) => ref)];
    return this.value<number>('SELECT free_blobs($1, $2) AS freed', values);
  }

  private async changed(text: string, values: readonly unknown[]): Promise<boolean> {
    return (await this.rows(`${text} RETURNING 1`, values)).length > 0;
  }
}
