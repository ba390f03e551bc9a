/** A program of a device as a process: how it is interrupted, and how it ends with its exit code. */
import { EXIT, type ExitCode } from './terminal.js';

/** After an interruption a command may put away what it has in hand; then it ends anyway. */
const GRACE_MS = 5_000;

/**
 * Makes SIGINT, SIGTERM and SIGHUP interrupt the work of this process, and what it writes its owner's alone. Ctrl-C at a
 * question calls `interrupt`, since a terminal that is being read sends no signal.
 */
export function interruptible(graceMs = GRACE_MS) {
  const controller = new AbortController();
  const interrupt = (): void => {
    // The second time is meant.
    if (controller.signal.aborted) process.exit(EXIT.interrupted);
    controller.abort();
    setTimeout(() => process.exit(EXIT.interrupted), graceMs).unref();
  };
  // Whatever is written, by libraries too, is nobody else's business.
  process.umask(0o077);
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, interrupt);
  return { signal: controller.signal, interrupt };
}

/** Ends the process when all it has written has left it: what is still in a pipe's buffer would be lost by `exit`. */
export async function endProcess(code: ExitCode): Promise<never> {
  await Promise.all([process.stdout, process.stderr].map(flushed));
  return process.exit(code);
}

const flushed = (stream: NodeJS.WriteStream): Promise<void> =>
  new Promise((resolve) => {
    if (stream.destroyed || stream.writableEnded) resolve();
    else stream.write('', () => resolve());
  });
