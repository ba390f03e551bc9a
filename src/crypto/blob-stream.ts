/**
 * Encryption of a blob in chunks of 64 KiB, so that a device holds one chunk of a file of any size (reference,
 * Cryptography). The construction is STREAM of Hoang, Reyhanitabar, Rogaway and Vizár, "Online Authenticated-Encryption
 * and its Nonce-Reuse Misuse-Resistance" (2015).
 *
 * A part of a blob, or its chunks in another order, must never be accepted as the whole. So each nonce contains the
 * chunk's number and whether it is the last one, and no byte is returned before its chunk has authenticated.
 */
import { concat } from '../protocol/bytes.js';
import { AEAD_TAG_BYTES, KEY_BYTES, NONCE_BYTES } from '../protocol/limits.js';
import { CryptoRefusal } from './refusal.js';
import { expectLength, type Sodium } from './sodium.js';

/** Plaintext bytes of every chunk but the last. */
export const BLOB_CHUNK_BYTES = 65_536;
/** Bytes of a full chunk with its tag. */
export const SEALED_CHUNK_BYTES = BLOB_CHUNK_BYTES + AEAD_TAG_BYTES;
/** Random bytes of a nonce, followed by the chunk's number (4 bytes, big-endian) and a flag for the last chunk. */
const PREFIX_BYTES = 19;
/** The chunk number has 32 bits. */
const CHUNKS_MAX = 2 ** 32;

/**
 * Largest one-piece blob that is read, which is held in memory because it authenticates as a whole. The SDK writes no
 * such blobs; other clients may.
 */
const ONE_PIECE_MAX = 64 * 1024 * 1024;

/** Stored bytes of a plaintext of `size` bytes: 16 more for each chunk. An empty plaintext is one empty chunk. */
export const sealedBlobSize = (size: number): number =>
  size + AEAD_TAG_BYTES * Math.max(1, Math.ceil(size / BLOB_CHUNK_BYTES));

/** Plaintext bytes of a chunked blob of `size` stored bytes; undefined if no blob can have that size. */
export function plainBlobSize(size: number): number | undefined {
  const plain = size - AEAD_TAG_BYTES * Math.ceil(size / SEALED_CHUNK_BYTES);
  return plain >= 0 && sealedBlobSize(plain) === size ? plain : undefined;
}

/** True for the `blobNonce` of a blob in chunks: its last five bytes are zero; `chunkNonce` fills them. */
export const isStreamNonce = (nonce: Uint8Array): boolean =>
  nonce.length === NONCE_BYTES && nonce.subarray(PREFIX_BYTES).every((byte) => byte === 0);

/** A fresh `blobNonce` for a blob in chunks. */
export function streamNonce(sodium: Sodium): Uint8Array {
  const nonce = new Uint8Array(NONCE_BYTES);
  nonce.set(sodium.random(PREFIX_BYTES));
  return nonce;
}

interface BlobSecret {
  /** 32 bytes. The encryptor copies it and erases the copy at its end. */
  readonly key: Uint8Array;
  /** `blobNonce`, 24 bytes. */
  readonly nonce: Uint8Array;
  /** UTF-8 `type|ts` (CRYPTO-07). */
  readonly aad: Uint8Array;
}

function chunkNonce(nonce: Uint8Array, chunk: number, last: boolean): Uint8Array {
  if (chunk >= CHUNKS_MAX) throw new CryptoRefusal('too_large', `a blob has at most ${CHUNKS_MAX} chunks`);
  // Not `slice`, here and below: `Buffer.slice` shares the memory.
  const own = new Uint8Array(nonce);
  new DataView(own.buffer).setUint32(PREFIX_BYTES, chunk);
  own[NONCE_BYTES - 1] = last ? 1 : 0;
  return own;
}

/**
 * Encrypts `plain` into `out`, which must be large enough, as the chunks from number `first` on, anywhere in a blob.
 * Returns the part of `out` that was filled. Unless `end`, `plain` must be a multiple of the chunk size: only the last
 * chunk of a blob may be shorter. The caller must ensure that a chunk number never gets two different plaintexts under
 * the same secret (reference, Cryptography).
 */
