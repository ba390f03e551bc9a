/** Processes that a test has started. */
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';

/** Whether it was started and has not ended. */
export const isRunning = ({ pid, exitCode, signalCode }: ChildProcess): boolean =>
  pid !== undefined && exitCode === null && signalCode === null;

/** Whether a process of this number exists, perhaps one that nobody has collected yet. */
export function exists(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

/** Ends a process and waits for its end. One that is still there after `patienceMs` is killed. */
export async function endProcess(
  child: ChildProcess | undefined,
  signal: NodeJS.Signals,
  patienceMs?: number,
): Promise<void> {
  if (child === undefined || !isRunning(child)) return;
  const gone = once(child, 'exit');
  child.kill(signal);
  const timer = patienceMs === undefined ? undefined : setTimeout(() => child.kill('SIGKILL'), patienceMs);
  await gone;
  clearTimeout(timer);
}
