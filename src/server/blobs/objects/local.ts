/**
 * Blobs in a folder of this machine: `<folder>/<tenant>/<ref>`, and uploads under way in `<folder>/uploads`. Several
 * instances may share the folder. Clients reach it by signed URLs of this server.
 */
import { randomBytes } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { opendir, rm, stat } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import type { DownloadGrant, ObjectName, ObjectStore, SignedRequest, StoredObject, UploadGrant } from '../ports.js';
import { signedPath } from '../signed-url.js';
import type { BlobFile } from '../../http/streams.js';
import type { BlobFileDraft, BlobFiles } from '../transfers.js';
import { syncFolder } from '../../../files/durable.js';
import { ifThere } from '../../../files/there.js';
import { errorCode } from '../../../protocol/error-code.js';
import { ServiceError, storageUnavailable } from '../../../protocol/errors.js';
import { BLOB_REF, isBlobName, ULID } from '../../../protocol/ids.js';
import { LocalDraft, LocalFile, orUnavailable } from './local-file.js';

/** What the store is made of. */
export interface LocalStoreOptions {
  /** Absolute; made on first use, 0700. */
  readonly folder: string;
  /** BLOB_URL_SECRET. */
  readonly secret: string;
}

const PAGE = 1_000;
const PIECE = 256 * 1024;
/** A temporary name says who writes: machine, process, the process's own random part, the file's. */
const HOST = hostname().replace(/[^A-Za-z0-9-]/g, '-');
/** In a container every process may have the same number. */
const LIFE = randomBytes(4).toString('hex');
const TEMPORARY = /^(?<host>[A-Za-z0-9-]+)\.(?<pid>\d+)\.(?<life>[0-9a-f]{8})\.[0-9a-f]{16}\.tmp$/;

/** See above. */
export class LocalStore implements ObjectStore, BlobFiles {
  readonly kind = 'local';

  constructor(private readonly options: LocalStoreOptions) {}

  /** Where its blobs lie. */
  get folder(): string {
    return this.options.folder;
  }

  signUpload(name: ObjectName, grant: UploadGrant, origin: string): Promise<SignedRequest> {
    const { size, contentType, expiresAt } = grant;
    const path = signedPath(this.options.secret, { ...plain(name), method: 'PUT', expiresAt, size, contentType });
    const headers = { 'content-type': contentType, 'content-length': String(size) };
    return Promise.resolve({ url: origin + path, headers });
  }

  signDownload(name: ObjectName, { expiresAt }: DownloadGrant, origin: string): Promise<SignedRequest> {
    const path = signedPath(this.options.secret, { ...plain(name), method: 'GET', expiresAt });
    return Promise.resolve({ url: origin + path, headers: {} });
  }

  create(name: ObjectName): Promise<BlobFileDraft> {
    const random = randomBytes(8).toString('hex');
    return LocalDraft.create(join(this.uploads, `${HOST}.${process.pid}.${LIFE}.${random}.tmp`), this.pathOf(name));
  }

  open(name: ObjectName): Promise<BlobFile | undefined> {
    return LocalFile.open(this.pathOf(name));
  }

  head(name: ObjectName): Promise<StoredObject | undefined> {
    return orUnavailable(() => this.look(plain(name)));
  }

  remove(name: ObjectName): Promise<void> {
    return orUnavailable(async () => rm(this.pathOf(name), { force: true }));
  }

  async *list(): AsyncGenerator<readonly StoredObject[]> {
    let page: StoredObject[] = [];
    for await (const tenantId of this.names(this.options.folder, ULID)) {
      for await (const ref of this.names(join(this.options.folder, tenantId), BLOB_REF)) {
        const object = await this.head({ tenantId, ref });
        if (object !== undefined) page.push(object);
        if (page.length < PAGE) continue;
        yield page;
        page = [];
      }
    }
    if (page.length > 0) yield page;
  }

  async read(name: ObjectName): Promise<Readable> {
    if ((await this.head(name)) === undefined) throw new ServiceError('blob_not_found');
    return createReadStream(this.pathOf(name));
  }

  /** Every blob with its bytes, for a backup. One that is removed meanwhile is left out, or read to its end. */
  async *contents(): AsyncGenerator<{
    readonly name: string;
    readonly size: number;
    readonly bytes: AsyncIterable<Uint8Array>;
  }> {
    for await (const page of this.list()) {
      for (const { tenantId, ref } of page) {
        const file = await this.open({ tenantId, ref });
        if (file === undefined) continue;
        try {
          yield { name: `${tenantId}/${ref}`, size: file.size, bytes: piecesOf(file) };
        } finally {
          await file.close();
        }
      }
    }
  }

  /** Files are open during a transfer only. */
  close(): Promise<void> {
    return Promise.resolve();
  }

  /**
   * Removes what uploads left behind that nobody is at any more: of processes of this machine that are gone, and what
   * nobody wrote to for `quietMs`, which is longer than any upload may pause. Gives the number of files.
   */
  sweep(now: number, quietMs: number): Promise<number> {
    return orUnavailable(async () => {
      let swept = 0;
      for await (const name of this.names(this.uploads, TEMPORARY)) {
        const path = join(this.uploads, name);
        if (!(await isLeft(path, name, now - quietMs))) continue;
        await rm(path, { force: true });
        swept++;
      }
      if (swept > 0) await syncFolder(this.uploads);
      return swept;
    });
  }

  private get uploads(): string {
    return join(this.options.folder, 'uploads');
  }

  private pathOf(name: ObjectName): string {
    // A name comes from a signed URL or a row; that it is one is asked again where it becomes a path.
    if (!isBlobName(name)) throw new ServiceError('no_blob');
    return join(this.options.folder, name.tenantId, name.ref);
  }

  private look(name: ObjectName): Promise<StoredObject | undefined> {
    return ifThere(async () => {
      const { size, mtimeMs } = await stat(this.pathOf(name));
      return { ...name, size, modifiedAt: Math.floor(mtimeMs) };
    });
  }

  /** Names in a folder that have a form; none where there is no folder. */
  private async *names(folder: string, form: RegExp): AsyncGenerator<string> {
    const entries = await orUnavailable(() => ifThere(() => opendir(folder)));
    if (entries === undefined) return;
    for await (const { name } of entries) if (form.test(name)) yield name;
  }
}

/** Each piece is a buffer of its own: whoever takes it may keep it. */
async function* piecesOf(file: BlobFile): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < file.size;) {
    const piece = Buffer.allocUnsafeSlow(Math.min(PIECE, file.size - at));
    const got = await file.read(piece, at);
    if (got === 0) throw storageUnavailable(new Error('a stored blob is shorter than its size'));
    at += got;
    yield piece.subarray(0, got);
  }
}

const plain = ({ tenantId, ref }: ObjectName): ObjectName => ({ tenantId, ref });

async function isLeft(path: string, name: string, before: number): Promise<boolean> {
  const { host, pid, life } = TEMPORARY.exec(name)?.groups ?? {};
  const mine = Number(pid) === process.pid;
  if (host === HOST && (mine ? life !== LIFE : !lives(Number(pid)))) return true;
  const found = await ifThere(() => stat(path));
  return found !== undefined && found.mtimeMs < before;
}

function lives(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    // Somebody else's process lives too.
    return errorCode(error) !== 'ESRCH';
  }
}
