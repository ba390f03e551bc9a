/**
 * The bytes of a blob: chunks of 64 KiB, each encrypted by itself, so that a file of any size passes through a device
 * that holds one chunk of it (the reference, Cryptography). The construction is STREAM of Hoang,
 * Reyhanitabar, Rogaway and Vizár, "Online Authenticated-Encryption and its Nonce-Reuse Misuse-Resistance" (2015).
 *
 * What must never be: that a part of a blob, or its chunks in another order, is taken for the whole. Each nonce has the
 * chunk's number and says whether it is the last one, and no byte is handed out before its chunk has authenticated.
 */
import { concat } from '../protocol/bytes.js';
import { AEAD_TAG_BYTES, KEY_BYTES, NONCE_BYTES } from '../protocol/limits.js';
import { CryptoRefusal } from './refusal.js';
import { expectLength, type Sodium } from './sodium.js';

/** Plaintext bytes of every chunk but the last. */
export const BLOB_CHUNK_BYTES = 65_536;
/** Bytes of such a chunk as it is stored: with its tag. */
export const SEALED_CHUNK_BYTES = BLOB_CHUNK_BYTES + AEAD_TAG_BYTES;
/** What is random in a nonce; behind it stand the chunk's number (4 bytes, big-endian) and the last chunk's mark. */
const PREFIX_BYTES = 19;
/** The number has 32 bits. */
const CHUNKS_MAX = 2 ** 32;

/**
 * Bytes of a blob in one piece that are read: it authenticates as a whole, so it is held as a whole. Ours are never in
 * one piece; other clients may write them so.
 */
const ONE_PIECE_MAX = 64 * 1024 * 1024;

/** Bytes in the store of a plaintext of `size` bytes: 16 more for each chunk. An empty one is one empty chunk. */
export const sealedBlobSize = (size: number): number =>
  size + AEAD_TAG_BYTES * Math.max(1, Math.ceil(size / BLOB_CHUNK_BYTES));

/** Bytes of the plaintext of a blob in chunks that has `size` bytes in the store; undefined: none has. */
export function plainBlobSize(size: number): number | undefined {
  const plain = size - AEAD_TAG_BYTES * Math.ceil(size / SEALED_CHUNK_BYTES);
  return plain >= 0 && sealedBlobSize(plain) === size ? plain : undefined;
}

/** True for a `blobNonce` of a blob in chunks: its last five bytes are zero, and filled in chunk by chunk. */
const isStreamNonce = (nonce: Uint8Array): boolean =>
  nonce.length === NONCE_BYTES && nonce.subarray(PREFIX_BYTES).every((byte) => byte === 0);

/** A fresh `blobNonce` of a blob in chunks. */
export function streamNonce(sodium: Sodium): Uint8Array {
  const nonce = new Uint8Array(NONCE_BYTES);
  nonce.set(sodium.random(PREFIX_BYTES));
  return nonce;
}

/** What a blob is encrypted under. */
export interface BlobSecret {
  /** 32 bytes. The encryptor works on a copy of its own, which it erases at its end. */
  readonly key: Uint8Array;
  /** `blobNonce`, 24 bytes. */
  readonly nonce: Uint8Array;
  /** UTF-8 `type|ts` (CRYPTO-07). */
  readonly aad: Uint8Array;
}

function chunkNonce(nonce: Uint8Array, chunk: number, last: boolean): Uint8Array {
  if (chunk >= CHUNKS_MAX) throw new CryptoRefusal('too_large', `a blob has at most ${CHUNKS_MAX} chunks`);
  // Not `slice`, here and below: of a Buffer it is the same memory.
  const own = new Uint8Array(nonce);
  new DataView(own.buffer).setUint32(PREFIX_BYTES, chunk);
  own[NONCE_BYTES - 1] = last ? 1 : 0;
  return own;
}

/** Cuts bytes that come in any portions into portions of one size, and keeps back what may be the last of them. */
class Portions {
  private buffer: Uint8Array;
  private length = 0;

  constructor(private readonly size: number) {
    this.buffer = new Uint8Array(size);
  }

  /** Every portion that something comes after. A portion is good until the next one is asked for. */
  *full(bytes: Uint8Array): Generator<Uint8Array> {
    let at = 0;
    while (at < bytes.length) {
      if (this.length === this.size) {
        yield this.buffer;
        this.length = 0;
      }
      // Whole portions inside the bytes need no copy; the last of them stays, since nothing may come after it.
      for (; this.length === 0 && bytes.length - at > this.size; at += this.size) {
        yield bytes.subarray(at, at + this.size);
      }
      const taken = bytes.subarray(at, at + this.size - this.length);
      this.buffer.set(taken, this.length);
      this.length += taken.length;
      at += taken.length;
    }
  }

