/** Blobs in a bucket of AWS S3, R2, MinIO, Ceph or another store that speaks S3. */
import {
  GetObjectCommand,
  PutObjectCommand,
  S3,
  S3ServiceException,
  UploadPartCommand,
  type _Object,
  type CompletedPart,
  type S3ClientConfig,
} from '@aws-sdk/client-s3';
import { getSignedUrl } from '@aws-sdk/s3-request-presigner';
import { ServiceError } from '../../../protocol/errors.js';
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
import { BucketStore, type Bounds, type BucketOptions, type Metadata, type Page } from './bucket.js';
import { codeOfError, connectionFault, reasonOfS3Code, reasonOfStatus, StoreFault } from './fault.js';

interface S3Options extends BucketOptions {
  /** Default: as the AWS SDK finds it; with an endpoint `us-east-1`, which other stores ignore. */
  readonly region?: string;
  /** The endpoint for clients, if it differs from the server's. */
  readonly publicEndpoint?: string;
  /** Puts the bucket into the path instead of the host name. Default: true with an endpoint. */
  readonly forcePathStyle?: boolean;
}

/** The maximum of one PUT at AWS and compatible stores; a larger upload would need a URL for each part. */
const S3_PUT_MAX_BYTES = 5 * 1024 ** 3;

const CONNECTIONS_MAX = 50;
/** Codes of an object, or of an upload in parts, that is absent. */
const ABSENT: ReadonlySet<string> = new Set(['NotFound', 'NoSuchKey', 'NoSuchUpload']);

/** Credentials come from where the AWS SDK looks: environment, shared files, role of the machine. */
export class S3Store extends BucketStore implements ObjectStore {
  readonly kind = 's3';
  private readonly client: S3;
  /** Signs URLs for clients; it makes no calls. */
  private readonly signer: S3;
  /** The configuration of `signer`. */
  private readonly reached: S3ClientConfig;

  constructor(options: S3Options) {
    super(options);
    this.client = new S3(clientConfig(options, this.bounds, options.endpoint));
    const reached = options.publicEndpoint ?? options.endpoint;
    this.reached = clientConfig(options, this.bounds, reached);
    this.signer = reached === options.endpoint ? this.client : new S3(this.reached);
  }

  signUpload(name: BlobName, grant: UploadGrant): Promise<SignedRequest> {
    const { size, contentType } = grant;
    if (size > S3_PUT_MAX_BYTES) {
      const details = { maxBytes: S3_PUT_MAX_BYTES };
      return Promise.reject(new ServiceError('blob_too_large', 'the store takes 5 GiB in one upload', details));
    }
    const headers = { 'content-length': String(size), 'content-type': contentType, 'if-none-match': '*' };
    const input = { ...this.at(name), ContentLength: size, ContentType: contentType, IfNoneMatch: '*' };
    const signableHeaders = new Set(Object.keys(headers));
    return this.sign('sign upload', headers, () =>
      getSignedUrl(this.signer, new PutObjectCommand(input), { ...validity(grant), signableHeaders }),
    );
  }

  async signDownload(name: BlobName, grant: DownloadGrant): Promise<SignedDownload> {
    const command = new GetObjectCommand({ ...this.at(name), ResponseContentDisposition: 'attachment' });
    const signed = await this.sign('sign download', {}, () => getSignedUrl(this.signer, command, validity(grant)));
    return { ...signed, expiresAt: grant.expiresAt };
  }

  async begin(name: BlobName, { size, contentType }: UploadStart): Promise<string | undefined> {
    if (size <= partSizeOf(size)) return undefined;
    const input = { ...this.at(name), ContentType: contentType };
    const { UploadId } = await this.callBucket('begin', (abortSignal) =>
      this.client.createMultipartUpload(input, { abortSignal }),
    );
    if (UploadId === undefined) throw this.fault('broken', 'begin: no upload id');
    return UploadId;
  }

  signPart(upload: OpenUpload, { from, size, now, expiresAt }: PartGrant): Promise<SignedRequest> {
    const headers = { 'content-length': String(size) };
    const PartNumber = from / partSizeOf(upload.size) + 1;
    const command = new UploadPartCommand({ ...this.uploadAt(upload), PartNumber, ContentLength: size });
    const signableHeaders = new Set(Object.keys(headers));
    return this.sign('sign part', headers, () =>
      getSignedUrl(this.signer, command, { ...validity({ now, expiresAt }), signableHeaders }),
    );
  }

  async abort(upload: OpenUpload): Promise<void> {
    const input = this.uploadAt(upload);
    await this.call('abort', (abortSignal) => this.client.abortMultipartUpload(input, { abortSignal }));
  }

  async remove(name: BlobName): Promise<void> {
    const input = this.at(name);
    await this.call('remove', (abortSignal) => this.client.deleteObject(input, { abortSignal }));
  }

  /** The host of a signed URL depends only on endpoint, region and bucket, so it is signed with dummy keys. */
  async origin(): Promise<string> {
    const signer = new S3({ ...this.reached, credentials: { accessKeyId: '-', secretAccessKey: '-' } });
    try {
      return new URL(await getSignedUrl(signer, new GetObjectCommand({ Bucket: this.bucket, Key: '-' }))).origin;
    } finally {
      signer.destroy();
    }
  }

  /** Ends its connections. Calls under way fail. */
  close(): void {
    this.client.destroy();
    if (this.signer !== this.client) this.signer.destroy();
  }

  protected async lookUp(name: BlobName): Promise<Metadata | undefined> {
    const input = this.at(name);
    const found = await this.call('head', (abortSignal) => this.client.headObject(input, { abortSignal }));
    return found && metadataOf({ ...found, Size: found.ContentLength });
  }

