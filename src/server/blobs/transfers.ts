/**
 * Uploads and downloads that go through this server: those of the local store. A request shows a signed
 * URL; nothing of it is believed before the signature held.
 */
import type { Clock } from '../../protocol/clock.js';
import { ServiceError, unavailable } from '../../protocol/errors.js';
import type { ObjectName } from './ports.js';
import type { BlobRows } from './rows.js';
import type { BlobFile } from '../http/streams.js';
import type { SignedCall } from '../http/ports.js';
import { verifySigned } from './signed-url.js';

/** The body of an upload on its way in (src/server/http/streams.ts). */
export interface UploadBody {
  /** The next bytes, valid until the next call; undefined after the last. Rejects when the client is gone or too slow. */
  next(): Promise<Uint8Array | undefined>;
  /** Ends it from this side: `next` rejects. */
  cut(): void;
}

/** A file that is being written. It has its name only once it is whole and durable. Throws `storage_unavailable`. */
export interface BlobFileDraft {
  write(bytes: Uint8Array): Promise<void>;
  /** Durable and under its name. False: there is one of this name already. */
  commit(): Promise<boolean>;
  /** Leaves nothing behind; after `commit` it does nothing. */
  discard(): Promise<void>;
}

/** Files of the local store (src/server/blobs/objects/local.ts). Every call throws `storage_unavailable`. */
export interface BlobFiles {
  create(name: ObjectName): Promise<BlobFileDraft>;
  /** Undefined: there is none. */
  open(name: ObjectName): Promise<BlobFile | undefined>;
  remove(name: ObjectName): Promise<void>;
}

/** How many transfers this instance carries at once. */
export interface TransferBounds {
  readonly all: number;
  readonly perTenant: number;
}

/** Places for transfers: of a tenant, or of all. */
interface Places {
  taken: number;
  /** When somebody last found none, ms since 1970. */
  turnedAwayAt: number;
}

/** What transfers are made of. */
export interface TransfersOptions {
  readonly files: BlobFiles;
  readonly rows: BlobRows;
  readonly clock: Clock;
  /** BLOB_URL_SECRET. */
  readonly secret: string;
  /** Left out: 256, 16 of one tenant. Each holds a buffer of 512 KiB at most, and an open file. */
  readonly bounds?: TransferBounds;
}

const BOUNDS: TransferBounds = { all: 256, perTenant: 16 };
/** Nobody is waited for who moves less, bytes a second. */
const PACE_MIN = 1024;
/** Where others were turned away for want of a place, one that moves less than this loses his: 128 kbit/s. */
const PACE_MIN_CROWDED = 16 * 1024;
/** So long after one was turned away he may still be waiting to try again, ms. */
const WAITS_MS = 60_000;
/** An upload says so often that it is under way, and counts as such for so long after: nobody releases it meanwhile. */
const RENEW_MS = 30_000;
const LEASE_MS = 4 * RENEW_MS;

const used = (): ServiceError => new ServiceError('url_invalid', 'The URL was used, or its reservation is gone.');

/** The local store's side of signed URLs. */
export class Transfers {
  private readonly perTenant = new Map<string, Places>();
  private readonly everybody: Places = { taken: 0, turnedAwayAt: -Infinity };
  /** Uploads under way here, by tenant and ref. */
  private readonly uploads = new Map<string, UploadBody>();
  private readonly receiving = new Set<Promise<void>>();

  constructor(private readonly options: TransfersOptions) {}

  /** What a request may reach. Throws `url_invalid` for one that was altered, is late or is used otherwise than signed. */
  check(call: SignedCall): ObjectName {
    const name = verifySigned(this.options.secret, call, this.options.clock.now());
    if (name === undefined) throw new ServiceError('url_invalid');
    return name;
  }

  /**
   * Takes an upload: durable, under its name and ready to be named by an item when this resolves. A second PUT of the
   * same URL ends one that is under way here, which may be a connection that died unseen; the first that is whole wins.
   * Throws `url_invalid` for a URL that was used or given up, `rate_limited`, `unavailable`, `storage_unavailable`.
   */
  async upload(name: ObjectName, size: number, source: UploadBody): Promise<void> {
    const leave = this.enter(name.tenantId);
    const key = `${name.tenantId}/${name.ref}`;
    this.uploads.get(key)?.cut();
    this.uploads.set(key, source);
    const received = this.receive(name, size, source);
    this.receiving.add(received);
    try {
      await received;
    } finally {
      this.receiving.delete(received);
      if (this.uploads.get(key) === source) this.uploads.delete(key);
      leave();
    }
  }

