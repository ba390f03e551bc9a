/** Common to all bucket stores: keys, bounded calls, faults and listings. */
import { systemClock, within } from '../../../protocol/clock.js';
import { storageUnavailable } from '../../../protocol/errors.js';
import { type BlobName, blobNameIn, blobPath, isBlobName } from '../../../protocol/ids.js';
import type { Log } from '../../http/ports.js';
import type { ObjectStore, OpenUpload, SignedRequest, StoredObject } from '../ports.js';
import { StoreFault } from './fault.js';

/** Limits on the time that a store may take. */
export interface Bounds {
  /** One call with all its retries, ms. A write of an item may wait for a HEAD, so it is short. */
  readonly callMs: number;
  readonly retries: number;
}

const DEFAULT_BOUNDS: Bounds = { callMs: 10_000, retries: 2 };

export interface BucketOptions {
  readonly bucket: string;
  readonly prefix?: string;
  /** Default: the provider's own. */
  readonly endpoint?: string;
  readonly log: Pick<Log, 'warn'>;
  /** For tests. */
  readonly bounds?: Partial<Bounds>;
}

/** What a store reports about one object; NaN or undefined if it does not report a value. */
export interface Metadata {
  readonly size: number | undefined;
  /** Milliseconds since 1970. */
  readonly modifiedAt: number | undefined;
  /** By the store's names; an ETag may still have its quotes. */
  readonly checksums: Readonly<Record<string, string | undefined>>;
}

/** A page of a listing. `next` continues it; undefined: it is the last one. */
export interface Page {
  readonly entries: readonly { readonly key: string; readonly metadata: Metadata }[];
  readonly next: string | undefined;
}

/** Objects per page of a listing. */
const PAGE = 1000;

/** What all stores of objects in a bucket have in common. Keys are `[<prefix>/]<tenantId>/<ref>`. */
export abstract class BucketStore implements Pick<ObjectStore, 'kind' | 'head' | 'offsetOf' | 'list'> {
  abstract readonly kind: 'gcs' | 's3';
  protected readonly bucket: string;
  protected readonly bounds: Bounds;
  /** What every key begins with; empty without a prefix. */
  protected readonly prefix: string;
  private readonly log: BucketOptions['log'];

  constructor({ bucket, prefix = '', log, bounds }: BucketOptions) {
    this.bucket = bucket;
    this.bounds = { ...DEFAULT_BOUNDS, ...bounds };
    const trimmed = prefix.replace(/^\/+|\/+$/g, '');
    this.prefix = trimmed === '' ? '' : `${trimmed}/`;
    this.log = log;
  }

  /** Bytes from the beginning that the store keeps, after completing a whole upload; undefined: unknown to it. */
  protected abstract keptOf(upload: OpenUpload): Promise<number | undefined>;
  /** What the store reports about an object; undefined: a 404, which may also mean an absent bucket. */
  protected abstract lookUp(name: BlobName): Promise<Metadata | undefined>;
  /** A page of at most `max` objects under the prefix. Throws if the bucket is absent. */
  protected abstract page(token: string | undefined, max: number): Promise<Page>;
  /** True for the library's error of an object that is absent. */
  protected abstract isAbsent(error: unknown): boolean;
  /** Any other error of the library as a fault. */
  protected abstract faultOf(call: string, error: unknown): StoreFault;

  async head(name: BlobName): Promise<StoredObject | undefined> {
    const found = await this.lookUp(name);
    if (found !== undefined) return this.stored(name, found, 'head');
    await this.expectBucket();
    return undefined;
  }

  async offsetOf(upload: OpenUpload): Promise<number | undefined> {
    const { size } = upload;
    const kept = await this.keptOf(upload);
    if (kept !== undefined && kept < size) return kept;
    // The object decides: the store forgets a completed upload in time, and a whole one must have become an object.
    return (await this.head(upload))?.size === size ? size : undefined;
  }

