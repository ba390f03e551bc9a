/**
 * Gzip in blocks, each a gzip member of its own, compressed by the method that suits it. A backup is mostly ciphertext:
 * as bytes, compressing it would take most of the time of a backup and save nothing; as hex, its form in rows, Huffman
 * coding alone halves it. Any gunzip reads the members as one stream.
 */
import { promisify } from 'node:util';
import { constants, deflateRawSync, gzip, type ZlibOptions } from 'node:zlib';

const gzipped = promisify<Uint8Array, ZlibOptions, Buffer>(gzip);

/** `AT_ONCE` blocks and their results are in memory. */
const BLOCK_BYTES = 1024 * 1024;
/** Blocks are compressed on the threads of libuv's pool, four by default. */
const AT_ONCE = 4;
const SAMPLE_BYTES = 16 * 1024;
/** A method is used only if its result is smaller than this share of the simpler method's. */
const WORTH = 0.9;

const STORED: ZlibOptions = { level: constants.Z_NO_COMPRESSION };
const DIGITS: ZlibOptions = { level: 1, strategy: constants.Z_HUFFMAN_ONLY };
const REPEATS: ZlibOptions = { level: 1 };

/** The method for a block, tried on a sample from its middle. */
function methodFor(block: Uint8Array): ZlibOptions {
  const at = Math.max(0, (block.length - SAMPLE_BYTES) >> 1);
  const sample = block.subarray(at, at + SAMPLE_BYTES);
  const digits = deflateRawSync(sample, DIGITS).length;
  if (deflateRawSync(sample, REPEATS).length < WORTH * digits) return REPEATS;
  return digits < WORTH * sample.length ? DIGITS : STORED;
}

/** A stream in chunks of at least `size` bytes; the last one may be shorter. An empty stream yields none. */
export async function* gathered(stream: AsyncIterable<unknown>, size: number): AsyncGenerator<Buffer> {
  let chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of stream as AsyncIterable<Uint8Array>) {
    chunks.push(chunk);
    bytes += chunk.length;
    if (bytes < size) continue;
    yield Buffer.concat(chunks, bytes);
    chunks = [];
    bytes = 0;
  }
  if (bytes > 0) yield Buffer.concat(chunks, bytes);
}

/** The same bytes as a gzip file. */
export async function* gzipBlocks(bytes: AsyncIterable<unknown>): AsyncGenerator<Buffer> {
  const underWay: Promise<Buffer>[] = [];
  for await (const block of gathered(bytes, BLOCK_BYTES)) {
    underWay.push(gzipped(block, methodFor(block)));
    if (underWay.length < AT_ONCE) continue;
    const first = await underWay.shift();
    if (first !== undefined) yield first;
  }
  for (const each of underWay) yield await each;
}
