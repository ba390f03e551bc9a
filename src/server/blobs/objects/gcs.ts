/** Blobs in a bucket of Google Cloud Storage. */
import { ApiError, Storage, type File, type GetFilesOptions } from '@google-cloud/storage';
import type { Readable } from 'node:stream';
import type { DownloadGrant, ObjectName, ObjectStore, SignedRequest, StoredObject, UploadGrant } from '../ports.js';
import { ServiceError, storageUnavailable } from '../../../protocol/errors.js';
import { boundedBody, DEFAULT_BOUNDS, inTime, type Bounds } from './bounds.js';
import { checksumOf } from './checksum.js';
import { codeOfError, connectionFault, StoreFault, type FaultReason, type StoreLog } from './fault.js';
import { keysUnder, type Keys } from './keys.js';

/**
 * Where the bucket is. Credentials come from where Google's libraries look: `GOOGLE_APPLICATION_CREDENTIALS` names the key
 * file of a service account. Only with such a key does signing stay on this machine.
 */
export interface GcsOptions {
  readonly bucket: string;
  /** Objects lie below it. */
  readonly prefix?: string;
  /** Left out: Google's. For a private endpoint, or a test. */
  readonly endpoint?: string;
  readonly log: StoreLog;
  /** For tests. */
  readonly bounds?: Partial<Bounds>;
}

/** Objects of one page. */
const PAGE = 1000;
/** Between two tries of one call, s, at most. */
const RETRY_DELAY_MAX_S = 2;

/** See `ObjectStore`. */
export class GcsStore implements ObjectStore {
  readonly kind = 'gcs';
  private readonly storage: Storage;
  private readonly keys: Keys;
  private readonly bounds: Bounds;

  constructor(private readonly options: GcsOptions) {
    this.keys = keysUnder(options.prefix);
    this.bounds = { ...DEFAULT_BOUNDS, ...options.bounds };
    const { callMs, retries } = this.bounds;
    this.storage = new Storage({
      ...(options.endpoint === undefined ? {} : { apiEndpoint: options.endpoint }),
      // Without this the library sends nothing but anonymous calls to an endpoint that is not Google's public one.
      useAuthWithCustomEndpoint: true,
      timeout: callMs,
      retryOptions: {
        autoRetry: retries > 0,
        maxRetries: retries,
        maxRetryDelay: RETRY_DELAY_MAX_S,
        totalTimeout: callMs / 1000,
      },
    });
    // The key signs each call by itself; otherwise one more server has to give out tokens, and can be down.
    this.storage.authClient.useJWTAccessWithScope = true;
  }

  signUpload(name: ObjectName, grant: UploadGrant): Promise<SignedRequest> {
    const { size, contentType } = grant;
    const file = this.file(name);
    const bound = { 'x-goog-content-length-range': `${size},${size}`, 'x-goog-if-generation-match': '0' };
    return this.sign('sign upload', { 'content-type': contentType, ...bound }, async () => {
      const options = { action: 'write', contentType, extensionHeaders: bound, ...validity(grant) } as const;
      return (await file.getSignedUrl(options))[0];
    });
  }

  signDownload(name: ObjectName, grant: DownloadGrant): Promise<SignedRequest> {
    const file = this.file(name);
    return this.sign('sign download', {}, async () => {
      const options = { action: 'read', responseDisposition: 'attachment', ...validity(grant) } as const;
      return (await file.getSignedUrl(options))[0];
    });
  }

  async head(name: ObjectName): Promise<StoredObject | undefined> {
    const file = this.file(name);
    try {
      const [found] = await this.call('head', () => file.getMetadata());
      return storedAs(name, found, 'gcs head');
    } catch (error) {
      if (!(error instanceof NotThere)) throw error;
    }
    // Absent objects and absent buckets both answer 404.
    await this.page({ maxResults: 1 });
    return undefined;
  }

  async remove(name: ObjectName): Promise<void> {
    const file = this.file(name);
    try {
      await this.call('remove', () => file.delete());
    } catch (error) {
      if (!(error instanceof NotThere)) throw error;
      await this.page({ maxResults: 1 });
    }
  }

  async *list(): AsyncIterable<readonly StoredObject[]> {
    let token: string | undefined;
    do {
      const [files, next] = await this.page({ maxResults: PAGE, pageToken: token });
      // Without this check a store that answers the same page for ever would be asked for ever.
      if (next !== undefined && next === token) {
        throw storageUnavailable(new StoreFault('broken', 'gcs list: a page names itself as the next one'));
      }
      token = next;
      const objects = files.flatMap((file) => {
        const name = this.keys.nameOf(file.name);
        return name === undefined ? [] : [storedAs(name, file.metadata, 'gcs list')];
      });
      if (objects.length > 0) yield objects;
    } while (token !== undefined);
  }

