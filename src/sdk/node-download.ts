/**
 * Downloads the blob of an item into a file, in Node. The file appears under its name only when its last byte was
 * authenticated; an interrupted download can be continued, also by another run of the program.
 *
 * Until then there are two hidden files beside the target, mode 0600: the authenticated plaintext (`.part`), and the
 * tag of each of its chunks (`.tags`). Neither is trusted: see `BlobDecryptor.takes`.
 */
import { constants } from 'node:fs';
import { lstat, open, rm, type FileHandle } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { BLOB_CHUNK_BYTES } from '../crypto/blob-stream.js';
import { expectFree, FILE_MODE, isOpenToOthers, placeFile, POSIX, syncFolder, tempSibling } from '../files/durable.js';
import { tryLock, type FileLock } from '../files/lock.js';
import { readBytes, writeBytes } from '../files/read.js';
import { errorCode } from '../protocol/error-code.js';
import { isUlid } from '../protocol/ids.js';
import { AEAD_TAG_BYTES, UPLOAD_PART_BYTES } from '../protocol/limits.js';
import type { ChunkPlace, KeptChunk } from './blobs/chunk-place.js';
import type { TransferOptions } from './blobs/source.js';
import type { Device } from './device.js';
import { ClientError, isUndecided } from './errors.js';

/** Options of `saveBlob`. */
export interface SaveOptions extends TransferOptions {
  /** True: an existing file of that name is replaced; else the call rejects with `EEXIST`. */
  readonly replace?: boolean;
}

/**
 * Saves the decrypted blob of an item as a file, mode 0600, and resolves with its size. If it fails and a repeat may
 * succeed (no or an invalid answer, a busy server, `cancelled`, `closed`), 5 MiB or more of received plaintext stay
 * beside the target, and the next call with the same item and path continues. Of two concurrent calls the second starts
 * from the beginning in its own file. Throws as `Device.blob`, and the system's errors.
 */
export async function saveBlob(
  device: Device,
  { id, path }: { readonly id: string; readonly path: string },
  options: SaveOptions = {},
): Promise<number> {
  // The id becomes part of file names.
  if (!isUlid(id)) throw new ClientError('unknown_item', 'this is the id of no item');
  const target = resolve(path);
  const existing = options.replace === true ? 'replace' : 'keep';
  if (existing === 'keep') await expectFree(target);
  const part = await PartFile.open(target, id);
  try {
    await device.blobInto(id, part, options);
  } catch (error) {
    await part.leave(!mayGoOn(error));
    throw error;
  }
  return part.finish(target, existing);
}

/** True where the same call may succeed later; after any other error the partial files are removed. */
const mayGoOn = (error: unknown): boolean =>
  isUndecided(error) || (error instanceof ClientError && ['cancelled', 'closed', 'reset'].includes(error.code));

/** Refuses symbolic links, and does not block on pipes. */
const FLAGS = constants.O_RDWR | constants.O_CREAT | (POSIX ? constants.O_NOFOLLOW | constants.O_NONBLOCK : 0);

/** Opens or creates a file that only this user can have written; undefined where another user may have. */
async function ownFile(path: string): Promise<{ readonly handle: FileHandle; readonly size: number } | undefined> {
  let handle: FileHandle;
  try {
    handle = await open(path, FLAGS, FILE_MODE);
  } catch (error) {
    // A link, a pipe, a folder, another user's file.
    if (['ELOOP', 'ENXIO', 'EISDIR', 'EACCES', 'EPERM'].includes(errorCode(error))) return undefined;
    throw error;
  }
  let size: number | undefined;
  try {
    const stat = await handle.stat();
    const own = stat.isFile() && stat.nlink === 1 && !isOpenToOthers(stat.mode);
    if (own && (!POSIX || stat.uid === process.getuid?.())) size = stat.size;
  } finally {
    if (size === undefined) await handle.close();
  }
  return size === undefined ? undefined : { handle, size };
}

interface Files {
  readonly path: string;
  readonly part: FileHandle;
  /** Absent: the download cannot be continued later. */
  readonly kept?: { readonly tags: FileHandle; readonly tagsPath: string; readonly lock: FileLock };
  /** Aborted when another process took the files over, after this one had been suspended for long. */
  readonly lost: AbortSignal;
}

/** The two files of a download. */
class PartFile implements ChunkPlace {
  private chunks = 0;

  private constructor(
    private readonly files: Files,
    /** Bytes of plaintext; initially those of the earlier run. */
    private size: number,
  ) {}

