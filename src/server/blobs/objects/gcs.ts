/** Blobs in a bucket of Google Cloud Storage. */
import { ApiError, Storage, type File, type GetSignedUrlConfig } from '@google-cloud/storage';
import { isObject } from '../../../protocol/bytes.js';
import type { BlobName } from '../../../protocol/ids.js';
import {
  partSizeOf,
  type DownloadGrant,
  type ObjectStore,
  type OpenUpload,
  type PartGrant,
  type SignedDownload,
  type SignedRequest,
  type UploadGrant,
  type UploadStart,
} from '../ports.js';
import { BucketStore, type BucketOptions, type Metadata, type Page } from './bucket.js';
import { hasKey, Signing, SignedUrls } from './google-signing.js';
import { codeOfError, connectionFault, reasonOfStatus, StoreFault } from './fault.js';

/** The status of a session that expects more bytes. */
const GO_ON = 308;
/** The statuses of a session that does not exist: unknown, expired or cancelled. */
const ENDED: ReadonlySet<number> = new Set([404, 410, 499]);
/** Longest wait between two attempts of one call, s. */
const RETRY_DELAY_MAX_S = 2;

/**
 * Credentials come from where Google's libraries look: `GOOGLE_APPLICATION_CREDENTIALS` names the key file of a service
 * account, or a file of workload identity federation; else the machine's metadata server issues tokens. With a key,
 * signing is local. Without one, IAM signs download URLs and plain uploads; every other upload is a session, which
 * needs no signature.
 *
 * Nothing has to be closed: calls under way end by their bounds, and the library's connections end by themselves and
 * keep no process alive.
 */
export class GcsStore extends BucketStore implements ObjectStore {
  readonly kind = 'gcs';
  private readonly storage: Storage;
  private readonly urls = new SignedUrls();
  private readonly signing: Signing;
  private readonly signingEndpoint: string | undefined;

  /** `signingEndpoint`: for tests, in place of Google's IAM. */
  constructor(options: BucketOptions & { readonly signingEndpoint?: string }) {
    super(options);
    const { callMs, retries } = this.bounds;
    this.storage = new Storage({
      // No call needs a project. Without this the library first spends seconds looking for one, even by running gcloud.
      projectId: 'none',
      ...(options.endpoint === undefined ? {} : { apiEndpoint: options.endpoint }),
      // Without this the library sends only anonymous calls to an endpoint that is not Google's public one.
      useAuthWithCustomEndpoint: true,
      timeout: callMs,
      retryOptions: {
        autoRetry: retries > 0,
        maxRetries: retries,
        maxRetryDelay: RETRY_DELAY_MAX_S,
        totalTimeout: callMs / 1000,
      },
    });
    // The key signs each call directly; else calls would depend on a second server that issues tokens.
    this.storage.authClient.useJWTAccessWithScope = true;
    this.signingEndpoint = options.signingEndpoint;
    this.signing = new Signing(callMs, (call, error) => this.faultOf(call, error));
    this.signing.take(this.storage.authClient);
  }

  signUpload(name: BlobName, grant: UploadGrant): Promise<SignedRequest> {
    const { size, contentType } = grant;
    const file = this.file(name);
    const bound = { 'x-goog-content-length-range': `${size},${size}`, 'x-goog-if-generation-match': '0' };
    const options = { action: 'write', contentType, extensionHeaders: bound, ...validity(grant) } as const;
    return this.sign('sign upload', { 'content-type': contentType, ...bound }, () => this.signedUrl(file, options));
  }

  async signDownload(name: BlobName, grant: DownloadGrant): Promise<SignedDownload> {
    const file = this.file(name);
    const options = { action: 'read', responseDisposition: 'attachment', ...validity(grant) } as const;
    const sign = (): Promise<SignedRequest> => this.sign('sign download', {}, () => this.signedUrl(file, options));
    if (await this.hasKey()) return { ...(await sign()), expiresAt: grant.expiresAt };
    return this.urls.get(file.name, grant, sign);
  }

  async begin(name: BlobName, { size, contentType, page }: UploadStart): Promise<string | undefined> {
    if (size <= partSizeOf(size) && (await this.hasKey())) return undefined;
    const [session] = await this.callBucket('begin', () =>
      this.file(name).createResumableUpload({
        metadata: { contentType, contentLength: size },
        preconditionOpts: { ifGenerationMatch: 0 },
        // A session accepts pages of one origin, regardless of the bucket's own CORS rules.
        ...(page === undefined ? {} : { origin: page }),
      }),
    );
    if (!(await this.isSession(session))) throw this.fault('broken', 'begin: no session');
    return session;
  }

  /** Requests to a session carry the server's token, and pages may send only to the store's origin. */
  private async isSession(session: string): Promise<boolean> {
    return URL.canParse(session) && new URL(session).origin === (await this.origin());
  }

  /** The session's URL itself grants access: nothing is signed, and it ends with the upload. */
  signPart({ session, size: whole }: OpenUpload, { from, size }: PartGrant): Promise<SignedRequest> {
    const headers = {
      'content-length': String(size),
      'content-range': `bytes ${from}-${from + size - 1}/${whole}`,
      // Without this the answer to a part is a 308, which browsers do not show to a page.
      'x-guploader-no-308': 'yes',
    };
    return Promise.resolve({ url: session ?? '', headers });
  }

