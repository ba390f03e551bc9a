/** One file of the local store, being written or read. */
import { link, mkdir, open, rm, type FileHandle } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { BlobFile } from '../../http/streams.js';
import type { BlobFileDraft } from '../transfers.js';
import { FILE_MODE, FOLDER_MODE, syncFolder } from '../../../files/durable.js';
import { ifThere } from '../../../files/there.js';
import { errorCode } from '../../../protocol/error-code.js';
import { storageUnavailable } from '../../../protocol/errors.js';

/** Makes a folder, and its entry in the folder above durable. Done again it does nothing. */
async function makeFolder(folder: string): Promise<void> {
  const first = await mkdir(folder, { recursive: true, mode: FOLDER_MODE });
  if (first !== undefined) await syncFolder(dirname(first));
}

/** What fails is `storage_unavailable`: a full disk, a broken one, a folder that is not there. */
export async function orUnavailable<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw storageUnavailable(error);
  }
}

/** A file under a temporary name. It takes its name by a link, which never replaces another file. */
export class LocalDraft implements BlobFileDraft {
  private open = true;
  private temporary = true;

  private constructor(
    private readonly handle: FileHandle,
    private readonly path: string,
    private readonly target: string,
  ) {}

  /** Both folders exist, or are made. */
  static create(path: string, target: string): Promise<LocalDraft> {
    return orUnavailable(async () => {
      await makeFolder(dirname(path));
      return new LocalDraft(await open(path, 'wx', FILE_MODE), path, target);
    });
  }

  write(bytes: Uint8Array): Promise<void> {
    // One write may take a part only: of a full disk it takes what fits, and the next one fails.
    return orUnavailable(async () => {
      for (let at = 0; at < bytes.length;) at += (await this.handle.write(bytes, at)).bytesWritten;
    });
  }

  commit(): Promise<boolean> {
    return orUnavailable(async () => {
      await this.handle.sync();
      await this.close();
      await makeFolder(dirname(this.target));
      try {
        await link(this.path, this.target);
      } catch (error) {
        if (errorCode(error) === 'EEXIST') return false;
        throw error;
      }
      await this.unlink();
      await syncFolder(dirname(this.target));
      return true;
    });
  }

  async discard(): Promise<void> {
    await orUnavailable(async () => {
      await this.close();
      await this.unlink();
    });
  }

  private async unlink(): Promise<void> {
    if (!this.temporary) return;
    await rm(this.path, { force: true });
    this.temporary = false;
  }

  private async close(): Promise<void> {
    if (!this.open) return;
    this.open = false;
    await this.handle.close();
  }
}

/** A stored file. */
export class LocalFile implements BlobFile {
  private constructor(
    private readonly handle: FileHandle,
    readonly size: number,
  ) {}

  /** Undefined: there is none. */
  static open(path: string): Promise<LocalFile | undefined> {
    return orUnavailable(async () => {
      const handle = await ifThere(() => open(path, 'r'));
      if (handle === undefined) return undefined;
      try {
        return new LocalFile(handle, (await handle.stat()).size);
      } catch (error) {
        await handle.close();
        throw error;
      }
    });
  }

  read(into: Uint8Array, position: number): Promise<number> {
    return orUnavailable(async () => (await this.handle.read(into, 0, into.length, position)).bytesRead);
  }

  close(): Promise<void> {
    return orUnavailable(() => this.handle.close());
  }
}
