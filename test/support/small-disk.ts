/** A file system of its own, which is soon full. */
import { spawnSync } from 'node:child_process';
import { rm } from 'node:fs/promises';
import { newFolder, type WithTeardown } from './postgres.js';

/** Its folder; undefined where none can be mounted. `size`: as `mount` takes it. */
export async function smallDisk(t: WithTeardown, size: string): Promise<string | undefined> {
  const folder = await newFolder();
  const mounted = spawnSync('mount', ['-t', 'tmpfs', '-o', `size=${size}`, 'tmpfs', folder]).status === 0;
  t.teardown(async () => {
    if (mounted) spawnSync('umount', [folder]);
    await rm(folder, { recursive: true, force: true });
  });
  return mounted ? folder : undefined;
}
