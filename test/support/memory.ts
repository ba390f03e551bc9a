/** What a process holds, as the kernel counts it. Linux only. */
import { readFile } from 'node:fs/promises';

/** The largest resident set that the process ever had, bytes. */
export async function peakOf(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  const kilobytes = /^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1];
  if (kilobytes === undefined) throw new Error(`no peak in the status of ${pid}`);
  return Number(kilobytes) * 1_024;
}
