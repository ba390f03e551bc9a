/** What a process holds and has used, as the kernel counts it. Linux only, but for `residentBytes`. */
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';

/** A figure of the process's status, bytes. */
async function figureOf(pid: number, name: 'VmHWM' | 'VmRSS'): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  const kilobytes = new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(status)?.[1];
  if (kilobytes === undefined) throw new Error(`no ${name} in the status of ${pid}`);
  return Number(kilobytes) * 1_024;
}

/** The largest resident set that the process ever had, bytes. */
export const peakOf = (pid: number): Promise<number> => figureOf(pid, 'VmHWM');

/** The same of a process that will end. The kernel's own mark is gone with it, and so is read again and again. */
export async function peakUntil(pid: number, ended: Promise<unknown>): Promise<number> {
  let peak = 0;
  let over = false;
  const end = (): void => {
    over = true;
  };
  ended.then(end, end);
  while (!over) {
    peak = Math.max(peak, await peakOf(pid).catch(() => 0));
    await sleep(10);
  }
  return peak;
}

/** Resident memory of a process, bytes. */
export async function residentBytes(pid: number): Promise<number> {
  if (process.platform === 'linux') return figureOf(pid, 'VmRSS');
  const { stdout } = await promisify(execFile)('ps', ['-o', 'rss=', '-p', String(pid)]);
  return Number(stdout.trim()) * 1_024;
}

/** CPU time that the main thread of a process has used, ms. */
export const ranMs = (pid: number): number =>
  Number(readFileSync(`/proc/${pid}/task/${pid}/schedstat`, 'utf8').split(' ')[0]) / 1e6;
