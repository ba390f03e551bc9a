/** What devices request of blobs: upload and download URLs, and whether an upload has arrived. */
import { ulid } from 'ulid';
import type { Clock } from '../../protocol/clock.js';
import { ServiceError, unavailable } from '../../protocol/errors.js';
import { BLOB_REF } from '../../protocol/ids.js';
import { DOWNLOAD_URL_MS, UPLOAD_URL_MS } from '../../protocol/limits.js';
import type { BlobDownload, BlobUpload } from '../../protocol/replies.js';
import { KeyedFlight } from '../../protocol/single-flight.js';
import { HeadLimiter } from './head-limiter.js';
import { mapLimit } from './map-limit.js';
import type { ObjectName, ObjectStore } from './ports.js';
import type { BlobStore, ReserveVerdict, Turn } from './store.js';

interface BlobsOptions {
  readonly store: ObjectStore;
  readonly rows: BlobStore;
  readonly clock: Clock;
  /** MAX_BLOB_SIZE_MB in bytes. */
  readonly maxBytes: number;
  /** STORAGE_CAP_BYTES; 0: unlimited. */
  readonly capBytes: number;
}

/** A request for an upload URL. */
interface UploadRequest {
  /** Bytes. */
  readonly size: number;
  readonly contentType: string;
  /** Id of the requesting device. */
  readonly by: string;
  /** Scheme and host that the client reached this server by, without a trailing slash. */
  readonly origin: string;
}

/** Reservations that a tenant may have open at once: bounds the rows, which cost the server something too. */
const OPEN_MAX = 1_000;
/** Expired reservations that are settled at once when a tenant has no room left; the nightly job settles all. */
const RELEASED_AT_ONCE = 100;
/** Retry-After where too many uploads are open: some may have expired by then, seconds. */
const OPEN_RETRY_S = 60;

/** The blobs of all tenants. */
export class Blobs {
  private readonly heads: HeadLimiter;
  /** One run per tenant: requests that find no room meanwhile share its result. */
  private readonly releasing = new KeyedFlight((tenantId: string) => this.releaseExpired(tenantId));

  constructor(private readonly options: BlobsOptions) {
    this.heads = new HeadLimiter(options.clock);
  }

  /**
   * Reserves room and signs an upload URL, good for 15 minutes and one PUT of exactly this size and type.
   * Throws `blob_too_large`, `storage_cap_exceeded`, `rate_limited` (too many uploads open), `device_revoked`,
   * `storage_unavailable` where nothing can be signed, or expired uploads cannot be looked up; `unavailable`.
   */
  async uploadUrl(tenantId: string, request: UploadRequest): Promise<BlobUpload> {
    const { store, clock, maxBytes } = this.options;
    const { size, contentType, origin } = request;
    if (size > maxBytes) {
      throw new ServiceError('blob_too_large', `A blob has at most ${maxBytes} bytes.`, { maxBytes });
    }
    const now = clock.now();
    const expiresAt = now + UPLOAD_URL_MS;
    const name = { tenantId, ref: `${ulid(now)}.bin` };
    // Signed before the reservation, so that a failure to sign reserves nothing.
    const signed = await store.signUpload(name, { size, contentType, now, expiresAt }, origin);
    let verdict = await this.reserve(name, request, now);
    if (isFull(verdict)) {
      const { freed, fault } = await this.releasing.join(tenantId);
      if (freed > 0) verdict = await this.reserve(name, request, now);
      // The store did not answer for some uploads: whether there is room is not known.
      if (isFull(verdict) && fault !== undefined) throw fault;
    }
    if (verdict !== 'ok') throw refusalOf(verdict);
    return { blobRef: name.ref, url: signed.url, expiresAt, headers: signed.headers };
  }