  /** What was kept back. */
  rest(): Uint8Array {
    return this.buffer.subarray(0, this.length);
  }

  /** Drops what was kept back. */
  clear(): void {
    this.length = 0;
  }

  /** Holds nothing more; `wipe` erases what it held. */
  end(wipe: (bytes: Uint8Array) => void): void {
    wipe(this.buffer);
    this.buffer = new Uint8Array(0);
    this.length = 0;
  }
}

/**
 * Encrypts a blob: `push` for its bytes in portions of any size, `finish` at its end; what both give is the ciphertext,
 * one chunk after the other. Holds one chunk. Throws `CryptoRefusal` `bad_length` for a key or nonce that is none.
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

  /** The chunks that are full now and not the last. Must be read to its end before the next call. */
  *push(bytes: Uint8Array): Generator<Uint8Array> {
    for (const portion of this.portions.full(bytes)) yield this.seal(portion, false);
  }

  /** The last chunk. Ends the encryptor. */
  finish(): Uint8Array {
    const sealed = this.seal(this.portions.rest(), true);
    this.end();
    return sealed;
  }

  /** Erases key and plaintext. For one that is given up; harmless after `finish`. */
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
 * Decrypts a blob of either form: `push` for its bytes as they come, `finish` at their end. What both give has
 * authenticated. The whole is known to be there only when `finish` has returned.
 *
 * `keys` are the keys that the item offers (see `offeredKeys`): the first that opens the first chunk is the blob's. After
 * a lost connection `restart` drops what is not a whole chunk, and the bytes go on from `offset`.
 * Throws `CryptoRefusal` `bad_ct` for whatever is not this blob, whole and in order, and `too_large` for one in one
 * piece over `ONE_PIECE_MAX`.
 */
export class BlobDecryptor {
  private readonly keys: Uint8Array[];
  private readonly portions = new Portions(SEALED_CHUNK_BYTES);
  /** Of a blob in one piece: all that came. */
  private readonly pieces: Uint8Array[] = [];
  private held = 0;
  private chunk = 0;
  private readonly chunked: boolean;

  constructor(
    private readonly sodium: Sodium,
    private readonly secret: Omit<BlobSecret, 'key'> & { readonly keys: readonly Uint8Array[] },
  ) {
    this.keys = secret.keys.map((key) => new Uint8Array(key));
    this.chunked = isStreamNonce(secret.nonce);
  }

  /** Bytes in the store that need not come again. */
  get offset(): number {
    return this.chunked ? this.chunk * SEALED_CHUNK_BYTES : 0;
  }

  /** True where the blob is in chunks; else it has 16 bytes more than its plaintext, whatever its size. */
  get inChunks(): boolean {
    return this.chunked;
  }

  /** The plaintext of the chunks that are whole now and not the last. Must be read to its end before the next call. */
  *push(bytes: Uint8Array): Generator<Uint8Array> {
    if (!this.chunked) {
      this.keep(bytes);
      return;
    }
    for (const portion of this.portions.full(bytes)) yield this.open(portion, false);
  }

  /** The plaintext of the last chunk. Ends the decryptor. */
  finish(): Uint8Array {
    const rest = this.chunked ? this.portions.rest() : concat(this.pieces);
    const opened = this.open(rest, true);
    // Else one plaintext would have two ciphertexts: with an empty last chunk and without.
    if (this.chunk > 1 && opened.length === 0) throw damaged();
    this.end();
    return opened;
  }

  /** Forgets what came of a chunk that is not whole: the next bytes are those at `offset`. */
  restart(): void {
    this.portions.clear();
    this.pieces.length = 0;
    this.held = 0;
  }

  /** Erases the keys. For one that is given up; harmless after `finish`. */
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
    const own = this.chunked ? chunkNonce(nonce, this.chunk, last) : nonce;
    while (this.keys[0] !== undefined) {
      const opened = this.sodium.aeadDecrypt({ message, aad, nonce: own, key: this.keys[0] });
      if (opened !== undefined) {
        for (const key of this.keys.splice(1)) this.sodium.memzero(key);
        this.chunk++;
        return opened;
      }
      // Once a chunk has opened, its key is the blob's: no other may be tried for the next one.
      if (this.chunk > 0) break;
      this.sodium.memzero(this.keys.shift() ?? new Uint8Array(0));
    }
    throw damaged();
  }
}

const damaged = (): CryptoRefusal =>
  new CryptoRefusal('bad_ct', "the blob's bytes are not what was written: changed, cut off, extended or another's");
