/** The bucket stores under test: our bindings, and the stores behind them (Ceph's gateway, the stand-in of Google's). */
import {
  AbortMultipartUploadCommand,
  CreateBucketCommand,
  ListMultipartUploadsCommand,
  PutObjectCommand,
  S3Client,
} from '@aws-sdk/client-s3';
import { join } from 'node:path';
import { pino, type Logger } from 'pino';
import { ulid } from 'ulid';
import type { BlobName } from '../../src/protocol/ids.js';
import type { ObjectStore, SignedRequest, StoredObject, UploadGrant } from '../../src/server/blobs/ports.js';
import type { Bounds } from '../../src/server/blobs/objects/bucket.js';
import { GcsStore } from '../../src/server/blobs/objects/gcs.js';
import { LocalStore } from '../../src/server/blobs/objects/local.js';
import { S3Store } from '../../src/server/blobs/objects/s3.js';
import type { Ceph, CephUser } from './ceph.js';
import { exchange } from './exchange.js';
import { FaultyHttp, type HttpFault } from './faulty-http.js';
import { GcsStandIn, type GcsFault, type ServiceAccount } from './gcs-server.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';
import { runServer, type Running } from './server.js';

/** How a store fails, by names that both stores know. */
type Trouble = { readonly status: number } | 'hang';

/** Binding and store, and the means to change the store without the binding. */
export interface BucketUnderTest {
  readonly store: ObjectStore;
  readonly bucket: string;
  /** Variables with which a server keeps its blobs there. */
  readonly env: Readonly<Record<string, string>>;
  /** What the binding logged. */
  readonly logs: readonly string[];
  /** Calls that the store got so far. */
  readonly calls: () => number;
  /** Another binding on the same bucket. */
  readonly open: (options: OpenOptions) => ObjectStore;
  /** Writes an object under any key. */
  readonly place: (key: string, body: Buffer) => Promise<void>;
  /** Decides for each call, by its method, whether it fails. */
  readonly trouble: (of: ((method: string) => Trouble | undefined) | undefined) => void;
  /** Uploads in parts that are open there. */
  readonly openUploads: () => Promise<number>;
  /** Removes them behind the server's back. */
  readonly forget: () => Promise<void>;
  readonly down: () => Promise<void>;
  readonly up: () => Promise<void>;
}

interface OpenOptions {
  readonly bucket?: string;
  readonly prefix?: string;
  readonly bounds?: Partial<Bounds>;
}

/** Short, so that a store that hangs costs a test no time; long enough for a store that works on a busy machine. */
const BOUNDS: Partial<Bounds> = { callMs: 5_000, retries: 2 };

/** A log whose lines a test reads. */
export function capturedLog(): { readonly log: Logger; readonly lines: string[] } {
  const lines: string[] = [];
  return { lines, log: pino({ level: 'trace' }, { write: (line: string) => void lines.push(line) }) };
}

let buckets = 0;

/** A bucket of its own on the gateway, behind a proxy that can break; `direct` passes it by. */
export async function s3Bucket(
  t: WithTeardown,
  ceph: Ceph,
  user: CephUser,
): Promise<BucketUnderTest & { direct: S3Client }> {
  const bucket = `bucket-${++buckets}`;
  const direct = new S3Client({
    endpoint: ceph.endpoint,
    region: 'us-east-1',
    forcePathStyle: true,
    credentials: user,
    requestChecksumCalculation: 'WHEN_REQUIRED',
  });
  t.teardown(() => direct.destroy());
  await direct.send(new CreateBucketCommand({ Bucket: bucket }));
  const proxy = await FaultyHttp.before(t, ceph.endpoint);
  const { log, lines } = capturedLog();
  const open = (options: OpenOptions): S3Store => {
    const store = new S3Store({ bucket, endpoint: proxy.url, log, bounds: BOUNDS, ...options });
    t.teardown(() => store.close());
    return store;
  };
  const uploads = async () => (await direct.send(new ListMultipartUploadsCommand({ Bucket: bucket }))).Uploads ?? [];
  return {
    store: open({}),
    open,
    bucket,
    openUploads: async () => (await uploads()).length,
    forget: async () => {
      for (const { Key, UploadId } of await uploads()) {
        await direct.send(new AbortMultipartUploadCommand({ Bucket: bucket, Key, UploadId }));
      }
    },
    direct,
    env: { STORAGE_KIND: 's3', S3_BUCKET: bucket, S3_ENDPOINT: proxy.url },
    logs: lines,
    calls: () => proxy.calls.length,
    place: async (Key, Body) => {
      await direct.send(new PutObjectCommand({ Bucket: bucket, Key, Body }));
    },
    trouble: (of) => {
      proxy.fault = ({ method }): HttpFault | undefined => of?.(method);
    },
    down: () => proxy.stop(),
    up: () => proxy.listen(),
  };
}

