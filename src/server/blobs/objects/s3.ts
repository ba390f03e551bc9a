/** Blobs in a bucket of AWS S3, R2, MinIO, Ceph or another store that speaks S3. */
import {
  DeleteObjectCommand,
  GetObjectCommand,
  HeadObjectCommand,
  ListObjectsV2Command,
  PutObjectCommand,
  S3Client,
  S3ServiceException,
  type _Object,
  type ListObjectsV2CommandOutput,
  type S3ClientConfig,
} from '@aws-sdk/client-s3';
import { getSignedUrl } from '@aws-sdk/s3-request-presigner';
import { Readable } from 'node:stream';
import type { DownloadGrant, ObjectName, ObjectStore, SignedRequest, StoredObject, UploadGrant } from '../ports.js';
import { ServiceError, storageUnavailable } from '../../../protocol/errors.js';
import { boundedBody, DEFAULT_BOUNDS, inTime, type Bounds } from './bounds.js';
import { checksumOf } from './checksum.js';
import { codeOfError, connectionFault, StoreFault, type FaultReason, type StoreLog } from './fault.js';
import { keysUnder, type Keys } from './keys.js';
import { reasonOfS3Code } from './s3-codes.js';

/** Where the bucket is. Credentials come from where the AWS SDK looks: environment, shared files, role of the machine. */
export interface S3Options {
  readonly bucket: string;
  /** Objects lie below it. */
  readonly prefix?: string;
  /** Left out: as the AWS SDK finds it; with an endpoint `us-east-1`, which other stores do not look at. */
  readonly region?: string;
  /** Left out: AWS. */
  readonly endpoint?: string;
  /** What clients reach, where that is another address than the server's. */
  readonly publicEndpoint?: string;
  /** The bucket in the path instead of the host name; left out: on with an endpoint. */
  readonly forcePathStyle?: boolean;
  readonly log: StoreLog;
  /** For tests. */
  readonly bounds?: Partial<Bounds>;
}

/** One PUT takes no more at AWS and its like; the parts of a larger one would need an URL each. */
const S3_PUT_MAX_BYTES = 5 * 1024 ** 3;

const CONNECTIONS_MAX = 50;
/** Keys of one page. */
const PAGE = 1000;

/** See `ObjectStore`. */
export class S3Store implements ObjectStore {
  readonly kind = 's3';
  private readonly client: S3Client;
  /** Signs what clients get; it calls nobody. */
  private readonly signer: S3Client;
  private readonly keys: Keys;
  private readonly bounds: Bounds;
  private readonly bucket: string;

  constructor(private readonly options: S3Options) {
    this.bucket = options.bucket;
    this.keys = keysUnder(options.prefix);
    this.bounds = { ...DEFAULT_BOUNDS, ...options.bounds };
    this.client = new S3Client(clientConfig(options, this.bounds, options.endpoint));
    const reached = options.publicEndpoint ?? options.endpoint;
    this.signer =
      reached === options.endpoint ? this.client : new S3Client(clientConfig(options, this.bounds, reached));
  }

  signUpload(name: ObjectName, grant: UploadGrant): Promise<SignedRequest> {
    const { size, contentType } = grant;
    if (size > S3_PUT_MAX_BYTES) {
      const details = { maxBytes: S3_PUT_MAX_BYTES };
      return Promise.reject(new ServiceError('blob_too_large', 'the store takes 5 GiB in one upload', details));
    }
    const at = this.at(name);
    const headers = { 'content-length': String(size), 'content-type': contentType, 'if-none-match': '*' };
    return this.sign('sign upload', headers, () => {
      const command = new PutObjectCommand({
        ...at,
        ContentLength: size,
        ContentType: contentType,
        IfNoneMatch: '*',
      });
      return getSignedUrl(this.signer, command, { ...validity(grant), signableHeaders: new Set(Object.keys(headers)) });
    });
  }

