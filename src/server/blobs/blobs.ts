/** Requests of devices for blobs: upload and download URLs, and whether an upload has arrived. */
import { ulid } from 'ulid';
import { type Clock, DAY_MS, MINUTE_MS } from '../../protocol/clock.js';
import { rateLimited, ServiceError, unavailable } from '../../protocol/errors.js';
import { BLOB_REF, type BlobName } from '../../protocol/ids.js';
import { DOWNLOAD_URL_MS, UPLOAD_PARTS_AT_ONCE, UPLOAD_PAUSE_MS, UPLOAD_URL_MS } from '../../protocol/limits.js';
import type { BlobDownload, BlobUpload, OpenUploadReply, UploadPart } from '../../protocol/replies.js';
import { KeyedFlight } from '../../protocol/single-flight.js';
import { HeadLimiter } from './head-limiter.js';
import { partSizeOf, type ObjectStore, type OpenUpload, type UploadStart } from './ports.js';
import type { BlobRow, BlobStore, Reservation, ReserveVerdict, Turn } from './store.js';

interface BlobsOptions {
  readonly store: ObjectStore;
  readonly rows: BlobStore;
  readonly clock: Clock;
  /** MAX_BLOB_SIZE_MB in bytes. */
  readonly maxBytes: number;
  /** STORAGE_CAP_BYTES; 0: unlimited. */
  readonly capBytes: number;
}

export interface UploadRequest extends UploadStart {
  /** Id of the requesting device. */
  readonly by: string;
  /** Scheme and host that the client reached this server by, without a trailing slash. */
  readonly origin: string;
}

/**
 * Reservations that a tenant may have open at once, and a tenth of the blobs that it may have without an item, open or not
 * (sql/0023). Bounds the rows and files, which have a cost even without bytes.
 */
const OPEN_MAX = 1_000;
/** Expired reservations settled per attempt when a tenant has no room left; the nightly job settles all. */
const RELEASED_AT_ONCE = 100;
/** Retry-After if too many uploads are open, seconds: some may have expired by then. */
const OPEN_RETRY_S = 60;

export class Blobs {
  private readonly heads: HeadLimiter;
  /** One run per tenant: requests that find no room meanwhile share its result. */
  private readonly releasing = new KeyedFlight((tenantId: string) => {
    const now = this.options.clock.now();
    // `since` is later than any try: reservations that an earlier run could not settle come last, but are not left out.
    return releaseExpired(this.options, tenantId, { since: now + 1, now, limit: RELEASED_AT_ONCE });
  });

  constructor(private readonly options: BlobsOptions) {
    this.heads = new HeadLimiter(options.clock);
  }

  /**
   * Reserves room and signs an upload URL, valid for 15 minutes and one PUT of exactly this size and type. Throws
   * `blob_too_large`, `storage_cap_exceeded`, `rate_limited` (too many uploads open), `device_revoked`,
   * `storage_unavailable` if nothing can be signed or expired uploads cannot be looked up, and `unavailable`.
   */
  async uploadUrl(tenantId: string, request: UploadRequest): Promise<BlobUpload> {
    const { store, clock } = this.options;
    const { size, contentType, origin } = request;
    this.checkSize(size);
    const now = clock.now();
    const expiresAt = now + UPLOAD_URL_MS;
    const name = { tenantId, ref: `${ulid(now)}.bin` };
    // Signed before the reservation, so that a failure to sign reserves nothing.
    const signed = await store.signUpload(name, { size, contentType, now, expiresAt }, origin);
    await this.reserve(name, request, {
      now,
      expiresAt,
      uploadingUntil: store.kind === 'local' ? 0 : expiresAt + unseenMs(size),
    });
    return { blobRef: name.ref, url: signed.url, expiresAt, headers: signed.headers };
  }

