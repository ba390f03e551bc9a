/** Blobs as a tenant's devices ask for them: upload and download URLs, and the settling of uploads. */
import { ulid } from 'ulid';
import type { Clock } from '../../protocol/clock.js';
import { ServiceError, unavailable } from '../../protocol/errors.js';
import { BLOB_REF } from '../../protocol/ids.js';
import { DOWNLOAD_URL_MS, UPLOAD_URL_MS } from '../../protocol/limits.js';
import type { BlobDownload, BlobUpload } from '../../protocol/replies.js';
import { KeyedFlight } from '../../protocol/single-flight.js';
import { HeadLimiter } from './head-limiter.js';
import type { ObjectName, ObjectStore } from './ports.js';
import type { BlobRows, ReserveVerdict, Turn } from './rows.js';
import { mapLimit } from './map-limit.js';

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
  private readonly heads: HeadLimiter;
  /** Tenants whose lost uploads are being looked for: whoever finds no room meanwhile waits for the same answer. */
  private readonly releasing = new KeyedFlight((tenantId: string) => this.releaseExpired(tenantId));

  constructor(private readonly options: BlobsOptions) {
    this.heads = new HeadLimiter(options.clock);
  }

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
    if (isFull(verdict)) {
      const { freed, fault } = await this.releasing.join(tenantId);
      if (freed > 0) verdict = await this.reserve(name, wish, now);
      // Whether there is room is not known then.
      if (isFull(verdict) && fault !== undefined) throw fault;
    }
    if (verdict !== 'ok') throw refusalOf(verdict);
    return { blobRef: name.ref, url: signed.url, expiresAt, headers: signed.headers };
  }

  /** Signs a download URL, good for 5 minutes. Throws `no_blob`; as `settle` where the store must be asked. */
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
   * item may name it now. False: it is not, or nobody waits for it. Throws `storage_unavailable`, and `unavailable`
   * where the tenant asks for more than it may at a time.
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
      // Somebody else may have found it in this very moment.
      return (await rows.markReady(name, row.size)) || (await rows.find(name))?.state === 'ready';
    });
  }

  /** Gives back the room of one tenant's uploads that never came. */
  private releaseExpired(tenantId: string): Promise<Released> {
    const now = this.options.clock.now();
    // Those that a run before could not look at come last, but they come.
    const turn = { since: now + 1, now, limit: RELEASED_AT_ONCE };
    return releaseExpired(this.options, { tenantId, turn });
  }

  private reserve(name: ObjectName, { size, contentType, by }: UploadWish, now: number): Promise<ReserveVerdict> {
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

/** An upload to a bucket that is slower than this is not waited for, bytes a second: 1 Mbit/s. */
const UNSEEN_BYTES_PER_S = 128 * 1024;
const UNSEEN_MIN_MS = 15 * 60_000;
const UNSEEN_MAX_MS = 24 * 3_600_000;

/**
 * A bucket looks at a URL's time when an upload begins, and shows nothing of it before it is whole. So one that began in
 * time counts as under way for a quarter of an hour after its URL, and for as long as so many bytes take, a day at most:
 * its room is kept until then. Of the local store the rows know. Milliseconds.
 */
export const unseenMs = (size: number): number =>
  Math.min(UNSEEN_MAX_MS, UNSEEN_MIN_MS + Math.ceil((size / UNSEEN_BYTES_PER_S) * 1_000));

/** Whose reservations, and which of them. */
export interface Releasing {
  /** Null: everybody's. */
  readonly tenantId: string | null;
  readonly turn: Turn;
}

/** What was done about reservations. */
export interface Released {
  /** Those that were taken from their line. */
  readonly seen: number;
  /** Those that are settled: uploaded, or given back. */
  readonly done: number;
  /** Those of them that were given back. */
  readonly freed: number;
  /** Those that the store said nothing of, or did not remove; and why it was the first of them. */
  readonly refused: number;
  readonly fault: ServiceError | undefined;
}

/**
 * Settles reservations whose URL is out of time: an object of the declared size is an upload, anything else is removed
 * and its room given back. What the store says nothing of keeps its room. Throws `storage_unavailable`
 * where the store is away altogether, and `unavailable`.
 */
export async function releaseExpired(
  { store, rows }: Pick<BlobsOptions, 'store' | 'rows'>,
  { tenantId, turn }: Releasing,
): Promise<Released> {
  const expired = await rows.takeExpired(tenantId, turn);
  const gone: ObjectName[] = [];
  const settle = async ({ size, ...name }: (typeof expired)[number]): Promise<void> => {
    const object = await store.head(name);
    if (object?.size === size) await rows.markReady(name, size);
    else if (await rows.giveUp(name, turn.now)) {
      // A row that is dying is the reaper's: what cannot be removed now is tried again by night.
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