  /** Signs a download URL, good for 5 minutes. Throws `no_blob`, and as `settle` where the upload is not settled yet. */
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
   * Looks up a blob in the store, which may have been uploaded without passing this server. True: it is there with its
   * declared size, and an item may name it now. False: it is not, or it was not reserved. Throws `storage_unavailable`,
   * and `unavailable` where the tenant has too many lookups under way.
   */
  async settle(tenantId: string, ref: string): Promise<boolean> {
    const { store, rows } = this.options;
    if (!BLOB_REF.test(ref)) return false;
    const name = { tenantId, ref };
    const row = await rows.find(name);
    if (row?.state !== 'reserved') return row?.state === 'ready';
    return this.heads.run(name, async () => {
      const object = await store.head(name);
      if (object?.size !== row.size) return false;
      // A concurrent lookup may have marked it first.
      return (await rows.markReady(name, row.size)) || (await rows.find(name))?.state === 'ready';
    });
  }

  /** Gives back the room of one tenant's uploads that never arrived. */
  private releaseExpired(tenantId: string): Promise<Released> {
    const now = this.options.clock.now();
    // `since` is later than any try: reservations that an earlier run could not settle come last, but are not left out.
    return releaseExpired(this.options, tenantId, { since: now + 1, now, limit: RELEASED_AT_ONCE });
  }

  private reserve(name: ObjectName, { size, contentType, by }: UploadRequest, now: number): Promise<ReserveVerdict> {
    const { store, rows, capBytes } = this.options;
    const expiresAt = now + UPLOAD_URL_MS;
    return rows.reserve({
      ...name,
      by,
      size,
      contentType,
      cap: capBytes,
      openMax: OPEN_MAX,
      now,
      expiresAt,
      uploadingUntil: store.kind === 'local' ? 0 : expiresAt + unseenMs(size),
    });
  }
}

const isFull = (verdict: ReserveVerdict): boolean => verdict === 'cap' || verdict === 'too_many';

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

/** The slowest upload to a bucket whose reservation is kept, bytes a second: 1 Mbit/s. */
const UNSEEN_BYTES_PER_S = 128 * 1024;
const UNSEEN_MIN_MS = 15 * 60_000;
const UNSEEN_MAX_MS = 24 * 3_600_000;

/**
 * How long after the expiry of its URL an upload to a bucket counts as under way, milliseconds. A bucket checks the expiry
 * when an upload begins, and shows nothing of it before its end. So its room is kept for a quarter of an hour and the time
 * that its bytes take, a day at most. Uploads to the local store report their progress in the row.
 */
export const unseenMs = (size: number): number =>
  Math.min(UNSEEN_MAX_MS, UNSEEN_MIN_MS + Math.ceil((size / UNSEEN_BYTES_PER_S) * 1_000));

/** Result of settling expired reservations. */
export interface Released {
  /** Rows that were taken. */
  readonly seen: number;
  /** Those that are settled: uploaded, or released. */
  readonly done: number;
  /** Those of them that were released. */
  readonly freed: number;
  /** Those that the store did not answer for, or did not remove. */
  readonly refused: number;
  /** The first of these refusals. */
  readonly fault: ServiceError | undefined;
}

/**
 * Settles expired reservations of a tenant, or of all (null): an object of the declared size is an upload, anything else is
 * removed and its room given back. Where the store does not answer for one, its room is kept. Throws `storage_unavailable`
 * where the store does not answer at all, and `unavailable`.
 */
export async function releaseExpired(
  { store, rows }: Pick<BlobsOptions, 'store' | 'rows'>,
  tenantId: string | null,
  turn: Turn,
): Promise<Released> {
  const expired = await rows.takeExpired(tenantId, turn);
  const gone: ObjectName[] = [];
  const settle = async ({ size, ...name }: (typeof expired)[number]): Promise<void> => {
    const object = await store.head(name);
    if (object?.size === size) await rows.markReady(name, size);
    else if (await rows.giveUp(name, turn.now)) {
      // The row is dying now: the nightly run removes an object that cannot be removed here.
      if (object !== undefined) await store.remove(name);
      gone.push(name);
    }
  };
  const mapped = await mapLimit(store, expired, settle).catch(async (error: unknown) => {
    await rows.free(gone);
    throw error;
  });
  const { done, faults } = mapped;
  const freed = await rows.free(gone);
  return { seen: expired.length, done: done.length, freed, refused: faults.length, fault: faults[0] };
}