  /**
   * Reserves room and begins an upload that may be continued within a day, and within a day of each continuation. An
   * upload that fits into one part is one PUT. Throws like `uploadUrl`; after a failure nothing stays reserved.
   */
  async begin(tenantId: string, request: UploadRequest): Promise<OpenUploadReply> {
    const { store, rows, clock } = this.options;
    const { size, contentType, page, origin } = request;
    this.checkSize(size);
    const now = clock.now();
    const name = { tenantId, ref: `${ulid(now)}.bin` };
    await this.reserve(name, request, { now, expiresAt: now + UPLOAD_PAUSE_MS, uploadingUntil: 0 });
    let upload: OpenUpload = { ...name, size, contentType, session: null, kept: 0 };
    try {
      const session = await this.heads.turn(tenantId, () => store.begin(name, { size, contentType, page }));
      if (session !== undefined) {
        upload = { ...upload, session };
        if (!(await rows.setSession(name, session))) throw new ServiceError('no_blob');
      }
      return await this.replyTo(upload, 0, origin);
    } catch (error) {
      // No client knows of the upload yet. If this fails as well, the nightly job frees the room.
      if (await rows.giveUp(name)) {
        if (upload.session !== null) await store.abort(upload);
        await rows.free(tenantId, [name]);
      }
      throw error;
    }
  }

  /**
   * The offset of an upload, with the URLs of its next parts. It may be continued for another day, up to seven days
   * after it began. Throws `no_blob` if it is not open (any more), `storage_unavailable`, `unavailable`.
   */
  async continue(tenantId: string, ref: string, origin: string): Promise<OpenUploadReply> {
    const { rows, clock } = this.options;
    const row = await this.find(tenantId, ref);
    if (row?.state === 'ready') return this.replyTo(row, row.size, origin);
    if (row?.state !== 'reserved' || row.expiresAt <= clock.now()) throw new ServiceError('no_blob');
    const offset = await this.heads.turn(tenantId, () => this.offsetOf(row));
    if (offset === undefined) {
      // The store has forgotten the upload, so it cannot be continued.
      await this.discard(row);
      throw new ServiceError('no_blob');
    }
    if (offset === row.size) await this.markReady(row);
    // The result is ignored: if another request was first, the client is refused when it sends a part.
    else await rows.keep(row, { from: row.kept, to: offset, now: clock.now() });
    return this.replyTo(row, offset, origin);
  }

  /**
   * Gives up an upload; its room is free when this resolves. A blob that is ready stays; if no item names it, it is
   * removed after a day. Throws `no_blob` if there is none (any more); `storage_unavailable` or `unavailable`, after
   * which the nightly job removes it.
   */
  async giveUp(tenantId: string, ref: string): Promise<void> {
    const row = await this.find(tenantId, ref);
    if (row === undefined) throw new ServiceError('no_blob');
    if (row.state === 'reserved' || row.state === 'dying') await this.discard(row);
  }

  /** Signs a download URL, valid for 5 minutes at most. Throws `no_blob`, and like `settle` for an unsettled upload. */
  async downloadUrl(tenantId: string, ref: string, origin: string): Promise<BlobDownload> {
    const { store, clock } = this.options;
    const row = await this.find(tenantId, ref);
    if (row === undefined || !(await this.settled(row))) throw new ServiceError('no_blob');
    const now = clock.now();
    const grant = { now, expiresAt: now + DOWNLOAD_URL_MS };
    const { url, expiresAt } = await store.signDownload(row, grant, origin);
    return { url, expiresAt, size: row.size };
  }

  /**
   * Looks up a blob in the store, which may have been uploaded without passing through this server. True: it exists
   * with its declared size, and an item may name it now. False: it does not, or it was not reserved. Throws
   * `storage_unavailable`, and `unavailable` if the tenant has too many lookups under way.
   */
  async settle(tenantId: string, ref: string): Promise<boolean> {
    const row = await this.find(tenantId, ref);
    return row !== undefined && this.settled(row);
  }

  /** Undefined: there is no such row, or `ref` is no name of a blob. */
  private async find(tenantId: string, ref: string): Promise<BlobRow | undefined> {
    return BLOB_REF.test(ref) ? this.options.rows.find({ tenantId, ref }) : undefined;
  }

  private async settled(row: BlobRow): Promise<boolean> {
    if (row.state !== 'reserved') return row.state === 'ready';
    return this.heads.run(row, async () => (await this.offsetOf(row)) === row.size && (await this.markReady(row)));
  }

