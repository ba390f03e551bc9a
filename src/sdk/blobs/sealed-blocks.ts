/**
 * The ciphertext of a source, in any range and repeatable, always the same bytes: if a repeated read of the source
 * gives other bytes, they are refused before they are encrypted (reference, Cryptography, "An upload that goes on").
 */
import { blockHash } from '../../crypto/begun-upload.js';
import { BLOB_CHUNK_BYTES, SEALED_CHUNK_BYTES, sealedBlobSize } from '../../crypto/blob-stream.js';
import { sealDraft, type BlobDraft } from '../../crypto/item.js';
import type { Sodium } from '../../crypto/sodium.js';
import { ClientError } from '../errors.js';
import { portionsOf, type BlobSource } from './source.js';

/** Chunks per block, the unit that is read, hashed and encrypted at a time. */
const BLOCK_CHUNKS = 32;
const BLOCK_BYTES = BLOCK_CHUNKS * BLOB_CHUNK_BYTES;
const SEALED_BLOCK_BYTES = BLOCK_CHUNKS * SEALED_CHUNK_BYTES;

interface Blocks {
  readonly draft: BlobDraft;
  readonly source: BlobSource;
  /** Bytes of plaintext. Not read from the source again, because it may report another size each time. */
  readonly plainSize: number;
  /** Hashes of the blocks that were encrypted earlier. */
  readonly hashes: readonly Uint8Array[];
  /** Makes the hashes durable. No ciphertext of a block is returned before. */
  readonly keep: (hashes: readonly Uint8Array[]) => Promise<void>;
}

/** The ciphertext of one source. Must be ended by `end`. */
export class SealedBlocks {
  /** Bytes of the ciphertext. */
  readonly size: number;
  private readonly hashes: Uint8Array[];
  /** Reused buffers: new ones of this size would pile up before they are collected. */
  private readonly plain = new Uint8Array(BLOCK_BYTES);
  private readonly out = new Uint8Array(SEALED_BLOCK_BYTES);
  /** The last encrypted block, and the last returned range, of which a part is often sent again. */
  private block = { number: -1, sealed: new Uint8Array(0) as Uint8Array };
  private given = { from: 0, bytes: new Uint8Array(0), length: 0 };
  private readonly count: number;
  private reading: Reading | undefined;
  /** Blocks that were read and compared by this object, from the first on. */
  private seen = 0;
  private ended = false;

  constructor(
    private readonly sodium: Sodium,
    private readonly of: Blocks,
  ) {
    this.size = sealedBlobSize(of.plainSize);
    this.count = Math.max(1, Math.ceil(of.plainSize / BLOCK_BYTES));
    this.hashes = of.hashes.slice(0, this.count);
  }

  /** Upper bound of the bytes of ciphertext that can have been sent. */
  get covered(): number {
    return Math.min(this.size, this.hashes.length * SEALED_BLOCK_BYTES);
  }

  /**
   * The ciphertext from `from` (included) to `to` (excluded), valid until the next call. Throws `ClientError`
   * `source_changed`, and as the source.
   */
  async range(from: number, to: number): Promise<Uint8Array<ArrayBuffer>> {
    const { given } = this;
    const known = this.hashes.length;
    const again = from >= given.from && from < given.from + given.length;
    let length = 0;
    if (again) {
      length = Math.min(given.from + given.length, to) - from;
      given.bytes.copyWithin(0, from - given.from, from - given.from + length);
    }
    // Length 0 while the buffer is filled, so that after an error it is not taken for a complete range.
    this.given = { from, bytes: roomIn(given.bytes, to - from, length), length: 0 };
    const { bytes } = this.given;
    while (length < to - from) {
      const block = Math.floor((from + length) / SEALED_BLOCK_BYTES);
      const start = from + length - block * SEALED_BLOCK_BYTES;
      const part = (await this.sealed(block)).subarray(start, start + to - from - length);
      bytes.set(part, length);
      length += part.length;
    }
    this.expectOpen();
    if (this.hashes.length > known) await this.of.keep(this.hashes);
    this.given = { from, bytes, length };
    return bytes.subarray(0, length);
  }

