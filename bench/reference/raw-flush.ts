/** Flushes of the disk with nothing else to do: every write waits for at least one. */
import { open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';

/** As PostgreSQL's log is written: pages into a file that has its size already. */
const PAGE = Buffer.alloc(8 * 1024, 1);
const PAGES = 2_048;
/** A flush as long as this is a stall, ms. */
export const STALL_MS = 10;

/** Flushes one page after the other, with pauses of 1 ms, for so many seconds. Returns how long each flush took, ms. */
export async function rawFlushes(folder: string, seconds: number): Promise<number[]> {
  const path = join(folder, 'flushes');
  const file = await open(path, 'w');
  try {
    for (let page = 0; page < PAGES; page++) await file.write(PAGE);
    await file.sync();
    const times: number[] = [];
    const end = performance.now() + seconds * 1_000;
    while (performance.now() < end) {
      const begin = performance.now();
      await file.write(PAGE, 0, PAGE.length, (times.length % PAGES) * PAGE.length);
      await file.datasync();
      times.push(performance.now() - begin);
      await delay(1);
    }
    return times;
  } finally {
    await file.close();
    await rm(path);
  }
}
