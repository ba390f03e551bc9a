/** Bytes of unknown length (from a pipe, or of a blob), stored temporarily so that their length is known. */
import { open, rm, type FileHandle } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Sodium } from '../crypto/sodium.js';
import { tempSibling, FILE_MODE, POSIX } from '../files/durable.js';
import { SpoolCipher } from '../sdk/archive/spool-cipher.js';
import type { BlobSource } from '../sdk/blobs/source.js';
import { writingTo } from '../terminal/new-file.js';
import { portionsOf } from '../files/read.js';

/**
 * A temporary file (`TMPDIR`) that can be read repeatedly. It is encrypted under a key that only this process has, so the
 * disk never holds plaintext, even after a kill. On POSIX it is unlinked at once and disappears with the process.
 */
export class Spool implements BlobSource {
  private constructor(
    private readonly cipher: SpoolCipher,
    private readonly file: { readonly path: string; readonly handle: FileHandle },
    readonly size: number,
  ) {}

  /** Reads `input` to its end. Rejects with its error, or with `CommandError` where the disk is full. */
  static async of(sodium: Sodium, input: AsyncIterable<Uint8Array>): Promise<Spool> {
    const path = tempSibling(join(tmpdir(), 'spool'), '.part');
    const cipher = new SpoolCipher(sodium);
    const handle = await open(path, 'wx+', FILE_MODE);
    const write = (bytes: Uint8Array): Promise<void> => writingTo('a temporary file', handle.appendFile(bytes));
    try {
      if (POSIX) await rm(path);
      return new Spool(cipher, { path, handle }, await cipher.seal(input, write));
    } catch (error) {
      await handle.close();
      await rm(path, { force: true });
      throw error;
    }
  }

  open(): AsyncGenerator<Uint8Array, void, undefined> {
    return this.cipher.open(portionsOf(this.file.handle));
  }

  /** Removes the file. Called once. */
  async close(): Promise<void> {
    this.cipher.end();
    await this.file.handle.close();
    if (!POSIX) await rm(this.file.path, { force: true });
  }
}