  protected async keptOf(upload: OpenUpload): Promise<number | undefined> {
    const { size } = upload;
    const partSize = partSizeOf(size);
    const before = Math.floor(upload.kept / partSize);
    const kept = await this.partsAfter(upload, before);
    if (kept === undefined || (before + kept.length) * partSize < size)
      return kept && (before + kept.length) * partSize;
    const Parts = before === 0 ? kept : await this.partsAfter(upload, 0);
    const input = { ...this.uploadAt(upload), MultipartUpload: { Parts } };
    // Unconditional, since names are unique: a condition would only refuse the second of two completions.
    await this.call('complete', (abortSignal) => this.client.completeMultipartUpload(input, { abortSignal }));
    return size;
  }

  /** The parts that follow the first `before` ones without a gap; undefined: the store does not know the upload. */
  private async partsAfter(upload: OpenUpload, before: number): Promise<CompletedPart[] | undefined> {
    const partSize = partSizeOf(upload.size);
    const parts: CompletedPart[] = [];
    for (let marker: string | undefined = String(before); marker !== undefined;) {
      const page = await this.partsPage(upload, marker);
      if (page === undefined) return undefined;
      for (const { PartNumber, Size, ETag } of page.Parts ?? []) {
        const from = (before + parts.length) * partSize;
        if (PartNumber !== before + parts.length + 1 || Size !== Math.min(partSize, upload.size - from)) return parts;
        parts.push({ PartNumber, ETag });
      }
      const next = page.IsTruncated === true ? page.NextPartNumberMarker : undefined;
      // Without this check a store that repeats a page would be listed without end.
      marker = next !== undefined && Number(next) > Number(marker) ? next : undefined;
    }
    return parts;
  }

  private partsPage(upload: OpenUpload, marker: string) {
    const input = { ...this.uploadAt(upload), PartNumberMarker: marker };
    return this.call('list parts', (abortSignal) => this.client.listParts(input, { abortSignal }));
  }

  protected async page(token: string | undefined, max: number): Promise<Page> {
    const input = { Bucket: this.bucket, Prefix: this.prefix, MaxKeys: max, ContinuationToken: token };
    const page = await this.callBucket('list', (abortSignal) => this.client.listObjectsV2(input, { abortSignal }));
    const next = page.IsTruncated === true ? page.NextContinuationToken : undefined;
    // Without this check a store that repeats a page would be listed without end.
    if (page.IsTruncated === true && (next === undefined || next === token))
      throw this.fault('broken', 'list: a page that is not the last names no next one');
    const entries = (page.Contents ?? []).map((entry) => ({ key: entry.Key ?? '', metadata: metadataOf(entry) }));
    return { entries, next };
  }

  protected isAbsent(error: unknown): boolean {
    return error instanceof S3ServiceException && ABSENT.has(error.name);
  }

  protected faultOf(call: string, error: unknown): StoreFault {
    if (error instanceof StoreFault) return error;
    const code = codeOfError(error);
    const known = code === undefined ? undefined : reasonOfS3Code(code);
    if (error instanceof S3ServiceException) {
      const status = error.$metadata.httpStatusCode ?? 0;
      const reason = known ?? (status === 301 || status === 307 ? 'region' : reasonOfStatus(status));
      const name = code ?? 'no code';
      return new StoreFault(reason, `${call}: ${status} ${name}`, name);
    }
    if (known !== undefined) return new StoreFault('credentials', `${call}: no credentials`, code);
    return connectionFault(call, error) ?? new StoreFault('broken', `${call}: ${code ?? 'unknown error'}`, code);
  }

  private uploadAt(upload: OpenUpload): { Bucket: string; Key: string; UploadId: string } {
    return { ...this.at(upload), UploadId: upload.session ?? '' };
  }

  private at(name: BlobName): { Bucket: string; Key: string } {
    return { Bucket: this.bucket, Key: this.keyOf(name) };
  }
}

/** Signatures count in whole seconds, rounded down so that no URL outlives its grant, but at least one. */
const validity = ({ now, expiresAt }: DownloadGrant): { signingDate: Date; expiresIn: number } => ({
  signingDate: new Date(now),
  expiresIn: Math.max(1, Math.floor(expiresAt / 1000) - Math.floor(now / 1000)),
});

/** The ETag only: a listing names just the algorithm of other checksums. */
const metadataOf = ({ Size, LastModified, ETag }: Pick<_Object, 'Size' | 'LastModified' | 'ETag'>): Metadata => ({
  size: Size,
  modifiedAt: LastModified?.getTime(),
  checksums: { etag: ETag },
});

function clientConfig(options: S3Options, bounds: Bounds, endpoint: string | undefined): S3ClientConfig {
  const region = options.region ?? (endpoint === undefined ? undefined : 'us-east-1');
  const agent = { keepAlive: true, maxSockets: CONNECTIONS_MAX };
  return {
    ...(region === undefined ? {} : { region }),
    ...(endpoint === undefined ? {} : { endpoint }),
    forcePathStyle: options.forcePathStyle ?? endpoint !== undefined,
    // By default the SDK adds AWS's own checksums, also to signed URLs; other stores refuse those.
    requestChecksumCalculation: 'WHEN_REQUIRED',
    responseChecksumValidation: 'WHEN_REQUIRED',
    maxAttempts: bounds.retries + 1,
    requestHandler: { connectionTimeout: bounds.callMs, httpAgent: agent, httpsAgent: agent },
    // By default the library logs its calls, signed URLs among them.
    logger: { debug: silent, info: silent, warn: silent, error: silent },
  };
}

const silent = (): void => undefined;
