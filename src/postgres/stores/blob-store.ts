/** Blobs in PostgreSQL (sql/0010_blobs.sql). */
import type pg from 'pg';
import type { ObjectName } from '../../blobs/ports.js';
import type { BlobRow, BlobRows, Reservation, ReserveVerdict, Turn, Unremoved } from '../../blobs/rows.js';
import { ask, askOne } from '../ask.js';

/** The blobs of all tenants. What changes the accounting is one call of one function, under the tenant's lock. */
export class BlobStore implements BlobRows {
  constructor(private readonly pool: pg.Pool) {}

  async reserve(reservation: Reservation): Promise<ReserveVerdict> {
    const { tenantId, by, ref, size, contentType, cap, openMax, now, expiresAt, uploadingUntil } = reservation;
    const row = await askOne<{ verdict: ReserveVerdict }>(this.pool, {
      text: 'SELECT reserve_blob($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) AS verdict',
      values: [tenantId, by, ref, size, contentType, cap, openMax, now, expiresAt, uploadingUntil],
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

  takeExpired(
    tenantId: string | null,
    { since, now, limit }: Turn,
  ): Promise<(ObjectName & { readonly size: number })[]> {
    return ask(this.pool, {
      // Rows that somebody changes just now are left out: two of these would wait for one another otherwise.
      text: `WITH due AS (
          SELECT tenant_id, ref FROM blobs
          WHERE state = 'reserved' AND expires_at <= $2 AND uploading_until <= $2
            AND ($1::text IS NULL OR tenant_id = $1) AND (tried_at < $3 OR tried_at > $2)
          ORDER BY tried_at, expires_at LIMIT $4 FOR UPDATE SKIP LOCKED
        )
        UPDATE blobs b SET tried_at = $2 FROM due d WHERE b.tenant_id = d.tenant_id AND b.ref = d.ref
        RETURNING b.tenant_id AS "tenantId", b.ref, b.size`,
      values: [tenantId, now, since, limit],
    });
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
    return ask(this.pool, { text, values: [before, since, now, limit] });
  }

  unremoved(): Promise<Unremoved> {
    const text = `SELECT count(*)::integer AS count, coalesce(sum(size), 0)::bigint AS bytes
      FROM blobs WHERE state = 'dying' AND tried_at > 0`;
    return askOne(this.pool, { text, values: [] });
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
