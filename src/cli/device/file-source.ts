/** A file as the content of an item: read when it is sent, never held. */
import { createReadStream } from 'node:fs';
import { open, type FileHandle } from 'node:fs/promises';
import type { BlobSource } from '../../client/blobs/source.js';

/** Bytes that are handed on in portions, and a place to put back in order. */
export interface HeldSource extends BlobSource {
  /** Once, at the end. */
  close(): Promise<void>;
}

const READ_BYTES = 256 * 1024;

/** An open file; what takes its name meanwhile is not sent in its place. */
export class FileSource implements HeldSource {
  private constructor(
    private readonly handle: FileHandle,
    private readonly path: string,
    readonly size: number,
    /** False: a pipe or a device, which can be read once, and has no size. */
    readonly isFile: boolean,
  ) {}

  /** Rejects with the system's error. */
  static async open(path: string): Promise<FileSource> {
    const handle = await open(path, 'r');
    try {
      const stat = await handle.stat();
      if (stat.isDirectory()) throw Object.assign(new Error('EISDIR: that is a folder'), { code: 'EISDIR', path });
      return new FileSource(handle, path, stat.size, stat.isFile());
    } catch (error) {
      await handle.close();
      throw error;
    }
  }

  open(): AsyncIterable<Uint8Array> {
    const from = this.isFile ? { start: 0 } : {};
    return createReadStream(this.path, { fd: this.handle, autoClose: false, highWaterMark: READ_BYTES, ...from });
  }

  /** Its first bytes, at most so many. Of a file only. */
  async start(most: number): Promise<Uint8Array> {
    const bytes = Buffer.alloc(Math.min(most, this.size));
    const { bytesRead } = await this.handle.read(bytes, 0, bytes.length, 0);
    return bytes.subarray(0, bytesRead);
  }

  async close(): Promise<void> {
    await this.handle.close();
  }
}
