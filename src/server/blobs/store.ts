/** Blobs in PostgreSQL (sql/0010_blobs.sql). Times are milliseconds since 1970, sizes bytes. */
import { UPLOAD_LIFE_MS, UPLOAD_PAUSE_MS } from '../../protocol/limits.js';
import type { BlobName } from '../../protocol/ids.js';
import { byColumn, Store, TemporaryTable } from '../storage/query.js';
import type { OpenUpload, StoredObject, UploadGrant } from './ports.js';

/** A blob's row. README.md has its states and their transitions. Size and type are those declared for the upload. */
export interface BlobRow extends OpenUpload {
  readonly state: 'reserved' | 'ready' | 'orphan' | 'dying';
  /** When its upload URL expires, or from when on an upload in parts may no longer be continued. */
  readonly expiresAt: number;
}

/** Columns of an upload, of the table `b`. */
const UPLOAD = `b.tenant_id AS "tenantId", b.ref, b.size, b.content_type AS "contentType", b.session, b.kept`;

export interface Reservation extends BlobName, UploadGrant {
  readonly by: string;
  /** Bytes that the tenant may hold; 0: unlimited. */
  readonly cap: number;
  /** Reservations that the tenant may have open at once; ten times as many blobs may be without an item. */
  readonly openMax: number;
  /** Until then the upload counts as under way without reports; 0: it passes through this server, which reports it. */
  readonly uploadingUntil: number;
}

/** Result of a reservation. `cap`: it would exceed the cap. `too_many`: see `Reservation.openMax`. */
export type ReserveVerdict = 'ok' | 'cap' | 'too_many' | 'device_revoked' | 'tenant_not_found';

/**
 * Which rows are taken next: at most `limit`, the least recently tried first, none tried since `since`; `now` is
 * recorded as the time of the attempt. So a blob that the store refuses delays no other, in this run or the next.
 */
export interface Turn {
  readonly since: number;
  readonly now: number;
  readonly limit: number;
}

/** Blobs that no item may name any more and that the store has failed to remove so far. */
export interface Unremoved {
  readonly count: number;
  readonly bytes: number;
}

/**
 * The blobs of all tenants. Every call throws `unavailable` while the database is down. Each change of the accounting
 * is one call of one SQL function, under the tenant's lock.
 */
export class BlobStore extends Store {
  /** Adds the row, and its size to the tenant's storage, under the tenant's lock. */
  reserve(reservation: Reservation): Promise<ReserveVerdict> {
    const { tenantId, by, ref, size, contentType, cap, openMax, now, expiresAt, uploadingUntil } = reservation;
    const limits = [cap, openMax, now, expiresAt, uploadingUntil];
    return this.value('reserve_blob', tenantId, by, ref, size, contentType, ...limits);
  }

  /** Undefined: there is no such row. */
  async find({ tenantId, ref }: BlobName): Promise<BlobRow | undefined> {
    const text = `SELECT ${UPLOAD}, b.state, b.expires_at AS "expiresAt" FROM blobs b
      WHERE b.tenant_id = $1 AND b.ref = $2`;
    return this.first<BlobRow>(text, [tenantId, ref], { readOnly: true });
  }

  // A blob that no item names changes its state without the tenant's lock: each of these statements that
  // changes it requires the previous state, so that of two concurrent ones only one takes effect, and none changes what a
  // commit counts.

  /**
   * Records that the object exists with this size. True: the blob is ready, perhaps marked by a concurrent call. False:
   * the row is not reserved (any more), or has another size. `at`: when the upload ended; an item has a day from then on
   * to take it.
   */
  async markReady(name: BlobName, size: number, at: number): Promise<boolean> {
    const text = `UPDATE blobs SET state = 'ready', session = NULL, created_at = greatest(created_at, $4)
      WHERE tenant_id = $1 AND ref = $2 AND size = $3 AND state = 'reserved'`;
    const marked = await this.changed(text, [name.tenantId, name.ref, size, at]);
    return marked || (await this.find(name))?.state === 'ready';
  }

  /** Records the store's identifier of an upload in parts. False: it is not reserved (any more). */
  async setSession({ tenantId, ref }: BlobName, session: string): Promise<boolean> {
    const text = `UPDATE blobs SET session = $3 WHERE tenant_id = $1 AND ref = $2 AND state = 'reserved'`;
    return this.changed(text, [tenantId, ref, session]);
  }

  /**
   * Records that the store keeps the bytes up to `to`, and extends the upload. False: it is not reserved (any more), or
   * its offset is not `from`: another request was first.
   */
  async keep(
    { tenantId, ref }: BlobName,
    { from, to, now }: { readonly from: number; readonly to: number; readonly now: number },
  ): Promise<boolean> {
    return this.changed(
      `UPDATE blobs SET kept = $4, expires_at = greatest(expires_at, least($5::bigint + $6, created_at + $7))
        WHERE tenant_id = $1 AND ref = $2 AND state = 'reserved' AND kept = $3`,
      [tenantId, ref, from, to, now, UPLOAD_PAUSE_MS, UPLOAD_LIFE_MS],
    );
  }

  /**
   * Records that the upload of a reserved blob is under way until `until`; returns its size. Undefined: it is not
   * reserved, had expired at `now` (if that is given), or is not one in parts that continues at `from` (likewise).
   */
  async uploading(
    { tenantId, ref }: BlobName,
    until: number,
    now?: number,
    from?: number,
  ): Promise<number | undefined> {
    const text = `UPDATE blobs SET uploading_until = greatest(uploading_until, $3)
      WHERE tenant_id = $1 AND ref = $2 AND state = 'reserved' AND ($4::bigint IS NULL OR expires_at > $4)
        AND ($5::bigint IS NULL OR (session IS NOT NULL AND kept = $5)) RETURNING size`;
    return (await this.first<{ size: number }>(text, [tenantId, ref, until, now ?? null, from ?? null]))?.size;
  }

