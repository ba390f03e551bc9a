/** Making a folder's entries durable. */
import { open } from 'node:fs/promises';

/** Waits until what was created, linked or renamed in the folder would survive a power cut. */
export async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
