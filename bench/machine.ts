/** Facts about the machine, and the cost of processes, from /proc and git. */
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { availableParallelism, cpus, release, totalmem } from 'node:os';
import { PROJECT_ROOT } from '../src/root.js';

function commit(): string {
  const git = (...args: string[]): string =>
    execFileSync('git', args, { cwd: PROJECT_ROOT, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  try {
    const changed = git('status', '--porcelain') === '' ? '' : ' with changes not committed';
    return git('rev-parse', '--short=12', 'HEAD') + changed;
  } catch {
    return 'not in a commit';
  }
}

/** Facts that a reader needs to compare a result with one of their own. */
export function machineFacts(postgres: string, drivers: string) {
  return {
    cores: availableParallelism(),
    cpu: cpus()[0]?.model.trim() ?? 'unknown',
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    kernel: release(),
    node: process.version,
    postgres,
    drivers,
    commit: commit(),
    at: new Date().toISOString(),
  };
}

export type MachineFacts = ReturnType<typeof machineFacts>;

/** Linux reports CPU time in ticks of 10 ms, on every kernel that Node 20 supports. */
const TICKS_PER_SECOND = 100;

/** The fields of a process's `stat` that follow its command, of which the first is its state; empty if it has ended. */
function statOf(pid: number): string[] {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The command's name may contain spaces and brackets; the other fields follow its last bracket.
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  } catch {
    return [];
  }
}

/** utime + stime and cutime + cstime of a process in seconds; zeros if it has ended. */
function times(pid: number): { own: number; reaped: number } {
  const fields = statOf(pid);
  const seconds = (index: number): number => Number(fields[index] ?? 0) / TICKS_PER_SECOND;
  return { own: seconds(11) + seconds(12), reaped: seconds(13) + seconds(14) };
}

/** The current children of a process. */
export const childrenOf = (pid: number): number[] =>
  readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((each) => Number(statOf(each)[1]) === pid);

/** CPU seconds of one process so far, all threads. */
const cpuOf = (pid: number): number => times(pid).own;

/** CPU seconds of a process and its children, including ended ones: PostgreSQL has a process per connection. */
export function cpuOfFamily(pid: number): number {
  const parent = times(pid);
  return childrenOf(pid).reduce((sum, child) => sum + cpuOf(child), parent.own + parent.reaped);
}

/** CPU seconds so far of all these processes. */
export const cpuOfAll = (pids: readonly number[]): number => pids.reduce((sum, pid) => sum + cpuOf(pid), 0);

/**
 * Private memory of a process, bytes: heap, stacks, buffers. Excludes the pages of its program files, which the kernel
 * may drop and reread at any time.
 */
export function ownBytes(pid: number): number {
  const rollup = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
  return Number(/^Anonymous:\s+(\d+) kB/m.exec(rollup)?.[1] ?? NaN) * 1024;
}

export const ownBytesOfAll = (pids: readonly number[]): number => pids.reduce((sum, pid) => sum + ownBytes(pid), 0);

/** Time since boot that the hypervisor gave to others: [stolen, all] ticks. A large share explains bad figures. */
export function stolenTicks(): readonly [number, number] {
  const fields = (readFileSync('/proc/stat', 'utf8').split('\n')[0] ?? '').trim().split(/\s+/).slice(1).map(Number);
  return [fields[7] ?? 0, fields.slice(0, 8).reduce((sum, each) => sum + each, 0)];
}