  /**
   * Reads and compares the blocks that this object has not read yet, or all if the source may have changed since:
   * otherwise the blob could be a mix of old and new bytes. Throws as `range`.
   */
  async verify(): Promise<void> {
    if ((await this.of.source.isTouched?.()) === true) this.seen = 0;
    while (this.seen < this.count) await this.read(this.seen);
  }

  /**
   * Erases the plaintext; the owner of the key must erase the key only afterwards. A read in progress is abandoned, not
   * awaited, because a source may never answer.
   */
  end(): void {
    this.ended = true;
    this.sodium.memzero(this.plain);
    this.stopReading();
  }

  private stopReading(): void {
    this.reading?.portions.return().catch(() => undefined);
    this.reading = undefined;
  }

  private async sealed(block: number): Promise<Uint8Array> {
    if (this.block.number === block) return this.block.sealed;
    const plain = await this.read(block);
    this.expectOpen();
    const at = { first: block * BLOCK_CHUNKS, plain, end: block === this.count - 1, out: this.out };
    this.block = { number: block, sealed: sealDraft(this.sodium, this.of.draft, at) };
    return this.block.sealed;
  }

  /** Reads the source up to a block; each block read is compared with the bytes encrypted for it earlier. */
  private async read(block: number): Promise<Uint8Array> {
    if (this.reading !== undefined && this.reading.next > block) this.stopReading();
    this.reading ??= { portions: portionsOf(this.of.source), next: 0, rest: new Uint8Array(0) };
    let plain: Uint8Array = this.plain;
    while (this.reading.next <= block) {
      const at = this.reading.next;
      plain = await this.filled(this.reading, Math.min(BLOCK_BYTES, this.of.plainSize - at * BLOCK_BYTES));
      if (at === this.count - 1 && (await hasMore(this.reading))) throw sourceChanged();
      this.reading.next++;
      this.compare(at, plain);
    }
    return plain;
  }

  /** After `end` the key may be erased: it must not be used or stored in that state. Throws `cancelled`. */
  private expectOpen(): void {
    if (this.ended) throw new ClientError('cancelled', 'the transfer was cancelled');
  }

  private async filled(reading: Reading, size: number): Promise<Uint8Array> {
    const plain = this.plain.subarray(0, size);
    for (let at = 0; at < size;) {
      if (!(await hasMore(reading))) throw sourceChanged();
      const taken = reading.rest.subarray(0, size - at);
      plain.set(taken, at);
      reading.rest = reading.rest.subarray(taken.length);
      at += taken.length;
    }
    return plain;
  }

  private compare(block: number, plain: Uint8Array): void {
    this.expectOpen();
    const hash = blockHash(this.sodium, plain, this.of.draft.key);
    const before = this.hashes[block];
    if (before === undefined) this.hashes.push(hash);
    else if (!this.sodium.equal(before, hash)) throw sourceChanged();
    this.seen = Math.max(this.seen, block + 1);
  }
}

/** A buffer of at least `size` bytes that starts with the first `length` bytes of `bytes`. */
function roomIn(bytes: Uint8Array<ArrayBuffer>, size: number, length: number): Uint8Array<ArrayBuffer> {
  if (bytes.length >= size) return bytes;
  const wider = new Uint8Array(size);
  wider.set(bytes.subarray(0, length));
  return wider;
}

/** A source that is being read. `rest`: unused bytes of the last portion. */
interface Reading {
  readonly portions: AsyncGenerator<Uint8Array, void, undefined>;
  next: number;
  rest: Uint8Array;
}

/** Reads the next portion where the last one is used up; empty ones are skipped. False at the end of the source. */
async function hasMore(reading: Reading): Promise<boolean> {
  while (reading.rest.length === 0) {
    const { done, value } = await reading.portions.next();
    if (done === true) return false;
    reading.rest = value;
  }
  return true;
}

const sourceChanged = (): ClientError =>
  new ClientError('source_changed', 'the source has other bytes than it had at first: it was changed meanwhile');