  /** Opens the files of an item beside `target`; they may hold bytes of an earlier content of the item. */
  static async open(target: string, id: string): Promise<PartFile> {
    const path = join(dirname(target), `.${basename(target)}.${id}`);
    const lost = new AbortController();
    const lock = lockOf(`${path}.lock`, lost);
    const kept = lock === undefined ? undefined : await filesOf(path, lock);
    if (kept !== undefined) return new PartFile({ ...kept.files, lost: lost.signal }, kept.size);
    // Another program uses the files, or the names are taken: a random name instead, which cannot be continued.
    const own = tempSibling(target, '.part');
    return new PartFile({ path: own, part: await open(own, 'wx+', FILE_MODE), lost: lost.signal }, 0);
  }

  async kept(at: number): Promise<KeptChunk | undefined> {
    const { part, kept } = this.files;
    if (kept === undefined) return undefined;
    const plain = await readBytes(part, at * BLOB_CHUNK_BYTES, BLOB_CHUNK_BYTES);
    const tag = await readBytes(kept.tags, at * AEAD_TAG_BYTES, AEAD_TAG_BYTES);
    return plain.length < BLOB_CHUNK_BYTES || tag.length < AEAD_TAG_BYTES ? undefined : { plain, tag };
  }

  async begin(chunks: number): Promise<void> {
    this.expectOwn();
    this.chunks = chunks;
    this.size = chunks * BLOB_CHUNK_BYTES;
    await this.files.part.truncate(this.size);
    await this.files.kept?.tags.truncate(chunks * AEAD_TAG_BYTES);
  }

  async add(plain: Uint8Array, tag: Uint8Array): Promise<void> {
    this.expectOwn();
    const { part, kept } = this.files;
    await writeBytes(part, plain, this.size);
    if (kept !== undefined) await writeBytes(kept.tags, tag, this.chunks * AEAD_TAG_BYTES);
    this.size += plain.length;
    this.chunks++;
  }

  /** Makes the file durable, moves it to `target`, and resolves with its size. */
  async finish(target: string, existing: 'replace' | 'keep'): Promise<number> {
    const { part, path } = this.files;
    try {
      await part.sync();
      const [mine, there] = [await part.stat(), await lstat(path)];
      if (mine.ino !== there.ino || mine.dev !== there.dev) throw new Error(`${path} was exchanged meanwhile`);
      this.expectOwn();
      await placeFile(path, target, existing);
      await syncFolder(dirname(target));
      return this.size;
    } finally {
      await this.leave(true);
    }
  }

  /** Closes the files. Removes them if `all`, or if the download cannot be continued or is smaller than 5 MiB. */
  async leave(all: boolean): Promise<void> {
    const { part, path, kept, lost } = this.files;
    try {
      const closed = await Promise.allSettled([part.close(), kept?.tags.close()]);
      if (!lost.aborted && (all || kept === undefined || this.size < UPLOAD_PART_BYTES)) {
        await rm(path, { force: true });
        if (kept !== undefined) await rm(kept.tagsPath, { force: true });
      }
      for (const one of closed) if (one.status === 'rejected') throw one.reason;
    } finally {
      kept?.lock.remove();
    }
  }

  private expectOwn(): void {
    if (this.files.lost.aborted) throw new Error(`${this.files.path} was taken over by another program`);
  }
}

/** The files of an earlier run, or empty ones; undefined, with the lock released, where another user may own them. */
async function filesOf(path: string, lock: FileLock) {
  const tagsPath = `${path}.tags`;
  let part: Awaited<ReturnType<typeof ownFile>>;
  let tags: typeof part;
  try {
    part = await ownFile(`${path}.part`);
    tags = part && (await ownFile(tagsPath));
    if (part === undefined || tags === undefined) return undefined;
    const kept = { tags: tags.handle, tagsPath, lock };
    return { files: { path: `${path}.part`, part: part.handle, kept }, size: part.size };
  } finally {
    if (tags === undefined) {
      lock.remove();
      await part?.handle.close();
    }
  }
}

/** The lock of the files; undefined where another program holds it, or no lock can be created there. */
function lockOf(path: string, lost: AbortController): FileLock | undefined {
  try {
    const attempt = tryLock(path, { onLost: () => lost.abort() });
    return 'lock' in attempt ? attempt.lock : undefined;
  } catch {
    // For example, the folder is missing: opening the file then fails for the same reason.
    return undefined;
  }
}