  async read(name: ObjectName): Promise<Readable> {
    const found = await this.head(name);
    if (found === undefined) throw new ServiceError('blob_not_found');
    const call = 'gcs read';
    // As stored: an uploader who wrote `content-encoding: gzip` does not get his bytes unpacked here.
    const source = this.file(name).createReadStream({ decompress: false });
    const { silenceMs } = this.bounds;
    return boundedBody({ call, source, size: found.size, silenceMs, faultOf: (error) => gcsFault(call, error) });
  }

  /** Calls under way fail by their bounds; the library's connections end by themselves and hold no process. */
  close(): Promise<void> {
    return Promise.resolve();
  }

  private file(name: ObjectName): File {
    return this.storage.bucket(this.options.bucket).file(this.keys.keyOf(name));
  }

  private async page(options: GetFilesOptions): Promise<[File[], string | undefined]> {
    const query = { ...options, prefix: this.keys.prefix, autoPaginate: false };
    try {
      const [files, next] = await this.call('list', () => this.storage.bucket(this.options.bucket).getFiles(query));
      return [files, tokenOf(next)];
    } catch (error) {
      throw error instanceof NotThere ? storageUnavailable(new StoreFault('bucket', 'gcs list: 404')) : error;
    }
  }

  private async sign(
    what: string,
    headers: Readonly<Record<string, string>>,
    work: () => Promise<string>,
  ): Promise<SignedRequest> {
    return { url: await this.call(what, work), headers };
  }

  private async call<T>(what: string, work: () => Promise<T>): Promise<T> {
    const call = `gcs ${what}`;
    try {
      return await inTime(call, this.bounds.callMs, work);
    } catch (error) {
      if (error instanceof ApiError && Number(error.code) === 404) throw new NotThere();
      const fault = gcsFault(call, error);
      this.options.log.warn({ reason: fault.reason, code: fault.code }, fault.message);
      throw storageUnavailable(fault);
    }
  }
}

/** 404 of the store: never leaves this file. */
class NotThere extends Error {}

/** The library makes whole seconds of both, downwards: no part of one is given away. */
const validity = ({ now, expiresAt }: DownloadGrant): { version: 'v4'; accessibleAt: number; expires: number } => ({
  version: 'v4',
  accessibleAt: now,
  expires: expiresAt,
});

/** The library answers the next query, or null, in a list of no exact type. */
function tokenOf(next: unknown): string | undefined {
  const token = typeof next === 'object' && next !== null && 'pageToken' in next ? next.pageToken : undefined;
  return typeof token === 'string' && token !== '' ? token : undefined;
}

function storedAs(name: ObjectName, metadata: File['metadata'], call: string): StoredObject {
  const size = Number(metadata.size ?? NaN);
  const modifiedAt = Date.parse(metadata.updated ?? '');
  if (!Number.isSafeInteger(size) || size < 0 || Number.isNaN(modifiedAt)) {
    throw storageUnavailable(new StoreFault('broken', `${call}: an answer without size or time`));
  }
  const { crc32c, md5Hash: md5 } = metadata;
  return { ...name, size, modifiedAt, ...checksumOf({ crc32c, md5 }) };
}

function gcsFault(call: string, error: unknown): StoreFault {
  if (error instanceof StoreFault) return error;
  const status = error instanceof ApiError ? Number(error.code) : NaN;
  if (Number.isInteger(status)) {
    const told = error instanceof ApiError ? error.errors?.[0]?.reason : undefined;
    const reason = typeof told === 'string' && /^[A-Za-z]{1,64}$/.test(told) ? told : undefined;
    return new StoreFault(ofStatus(status), `${call}: ${status}${reason === undefined ? '' : ` ${reason}`}`, reason);
  }
  const code = codeOfError(error);
  const fault = connectionFault(call, error);
  if (fault !== undefined) return fault;
  if (code?.startsWith('CONTENT_') === true)
    return new StoreFault('broken', `${call}: damaged on the way (${code})`, code);
  // Whatever fails before a connection is made, fails over the key: absent, not to be read, not a key.
  return new StoreFault('credentials', `${call}: the credentials cannot be used (${code ?? 'unknown error'})`, code);
}

function ofStatus(status: number): FaultReason {
  if (status === 401) return 'credentials';
  if (status === 403) return 'denied';
  if (status === 404) return 'bucket';
  return status >= 400 && status < 500 && status !== 408 && status !== 429 ? 'refused' : 'broken';
}
