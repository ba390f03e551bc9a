/** Files too large for the memory of a test. */
import { createHash, randomBytes } from 'node:crypto';
import { open } from 'node:fs/promises';

const PIECE = 1024 * 1024;

/** Makes a file of random bytes. */
export async function randomFile(path: string, size: number): Promise<void> {
  const file = await open(path, 'wx');
  for (let left = size; left > 0; left -= PIECE) await file.write(randomBytes(Math.min(PIECE, left)));
  await file.close();
}

/** The hash of all pieces, in hex. */
export async function hashOf(pieces: AsyncIterable<Uint8Array>): Promise<string> {
  const hash = createHash('sha256');
  for await (const piece of pieces) hash.update(piece);
  return hash.digest('hex');
}