  /** Opens a blob; whoever gets it closes it. Throws `no_blob`, `rate_limited`, `unavailable`, `storage_unavailable`. */
  async download(name: ObjectName): Promise<BlobFile> {
    const leave = this.enter(name.tenantId);
    try {
      const file = await this.options.files.open(name);
      if (file === undefined) throw new ServiceError('no_blob');
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

  /** Ends the uploads that are under way, and resolves when nothing is left of them. */
  async close(): Promise<void> {
    for (const source of this.uploads.values()) source.cut();
    await Promise.allSettled(this.receiving);
  }

  /** Transfers under way. */
  get underWay(): number {
    return this.everybody.taken;
  }

  /**
   * Whether a transfer of this tenant's must end at this pace, bytes a second, so that nobody holds a place for ever:
   * always below a KiB, and below 16 KiB where all places are taken and somebody was turned away. For each of those one
   * transfer makes room.
   */
  tooSlow(tenantId: string, bytesPerS: number): boolean {
    if (bytesPerS < PACE_MIN) return true;
    if (bytesPerS >= PACE_MIN_CROWDED) return false;
    const { all, perTenant } = this.options.bounds ?? BOUNDS;
    const own = this.perTenant.get(tenantId);
    return (own !== undefined && this.hasWaiting(own, perTenant)) || this.hasWaiting(this.everybody, all);
  }

  private hasWaiting(places: Places, most: number): boolean {
    if (places.taken < most || this.options.clock.now() - places.turnedAwayAt > WAITS_MS) return false;
    places.turnedAwayAt = -Infinity;
    return true;
  }

  /** Counts a transfer in; the answer counts it out, once. */
  private enter(tenantId: string): () => void {
    const { all, perTenant } = this.options.bounds ?? BOUNDS;
    const { everybody } = this;
    const now = this.options.clock.now();
    const own = this.perTenant.get(tenantId) ?? { taken: 0, turnedAwayAt: -Infinity };
    if (own.taken >= perTenant) {
      own.turnedAwayAt = now;
      throw new ServiceError('rate_limited', `at most ${perTenant} transfers of blobs at once`, undefined, 1);
    }
    if (everybody.taken >= all) {
      everybody.turnedAwayAt = now;
      throw unavailable('too many transfers of blobs are under way');
    }
    this.perTenant.set(tenantId, own);
    own.taken++;
    everybody.taken++;
    let inside = true;
    return () => {
      if (!inside) return;
      inside = false;
      everybody.taken--;
      own.taken--;
      if (own.taken === 0) this.perTenant.delete(tenantId);
    };
  }

  private async receive(name: ObjectName, size: number, source: UploadBody): Promise<void> {
    const { files, rows, clock } = this.options;
    const now = clock.now();
    if (!(await rows.uploading(name, now + LEASE_MS, now))) throw used();
    const draft = await files.create(name);
    try {
      if ((await this.copy(name, source, draft)) !== size) throw used();
      if (!(await draft.commit())) throw used();
    } finally {
      await draft.discard();
    }
    if (await rows.markReady(name, size)) return;
    // An item may have been written in this very moment: then it was settled, and must stay.
    if ((await rows.find(name))?.state === 'ready') return;
    await files.remove(name);
    throw used();
  }

  private async copy(name: ObjectName, source: UploadBody, draft: BlobFileDraft): Promise<number> {
    const { rows, clock } = this.options;
    let renewAt = clock.now() + RENEW_MS;
    let copied = 0;
    for (let chunk = await source.next(); chunk !== undefined; chunk = await source.next()) {
      await draft.write(chunk);
      copied += chunk.length;
      if (clock.now() < renewAt) continue;
      renewAt = clock.now() + RENEW_MS;
      if (!(await rows.uploading(name, clock.now() + LEASE_MS, null))) throw used();
    }
    return copied;
  }
}
