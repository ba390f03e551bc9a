/**
 * The ciphertext of a source, in any range and as often as it is wanted, always the same bytes: a source that is read
 * again and gives others is refused before they are encrypted (reference, Cryptography, "An upload that goes on").
 */
import { blockHash } from '../../crypto/begun-upload.js';
import { BLOB_CHUNK_BYTES, SEALED_CHUNK_BYTES, sealedBlobSize } from '../../crypto/blob-stream.js';
import { sealDraft, type BlobDraft } from '../../crypto/item.js';
import type { Sodium } from '../../crypto/sodium.js';
import { ClientError } from '../errors.js';
import { portionsOf, type BlobSource } from './source.js';

/** Chunks of a block: what is read, hashed and encrypted at a time. */
const BLOCK_CHUNKS = 32;
const BLOCK_BYTES = BLOCK_CHUNKS * BLOB_CHUNK_BYTES;
const SEALED_BLOCK_BYTES = BLOCK_CHUNKS * SEALED_CHUNK_BYTES;

interface Blocks {
  readonly draft: BlobDraft;
  readonly source: BlobSource;
  /** Bytes of plaintext. Not asked of the source again: it may say something else each time. */
  readonly plainSize: number;
  /** Hashes of the blocks that were encrypted before. */
  readonly hashes: readonly Uint8Array[];
  /** Makes the hashes durable. Nothing of a block is given out before. */
  readonly keep: (hashes: readonly Uint8Array[]) => Promise<void>;
}

/** See above. Ended by `end`. */
export class SealedBlocks {
  /** Bytes of the ciphertext. */
  readonly size: number;
  private readonly hashes: Uint8Array[];
  /** Used again and again: fresh memory of this size would be there several times before it is collected. */
  private readonly plain = new Uint8Array(BLOCK_BYTES);
  private readonly out = new Uint8Array(SEALED_BLOCK_BYTES);
  /** The block of ciphertext that is held, and the range that was given last, of which a part is often sent again. */
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

  /** Bytes of ciphertext, from the first on, that can have been sent. */
  get covered(): number {
    return Math.min(this.size, this.hashes.length * SEALED_BLOCK_BYTES);
  }

  /**
   * The ciphertext before `to` from `from` on, valid until the next call. Throws `ClientError` `source_changed`, and what
   * the source throws.
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
    // While it is filled nothing else may take it for what it was.
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
   * Reads what this object has not read yet, and compares it; all of it where the source may have changed meanwhile. It
   * would arrive half old and half new otherwise. Throws as `range`.
   */
  async verify(): Promise<void> {
    if ((await this.of.source.isTouched?.()) === true) this.seen = 0;
    while (this.seen < this.count) await this.read(this.seen);
  }

  /**
   * Erases what is held; the owner of the key erases it only afterwards. What is read at this moment ends without a trace:
   * a source may never answer, so nothing waits for it.
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

  /** Reads up to a block, which is compared with what was encrypted as this block before, as all before it are. */
  private async read(block: number): Promise<Uint8Array> {
    if (this.reading !== undefined && this.reading.next > block) this.stopReading();
    this.reading ??= { portions: portionsOf(this.of.source), next: 0, rest: new Uint8Array(0) };
    let plain: Uint8Array = this.plain;
    while (this.reading.next <= block) {
      const at = this.reading.next;
      plain = await this.filled(this.reading, Math.min(BLOCK_BYTES, this.of.plainSize - at * BLOCK_BYTES));
      if (at === this.count - 1 && !(await isOver(this.reading))) throw sourceChanged();
      this.reading.next++;
      this.compare(at, plain);
    }
    return plain;
  }

  /** After the end the key may be erased: it must not be used, and not be kept, like that. */
  private expectOpen(): void {
    if (this.ended) throw new ClientError('cancelled', 'the transfer was cancelled');
  }

  private async filled(reading: Reading, size: number): Promise<Uint8Array> {
    const plain = this.plain.subarray(0, size);
    for (let at = 0; at < size;) {
      if (reading.rest.length === 0) {
        const { done, value } = await reading.portions.next();
        if (done === true) throw sourceChanged();
        reading.rest = value;
      }
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

/** A buffer of at least `size` bytes with the first `length` bytes of this one. */
function roomIn(bytes: Uint8Array<ArrayBuffer>, size: number, length: number): Uint8Array<ArrayBuffer> {
  if (bytes.length >= size) return bytes;
  const wider = new Uint8Array(size);
  wider.set(bytes.subarray(0, length));
  return wider;
}

/** A source that is being read. `rest`: of the portion that was read last. */
interface Reading {
  readonly portions: AsyncGenerator<Uint8Array, void, undefined>;
  next: number;
  rest: Uint8Array;
}

/** True where nothing is left. An empty portion is nothing. */
async function isOver(reading: Reading): Promise<boolean> {
  while (reading.rest.length === 0) {
    const { done, value } = await reading.portions.next();
    if (done === true) return true;
    reading.rest = value;
  }
  return false;
}

const sourceChanged = (): ClientError =>
  new ClientError('source_changed', 'the source has other bytes than it had at first: it was changed meanwhile');