export function sealChunks(
  sodium: Sodium,
  { key, nonce, aad }: BlobSecret,
  at: { readonly first: number; readonly plain: Uint8Array; readonly end: boolean; readonly out: Uint8Array },
): Uint8Array {
  const { first, plain, end, out } = at;
  if (!end && (plain.length === 0 || plain.length % BLOB_CHUNK_BYTES !== 0))
    throw new CryptoRefusal('bad_length', 'only the last chunk of a blob may be short');
  let chunk = 0;
  do {
    const message = plain.subarray(chunk * BLOB_CHUNK_BYTES, (chunk + 1) * BLOB_CHUNK_BYTES);
    const last = end && (chunk + 1) * BLOB_CHUNK_BYTES >= plain.length;
    const own = chunkNonce(nonce, first + chunk, last);
    out.set(sodium.aeadEncrypt({ message, aad, nonce: own, key }), chunk * SEALED_CHUNK_BYTES);
    chunk++;
  } while (chunk * BLOB_CHUNK_BYTES < plain.length);
  return out.subarray(0, sealedBlobSize(plain.length));
}

/** Splits a stream of bytes into portions of equal size, and holds back the portion that may be the last. */
class Portions {
  private buffer: Uint8Array;
  private length = 0;

  constructor(private readonly size: number) {
    this.buffer = new Uint8Array(size);
  }

  /** Every portion that is known not to be the last. Valid until the next one is requested. */
  *full(bytes: Uint8Array): Generator<Uint8Array> {
    let at = 0;
    while (at < bytes.length) {
      if (this.length === this.size) {
        yield this.buffer;
        this.length = 0;
      }
      // Whole portions inside `bytes` need no copy; the last one is held back, since it may end the stream.
      for (; this.length === 0 && bytes.length - at > this.size; at += this.size)
        yield bytes.subarray(at, at + this.size);
      const taken = bytes.subarray(at, at + this.size - this.length);
      this.buffer.set(taken, this.length);
      this.length += taken.length;
      at += taken.length;
    }
  }

  /** The bytes held back. */
  rest(): Uint8Array {
    return this.buffer.subarray(0, this.length);
  }

  /** Drops the bytes held back. */
  clear(): void {
    this.length = 0;
  }

  /** Erases the buffer by `wipe` and releases it. */
  end(wipe: (bytes: Uint8Array) => void): void {
    wipe(this.buffer);
    this.buffer = new Uint8Array(0);
    this.length = 0;
  }
}

/**
 * Encrypts a blob: `push` takes its bytes in portions of any size, `finish` ends it; both return ciphertext. Buffers
 * one chunk. Throws `CryptoRefusal` `bad_length` for a malformed key or nonce.
 */
export class BlobEncryptor {
  private readonly key: Uint8Array;
  private readonly portions = new Portions(BLOB_CHUNK_BYTES);
  private chunk = 0;

  constructor(
    private readonly sodium: Sodium,
    private readonly secret: BlobSecret,
  ) {
    expectLength('key', secret.key, KEY_BYTES);
    if (!isStreamNonce(secret.nonce)) throw new CryptoRefusal('bad_length', 'not the nonce of a blob in chunks');
    this.key = new Uint8Array(secret.key);
  }

  /** The chunks that are complete and not the last. Must be exhausted before the next call. */
  *push(bytes: Uint8Array): Generator<Uint8Array> {
    for (const portion of this.portions.full(bytes)) yield this.seal(portion, false);
  }

  /** The last chunk. Erases key and plaintext. */
  finish(): Uint8Array {
    const sealed = this.seal(this.portions.rest(), true);
    this.end();
    return sealed;
  }

  /** Erases key and plaintext of an encryption that is abandoned; no effect after `finish`. */
  end(): void {
    this.sodium.memzero(this.key);
    this.portions.end((bytes) => this.sodium.memzero(bytes));
  }

  private seal(message: Uint8Array, last: boolean): Uint8Array {
    const { nonce, aad } = this.secret;
    return this.sodium.aeadEncrypt({ message, aad, nonce: chunkNonce(nonce, this.chunk++, last), key: this.key });
  }
}

/**
 * Decrypts a blob of either form: `push` takes its bytes as they arrive, `finish` ends it. Both return authenticated
 * plaintext only. Only when `finish` has returned is the blob known to be complete.
 *
 * `keys`: the keys that the item offers (`offeredKeys`); the first that opens the first chunk is the blob's. After a
 * lost connection `restart` drops the incomplete chunk, and the bytes continue at `offset`. Throws `CryptoRefusal`
 * `bad_ct` for anything but this blob, complete and in order, and `too_large` for a one-piece blob over
 * `ONE_PIECE_MAX`.
 */
