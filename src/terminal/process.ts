/**
 * A command-line program as a process: its terminal (standard input, output and error), signals, and its end with an exit
 * code.
 */
import { stripVTControlCharacters } from 'node:util';
import { askLine, type PromptContext } from './ask.js';
import { readCapped } from './read-capped.js';
import type { Failure } from './failure.js';
import { fitted, hasColours, jsonLine, sanitizeText } from './output.js';
import type { ProgramCall } from './program.js';
import {
  endInterrupted,
  EXIT,
  INTERRUPTED,
  type ExitCode,
  type Screen,
  type Terminal,
  usageError,
} from './terminal.js';

/** Time for cleaning up after an interruption; then the process is ended. */
export const GRACE_MS = 5_000;

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

const HALF_WAY: Failure = {
  exitCode: EXIT.failure,
  code: 'failure',
  message: 'the command stopped half way: what it waited for can never arrive',
  hint: 'Everything reported as written or kept is safe. Run it again; if it stops again, report it.',
};

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
  let keepsOn = false;
  output.on('error', (error: NodeJS.ErrnoException) => {
    // EPIPE: the reader has ended first (`| head`), which is no failure; but what a command changes must not look done.
    if (error.code === 'EPIPE' && keepsOn) return;
    process.exit(error.code === 'EPIPE' ? EXIT.ok : EXIT.failure);
  });
  // Messages are lost, but the command and its exit code are not: it may have failed, or be writing.
  errors.on('error', () => undefined);
  const end = (text: string, { code, message, hint }: Failure, exitCode: ExitCode): never => {
    errors.write(`${argv.includes('--json') ? jsonLine({ error: { code, message, hint } }) : text}\n`);
    return process.exit(exitCode);
  };
  process.on('uncaughtException', (error) => {
    const failure = options.failureOf(error);
    end(`Error: ${failure.message}`, failure, EXIT.failure);
  });
  // The event loop is empty before the command has ended: Node would exit with 13 and print nothing.
  process.on('beforeExit', () => {
    if (interrupted.aborted) end('Interrupted.', INTERRUPTED, EXIT.interrupted);
    end(`Error: ${HALF_WAY.message}\n${HALF_WAY.hint}`, HALF_WAY, EXIT.failure);
  });
  const code = await options.run({
    argv: argv.slice(2),
    env,
    terminal: (json) => nodeTerminal({ json, env, input, output, errors, interrupted, interrupt }),
    write: (text) => void output.write(text),
    keepOn: () => (keepsOn = true),
    fail: (value) => void errors.write(`${jsonLine(value)}\n`),
  });
  return endProcess(code);
}

const WIDTH_DEFAULT = 80;
const CLEAR_LINE = '\r\u001b[2K';
const LINE_EVERY_MS = 10_000;

type Options = Pick<Terminal, 'json' | 'env'> & PromptContext & { readonly output: NodeJS.WriteStream };

/** A terminal on a process's streams. */
export function nodeTerminal(options: Options): Terminal {
  const { json, env, input, output, errors, interrupted } = options;
  const interactive = input.isTTY && output.isTTY;
  const coloured = hasColours(errors, env);
  let shown = false;
  const lines = progressLines((line) => errors.write(`${sanitizeText(line)}\n`));
  const clear = (): void => {
    if (shown) errors.write(CLEAR_LINE);
    shown = false;
  };
  return {
    json,
    env,
    interrupted,
    interactive,
    onScreen: output.isTTY,
    screen: screenOf(errors, 2) ?? screenOf(output, 1),
    colours: !json && hasColours(output, env),
    get width() {
      return output.columns || WIDTH_DEFAULT;
    },
    print: (text) => {
      clear();
      output.write(`${text}\n`);
    },
    write: (bytes) =>
      new Promise((resolve, reject) => {
        output.write(bytes, (error) => (error ? reject(error) : resolve()));
      }),
    data: (value) => {
      clear();
      output.write(`${jsonLine(value)}\n`);
    },
    note: (text) => {
      clear();
      errors.write(`${json ? jsonLine({ note: text }) : coloured ? text : stripVTControlCharacters(text)}\n`);
    },
    progress: (text) => {
      if (json) return;
      if (!errors.isTTY) return lines(text);
      clear();
      if (text === '') return;
      errors.write(fitted(sanitizeText(text), (errors.columns || WIDTH_DEFAULT) - 1));
      shown = true;
    },
    ask: async (question, { hidden = false } = {}) => {
      clear();
      if (!input.isTTY || !errors.isTTY)
        throw usageError('this needs a terminal to ask at', 'See `--help` for the options of scripts.');
      return askLine(options, question, hidden).catch(endInterrupted);
    },
    openInput: () => input,
    readInput: async (max) => {
      const { bytes, whole } = await readCapped(input, max);
      if (!whole) throw usageError(`standard input is larger than ${max} bytes`);
      return bytes;
    },
  };
}

const screenOf = (stream: NodeJS.WriteStream, fd: number): Screen | undefined =>
  stream.isTTY ? { fd, write: (sequence) => void stream.write(sequence) } : undefined;

/**
 * Progress on an output that cannot overwrite a line: a line every ten seconds, the first after ten seconds. An empty text
 * ends the work that the lines belong to.
 */
export function progressLines(write: (line: string) => void, now: () => number = () => performance.now()) {
  let last: number | undefined;
  return (text: string): void => {
    const at = now();
    if (text === '') last = undefined;
    else if (last === undefined) last = at;
    else if (at - last >= LINE_EVERY_MS) {
      last = at;
      write(text);
    }
  };
}