  async *list(): AsyncGenerator<readonly StoredObject[]> {
    let token: string | undefined;
    do {
      const { entries, next } = await this.page(token, PAGE);
      token = next;
      const objects = entries.flatMap(({ key, metadata }) => {
        const name = key.startsWith(this.prefix) ? blobNameIn(key.slice(this.prefix.length)) : undefined;
        return name === undefined ? [] : [this.stored(name, metadata, 'list')];
      });
      if (objects.length > 0) yield objects;
    } while (token !== undefined);
  }

  protected keyOf(name: BlobName): string {
    // A name without this form could be a key outside its tenant's folder.
    if (!isBlobName(name)) throw new Error('not the name of a blob');
    return this.prefix + blobPath(name);
  }

  /** Throws a fault if the bucket is absent: a store then answers 404 for objects, too. */
  protected async expectBucket(): Promise<void> {
    await this.page(undefined, 1);
  }

  /** Signing with a key makes no call; the credentials may have to be fetched first, such as those of the machine's role. */
  protected async sign(
    what: string,
    headers: SignedRequest['headers'],
    work: () => Promise<string>,
  ): Promise<SignedRequest> {
    return { url: await this.callBucket(what, work), headers };
  }

  /**
   * Runs a call of the library within its bounds; undefined if the object is absent. The signal aborts a failed call.
   * Throws `storage_unavailable` with the fault as its cause, and logs the fault.
   */
  protected async call<T>(what: string, work: (signal: AbortSignal) => Promise<T>): Promise<T | undefined> {
    const aborter = new AbortController();
    const call = `${this.kind} ${what}`;
    try {
      return await inTime(call, this.bounds.callMs, () => work(aborter.signal));
    } catch (error) {
      aborter.abort();
      if (this.isAbsent(error)) return undefined;
      const fault = this.faultOf(call, error);
      this.log.warn({ reason: fault.reason, code: fault.code }, fault.message);
      throw storageUnavailable(fault);
    }
  }

  /** `call`, for requests that need no existing object: a 404 then means that the bucket is absent. */
  protected async callBucket<T>(what: string, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const result = await this.call(what, work);
    if (result === undefined) throw this.fault('bucket', `${what}: 404`);
    return result;
  }

  protected fault(reason: StoreFault['reason'], message: string): Error {
    return storageUnavailable(new StoreFault(reason, `${this.kind} ${message}`));
  }

  private stored(name: BlobName, found: Metadata, what: string): StoredObject {
    const { tenantId, ref } = name;
    const { size = NaN, modifiedAt = NaN, checksums } = found;
    if (!Number.isSafeInteger(size) || size < 0 || Number.isNaN(modifiedAt))
      throw this.fault('broken', `${what}: an answer without size or time`);
    return { tenantId, ref, size, modifiedAt, ...checksumOf(checksums) };
  }
}

/** Rejects with a fault after `ms`. A later result is dropped; the library's own time-outs bound the work. */
export async function inTime<T>(call: string, ms: number, work: () => Promise<T>): Promise<T> {
  const result = await within(systemClock, ms, work(), LATE);
  if (result === LATE) throw new StoreFault('timeout', `${call}: no answer in time`);
  return result;
}

const LATE = Symbol('late');

/** Hex or base64, with the `-<parts>` of an ETag. Longer values are no checksums, and would bloat a backup's list. */
const CHECKSUM = /^[A-Za-z0-9+/=_-]{1,128}$/;

/** The values that are checksums, without an ETag's quotes (RFC 9110, 8.8.3); empty if there is none. */
function checksumOf(values: Metadata['checksums']): Pick<StoredObject, 'checksum'> {
  const checksums = Object.entries(values).flatMap(([name, value = '']) => {
    const bare = value.replace(/^"(.*)"$/, '$1');
    return CHECKSUM.test(bare) ? [[name, bare] as const] : [];
  });
  return checksums.length === 0 ? {} : { checksum: Object.fromEntries(checksums) };
}
