/**
 * A look at LevelDB's log before LevelDB reads it. It drops what does not fit its checksum there, up to the end of the
 * block, without a word: at the end of the log that looks like an older state, and a change that was acknowledged would
 * be gone unnoticed. (Format: LevelDB, doc/log_format.md.)
 */
import { readFile } from 'node:fs/promises';
import { crcWith } from './bytes.js';

const BLOCK = 32 * 1024;
/** Checksum (4), length (2), type (1). */
const HEADER = 7;
/** Complete, first, middle, last. */
const TYPES = 4;

const crc32c = crcWith(0x82f63b78);

/** CRC-32C, masked as LevelDB stores it. */
function masked(bytes: Uint8Array): number {
  const sum = crc32c(bytes);
  return (((sum >>> 15) | (sum << 17)) + 0xa282ead8) >>> 0;
}

/** True unless something in a log is not what was written. A record that the file's end cuts off is no damage: it was under way when the process ended. */
export async function isSoundLog(path: string): Promise<boolean> {
  const log = await readFile(path);
  for (let at = 0; at < log.length;) {
    const left = BLOCK - (at % BLOCK);
    if (left < HEADER) {
      at += left;
      continue;
    }
    if (at + HEADER > log.length) return true;
    const length = log.readUInt16LE(at + 4);
    const type = log[at + 6] ?? 0;
    // Room that was set apart and never written, as after a power failure.
    if (type === 0 && length === 0) return log.subarray(at).every((byte) => byte === 0);
    const end = at + HEADER + length;
    if (HEADER + length > left || type > TYPES) return false;
    if (end > log.length) return true;
    if (masked(log.subarray(at + 6, end)) !== log.readUInt32LE(at)) return false;
    at = end;
  }
  return true;
}