/** A stand-in with a bucket of its own. */
export async function gcsBucket(
  t: WithTeardown,
  account: ServiceAccount,
): Promise<BucketUnderTest & { server: GcsStandIn }> {
  const server = await GcsStandIn.start(t, account);
  const { log, lines } = capturedLog();
  const open = (options: OpenOptions): GcsStore =>
    new GcsStore({ bucket: server.bucket, endpoint: server.url, log, bounds: BOUNDS, ...options });
  return {
    store: open({}),
    open,
    bucket: server.bucket,
    env: { STORAGE_KIND: 'gcs', GCS_BUCKET: server.bucket, GCS_ENDPOINT: server.url },
    server,
    openUploads: () => Promise.resolve(server.sessions.open),
    forget: () => Promise.resolve(server.sessions.forget()),
    logs: lines,
    calls: () => server.calls.length,
    place: (key, body) => Promise.resolve(void server.keep(key, body)),
    trouble: (of) => {
      server.fault = ({ method }): GcsFault | undefined => of?.(method);
    },
    down: () => server.stop(),
    up: () => server.listen(),
  };
}

const LOCAL_SECRET = 'a-secret-of-the-local-store';

/** The local store's binding beside a server that serves it. What is signed is reserved first, as the server does. */
class ReservingStore extends LocalStore {
  constructor(
    private readonly server: Running,
    folder: string,
  ) {
    super(folder, LOCAL_SECRET);
  }

  override async signUpload(name: BlobName, grant: UploadGrant, origin: string): Promise<SignedRequest> {
    await this.server.sql(
      `INSERT INTO blobs (tenant_id, ref, size, state, content_type, created_at, expires_at)
       VALUES ($1, $2, $3, 'reserved', $4, $5, $6)`,
      [name.tenantId, name.ref, grant.size, grant.contentType, grant.now, grant.expiresAt],
    );
    return super.signUpload(name, grant, origin);
  }
}

/** The local store behind a server that runs until the test is over. */
export async function servedLocally(
  t: WithTeardown,
): Promise<{ readonly store: LocalStore; readonly origin: string; readonly tenantId: string }> {
  const dataDir = await temporaryFolder(t);
  const server = await runServer(t, { env: { DATA_DIR: dataDir, BLOB_URL_SECRET: LOCAL_SECRET } });
  const store = new ReservingStore(server, join(dataDir, 'blobs'));
  return { store, origin: `http://127.0.0.1:${server.port}`, tenantId: server.tenantId };
}

/** A new name in the folder of a tenant. */
export const newName = (tenantId = ulid()): BlobName => ({ tenantId, ref: `${ulid()}.bin` });

/** All objects of a store. */
export async function listed(store: ObjectStore): Promise<StoredObject[]> {
  const found: StoredObject[] = [];
  for await (const page of store.list()) found.push(...page);
  return found;
}

const MINUTE_MS = 60_000;

/** What an upload of these bytes is granted now. */
export const grantFor = (body: Buffer, now = Date.now()): UploadGrant => ({
  size: body.length,
  contentType: 'application/octet-stream',
  now,
  expiresAt: now + 15 * MINUTE_MS,
});

/** A download that is good for five minutes. */
export const fiveMinutes = (now = Date.now()): { now: number; expiresAt: number } => ({
  now,
  expiresAt: now + 5 * MINUTE_MS,
});

/** Uploads as a client does; fails where the store refuses. */
export async function upload(store: ObjectStore, name: BlobName, body: Buffer, origin = ''): Promise<void> {
  const { url, headers } = await store.signUpload(name, grantFor(body), origin);
  const { status, code } = await exchange(url, { method: 'PUT', headers, body });
  if (status !== 200) throw new Error(`the upload was refused: ${status} ${code}`);
}
