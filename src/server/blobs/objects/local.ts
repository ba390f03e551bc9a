/**
 * Blobs in a folder of this machine: `<folder>/<tenant>/<ref>`, and uploads under way in `<folder>/uploads`. Several
 * instances may share the folder. Clients reach it by signed URLs of this server.
 */
import { randomBytes } from 'node:crypto';
import { constants, createReadStream, readlinkSync } from 'node:fs';
import { mkdir, open, opendir, rename, stat, statfs, unlink } from 'node:fs/promises';
import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import type { Readable } from 'node:stream';
import { FILE_MODE, FOLDER_MODE, nameFile, syncFolder } from '../../../files/durable.js';
import { isAlive } from '../../../files/lock.js';
import { writeBytes } from '../../../files/read.js';
import { ifThere } from '../../../files/there.js';
import { errorCode } from '../../../protocol/error-code.js';
import { ServiceError, storageUnavailable } from '../../../protocol/errors.js';
import { BLOB_REF, type BlobName, blobPath, isBlobName, ULID } from '../../../protocol/ids.js';
import { UPLOAD_LIFE_MS, UPLOAD_PAUSE_MS } from '../../../protocol/limits.js';
import type { BlobFile } from '../../http/streams.js';
import {
  partSizeOf,
  type DownloadGrant,
  type ObjectStore,
  type OpenUpload,
  type PartGrant,
  type SignedDownload,
  type SignedRequest,
  type StoredObject,
  type UploadGrant,
  type UploadStart,
} from '../ports.js';
import { signedPath } from '../signed-url.js';

export interface BlobContent {
  /** `<tenant>/<ref>`. */
  readonly name: string;
  readonly size: number;
  readonly bytes: AsyncIterable<Uint8Array>;
}

/** Objects per page of a listing. */
const PAGE = 1_000;
const CHUNK_BYTES = 256 * 1024;
const PART = /^[0-9A-Z]{26}\.[0-9A-Z]{26}\.bin\.part(?:\.whole)?$/;
/**
 * A temporary name identifies its writer: host and PID namespace (host names may repeat, and each container has its own
 * ids), the process id, and a random part of the process, since ids are reused.
 */
const TEMPORARY = /^(?<space>[A-Za-z0-9-]+)\.(?<pid>\d+)\.(?<run>[0-9a-f]{8})\.[0-9a-f]{16}\.tmp$/;
const PID_SPACE = `${hostname()}-${pidNamespace()}`.replace(/[^A-Za-z0-9-]/g, '-');
const RUN_ID = randomBytes(4).toString('hex');

/**
 * The part of the disk that uploads leave free, and its maximum, bytes. The database is often on the same disk, and stops
 * where it cannot write.
 */
const KEPT_PARTS = 20;
const KEPT_MAX = 1024 ** 3;
/** The free space is looked at again after so many bytes. */
const LOOK_BYTES = 4 * 1024 * 1024;

/** `folder`: absolute, made on first use with mode 0700; `secret`: BLOB_URL_SECRET. */
export class LocalStore implements ObjectStore {
  readonly kind = 'local';
  /** Bytes that may be written until the free space is looked at. */
  private allowed = 0;

  constructor(
    readonly folder: string,
    private readonly secret: string,
  ) {}

  signUpload({ tenantId, ref }: BlobName, grant: UploadGrant, origin: string): Promise<SignedRequest> {
    const { size, contentType, expiresAt } = grant;
    return this.signPut({ tenantId, ref, expiresAt, size, contentType }, origin);
  }

  signDownload({ tenantId, ref }: BlobName, { expiresAt }: DownloadGrant, origin: string): Promise<SignedDownload> {
    const path = signedPath(this.secret, { tenantId, ref, method: 'GET', expiresAt });
    return Promise.resolve({ url: origin + path, headers: {}, expiresAt });
  }

  /** Creates nothing: before its first byte an upload in parts needs only its row. */
  begin(_name: BlobName, { size }: UploadStart): Promise<string | undefined> {
    return Promise.resolve(size > partSizeOf(size) ? '' : undefined);
  }