  /** Bytes of an upload that the store keeps; undefined: it does not know the upload. */
  private async offsetOf(upload: OpenUpload): Promise<number | undefined> {
    const { store } = this.options;
    if (upload.session !== null) return store.offsetOf(upload);
    const { size } = upload;
    return (await store.head(upload))?.size === size ? size : 0;
  }

  private markReady(upload: OpenUpload): Promise<boolean> {
    return this.options.rows.markReady(upload, upload.size, this.options.clock.now());
  }

  /** The reply, with the parts from `offset` on. */
  private async replyTo(upload: OpenUpload, offset: number, origin: string): Promise<OpenUploadReply> {
    const { ref, size, session, contentType } = upload;
    const { store, clock } = this.options;
    const now = clock.now();
    const expiresAt = now + UPLOAD_URL_MS;
    const parts: UploadPart[] = [];
    for (const part of partsFrom(upload, offset)) {
      const grant = { ...part, now, expiresAt };
      const signing =
        session === null
          ? store.signUpload(upload, { ...grant, contentType }, origin)
          : store.signPart(upload, grant, origin);
      parts.push({ ...part, ...(await signing) });
    }
    return { blobRef: ref, size, offset, expiresAt, parts };
  }

  /** Gives up a reservation. Also for a row that is already dying, whose object may still exist. */
  private async discard(upload: OpenUpload): Promise<void> {
    const { store, rows } = this.options;
    if (!(await rows.giveUp(upload)) && (await rows.find(upload))?.state !== 'dying') return;
    await discard(store, upload);
    await rows.free(upload.tenantId, [upload]);
  }

  private checkSize(size: number): void {
    const { maxBytes } = this.options;
    if (size <= maxBytes) return;
    throw new ServiceError('blob_too_large', `A blob has at most ${maxBytes} bytes.`, { maxBytes });
  }

  /** Reserves room; if there is none, settles expired uploads and tries again. */
  private async reserve(
    name: BlobName,
    { size, contentType, by }: UploadRequest,
    times: Pick<Reservation, 'now' | 'expiresAt' | 'uploadingUntil'>,
  ): Promise<void> {
    const { rows, capBytes } = this.options;
    const wanted = { ...name, by, size, contentType, cap: capBytes, openMax: OPEN_MAX, ...times };
    let verdict = await rows.reserve(wanted);
    if (isFull(verdict)) {
      // An upload that has arrived is not open any more either, though nothing is freed.
      const { done, fault } = await this.releasing.join(name.tenantId);
      if (done > 0) verdict = await rows.reserve(wanted);
      // The store did not answer for some uploads, so it is unknown whether there is room.
      if (isFull(verdict) && fault !== undefined) throw fault;
    }
    if (verdict !== 'ok') throw REFUSALS[verdict]();
  }
}

/** The next parts of an upload. Each ends at a multiple of the store's part size, or at the end of the upload. */
function partsFrom({ size, session }: OpenUpload, offset: number): { readonly from: number; readonly size: number }[] {
  const most = session === null ? size : partSizeOf(size);
  const parts: { readonly from: number; readonly size: number }[] = [];
  for (let from = offset; from < size && parts.length < UPLOAD_PARTS_AT_ONCE;) {
    const end = Math.min(size, from - (from % most) + most);
    parts.push({ from, size: end - from });
    from = end;
  }
  return parts;
}

/** Removes an upload or a blob from the store: its parts first, so that no object can be made of them afterwards. */
export async function discard(store: ObjectStore, upload: OpenUpload): Promise<void> {
  if (upload.session !== null) await store.abort(upload);
  await store.remove(upload);
}

/** Concurrent calls to the object store for many names. */
const CALLS_MAX = 8;

/**
 * Calls `work` for every name. Names for which it rejects with `storage_unavailable` are skipped: `faults` has these
 * errors, `done` the other names, both in the order of `names`. Rejects with such an error if a whole batch failed and
 * the store does not answer at all, and with any other error of `work`, each after the batch has ended.
 */