  signDownload(name: ObjectName, grant: DownloadGrant): Promise<SignedRequest> {
    const command = new GetObjectCommand({ ...this.at(name), ResponseContentDisposition: 'attachment' });
    return this.sign('sign download', {}, () => getSignedUrl(this.signer, command, validity(grant)));
  }

  async head(name: ObjectName): Promise<StoredObject | undefined> {
    const command = new HeadObjectCommand(this.at(name));
    try {
      const found = await this.call('head', (abortSignal) => this.client.send(command, { abortSignal }));
      return storedAs(name, { ...found, Size: found.ContentLength }, 's3 head');
    } catch (error) {
      if (!(error instanceof NotThere)) throw error;
    }
    // A HEAD has no body that could tell an object that is absent from a bucket that is.
    await this.page(undefined, 1);
    return undefined;
  }

  async remove(name: ObjectName): Promise<void> {
    const command = new DeleteObjectCommand(this.at(name));
    try {
      await this.call('remove', (abortSignal) => this.client.send(command, { abortSignal }));
    } catch (error) {
      if (!(error instanceof NotThere)) throw error;
    }
  }

  async *list(): AsyncIterable<readonly StoredObject[]> {
    let token: string | undefined;
    do {
      const page = await this.page(token, PAGE);
      const next = page.IsTruncated === true ? page.NextContinuationToken : undefined;
      // Without this check a store that answers the same page for ever would be asked for ever.
      if (page.IsTruncated === true && (next === undefined || next === token)) {
        throw storageUnavailable(new StoreFault('broken', 's3 list: a page that is not the last names no next one'));
      }
      token = next;
      const objects = (page.Contents ?? []).flatMap((entry) => {
        const name = this.keys.nameOf(entry.Key ?? '');
        return name === undefined ? [] : [storedAs(name, entry, 's3 list')];
      });
      if (objects.length > 0) yield objects;
    } while (token !== undefined);
  }

  async read(name: ObjectName): Promise<Readable> {
    const command = new GetObjectCommand(this.at(name));
    try {
      const { Body, ContentLength } = await this.call('read', (abortSignal) =>
        this.client.send(command, { abortSignal }),
      );
      if (!(Body instanceof Readable)) throw storageUnavailable(new StoreFault('broken', 's3 read: no body'));
      const { silenceMs } = this.bounds;
      const call = 's3 read';
      return boundedBody({ call, source: Body, size: ContentLength, silenceMs, faultOf: (e) => s3Fault(call, e) });
    } catch (error) {
      if (!(error instanceof NotThere)) throw error;
      throw new ServiceError('blob_not_found');
    }
  }

  /** Ends its connections. Calls under way fail. */
  close(): Promise<void> {
    this.client.destroy();
    if (this.signer !== this.client) this.signer.destroy();
    return Promise.resolve();
  }

  private at(name: ObjectName): { Bucket: string; Key: string } {
    return { Bucket: this.bucket, Key: this.keys.keyOf(name) };
  }

  private async page(token: string | undefined, max: number): Promise<ListObjectsV2CommandOutput> {
    const command = new ListObjectsV2Command({
      Bucket: this.bucket,
      Prefix: this.keys.prefix,
      MaxKeys: max,
      ContinuationToken: token,
    });
    try {
      return await this.call('list', (abortSignal) => this.client.send(command, { abortSignal }));
    } catch (error) {
      throw error instanceof NotThere ? storageUnavailable(new StoreFault('bucket', 's3 list: 404')) : error;
    }
  }

  /** The credentials may have to be read first; nothing else could take time. */
  private async sign(
    what: string,
    headers: Readonly<Record<string, string>>,
    work: () => Promise<string>,
  ): Promise<SignedRequest> {
    return { url: await this.guarded(`s3 ${what}`, work), headers };
  }

