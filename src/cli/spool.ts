/** Bytes whose number is not known before their end, put aside so that it is: what comes by a pipe, or out of a blob. */
import { open, rm, type FileHandle } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { BlobSource } from '../sdk/blobs/source.js';
import { BlobDecryptor, BlobEncryptor, streamNonce } from '../crypto/blob-stream.js';
import type { Sodium } from '../crypto/sodium.js';
import { FILE_MODE, POSIX, tempSibling } from '../files/durable.js';
import { KEY_BYTES } from '../protocol/limits.js';
import { toUserError } from '../terminal/new-file.js';

const READ_BYTES = 256 * 1024;

interface Held {
  readonly handle: FileHandle;
  readonly path: string;
  readonly secret: { readonly key: Uint8Array; readonly nonce: Uint8Array; readonly aad: Uint8Array };
  readonly sodium: Sodium;
  readonly size: number;
}

/**
 * A temporary file (`TMPDIR`) that is read as often as needed. It is encrypted under a key that only this process has:
 * on the disk there is never a plaintext, also where the process is killed. Where the system can do that, the file has no
 * name either, and is gone with the process.
 */
export class Spool implements BlobSource {
  readonly size: number;

  private constructor(private readonly held: Held) {
    this.size = held.size;
  }

  /** Reads `input` to its end. Rejects with what it rejects with, and `CommandError` where the disk is full. */
  static async of(sodium: Sodium, input: AsyncIterable<Uint8Array>): Promise<Spool> {
    const path = tempSibling(join(tmpdir(), 'spool'), '.part');
    const secret = { key: sodium.random(KEY_BYTES), nonce: streamNonce(sodium), aad: new Uint8Array(0) };
    const handle = await open(path, 'wx+', FILE_MODE);
    try {
      if (POSIX) await rm(path);
      const encryptor = new BlobEncryptor(sodium, secret);
      let size = 0;
      for await (const bytes of input) {
        size += bytes.length;
        for (const chunk of encryptor.push(bytes)) await written(handle, chunk);
      }
      await written(handle, encryptor.finish());
      return new Spool({ handle, path, secret, sodium, size });
    } catch (error) {
      await handle.close();
      await rm(path, { force: true });
      throw error;
    }
  }

  /** The bytes, from the first. */
  async *open(): AsyncGenerator<Uint8Array, void, undefined> {
    const { handle, secret, sodium } = this.held;
    const { key, ...rest } = secret;
    const decryptor = new BlobDecryptor(sodium, { ...rest, keys: [key] });
    try {
      const buffer = new Uint8Array(READ_BYTES);
      for (let at = 0; ;) {
        const { bytesRead } = await handle.read(buffer, 0, buffer.length, at);
        if (bytesRead === 0) break;
        at += bytesRead;
        yield* decryptor.push(buffer.subarray(0, bytesRead));
      }
      yield decryptor.finish();
    } finally {
      decryptor.end();
    }
  }

  /** Once, at the end. */
  async close(): Promise<void> {
    const { handle, path, secret, sodium } = this.held;
    sodium.memzero(secret.key);
    await handle.close();
    if (!POSIX) await rm(path, { force: true });
  }
}

async function written(handle: FileHandle, bytes: Uint8Array): Promise<void> {
  try {
    await handle.appendFile(bytes);
  } catch (error) {
    throw toUserError('a temporary file', error);
  }
}
