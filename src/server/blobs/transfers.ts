/**
 * Uploads and downloads of the local store, which pass through this server. Each request has a signed URL; nothing in
 * it is used before the signature is verified.
 */
import { atMostEvery, type Clock, MINUTE_MS } from '../../protocol/clock.js';
import { rateLimited, ServiceError, unavailable } from '../../protocol/errors.js';
import { type BlobName, blobPath } from '../../protocol/ids.js';
import { WaitGroup } from '../../protocol/wait-group.js';
import type { BlobFile, UploadStream } from '../http/streams.js';
import type { SignedCall } from '../http/ports.js';
import type { LocalStore } from './objects/local.js';
import { verifySigned } from './signed-url.js';
import type { BlobStore } from './store.js';

export type UploadBody = Pick<UploadStream, 'next' | 'cut'>;

/** The files of the local store. Every call, also of the files that they return, throws `storage_unavailable`. */
export type BlobFiles = Pick<LocalStore, 'create' | 'openPart' | 'finish' | 'abort' | 'open' | 'remove'>;

/** Transfer slots: of a tenant, or of all. */
interface Slots {
  taken: number;
  /** When a transfer was last refused for want of a slot, ms since 1970. */
  refusedAt: number;
}

interface TransfersOptions {
  readonly files: BlobFiles;
  readonly rows: BlobStore;
  readonly clock: Clock;
  /** BLOB_URL_SECRET. */
  readonly secret: string;
  readonly onFault: (error: unknown) => void;
  /** Transfers at once, of all tenants and of one. Each holds a buffer of 512 KiB at most, and an open file. */
  readonly bounds?: typeof BOUNDS;
}

const BOUNDS = { all: 256, perTenant: 16 };
/** One slot in so many is reserved for tenants that have none: else a few tenants could keep all others out. */
const RESERVED_ONE_IN = 4;
/** The slowest pace of any transfer, bytes a second. */
const PACE_MIN = 1024;
/** The slowest pace while others are refused for want of a slot: 128 kbit/s. */
const PACE_MIN_CROWDED = 16 * 1024;
/** How long after a refusal the client is assumed to still want a slot, ms. */
const RETRY_MS = MINUTE_MS;
/** A missing blob is reported at most this often, ms. */
const MISSING_EVERY_MS = 600_000;
/** Interval at which an upload renews its lease, ms; while the lease lasts, the reaper does not release its reservation. */
const RENEW_MS = 30_000;
const LEASE_MS = 4 * RENEW_MS;

const used = (): ServiceError => new ServiceError('url_invalid', 'The URL was used, or its reservation is gone.');

/** The name and extent of a PUT. */
interface Upload extends BlobName {
  readonly size: number;
  /** Of a part: where in the upload it begins. */
  readonly from?: number | undefined;
}

export class Transfers {
  private readonly perTenant = new Map<string, Slots>();
  private readonly all: Slots = { taken: 0, refusedAt: -Infinity };
  /**
   * Of the tenants that were recently refused a slot because all were taken, the one with the fewest: its slots, and when
   * it was refused. Only a tenant with at least as many gives way to it.
   */
  private lightest = { taken: 0, at: -Infinity };
  private readonly mayReport: () => boolean;
  /** Uploads under way here, by tenant and ref. */
  private readonly uploads = new Map<string, { readonly source: UploadBody; readonly done: Promise<void> }>();
  private readonly receiving = new WaitGroup();

  constructor(private readonly options: TransfersOptions) {
    this.mayReport = atMostEvery(options.clock, MISSING_EVERY_MS);
  }

  /** The blob that a request may access. Throws `url_invalid` if the URL was altered, expired or not used as signed. */
  check(call: SignedCall): BlobName {
    const name = verifySigned(this.options.secret, call, this.options.clock.now());
    if (name === undefined) throw new ServiceError('url_invalid');
    return name;
  }

