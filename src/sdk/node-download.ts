/**
 * The blob of an item into a file, in Node: it appears under its name when its last byte has authenticated, and a
 * download that was interrupted goes on, in another run of the program too.
 *
 * Until then two hidden files lie beside the target, mode 0600: the plaintext that has authenticated (`.part`), and the
 * tag of each of its chunks (`.tags`). Neither is trusted: see `BlobDecryptor.takes`.
 */
import { constants } from 'node:fs';
import { lstat, open, rm, type FileHandle } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { BLOB_CHUNK_BYTES } from '../crypto/blob-stream.js';
import { FILE_MODE, isOpenToOthers, placeFile, POSIX, syncFolder, tempSibling } from '../files/durable.js';
import { tryLock, type FileLock } from '../files/lock.js';
import { errorCode } from '../protocol/error-code.js';
import { AEAD_TAG_BYTES } from '../protocol/limits.js';
import type { ChunkPlace, KeptChunk } from './blobs/chunk-place.js';
import type { TransferOptions } from './blobs/source.js';
import type { Device } from './device.js';
import { ClientError, isPassing } from './errors.js';

/** Options of `saveBlob`. */
export interface SaveOptions extends TransferOptions {
  /** True: a file of that name is replaced; else `EEXIST`. */
  readonly replace?: boolean;
}

/** What is interrupted below this size begins anew: no file is left behind for it. */
const KEPT_MIN = 5 * 1024 * 1024;

/**
 * Saves the decrypted blob of an item as a file, mode 0600, and resolves with its size. What was had before an interruption
 * stays beside it for the next call with the same item and path, where it is 5 MiB or more and a repeat may succeed (no
 * answer, a busy server, `cancelled`). Two calls at once do not mix: the second one begins anew, for itself. Throws as
 * `Device.blob`, and the system's errors.
 */
export async function saveBlob(
  device: Device,
  { id, path }: { readonly id: string; readonly path: string },
  options: SaveOptions = {},
): Promise<number> {
  const target = resolve(path);
  const existing = options.replace === true ? 'replace' : 'keep';
  if (existing === 'keep') await expectFree(target);
  const part = await PartFile.open(target, id);
  try {
    await device.blobInto(id, part, options);
  } catch (error) {
    await part.leave(!(isPassing(error) || error instanceof ClientError));
    throw error;
  }
  return part.finish(target, existing);
}

async function expectFree(path: string): Promise<void> {
  try {
    await lstat(path);
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return;
    throw error;
  }
  throw Object.assign(new Error(`EEXIST: ${path} exists already`), { code: 'EEXIST' });
}

/** Never a link, and nothing that opening could hang on. */
const FLAGS = constants.O_RDWR | constants.O_CREAT | (POSIX ? constants.O_NOFOLLOW | constants.O_NONBLOCK : 0);

/** A file of this name that only this user can have written; undefined where it may be another's. */
async function ownFile(path: string): Promise<FileHandle | undefined> {
  let handle: FileHandle;
  try {
    handle = await open(path, FLAGS, FILE_MODE);
  } catch (error) {
    // A link, a pipe, a folder, another user's file.
    if (['ELOOP', 'ENXIO', 'EISDIR', 'EACCES', 'EPERM'].includes(errorCode(error))) return undefined;
    throw error;
  }
  const stat = await handle.stat();
  const own = stat.isFile() && stat.nlink === 1 && !isOpenToOthers(stat.mode);
  if (own && (!POSIX || stat.uid === process.getuid?.())) return handle;
  await handle.close();
  return undefined;
}

interface Files {
  readonly path: string;
  readonly part: FileHandle;
  /** Absent: nothing of it is to be continued. */
  readonly tags?: { readonly path: string; readonly handle: FileHandle };
  readonly lock?: FileLock;
}

/** The two files of a download. */
class PartFile implements ChunkPlace {
  private chunks = 0;
  private size = 0;

  private constructor(private readonly files: Files) {}

  /** The files beside `target`, of an item; what is in them may be of another content that it had. */
  static async open(target: string, id: string): Promise<PartFile> {
    const path = join(dirname(target), `.${basename(target)}.${id}`);
    const attempt = tryLock(`${path}.lock`);
    if ('lock' in attempt) {
      const { lock } = attempt;
      const part = await ownFile(`${path}.part`);
      const tags = part === undefined ? undefined : await ownFile(`${path}.tags`);
      if (part !== undefined && tags !== undefined) {
        const kept = { path: `${path}.tags`, handle: tags };
        return new PartFile({ path: `${path}.part`, part, tags: kept, lock });
      }
      await part?.close();
      lock.remove();
    }
    // Another program is at work on it, or the name is taken: a name of its own, which nobody knows.
    const own = tempSibling(target, '.part');
    return new PartFile({ path: own, part: await open(own, 'wx+', FILE_MODE) });
  }

  async kept(at: number): Promise<KeptChunk | undefined> {
    const { part, tags } = this.files;
    if (tags === undefined) return undefined;
    const plain = await read(part, at * BLOB_CHUNK_BYTES, BLOB_CHUNK_BYTES);
    const tag = await read(tags.handle, at * AEAD_TAG_BYTES, AEAD_TAG_BYTES);
    return plain === undefined || tag === undefined ? undefined : { plain, tag };
  }

  async begin(chunks: number): Promise<void> {
    this.chunks = chunks;
    this.size = chunks * BLOB_CHUNK_BYTES;
    await this.files.part.truncate(this.size);
    await this.files.tags?.handle.truncate(chunks * AEAD_TAG_BYTES);
  }

  async add(plain: Uint8Array, tag: Uint8Array): Promise<void> {
    const { part, tags } = this.files;
    await write(part, plain, this.size);
    if (tags !== undefined) await write(tags.handle, tag, this.chunks * AEAD_TAG_BYTES);
    this.size += plain.length;
    this.chunks++;
  }

  /** Makes it durable and gives it its name. */
  async finish(target: string, existing: 'replace' | 'keep'): Promise<number> {
    const { part, path } = this.files;
    try {
      await part.sync();
      const [mine, there] = [await part.stat(), await lstat(path)];
      if (mine.ino !== there.ino || mine.dev !== there.dev) throw new Error(`${path} was exchanged meanwhile`);
      await placeFile(path, target, existing);
      await syncFolder(dirname(target));
      return this.size;
    } finally {
      await this.leave(true);
    }
  }

  /** Closes the files. `all`: removes them too, as where nothing can be continued. */
  async leave(all: boolean): Promise<void> {
    const { part, path, tags, lock } = this.files;
    await part.close();
    await tags?.handle.close();
    if (all || tags === undefined || this.size < KEPT_MIN) {
      await rm(path, { force: true });
      if (tags !== undefined) await rm(tags.path, { force: true });
    }
    lock?.remove();
  }
}

async function read(handle: FileHandle, at: number, size: number): Promise<Uint8Array | undefined> {
  const bytes = new Uint8Array(size);
  for (let length = 0; length < size;) {
    const { bytesRead } = await handle.read(bytes, length, size - length, at + length);
    if (bytesRead === 0) return undefined;
    length += bytesRead;
  }
  return bytes;
}

async function write(handle: FileHandle, bytes: Uint8Array, at: number): Promise<void> {
  for (let length = 0; length < bytes.length;) {
    const { bytesWritten } = await handle.write(bytes, length, bytes.length - length, at + length);
    length += bytesWritten;
  }
}
