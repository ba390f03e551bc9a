/** Questions to the user at a terminal: a line of text, or a confirmation. */
import { createInterface } from 'node:readline/promises';
import { Writable } from 'node:stream';
import { Declined, type Terminal, usageError } from './terminal.js';

/** A terminal to ask at: both streams are TTYs. */
export interface PromptContext {
  readonly input: NodeJS.ReadStream;
  /** Receives question and echo: standard output is for results. */
  readonly errors: NodeJS.WriteStream;
  /** Aborted by a signal. A terminal in raw mode sends none for Ctrl-C: `interrupt` is called instead. */
  readonly interrupted: AbortSignal;
  readonly interrupt: () => void;
}

/** Ctrl-C as a byte of a terminal in raw mode. */
const CTRL_C = 0x03;
/** Input that the system has buffered arrives at once: a pause of this length means that none is left. */
const QUIET_MS = 50;
/** Bounds the wait for that pause while a key is held down. */
const ROUNDS_MAX = 20;

/**
 * The line typed after the question was shown. Earlier input is discarded: a yes must not answer a question that the
 * user has not read (CLI-37). `hidden`: no echo. From the first question on, input between questions is neither echoed
 * nor kept. Rejects when the user interrupts or ends the input (Ctrl-D).
 */
export async function askLine(
  { input, errors, interrupted, interrupt }: PromptContext,
  question: string,
  hidden: boolean,
) {
  await drain(input, interrupt);
  let silent = false;
  const echo = new Writable({
    write: (chunk: Buffer, _encoding, done) => {
      if (!silent) errors.write(chunk);
      done();
    },
  });
  const lines = createInterface({ input, output: echo, terminal: true, historySize: 0 });
  const stop = new AbortController();
  // Without this, `question` never settles when the input ends (Ctrl-D).
  lines.once('close', () => stop.abort());
  lines.once('SIGINT', () => {
    interrupt();
    stop.abort();
  });
  try {
    const answer = lines.question(question, { signal: AbortSignal.any([interrupted, stop.signal]) });
    silent = hidden;
    return await answer;
  } finally {
    lines.close();
    if (hidden) errors.write('\n');
    discard(input, interrupt);
  }
}

/** Ends the discarding of a terminal's input between two questions; at most one entry for each terminal. */
const discarding = new WeakMap<NodeJS.ReadStream, () => void>();

/**
 * From now on input is neither echoed nor kept; Ctrl-C interrupts. The open input does not keep the process alive, and
 * Node restores the terminal's mode at exit.
 */
function discard(input: NodeJS.ReadStream, interrupt: () => void, onInput: () => void = () => undefined): void {
  discarding.get(input)?.();
  const onData = (bytes: Buffer | string): void => {
    onInput();
    if (Buffer.from(bytes).includes(CTRL_C)) interrupt();
  };
  discarding.set(input, () => {
    input.off('data', onData);
    input.pause();
    input.ref();
    discarding.delete(input);
  });
  input.setRawMode(true);
  input.on('data', onData);
  input.resume();
  input.unref();
}

/** Discards all input that this process or the system has buffered. */
async function drain(input: NodeJS.ReadStream, interrupt: () => void): Promise<void> {
  let typed = true;
  discard(input, interrupt, () => {
    typed = true;
  });
  for (let round = 0; typed && round < ROUNDS_MAX; round++) {
    typed = false;
    await new Promise((resolve) => setTimeout(resolve, QUIET_MS));
    // On a busy machine the timer may fire before pending input is read: a turn of the event loop runs timers first.
    await new Promise((resolve) => setImmediate(resolve));
  }
  discarding.get(input)?.();
}

/**
 * Asks before an irreversible action, unless `yes` is set. Throws `Declined` for any answer but yes, and `CommandError`
 * `usage` where the program cannot ask.
 */
export async function confirmed(terminal: Terminal, question: string, yes: boolean | undefined): Promise<void> {
  if (yes === true) return;
  if (!terminal.interactive) throw usageError('there is no terminal to confirm at', 'Add --yes if you are sure.');
  if (!isYes(await terminal.ask(`${question} [y/N] `))) throw new Declined('Nothing was done.');
}

/** True for `y` and `yes` only. */
export const isYes = (answer: string): boolean => /^y(es)?$/i.test(answer.trim());