  /**
   * Receives an upload, or a part of one: when this resolves it is durable, and an item may name a blob that is
   * complete. A second PUT for the same blob ends one that is under way here, whose connection may be dead without
   * having been closed; of two complete uploads the first wins. Throws `url_invalid` for a URL that was used or whose
   * reservation was released, `upload_offset`, `rate_limited`, `unavailable`, `storage_unavailable`.
   */
  async upload({ tenantId, ref, size, from }: Upload, source: UploadBody): Promise<void> {
    const leave = this.enter(tenantId);
    const name = { tenantId, ref };
    const key = blobPath(name);
    const before = this.uploads.get(key);
    before?.source.cut();
    const receive = async (): Promise<void> => {
      if (from === undefined) return this.receive(name, size, source);
      // Only one request at a time writes to a file.
      await before?.done.catch(() => undefined);
      await this.receivePart(name, from, source);
    };
    const done = this.receiving.add(receive());
    const mine = { source, done };
    this.uploads.set(key, mine);
    try {
      await done;
    } finally {
      if (this.uploads.get(key) === mine) this.uploads.delete(key);
      leave();
    }
  }

  /** Opens a blob, which the caller closes. Throws `no_blob`, `rate_limited`, `unavailable`, `storage_unavailable`. */
  async download(name: BlobName): Promise<BlobFile> {
    const leave = this.enter(name.tenantId);
    try {
      const file = await this.options.files.open(name);
      if (file === undefined) throw this.missing();
      const close = async (): Promise<void> => {
        leave();
        await file.close();
      };
      return { size: file.size, read: (into, position) => file.read(into, position), close };
    } catch (error) {
      leave();
      throw error;
    }
  }

  /** For an operator who runs several servers with a folder each, where every blob is found on one of them only. */
  private missing(): ServiceError {
    if (this.mayReport()) {
      this.options.onFault(
        new Error(
          'a blob was requested that is not in DATA_DIR/blobs. If it was not deleted just now, that is not the folder of the ' +
            'other servers of this database, or it was damaged: `service-admin verify` lists what is missing',
        ),
      );
    }
    return new ServiceError('no_blob');
  }

  /** Ends the uploads under way, and resolves when their files are removed. */
  async close(): Promise<void> {
    for (const { source } of this.uploads.values()) source.cut();
    await this.receiving.idle();
  }

  /**
   * Whether a transfer of this tenant must end at this pace, bytes per second; else a slow client would hold a slot
   * forever. True below 1 KiB. Below 16 KiB only where a slot is wanted: this tenant has all that it may have and was
   * recently refused another, or all are taken and a tenant that has no more than this one was. Each refusal ends one
   * transfer at most.
   */
  tooSlow(tenantId: string, bytesPerS: number): boolean {
    if (bytesPerS < PACE_MIN) return true;
    if (bytesPerS >= PACE_MIN_CROWDED) return false;
    const { all, shared, perTenant } = this.bounds;
    const own = this.perTenant.get(tenantId);
    if (own === undefined) return false;
    if (this.isCrowded(own, perTenant)) return true;
    return own.taken >= this.lightest.taken && this.isCrowded(this.all, own.taken > 1 ? shared : all);
  }

  private get bounds() {
    const { all, perTenant } = this.options.bounds ?? BOUNDS;
    return { all, perTenant, shared: all - Math.floor(all / RESERVED_ONE_IN) };
  }

  private isCrowded(slots: Slots, max: number): boolean {
    if (slots.taken < max || this.options.clock.now() - slots.refusedAt > RETRY_MS) return false;
    slots.refusedAt = -Infinity;
    return true;
  }