  /** The signal ends what is given up; a body that was handed out lives on without it. */
  private async call<T>(what: string, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const given = new AbortController();
    try {
      return await this.guarded(`s3 ${what}`, () => work(given.signal));
    } catch (error) {
      given.abort();
      throw error;
    }
  }

  /** Bounds also what comes before a call, such as the wait for the machine's role. */
  private async guarded<T>(call: string, work: () => Promise<T>): Promise<T> {
    try {
      return await inTime(call, this.bounds.callMs, work);
    } catch (error) {
      if (isAbsent(error)) throw new NotThere();
      const fault = s3Fault(call, error);
      this.options.log.warn({ reason: fault.reason, code: fault.code }, fault.message);
      throw storageUnavailable(fault);
    }
  }
}

/** An object that is not there: never leaves this file. */
class NotThere extends Error {}

const isAbsent = (error: unknown): boolean =>
  error instanceof S3ServiceException && (error.name === 'NotFound' || error.name === 'NoSuchKey');

/** Seconds are what the signature knows; a part of one is not given away. */
const validity = ({ now, expiresAt }: DownloadGrant): { signingDate: Date; expiresIn: number } => ({
  signingDate: new Date(now),
  expiresIn: Math.max(1, Math.floor(expiresAt / 1000) - Math.floor(now / 1000)),
});

/** A listing names the algorithms of other checksums, never their values: the ETag is all that it tells. */
function storedAs(name: ObjectName, told: Pick<_Object, 'Size' | 'LastModified' | 'ETag'>, call: string): StoredObject {
  const { Size: size, LastModified: modified, ETag: etag } = told;
  if (size === undefined || modified === undefined) {
    throw storageUnavailable(new StoreFault('broken', `${call}: an answer without size or time`));
  }
  return { ...name, size, modifiedAt: modified.getTime(), ...checksumOf({ etag }) };
}

function clientConfig(options: S3Options, bounds: Bounds, endpoint: string | undefined): S3ClientConfig {
  const region = options.region ?? (endpoint === undefined ? undefined : 'us-east-1');
  return {
    ...(region === undefined ? {} : { region }),
    ...(endpoint === undefined ? {} : { endpoint }),
    forcePathStyle: options.forcePathStyle ?? endpoint !== undefined,
    // By default the SDK adds checksums of AWS's own, also to what it signs; other stores refuse those.
    requestChecksumCalculation: 'WHEN_REQUIRED',
    responseChecksumValidation: 'WHEN_REQUIRED',
    maxAttempts: bounds.retries + 1,
    requestHandler: {
      connectionTimeout: bounds.callMs,
      httpAgent: { keepAlive: true, maxSockets: CONNECTIONS_MAX },
      httpsAgent: { keepAlive: true, maxSockets: CONNECTIONS_MAX },
    },
    // The library writes what it calls into its log, signed URLs among it.
    logger: { debug: silent, info: silent, warn: silent, error: silent },
  };
}

const silent = (): void => undefined;

function s3Fault(call: string, error: unknown): StoreFault {
  if (error instanceof StoreFault) return error;
  const code = codeOfError(error);
  if (error instanceof S3ServiceException) {
    const status = error.$metadata.httpStatusCode ?? 0;
    const name = code ?? 'no code';
    return new StoreFault(reasonOfS3Code(name) ?? ofStatus(status), `${call}: ${status} ${name}`, name);
  }
  if (code !== undefined && reasonOfS3Code(code) !== undefined) {
    return new StoreFault('credentials', `${call}: no credentials`, code);
  }
  return connectionFault(call, error) ?? new StoreFault('broken', `${call}: ${code ?? 'unknown error'}`, code);
}

function ofStatus(status: number): FaultReason {
  if (status === 401) return 'credentials';
  if (status === 403) return 'denied';
  if (status === 301 || status === 307) return 'region';
  return status >= 400 && status < 500 && status !== 408 && status !== 429 ? 'refused' : 'broken';
}