  /** Reservations whose URL has expired and whose upload is not under way; of one tenant, or of all (null). */
  takeExpired(tenantId: string | null, { since, now, limit }: Turn): Promise<OpenUpload[]> {
    return this.rows(
      // SKIP LOCKED: two concurrent runs would otherwise wait for each other's rows.
      `WITH due AS (
          SELECT tenant_id, ref FROM blobs
          WHERE state = 'reserved' AND expires_at <= $2 AND uploading_until <= $2
            AND ($1::text IS NULL OR tenant_id = $1) AND (tried_at < $3 OR tried_at > $2)
          ORDER BY tried_at, expires_at LIMIT $4 FOR UPDATE SKIP LOCKED
        )
        UPDATE blobs b SET tried_at = $2 FROM due d WHERE b.tenant_id = d.tenant_id AND b.ref = d.ref
        RETURNING ${UPLOAD}`,
      [tenantId, now, since, limit],
    );
  }

  /** Marks a reservation as dying; with `now`, only an expired one. False: it is not reserved, or not expired. */
  async giveUp({ tenantId, ref }: BlobName, now?: number): Promise<boolean> {
    return this.changed(
      `UPDATE blobs SET state = 'dying' WHERE tenant_id = $1 AND ref = $2 AND state = 'reserved'
        AND ($3::bigint IS NULL OR (expires_at <= $3 AND uploading_until <= $3))`,
      [tenantId, ref, now ?? null],
    );
  }

  /** Marks orphans, and blobs without an item from before `before`, as dying; returns them and those already dying. */
  takeUnused(before: number, { since, now, limit }: Turn): Promise<OpenUpload[]> {
    const text = `SELECT ${UPLOAD} FROM take_unused_blobs($1, $2, $3, $4) t
      CROSS JOIN LATERAL (SELECT * FROM blobs b WHERE b.tenant_id = t.tenant_id AND b.ref = t.ref) b`;
    return this.rows(text, [before, since, now, limit]);
  }

  unremoved(): Promise<Unremoved> {
    const text = `SELECT count(*)::integer AS count, coalesce(sum(size), 0)::bigint AS bytes
      FROM blobs WHERE state = 'dying' AND tried_at > 0`;
    return this.one(text);
  }

  /** Deletes dying rows of one tenant, or of any (null), and subtracts their sizes from the tenants' storage. */
  async free(tenantId: string | null, names: readonly BlobName[]): Promise<void> {
    if (names.length === 0) return;
    const [tenants, refs] = byColumn(names, 'tenantId', 'ref');
    if (tenantId === null) await this.call('free_blobs', tenants, refs);
    // Where a device waits for it, in the turn of its tenant, whose lock it needs.
    else
      await this.rows('SELECT free_blobs(array_fill($1::text, ARRAY[cardinality($2::text[])]), $2)', [tenantId, refs]);
  }

  private async changed(text: string, values: readonly unknown[]): Promise<boolean> {
    return (await this.rows(`${text} RETURNING 1`, values)).length > 0;
  }
}

/** An object that no row names. */
export interface Stray extends BlobName {
  readonly size: number;
  /** False: this database never had its tenant. The object belongs to another service then, and must stay. */
  readonly ours: boolean;
}

/** A blob whose object is not there, or has another size than its row. */
export interface Missing extends BlobName {
  readonly size: number;
  /** The item that names it; null: none does. */
  readonly itemId: string | null;
}

/** A listing of the object store, in a temporary table of the rows' database because it may exceed the memory. */
export class BlobAudit extends TemporaryTable {
  /** Holds a connection until closed; `url` leads past a pooler. Throws `unavailable`. */
  static async open(url: string): Promise<BlobAudit> {
    return new BlobAudit(await TemporaryTable.create(url, 'listed', 'size bigint, modified_at bigint'));
  }

  async add(page: readonly StoredObject[]): Promise<void> {
    await this.rows(
      'INSERT INTO listed SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) ON CONFLICT DO NOTHING',
      byColumn(page, 'tenantId', 'ref', 'size', 'modifiedAt'),
    );
  }

  /** Objects last modified before `before` that no row names, by name, beginning after `after`. */
  strays(before: number, after: BlobName, limit: number): Promise<Stray[]> {
    return this.rows<Stray>(
      `SELECT l.tenant_id AS "tenantId", l.ref, l.size,
        EXISTS (SELECT 1 FROM tenants t WHERE t.id = l.tenant_id)
          OR EXISTS (SELECT 1 FROM gone_tenants g WHERE g.tenant_id = l.tenant_id) AS ours
      FROM listed l
      WHERE l.modified_at < $1 AND (l.tenant_id, l.ref) > ($2, $3)
        AND NOT EXISTS (SELECT 1 FROM blobs b WHERE b.tenant_id = l.tenant_id AND b.ref = l.ref)
      ORDER BY l.tenant_id, l.ref LIMIT $4`,
      [before, after.tenantId, after.ref, limit],
    );
  }

  /** Ready blobs created before `before` that were not listed with their size, by name, beginning after `after`. */
  missing(before: number, after: BlobName, limit: number): Promise<Missing[]> {
    return this.rows<Missing>(
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
