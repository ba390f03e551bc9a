/** A command-line program as a process: signals, streams, and its end with an exit code. */
import type { Failure } from './failure.js';
import { nodeTerminal } from './node-terminal.js';
import { jsonLine } from './output.js';
import type { ProgramCall } from './program.js';
import { EXIT, type ExitCode } from './terminal.js';

/** Time for cleaning up after an interruption; then the process is ended. */
const GRACE_MS = 5_000;

/**
 * Makes SIGINT, SIGTERM and SIGHUP abort `signal`, and sets the umask so that new files are private to their owner. A
 * terminal in raw mode sends no signal for Ctrl-C: its reader calls `interrupt`.
 */
export function interruptible(graceMs = GRACE_MS) {
  const controller = new AbortController();
  const interrupt = (): void => {
    // A second interruption does not wait for the clean-up.
    if (controller.signal.aborted) process.exit(EXIT.interrupted);
    controller.abort();
    setTimeout(() => process.exit(EXIT.interrupted), graceMs).unref();
  };
  // Covers the files that libraries write.
  process.umask(0o077);
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, interrupt);
  return { signal: controller.signal, interrupt };
}

/** Flushes the output streams and ends the process: `exit` alone loses what a pipe has not accepted yet. */
export async function endProcess(code: ExitCode): Promise<never> {
  await Promise.all([process.stdout, process.stderr].map(flushed));
  return process.exit(code);
}

const flushed = (stream: NodeJS.WriteStream): Promise<void> =>
  new Promise((resolve) => {
    if (stream.destroyed || stream.writableEnded) resolve();
    else stream.write('', () => resolve());
  });

/**
 * Runs the program with this process's arguments, environment and streams, and ends the process.
 * @param options `graceMs`: as `GRACE_MS`, for a program that needs longer.
 */
export async function runProcess(options: {
  readonly graceMs?: number;
  readonly failureOf: (error: unknown) => Failure;
  readonly run: (call: ProgramCall) => Promise<ExitCode>;
}): Promise<never> {
  const { stdin: input, stdout: output, stderr: errors, argv, env } = process;
  const { signal: interrupted, interrupt } = interruptible(options.graceMs);
  for (const stream of [output, errors]) {
    stream.on('error', (error: NodeJS.ErrnoException) => {
      // EPIPE: the reader has ended first (`| head`), which is no failure.
      process.exit(error.code === 'EPIPE' ? EXIT.ok : EXIT.failure);
    });
  }
  process.on('uncaughtException', (error) => {
    errors.write(`Error: ${options.failureOf(error).message}\n`);
    process.exit(EXIT.failure);
  });
  // The event loop is empty before the command has ended: Node would exit with 13 and print nothing.
  process.on('beforeExit', () => {
    const message = 'the command stopped half way: what it waited for can never arrive';
    const hint = 'Everything reported as written or kept is safe. Run it again; if it stops again, report it.';
    const json = argv.includes('--json');
    errors.write(`${json ? jsonLine({ error: { code: 'failure', message, hint } }) : `Error: ${message}\n${hint}`}\n`);
    process.exit(EXIT.failure);
  });
  const code = await options.run({
    argv: argv.slice(2),
    env,
    terminal: (json) => nodeTerminal({ json, env, streams: { input, output, errors }, interrupted, interrupt }),
    write: (text) => void output.write(text),
    fail: (value) => void errors.write(`${jsonLine(value)}\n`),
  });
  return endProcess(code);
}