  signPart({ tenantId, ref, contentType }: OpenUpload, part: PartGrant, origin: string): Promise<SignedRequest> {
    const { from, size, expiresAt } = part;
    return this.signPut({ tenantId, ref, expiresAt, size, contentType, from }, origin);
  }

  /** `from`: of a part only. */
  private signPut(
    put: BlobName & Omit<UploadGrant, 'now'> & Partial<Pick<PartGrant, 'from'>>,
    origin: string,
  ): Promise<SignedRequest> {
    const path = signedPath(this.secret, { ...put, method: 'PUT' });
    const headers = { 'content-type': put.contentType, 'content-length': String(put.size) };
    return Promise.resolve({ url: origin + path, headers });
  }

  /**
   * The bytes that the row counts are durable. If the file has fewer, it was not restored with the row, and its size
   * counts instead; if it has more, the excess does not count, since it may be lost in a power failure.
   */
  async offsetOf(upload: OpenUpload): Promise<number> {
    const { size, kept } = upload;
    if ((await this.head(upload))?.size === size) return size;
    const part = this.partOf(upload);
    const sizeOf = (path: string): Promise<number | undefined> => ifThere(async () => (await stat(path)).size);
    const held = await orUnavailable(async () => (await sizeOf(part)) ?? (await sizeOf(wholeOf(part))));
    const offset = Math.min(kept, held ?? 0);
    // 0: a concurrent request has cancelled the upload, and removed the file.
    return offset < size || (await this.finish(upload, size)) ? offset : 0;
  }

  abort(name: BlobName): Promise<void> {
    return orUnavailable(async () => {
      const part = this.partOf(name);
      await removeFile(part);
      await removeFile(wholeOf(part));
    });
  }

  /** The file of an upload in parts, created if absent. Undefined: it has fewer than `from` bytes. */
  openPart(name: BlobName, from: number) {
    return orUnavailable(async () => {
      const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_NOFOLLOW;
      const path = this.partOf(name);
      const handle = await inFolder(this.uploads, () => open(path, flags, FILE_MODE));
      // -1 also if `stat` fails: the handle is closed then.
      let [size, ino] = [-1, 0];
      try {
        if (from === 0) await syncFolder(this.uploads);
        ({ size, ino } = await handle.stat());
      } finally {
        if (size < from) await handle.close();
      }
      if (size < from) return undefined;
      const write = async (bytes: Uint8Array, position: number): Promise<void> => {
        if ((await ifThere(() => stat(path)))?.ino !== ino) throw new ServiceError('url_invalid');
        await this.takeSpace(bytes.length);
        await writeBytes(handle, bytes, position);
      };
      return {
        /** Writes at `position`. Throws `url_invalid` if the upload has meanwhile been completed or cancelled. */
        write: (bytes: Uint8Array, position: number) => orUnavailable(() => write(bytes, position)),
        sync: () => orUnavailable(() => handle.sync()),
        close: () => orUnavailable(() => handle.close()),
      };
    });
  }

  /** Gives the complete file of an upload in parts, `size` bytes, the blob's name. False: the file is gone. */
  finish(name: BlobName, size: number): Promise<boolean> {
    return orUnavailable(async () => {
      const part = this.partOf(name);
      const whole = wholeOf(part);
      // Renamed first: another request, perhaps on another instance, writes while the file has the name of a part.
      await ifThere(() => rename(part, whole));
      const made = await ifThere(() => linkAs(whole, this.pathOf(name)));
      // Another request may have been first: it has linked the file, and perhaps already removed the other name.
      if (made !== true && (await this.head(name))?.size !== size) return false;
      await removeFile(whole);
      return true;
    });
  }

