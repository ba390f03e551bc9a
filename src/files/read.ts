/** Reading and writing an open file, whole or a part of it. */
import { open, type FileHandle } from 'node:fs/promises';

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

/** Writes all bytes at `position`. A single system call may write fewer. */
export async function writeBytes(handle: FileHandle, bytes: Uint8Array, position: number): Promise<void> {
  for (let at = 0; at < bytes.length;)
    at += (await handle.write(bytes, at, bytes.length - at, position + at)).bytesWritten;
}

export const PORTION_BYTES = 256 * 1024;

/**
 * The whole file. Each portion is valid until the next is requested: with new memory for each, tens of MiB would wait for
 * collection.
 */
export async function* portionsOf(handle: FileHandle): AsyncGenerator<Uint8Array, void, undefined> {
  const buffer = new Uint8Array(PORTION_BYTES);
  for (let at = 0; ;) {
    const { bytesRead } = await handle.read(buffer, 0, PORTION_BYTES, at);
    if (bytesRead === 0) return;
    at += bytesRead;
    yield buffer.subarray(0, bytesRead);
  }
}

/** Runs `work` with the open file, and closes it. */
export async function withFile<T>(path: string, work: (handle: FileHandle) => Promise<T>): Promise<T> {
  const handle = await open(path, 'r');
  return work(handle).finally(() => handle.close());
}
