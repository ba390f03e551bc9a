/**
 * Gzip in blocks, each a member of its own, compressed as much as it is worth: a backup is mostly ciphertext. As bytes
 * that gives nothing for most of the time a backup takes; as hex, which is how rows hold it, it gives half by the
 * frequency of its digits alone. Any gunzip reads the members as one stream.
 */
import { promisify } from 'node:util';
import { constants, deflateRawSync, gzip, type ZlibOptions } from 'node:zlib';

const gzipped = promisify<Uint8Array, ZlibOptions, Buffer>(gzip);

/** Memory holds so many of them, and their results. */
const BLOCK_BYTES = 1024 * 1024;
/** They are compressed on the threads that Node has for such work, four as a rule. */
const AT_ONCE = 4;
const SAMPLE_BYTES = 16 * 1024;
/** A method that makes less of a sample than this share of the simpler one's is worth its time. */
const WORTH = 0.9;

const STORED: ZlibOptions = { level: constants.Z_NO_COMPRESSION };
const DIGITS: ZlibOptions = { level: 1, strategy: constants.Z_HUFFMAN_ONLY };
const REPEATS: ZlibOptions = { level: 1 };

/** The way to compress this block, by what becomes of a piece of its middle. */
function methodFor(block: Uint8Array): ZlibOptions {
  const at = Math.max(0, (block.length - SAMPLE_BYTES) >> 1);
  const sample = block.subarray(at, at + SAMPLE_BYTES);
  const digits = deflateRawSync(sample, DIGITS).length;
  if (deflateRawSync(sample, REPEATS).length < WORTH * digits) return REPEATS;
  return digits < WORTH * sample.length ? DIGITS : STORED;
}

/** Bytes gathered to blocks; the last one may be shorter. */
async function* blocksOf(bytes: AsyncIterable<unknown>): AsyncGenerator<Uint8Array> {
  let gathered: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of bytes) {
    const piece = chunk as Uint8Array;
    gathered.push(piece);
    size += piece.length;
    if (size < BLOCK_BYTES) continue;
    yield Buffer.concat(gathered, size);
    gathered = [];
    size = 0;
  }
  if (size > 0) yield Buffer.concat(gathered, size);
}

/** The same bytes as a gzip file. */
export async function* gzipBlocks(bytes: AsyncIterable<unknown>): AsyncGenerator<Buffer> {
  const underWay: Promise<Buffer>[] = [];
  for await (const block of blocksOf(bytes)) {
    underWay.push(gzipped(block, methodFor(block)));
    if (underWay.length < AT_ONCE) continue;
    const first = await underWay.shift();
    if (first !== undefined) yield first;
  }
  for (const each of underWay) yield await each;
}