export async function mapLimit<N extends BlobName>(
  store: Pick<ObjectStore, 'head'>,
  names: readonly N[],
  work: (name: N) => Promise<void>,
): Promise<{ readonly done: N[]; readonly faults: ServiceError[] }> {
  const done: N[] = [];
  const faults: ServiceError[] = [];
  for (let at = 0; at < names.length; at += CALLS_MAX) {
    const batch = names.slice(at, at + CALLS_MAX);
    const failed: ServiceError[] = [];
    for (const result of await Promise.allSettled(batch.map((name) => work(name).then(() => name)))) {
      if (result.status === 'fulfilled') done.push(result.value);
      else if (isUnavailable(result.reason)) failed.push(result.reason);
      else throw result.reason;
    }
    faults.push(...failed);
    const [fault] = failed;
    if (fault === undefined || failed.length < batch.length) continue;
    // Does the store answer at all, for a name that does not exist?
    const id = ulid();
    await store.head({ tenantId: id, ref: `${id}.bin` }).catch(() => {
      throw fault;
    });
  }
  return { done, faults };
}

const isUnavailable = (error: unknown): error is ServiceError =>
  error instanceof ServiceError && error.error === 'storage_unavailable';

const isFull = (verdict: ReserveVerdict): boolean => verdict === 'cap' || verdict === 'too_many';

const REFUSALS: Readonly<Record<Exclude<ReserveVerdict, 'ok'>, () => ServiceError>> = {
  cap: () => new ServiceError('storage_cap_exceeded'),
  too_many: () =>
    rateLimited(`at most ${OPEN_MAX} uploads may be open, and ten times as many without an item`, OPEN_RETRY_S),
  tenant_not_found: () => unavailable('the tenant is gone'),
  device_revoked: () => new ServiceError('device_revoked'),
};

/** The slowest upload to a bucket for which the reservation is kept, bytes per second: 1 Mbit/s. */
const UNSEEN_BYTES_PER_S = 128 * 1024;
const UNSEEN_MIN_MS = 15 * MINUTE_MS;
const UNSEEN_MAX_MS = DAY_MS;

/**
 * How long after the expiry of its URL an upload to a bucket counts as under way, ms. A bucket checks the expiry only
 * when an upload begins, and shows nothing of it before its end. So its room is kept for a quarter of an hour plus the
 * time that its bytes take, a day at most. Uploads to the local store report their progress in the row.
 */
export const unseenMs = (size: number): number =>
  Math.min(UNSEEN_MAX_MS, UNSEEN_MIN_MS + Math.ceil((size / UNSEEN_BYTES_PER_S) * 1_000));

/**
 * Settles expired reservations of a tenant, or of all (null): a blob whose object has the declared size is ready; any
 * other is removed and its room released. If the store does not answer for one, its room is kept. Throws
 * `storage_unavailable` if the store does not answer at all, and `unavailable`. Resolves with the number of rows that
 * were taken (`seen`), of those settled (`done`), of those that the store refused, and the first of these refusals.
 */
export async function releaseExpired(
  { store, rows }: Pick<BlobsOptions, 'store' | 'rows'>,
  tenantId: string | null,
  turn: Turn,
) {
  const expired = await rows.takeExpired(tenantId, turn);
  const gone: BlobName[] = [];
  const settle = async (upload: OpenUpload): Promise<void> => {
    const object = await store.head(upload);
    if (object?.size === upload.size) {
      // The end of the upload by the store's clock, which may be ahead of ours; of one in parts some stores give the
      // beginning. A later time is harmless: the item has longer to take the blob.
      const at = upload.session === null ? Math.min(object.modifiedAt, turn.now) : turn.now;
      await rows.markReady(upload, upload.size, at);
    } else if (await rows.giveUp(upload, turn.now)) {
      // The row is dying now: the nightly run removes an object that cannot be removed here.
      if (object !== undefined || upload.session !== null) await discard(store, upload);
      gone.push(upload);
    }
  };
  const { done, faults } = await mapLimit(store, expired, settle).catch(async (error: unknown) => {
    await rows.free(tenantId, gone);
    throw error;
  });
  await rows.free(tenantId, gone);
  return { seen: expired.length, done: done.length, refused: faults.length, fault: faults[0] };
}