  /** Takes a slot; the returned function releases it once. Throws `rate_limited`, `unavailable`. */
  enter(tenantId: string): () => void {
    const { all } = this;
    const { all: most, shared, perTenant } = this.bounds;
    const now = this.options.clock.now();
    const own = this.perTenant.get(tenantId) ?? { taken: 0, refusedAt: -Infinity };
    if (own.taken >= perTenant) {
      own.refusedAt = now;
      throw rateLimited(`at most ${perTenant} transfers of blobs at once`, 1);
    }
    if (all.taken >= (own.taken === 0 ? most : shared)) {
      const isLightest = own.taken <= this.lightest.taken || now - this.lightest.at > RETRY_MS;
      if (isLightest) this.lightest = { taken: own.taken, at: now };
      all.refusedAt = now;
      throw unavailable('too many transfers of blobs are under way');
    }
    this.perTenant.set(tenantId, own);
    own.taken++;
    all.taken++;
    let inside = true;
    return () => {
      if (!inside) return;
      inside = false;
      all.taken--;
      own.taken--;
      if (own.taken === 0) this.perTenant.delete(tenantId);
    };
  }

  private async receive(name: BlobName, size: number, source: UploadBody): Promise<void> {
    const { files, rows, clock } = this.options;
    const now = clock.now();
    if ((await rows.uploading(name, now + LEASE_MS, now)) === undefined) throw used();
    const draft = await files.create(name);
    try {
      if ((await this.copy(name, source, draft.write)) !== size) throw used();
      if (!(await draft.commit())) throw used();
    } finally {
      await draft.discard();
    }
    await this.markReady(name, size);
  }

  private async markReady(name: BlobName, size: number): Promise<void> {
    const { files, rows, clock } = this.options;
    // A concurrent write of an item may have settled the blob: then the file must stay.
    if (await rows.markReady(name, size, clock.now())) return;
    await files.remove(name);
    throw used();
  }

  /**
   * Bytes count once they are durable; the row has their number. Of a part that was cut off, the bytes that arrived
   * count, unless a newer request for the same blob has ended it: that request begins at an earlier offset.
   */
  private async receivePart(name: BlobName, from: number, source: UploadBody): Promise<void> {
    const { files, rows, clock } = this.options;
    const now = clock.now();
    const whole = await rows.uploading(name, now + LEASE_MS, now, from);
    if (whole === undefined) throw await this.refusalOf(name);
    const file = await files.openPart(name, from);
    // The file was not restored with its row, and bytes written here would leave a hole before them.
    if (file === undefined) throw new ServiceError('upload_offset');
    let to = from;
    const write = async (bytes: Uint8Array): Promise<void> => {
      await file.write(bytes, to);
      to += bytes.length;
    };
    let kept = false;
    try {
      await this.copy(name, source, write);
    } finally {
      try {
        if (this.uploads.get(blobPath(name))?.source === source) {
          await file.sync();
          kept = await rows.keep(name, { from, to, now: clock.now() });
        }
      } finally {
        await file.close();
        // Its failure must not replace the one that ended the part.
        if (!kept) await this.removeRemnant(name).catch(this.options.onFault);
      }
    }
    if (!kept) throw await this.refusalOf(name);
    if (to !== whole) return;
    if (!(await files.finish(name, whole))) throw used();
    await this.markReady(name, whole);
  }

  /** Of an upload that was meanwhile completed or given up, the file was removed, and perhaps created again here. */
  private async removeRemnant(name: BlobName): Promise<void> {
    const { files, rows } = this.options;
    if ((await rows.find(name))?.state !== 'reserved') await files.abort(name);
  }

  private async refusalOf(name: BlobName): Promise<ServiceError> {
    const row = await this.options.rows.find(name);
    const open = row?.state === 'reserved' && row.session !== null && row.expiresAt > this.options.clock.now();
    return open ? new ServiceError('upload_offset') : used();
  }

  /** Passes the body to `write`, and renews the lease meanwhile. Resolves with the number of bytes. */
  private async copy(name: BlobName, source: UploadBody, write: (bytes: Uint8Array) => Promise<void>) {
    const { rows, clock } = this.options;
    let renewAt = clock.now() + RENEW_MS;
    let copied = 0;
    for (let chunk = await source.next(); chunk !== undefined; chunk = await source.next()) {
      await write(chunk);
      copied += chunk.length;
      if (clock.now() < renewAt) continue;
      renewAt = clock.now() + RENEW_MS;
      if ((await rows.uploading(name, clock.now() + LEASE_MS)) === undefined) throw used();
    }
    return copied;
  }
}