  async abort({ session }: OpenUpload): Promise<void> {
    await this.call('abort', (signal) => this.requestSession('DELETE', session, signal));
  }

  async remove(name: BlobName): Promise<void> {
    const file = this.file(name);
    if ((await this.call('remove', () => file.delete())) === undefined) await this.expectBucket();
  }

  origin(): Promise<string> {
    return Promise.resolve(new URL(this.storage.apiEndpoint).origin);
  }

  protected async lookUp(name: BlobName): Promise<Metadata | undefined> {
    const file = this.file(name);
    const found = await this.call('head', () => file.getMetadata());
    return found && metadataOf(found[0]);
  }

  protected async keptOf({ session, size }: OpenUpload): Promise<number | undefined> {
    const headers = { 'content-range': `bytes */${size}` };
    const found = await this.call('offset', (signal) => this.requestSession('PUT', session, signal, headers));
    if (found === undefined) return undefined;
    if (found.status !== GO_ON) return size;
    const [, last] = /^bytes=0-(\d{1,16})$/.exec(found.range ?? '') ?? [];
    return last === undefined ? 0 : Math.min(Number(last) + 1, size - 1);
  }

  /** A request to a session. Undefined: none (any more), or one of another store, before STORAGE_KIND was changed. */
  private async requestSession(
    method: 'PUT' | 'DELETE',
    session: OpenUpload['session'],
    signal: AbortSignal,
    headers: Readonly<Record<string, string>> = {},
  ): Promise<{ readonly status: number; readonly range: string | undefined } | undefined> {
    if (session === null || !(await this.isSession(session))) return undefined;
    const response = await this.storage.authClient.request({
      ...{ url: session, method, signal },
      headers: { ...headers, 'content-length': '0' },
      validateStatus: (status) => status === GO_ON || (status >= 200 && status < 300) || ENDED.has(status),
    });
    const { status } = response;
    if (ENDED.has(status)) return undefined;
    const range: unknown = response.headers['range'];
    return { status, range: typeof range === 'string' ? range : undefined };
  }

  protected async page(token: string | undefined, max: number): Promise<Page> {
    const query = { prefix: this.prefix, maxResults: max, pageToken: token, autoPaginate: false };
    const [files, following] = await this.callBucket('list', () => this.storage.bucket(this.bucket).getFiles(query));
    const next = tokenOf(following);
    // Without this check a store that repeats a page would be listed without end.
    if (next !== undefined && next === token) throw this.fault('broken', 'list: a page names itself as the next one');
    return { entries: files.map((file) => ({ key: file.name, metadata: metadataOf(file.metadata) })), next };
  }

  protected isAbsent(error: unknown): boolean {
    return error instanceof ApiError && Number(error.code) === 404;
  }

  protected faultOf(call: string, error: unknown): StoreFault {
    if (error instanceof StoreFault) return error;
    const { fault: signing } = this.signing;
    if (error instanceof Error && error.message === signing?.message) return signing;
    const status = statusOf(error);
    if (Number.isInteger(status)) {
      const given = error instanceof ApiError ? error.errors?.[0]?.reason : undefined;
      const code = typeof given === 'string' && /^[A-Za-z]{1,64}$/.test(given) ? given : undefined;
      const reason = status === 404 ? 'bucket' : reasonOfStatus(status);
      return new StoreFault(reason, `${call}: ${status}${code === undefined ? '' : ` ${code}`}`, code);
    }
    const fault = connectionFault(call, error);
    if (fault !== undefined) return fault;
    const code = codeOfError(error);
    // A failure before any connection is due to the key: absent, unreadable, or not a key.
    return new StoreFault('credentials', `${call}: the credentials cannot be used (${code ?? 'unknown error'})`, code);
  }

  private hasKey(): Promise<boolean> {
    return this.callBucket('credentials', () => hasKey(this.storage.authClient));
  }

  private async signedUrl(file: File, options: GetSignedUrlConfig): Promise<string> {
    const [url] = await file.getSignedUrl({ ...options, signingEndpoint: this.signingEndpoint });
    return url;
  }

  private file(name: BlobName): File {
    return this.storage.bucket(this.bucket).file(this.keyOf(name));
  }
}

/** The status in an error of the library's own calls, or of requests that only use its token. */
function statusOf(error: unknown): number {
  if (error instanceof ApiError) return Number(error.code);
  return error instanceof Error && 'status' in error ? Number(error.status) : NaN;
}

/** The library rounds both down to whole seconds, so that a URL never outlives its grant. */
const validity = ({ now, expiresAt }: DownloadGrant) =>
  ({ version: 'v4', accessibleAt: now, expires: expiresAt }) as const;

/** The library returns the next query, or null, in a tuple without an exact type. */
function tokenOf(next: unknown): string | undefined {
  const token = isObject(next) ? next['pageToken'] : undefined;
  return typeof token === 'string' && token !== '' ? token : undefined;
}

const metadataOf = ({ size, updated, crc32c, md5Hash: md5 }: File['metadata']): Metadata => ({
  size: Number(size ?? NaN),
  modifiedAt: Date.parse(updated ?? ''),
  checksums: { crc32c, md5 },
});
