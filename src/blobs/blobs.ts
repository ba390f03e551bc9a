/** Blobs as a tenant's devices ask for them: upload and download URLs, and the settling of uploads (contract 8). */
import { ulid } from 'ulid';
import type { Clock } from '../protocol/clock.js';
import { ServiceError, unavailable } from '../protocol/errors.js';
import { BLOB_REF } from '../protocol/ids.js';
import { DOWNLOAD_URL_MS, UPLOAD_URL_MS } from '../protocol/limits.js';
import type { BlobDownload, BlobUpload } from '../protocol/replies.js';
import type { ObjectName, ObjectStore } from './ports.js';
import type { BlobRows, ReserveVerdict } from './rows.js';

/** What the service is made of. */
export interface BlobsOptions {
  readonly store: ObjectStore;
  readonly rows: BlobRows;
  readonly clock: Clock;
  /** MAX_BLOB_SIZE_MB in bytes. */
  readonly maxBytes: number;
  /** STORAGE_CAP_BYTES; 0: any. */
  readonly capBytes: number;
}

/** What an upload URL is asked for. */
export interface UploadWish {
  /** Bytes. */
  readonly size: number;
  readonly contentType: string;
  /** The device that asks. */
  readonly by: string;
  /** Scheme and host that the client reached this server by, without a trailing slash. */
  readonly origin: string;
}

/** Reservations of a tenant that may be open at once: rows cost the server something too. */
const OPEN_MAX = 1_000;
/** Reservations that are looked at when a tenant has no room left; the nightly job sees to all. */
const RELEASED_AT_ONCE = 100;
/** When so many uploads are open, some may have run out by then, seconds. */
const OPEN_RETRY_S = 60;

/** The blobs of all tenants. */
export class Blobs {
  constructor(private readonly options: BlobsOptions) {}

  /**
   * Reserves room and signs an upload URL, good for 15 minutes and one PUT of exactly this size and type.
   * Throws `blob_too_large`, `storage_cap_exceeded`, `rate_limited` (too many uploads open), `device_revoked`,
   * `storage_unavailable` where nothing can be signed, or the room of lost uploads cannot be looked for; `unavailable`.
   */
  async uploadUrl(tenantId: string, wish: UploadWish): Promise<BlobUpload> {
    const { store, clock, maxBytes } = this.options;
    const { size, contentType, origin } = wish;
    if (size > maxBytes) {
      throw new ServiceError('blob_too_large', `A blob has at most ${maxBytes} bytes.`, { maxBytes });
    }
    const now = clock.now();
    const expiresAt = now + UPLOAD_URL_MS;
    const name = { tenantId, ref: `${ulid(now)}.bin` };
    // Signed first: what cannot be signed reserves nothing.
    const signed = await store.signUpload(name, { size, contentType, now, expiresAt }, origin);
    let verdict = await this.reserve(name, wish, now);
    const full = verdict === 'cap' || verdict === 'too_many';
    if (full && (await this.releaseExpired(tenantId)) > 0) verdict = await this.reserve(name, wish, now);
    if (verdict !== 'ok') throw refusalOf(verdict);
    return { blobRef: name.ref, url: signed.url, expiresAt, headers: signed.headers };
  }

  /** Signs a download URL, good for 5 minutes. Throws `no_blob`; `storage_unavailable` where the store must be asked. */
  async downloadUrl(tenantId: string, ref: string, origin: string): Promise<BlobDownload> {
    const { store, rows, clock } = this.options;
    if (!BLOB_REF.test(ref)) throw new ServiceError('no_blob');
    const name = { tenantId, ref };
    const row = await rows.find(name);
    const there = row?.state === 'ready' || (row?.state === 'reserved' && (await this.settle(tenantId, ref)));
    if (row === undefined || !there) throw new ServiceError('no_blob');
    const now = clock.now();
    const expiresAt = now + DOWNLOAD_URL_MS;
    const { url } = await store.signDownload(name, { now, expiresAt }, origin);
    return { url, expiresAt, size: row.size };
  }

  /**
   * Looks at the store for a blob that was uploaded past this server. True: it is there with its declared size, and an
   * item may name it now. False: it is not, or nobody waits for it. Throws `storage_unavailable`.
   */
  async settle(tenantId: string, ref: string): Promise<boolean> {
    const { store, rows } = this.options;
    if (!BLOB_REF.test(ref)) return false;
    const name = { tenantId, ref };
    const row = await rows.find(name);
    if (row?.state !== 'reserved') return row?.state === 'ready';
    const object = await store.head(name);
    return object?.size === row.size && (await rows.markReady(name, row.size));
  }

  /** Gives back the room of one tenant's uploads that never came (contract 8); gives their number. */
  private async releaseExpired(tenantId: string): Promise<number> {
    const { freed } = await releaseExpired(this.options, {
      tenantId,
      now: this.options.clock.now(),
      limit: RELEASED_AT_ONCE,
    });
    return freed;
  }

  private reserve(name: ObjectName, { size, contentType, by }: UploadWish, now: number): Promise<ReserveVerdict> {
    const { rows, capBytes } = this.options;
    return rows.reserve({
      ...name,
      by,
      size,
      contentType,
      cap: capBytes,
      openMax: OPEN_MAX,
      now,
      expiresAt: now + UPLOAD_URL_MS,
    });
  }
}

function refusalOf(verdict: Exclude<ReserveVerdict, 'ok'>): ServiceError {
  switch (verdict) {
    case 'cap':
      return new ServiceError('storage_cap_exceeded');
    case 'too_many':
      return new ServiceError('rate_limited', `at most ${OPEN_MAX} uploads may be open`, undefined, OPEN_RETRY_S);
    case 'tenant_not_found':
      return unavailable('the tenant is gone');
    case 'device_revoked':
      return new ServiceError(verdict);
  }
}

/**
 * A bucket looks at a URL's time when an upload begins: one that began in time may be under way for long after. Of the
 * local store the rows know. Milliseconds.
 */
const BUCKET_GRACE_MS = 15 * 60_000;

/** Whose reservations, and how many at most. `now`: ms since 1970. */
export interface Releasing {
  /** Null: everybody's. */
  readonly tenantId: string | null;
  readonly now: number;
  readonly limit: number;
}

/**
 * Settles reservations whose URL is out of time: an object of the declared size is an upload, anything else is removed
 * and its room given back. Gives the numbers of those looked at, and given back. Throws `storage_unavailable`.
 */
export async function releaseExpired(
  { store, rows }: Pick<BlobsOptions, 'store' | 'rows'>,
  { tenantId, now, limit }: Releasing,
): Promise<{ readonly seen: number; readonly freed: number }> {
  const before = store.kind === 'local' ? now : now - BUCKET_GRACE_MS;
  const expired = await rows.expired(tenantId, before, limit);
  const gone: ObjectName[] = [];
  for (const { size, ...name } of expired) {
    const object = await store.head(name);
    if (object?.size === size) await rows.markReady(name, size);
    else if (await rows.giveUp(name, before)) {
      if (object !== undefined) await store.remove(name);
      gone.push(name);
    }
  }
  return { seen: expired.length, freed: await rows.free(gone) };
}
