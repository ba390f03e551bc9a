/** Encryption of content that is stored outside of memory until its length is known. */
import { BlobDecryptor, BlobEncryptor, streamNonce } from '../../crypto/blob-stream.js';
import type { Sodium } from '../../crypto/sodium.js';
import { KEY_BYTES } from '../../protocol/limits.js';

/**
 * Encrypts one content under a key that only this process has: the stored bytes are unreadable after it ends, even by a
 * kill. One instance seals once, because a second content would have the same key and nonce.
 */
export class SpoolCipher {
  private readonly key: Uint8Array;
  private readonly stream: { readonly nonce: Uint8Array; readonly aad: Uint8Array };

  constructor(private readonly sodium: Sodium) {
    this.key = sodium.random(KEY_BYTES);
    this.stream = { nonce: streamNonce(sodium), aad: new Uint8Array(0) };
  }

  /**
   * Reads `input` to its end and passes its ciphertext to `store`, in order. Returns the plaintext size in bytes. Rejects
   * as `input` and `store` do, after erasing the key: nothing that was stored will be opened.
   */
  async seal(
    input: AsyncIterable<Uint8Array>,
    store: (ciphertext: Uint8Array) => Promise<void> | void,
  ): Promise<number> {
    const encryptor = new BlobEncryptor(this.sodium, { ...this.stream, key: this.key });
    let size = 0;
    try {
      for await (const bytes of input) {
        size += bytes.length;
        for (const chunk of encryptor.push(bytes)) await store(chunk);
      }
      await store(encryptor.finish());
      return size;
    } catch (error) {
      encryptor.end();
      this.end();
      throw error;
    }
  }

  /** The plaintext of the stored bytes, from the first one. Throws `CryptoRefusal` where they were changed. */
  async *open(stored: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
    const decryptor = new BlobDecryptor(this.sodium, { ...this.stream, keys: [this.key] });
    try {
      for await (const bytes of stored) yield* decryptor.push(bytes);
      yield decryptor.finish();
    } finally {
      decryptor.end();
    }
  }

  /** Erases the key. */
  end(): void {
    this.sodium.memzero(this.key);
  }
}