export class BlobDecryptor {
  /** The offered keys; once a chunk has opened, only the blob's. */
  private keys: Uint8Array[];
  private readonly portions = new Portions(SEALED_CHUNK_BYTES);
  /** All bytes of a blob in one piece. */
  private readonly pieces: Uint8Array[] = [];
  private held = 0;
  private chunk = 0;
  /** See `tag`. */
  private opened: Uint8Array = new Uint8Array(0);
  /** True if the blob is in chunks; a one-piece blob has 16 bytes more than its plaintext, whatever its size. */
  readonly inChunks: boolean;

  constructor(
    private readonly sodium: Sodium,
    private readonly secret: Omit<BlobSecret, 'key'> & { readonly keys: readonly Uint8Array[] },
  ) {
    this.keys = secret.keys.map((key) => new Uint8Array(key));
    this.inChunks = isStreamNonce(secret.nonce);
  }

  /**
   * Starts at a chunk; call it before any `push`. The next bytes are those at `offset`. Chunks from there on verify
   * independently of earlier ones, since each has its number in its nonce.
   */
  startAt(chunk: number): void {
    if (this.inChunks) this.chunk = chunk;
  }

  /**
   * Accepts as the next chunk, which is not the last, plaintext that an earlier run opened and kept with its tag. True
   * if it is the blob's: encrypting it again gives this tag, which cannot be made without the key.
   */
  takes(plain: Uint8Array, tag: Uint8Array): boolean {
    if (!this.inChunks || plain.length !== BLOB_CHUNK_BYTES || tag.length !== AEAD_TAG_BYTES) return false;
    const { aad, nonce } = this.secret;
    const own = chunkNonce(nonce, this.chunk, false);
    const at = this.keys.findIndex((key) => {
      const sealed = this.sodium.aeadEncrypt({ message: plain, aad, nonce: own, key });
      return this.sodium.equal(sealed.subarray(BLOB_CHUNK_BYTES), tag);
    });
    if (at < 0) return false;
    this.accept(at);
    return true;
  }

  /** The tag of the last opened chunk, to be kept with its plaintext (see `takes`). */
  get tag(): Uint8Array {
    return this.opened;
  }

  /** Stored bytes that need not be downloaded (again). */
  get offset(): number {
    return this.inChunks ? this.chunk * SEALED_CHUNK_BYTES : 0;
  }

  /** The plaintext of the chunks that are complete and not the last. Must be exhausted before the next call. */
  *push(bytes: Uint8Array): Generator<Uint8Array> {
    if (!this.inChunks) {
      this.keep(bytes);
      return;
    }
    for (const portion of this.portions.full(bytes)) yield this.open(portion, false);
  }

  /** The plaintext of the last chunk. Erases the keys. */
  finish(): Uint8Array {
    const rest = this.inChunks ? this.portions.rest() : concat(this.pieces);
    const opened = this.open(rest, true);
    // Otherwise one plaintext would have two ciphertexts: with an empty last chunk and without.
    if (this.chunk > 1 && opened.length === 0) throw damaged();
    this.end();
    return opened;
  }

  /** Drops the incomplete chunk: the next bytes are those at `offset`. */
  restart(): void {
    this.portions.clear();
    this.pieces.length = 0;
    this.held = 0;
  }

  /** Erases the keys of a decryption that is abandoned; no effect after `finish`. */
  end(): void {
    for (const key of this.keys) this.sodium.memzero(key);
    this.restart();
  }

  private keep(bytes: Uint8Array): void {
    this.held += bytes.length;
    if (this.held > ONE_PIECE_MAX + AEAD_TAG_BYTES)
      throw new CryptoRefusal('too_large', `a blob in one piece may have ${ONE_PIECE_MAX} bytes`);
    this.pieces.push(new Uint8Array(bytes));
  }

  private open(message: Uint8Array, last: boolean): Uint8Array {
    const { aad, nonce } = this.secret;
    const own = this.inChunks ? chunkNonce(nonce, this.chunk, last) : nonce;
    for (const [at, key] of this.keys.entries()) {
      const opened = this.sodium.aeadDecrypt({ message, aad, nonce: own, key });
      if (opened === undefined) continue;
      this.accept(at);
      this.opened = new Uint8Array(message.subarray(message.length - AEAD_TAG_BYTES));
      return opened;
    }
    throw damaged();
  }

  /** Keeps the key under which a chunk has opened: no other may be tried for later chunks. */
  private accept(at: number): void {
    for (const [other, key] of this.keys.entries()) if (other !== at) this.sodium.memzero(key);
    this.keys = this.keys.slice(at, at + 1);
    this.chunk++;
  }
}

const damaged = (): CryptoRefusal =>
  new CryptoRefusal('bad_ct', "the blob's bytes are not what was written: changed, cut off, extended or another's");
