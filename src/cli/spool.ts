/** Bytes of unknown length (from a pipe, or of a blob), stored temporarily so that their length is known. */
import { open, rm, type FileHandle } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { BlobDecryptor, BlobEncryptor, streamNonce } from '../crypto/blob-stream.js';
import type { Sodium } from '../crypto/sodium.js';
import { tempSibling, FILE_MODE, POSIX } from '../files/durable.js';
import { KEY_BYTES } from '../protocol/limits.js';
import type { BlobSource } from '../sdk/blobs/source.js';
import { toUserError } from '../terminal/new-file.js';

const READ_BYTES = 256 * 1024;

/**
 * A temporary file (`TMPDIR`) that can be read repeatedly. It is encrypted under a key that only this process has, so the
 * disk never holds plaintext, even after a kill. On POSIX it is unlinked at once and disappears with the process.
 */
export class Spool implements BlobSource {
  readonly size: number;

  private constructor(
    private readonly sodium: Sodium,
    private readonly handle: FileHandle,
    private readonly stored: {
      readonly path: string;
      readonly secret: { readonly key: Uint8Array; readonly nonce: Uint8Array; readonly aad: Uint8Array };
      readonly size: number;
    },
  ) {
    this.size = stored.size;
  }

  /** Reads `input` to its end. Rejects with its error, or with `CommandError` where the disk is full. */
  static async of(sodium: Sodium, input: AsyncIterable<Uint8Array>): Promise<Spool> {
    const path = tempSibling(join(tmpdir(), 'spool'), '.part');
    const secret = { key: sodium.random(KEY_BYTES), nonce: streamNonce(sodium), aad: new Uint8Array(0) };
    const handle = await open(path, 'wx+', FILE_MODE);
    const write = (bytes: Uint8Array): Promise<void> =>
      handle.appendFile(bytes).catch((error: unknown) => {
        throw toUserError('a temporary file', error);
      });
    try {
      if (POSIX) await rm(path);
      const encryptor = new BlobEncryptor(sodium, secret);
      let size = 0;
      for await (const bytes of input) {
        size += bytes.length;
        for (const chunk of encryptor.push(bytes)) await write(chunk);
      }
      await write(encryptor.finish());
      return new Spool(sodium, handle, { path, secret, size });
    } catch (error) {
      await handle.close();
      await rm(path, { force: true });
      throw error;
    }
  }

  /** The bytes, from the first. */
  async *open(): AsyncGenerator<Uint8Array, void, undefined> {
    const { key, ...rest } = this.stored.secret;
    const decryptor = new BlobDecryptor(this.sodium, { ...rest, keys: [key] });
    try {
      const buffer = new Uint8Array(READ_BYTES);
      for (let at = 0; ;) {
        const { bytesRead } = await this.handle.read(buffer, 0, buffer.length, at);
        if (bytesRead === 0) break;
        at += bytesRead;
        yield* decryptor.push(buffer.subarray(0, bytesRead));
      }
      yield decryptor.finish();
    } finally {
      decryptor.end();
    }
  }

  /** Removes the file. Called once. */
  async close(): Promise<void> {
    this.sodium.memzero(this.stored.secret.key);
    await this.handle.close();
    if (!POSIX) await rm(this.stored.path, { force: true });
  }
}
