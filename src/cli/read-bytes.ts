/** Reading a part of an open file. */
import type { FileHandle } from 'node:fs/promises';

/** `length` bytes from `position` on; fewer only where the file ends before. A single system call may return fewer. */
export async function readBytes(handle: FileHandle, position: number, length: number): Promise<Buffer> {
  const bytes = Buffer.alloc(length);
  let filled = 0;
  while (filled < length) {
    const { bytesRead } = await handle.read(bytes, filled, length - filled, position + filled);
    if (bytesRead === 0) break;
    filled += bytesRead;
  }
  return bytes.subarray(0, filled);
}
