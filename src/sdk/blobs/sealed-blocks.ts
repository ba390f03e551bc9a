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
const BLOCK_CHUNKS = 80;
const BLOCK_BYTES = BLOCK_CHUNKS * BLOB_CHUNK_BYTES;
const SEALED_BLOCK_BYTES = BLOCK_CHUNKS * SEALED_CHUNK_BYTES;
/** Blocks of ciphertext that are held: a part of 5 MiB lies in two, and is often sent again from its middle. */
const HELD_MAX = 2;

interface Blocks {
  readonly draft: BlobDraft;
  readonly source: BlobSource;
  /** Hashes of the blocks that were encrypted before. */
  readonly hashes: readonly Uint8Array[];
  /** Makes the hashes durable, one more each time. Nothing of a block is given out before. */
  readonly keep: (hashes: readonly Uint8Array[]) => Promise<void>;
}

/** See above. Ended by `end`. */
export class SealedBlocks {
  /** Bytes of the ciphertext. */
  readonly size: number;
  private readonly hashes: Uint8Array[];
  private readonly plain = new Uint8Array(BLOCK_BYTES);
  private readonly held: { readonly block: number; readonly sealed: Uint8Array }[] = [];
  private readonly count: number;
  private reading: Reading | undefined;
  /** Blocks that were read and compared by this object, from the first on. */
  private seen = 0;
  private ended = false;

  constructor(
    private readonly sodium: Sodium,
    private readonly of: Blocks,
  ) {
    this.size = sealedBlobSize(of.source.size);
    this.count = Math.max(1, Math.ceil(of.source.size / BLOCK_BYTES));
    this.hashes = of.hashes.slice(0, this.count);
  }

  /** Bytes of ciphertext, from the first on, that can have been sent. */
  get covered(): number {
    return Math.min(this.size, this.hashes.length * SEALED_BLOCK_BYTES);
  }

  /** The ciphertext before `to` from `from` on. Throws `ClientError` `source_changed`, and what the source throws. */
  async range(from: number, to: number): Promise<Uint8Array<ArrayBuffer>> {
    const out = new Uint8Array(to - from);
    for (let at = from; at < to;) {
      const block = Math.floor(at / SEALED_BLOCK_BYTES);
      const start = at - block * SEALED_BLOCK_BYTES;
      const bytes = (await this.sealed(block)).subarray(start, start + to - at);
      out.set(bytes, at - from);
      at += bytes.length;
    }
    return out;
  }

  /**
   * Reads what this object has not read yet, and compares it: a source whose beginning changed between two runs would
   * arrive half old and half new otherwise. Throws as `range`.
   */
  async verify(): Promise<void> {
    while (this.seen < this.count) await this.read(this.seen);
  }

  /**
   * Erases what is held; the owner of the key erases it only afterwards. What is read at this moment ends without a trace:
   * a source may never answer, so nothing waits for it.
   */
  end(): void {
    this.ended = true;
    this.sodium.memzero(this.plain);
    this.held.length = 0;
    this.reading?.portions.return().catch(() => undefined);
    this.reading = undefined;
  }

  private async sealed(block: number): Promise<Uint8Array> {
    const known = this.held.find((one) => one.block === block);
    if (known !== undefined) return known.sealed;
    const plain = await this.read(block);
    this.expectOpen();
    const end = block === this.count - 1;
    const sealed = sealDraft(this.sodium, this.of.draft, { first: block * BLOCK_CHUNKS, plain, end });
    this.held.push({ block, sealed });
    if (this.held.length > HELD_MAX) this.held.shift();
    return sealed;
  }

  /** Reads up to a block, which is compared with what was encrypted as this block before, as all before it are. */
  private async read(block: number): Promise<Uint8Array> {
    if (this.reading !== undefined && this.reading.next > block) {
      this.reading.portions.return().catch(() => undefined);
      this.reading = undefined;
    }
    this.reading ??= { portions: portionsOf(this.of.source), next: 0, rest: new Uint8Array(0) };
    let plain: Uint8Array = this.plain;
    while (this.reading.next <= block) {
      const at = this.reading.next;
      plain = await this.filled(this.reading, Math.min(BLOCK_BYTES, this.of.source.size - at * BLOCK_BYTES));
      if (at === this.count - 1 && !(await isOver(this.reading))) throw sourceChanged();
      this.reading.next++;
      await this.compare(at, plain);
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

  private async compare(block: number, plain: Uint8Array): Promise<void> {
    this.expectOpen();
    const hash = blockHash(this.sodium, plain, this.of.draft.key);
    const before = this.hashes[block];
    if (before === undefined) {
      this.hashes.push(hash);
      await this.of.keep(this.hashes);
    } else if (!this.sodium.equal(before, hash)) throw sourceChanged();
    this.seen = Math.max(this.seen, block + 1);
  }
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