  /** A file to be written, which gets its name once it is complete and durable. */
  create(name: BlobName) {
    return orUnavailable(async () => {
      const target = this.pathOf(name);
      const path = join(this.uploads, `${PID_SPACE}.${process.pid}.${RUN_ID}.${randomBytes(8).toString('hex')}.tmp`);
      const handle = await inFolder(this.uploads, () => open(path, 'wx', FILE_MODE));
      let removed = false;
      // Closing a closed handle does nothing.
      const discard = async (): Promise<void> => {
        if (removed) return;
        await handle.close();
        await removeFile(path);
        removed = true;
      };
      const commit = async (): Promise<boolean> => {
        await handle.sync();
        await handle.close();
        if (!(await linkAs(path, target))) return false;
        await discard();
        return true;
      };
      const write = async (bytes: Uint8Array): Promise<void> => {
        await this.takeSpace(bytes.length);
        await handle.writeFile(bytes);
      };
      return {
        write: (bytes: Uint8Array) => orUnavailable(() => write(bytes)),
        /** Makes it durable under its name. False: there is a file of this name already. */
        commit: () => orUnavailable(commit),
        /** Removes what was written; after `commit` it does nothing. */
        discard: () => orUnavailable(discard),
      };
    });
  }

  /** Undefined: there is no such blob. */
  open(name: BlobName): Promise<BlobFile | undefined> {
    return orUnavailable(async () => {
      const handle = await ifThere(() => open(this.pathOf(name), 'r'));
      if (handle === undefined) return undefined;
      try {
        const { size } = await handle.stat();
        return {
          size,
          read: (into, position) =>
            orUnavailable(async () => (await handle.read(into, 0, into.length, position)).bytesRead),
          close: () => orUnavailable(() => handle.close()),
        };
      } catch (error) {
        await handle.close();
        throw error;
      }
    });
  }

  head({ tenantId, ref }: BlobName): Promise<StoredObject | undefined> {
    const look = async (): Promise<StoredObject> => {
      const { size, mtimeMs } = await stat(this.pathOf({ tenantId, ref }));
      return { tenantId, ref, size, modifiedAt: Math.floor(mtimeMs) };
    };
    return orUnavailable(() => ifThere(look));
  }

  remove(name: BlobName): Promise<void> {
    return orUnavailable(() => removeFile(this.pathOf(name)));
  }

  async *list(): AsyncGenerator<readonly StoredObject[]> {
    let page: StoredObject[] = [];
    for await (const tenantId of this.names(this.folder, ULID)) {
      for await (const ref of this.names(join(this.folder, tenantId), BLOB_REF)) {
        const object = await this.head({ tenantId, ref });
        if (object !== undefined) page.push(object);
        if (page.length < PAGE) continue;
        yield page;
        page = [];
      }
    }
    if (page.length > 0) yield page;
  }

  /** The bytes of a blob. The stream fails if there is none. */
  read(name: BlobName): Readable {
    return createReadStream(this.pathOf(name));
  }

  /** Every blob with its bytes, for a backup. A blob removed meanwhile is left out, or still read to its end. */
  async *contents(): AsyncGenerator<BlobContent> {
    for await (const page of this.list()) {
      for (const object of page) {
        const file = await this.open(object);
        if (file === undefined) continue;
        try {
          yield { name: blobPath(object), size: file.size, bytes: chunksOf(file) };
        } finally {
          await file.close();
        }
      }
    }
  }

  origin(): Promise<undefined> {
    return Promise.resolve(undefined);
  }

  /**
   * Removes abandoned uploads: those of ended processes of this machine, and those not written to for `quietMs`, which
   * is longer than any upload in one PUT may pause. Of uploads in parts, removes those too old to still have a row,
   * left behind because their tenant is gone. Returns the number of files.
   */
  sweep(now: number, quietMs: number): Promise<number> {
    return orUnavailable(async () => {
      let swept = 0;
      const kinds = [
        [TEMPORARY, quietMs],
        [PART, UPLOAD_LIFE_MS + UPLOAD_PAUSE_MS],
      ] as const;
      for (const [pattern, maxAgeMs] of kinds) {
        for await (const name of this.names(this.uploads, pattern)) {
          const path = join(this.uploads, name);
          if (!(await isAbandoned(path, name, now - maxAgeMs))) continue;
          await removeFile(path);
          swept++;
        }
      }
      if (swept > 0) await syncFolder(this.uploads);
      return swept;
    });
  }

