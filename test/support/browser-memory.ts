/** What a browser holds in memory, all of its processes together. Linux only. */
import { readdir, readFile } from 'node:fs/promises';

/** A process, and whose child it is. */
interface Seen {
  readonly pid: number;
  readonly parent: number;
  /** What of it is its own or shared memory, bytes; pages of files are the system's, which takes them back. */
  readonly bytes: number;
}

async function look(pid: number): Promise<Seen | undefined> {
  // It may be gone meanwhile.
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
  const value = (name: string): number => Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(status)?.[1] ?? 0);
  if (status === '') return undefined;
  return { pid, parent: value('PPid'), bytes: (value('RssAnon') + value('RssShmem')) * 1_024 };
}

/** Bytes of the process and of all that came of it. */
export async function memoryOf(root: number): Promise<number> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name)).map(Number);
  const seen = (await Promise.all(pids.map(look))).filter((one) => one !== undefined);
  const family = new Set([root]);
  for (let before = 0; before < family.size;) {
    before = family.size;
    for (const { pid, parent } of seen) if (family.has(parent)) family.add(pid);
  }
  return seen.filter(({ pid }) => family.has(pid)).reduce((sum, { bytes }) => sum + bytes, 0);
}