  /** Throws ENOSPC if so many bytes more would use what uploads leave free. */
  private async takeSpace(bytes: number): Promise<void> {
    if (bytes > this.allowed) {
      const { blocks, bavail, bsize } = await statfs(this.uploads);
      // A file system that does not report its space reports zero for all three.
      const free = blocks === 0 ? Infinity : bsize * (bavail - Math.min(blocks / KEPT_PARTS, KEPT_MAX / bsize));
      if (bytes > free)
        throw Object.assign(new Error('ENOSPC: uploads leave a twentieth of the disk free'), { code: 'ENOSPC' });
      this.allowed = Math.min(free, LOOK_BYTES);
    }
    this.allowed -= bytes;
  }

  private get uploads(): string {
    return join(this.folder, 'uploads');
  }

  /** The file of an upload in parts. Not a temporary name: such a file is removed once its process has ended. */
  private partOf(name: BlobName): string {
    if (!isBlobName(name)) throw new ServiceError('no_blob');
    return join(this.uploads, `${name.tenantId}.${name.ref}.part`);
  }

  private pathOf(name: BlobName): string {
    // Names come from signed URLs and rows; only names of this form may become a path.
    if (!isBlobName(name)) throw new ServiceError('no_blob');
    return join(this.folder, name.tenantId, name.ref);
  }

  /** Names in a folder that match `pattern`; none if the folder is absent. */
  private async *names(folder: string, pattern: RegExp): AsyncGenerator<string> {
    const entries = await orUnavailable(() => ifThere(() => opendir(folder)));
    try {
      for await (const { name } of entries ?? []) if (pattern.test(name)) yield name;
    } catch (error) {
      throw storageUnavailable(error);
    }
  }
}

/** Name of the file of an upload in parts between its completion and the link to the blob's name. */
const wholeOf = (part: string): string => `${part}.whole`;

/** Gives a file a durable name, which never replaces another file. False: there is a file of this name already. */
async function linkAs(path: string, target: string): Promise<boolean> {
  const made = await inFolder(dirname(target), () =>
    nameFile(path, target).then(
      () => true,
      (error: unknown) => {
        if (errorCode(error) !== 'EEXIST') throw error;
        return false;
      },
    ),
  );
  // Also if it exists: the process that linked it may not have synced yet, and the caller removes its own file next.
  await syncFolder(dirname(target));
  return made;
}

/**
 * Creates an entry of a folder. Where the folder is absent it is created with its parents, and the entry of the topmost
 * new one made durable: only the first blob of a tenant pays for that.
 */
async function inFolder<T>(folder: string, create: () => Promise<T>): Promise<T> {
  const made = await ifThere(create);
  if (made !== undefined) return made;
  const first = await mkdir(folder, { recursive: true, mode: FOLDER_MODE });
  if (first !== undefined) await syncFolder(dirname(first));
  return create();
}

/** Does nothing if there is none. `rm` would look at the file first, on the main thread. */
async function removeFile(path: string): Promise<void> {
  await ifThere(() => unlink(path));
}

/** Any failure (full disk, absent folder) becomes `storage_unavailable`; a `ServiceError` passes unchanged. */
async function orUnavailable<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw error instanceof ServiceError ? error : storageUnavailable(error);
  }
}

/** Each chunk is a buffer of its own, which the consumer may keep. */
async function* chunksOf(file: BlobFile): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < file.size;) {
    const chunk = Buffer.allocUnsafeSlow(Math.min(CHUNK_BYTES, file.size - at));
    const got = await file.read(chunk, at);
    if (got === 0) throw storageUnavailable(new Error('a stored blob is shorter than its size'));
    at += got;
    yield chunk.subarray(0, got);
  }
}

/** The PID namespace as Linux names it; '' on other systems. */
function pidNamespace(): string {
  try {
    return readlinkSync('/proc/self/ns/pid');
  } catch {
    return '';
  }
}

/** Whether its writer is a process of this machine that has ended, or it was last written before `before` (ms). */
async function isAbandoned(path: string, name: string, before: number): Promise<boolean> {
  const { space, pid, run } = TEMPORARY.exec(name)?.groups ?? {};
  const samePid = Number(pid) === process.pid;
  if (space === PID_SPACE && (samePid ? run !== RUN_ID : !isAlive(Number(pid)))) return true;
  const found = await ifThere(() => stat(path));
  return found !== undefined && found.mtimeMs < before;
}
