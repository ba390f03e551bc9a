/** Asking a person at a terminal for one line. */
import { createInterface } from 'node:readline/promises';
import { Writable } from 'node:stream';

/** Where a person is asked. Both are terminals. */
export interface Asking {
  readonly input: NodeJS.ReadStream;
  /** Where question and echo go: standard output is left to results. */
  readonly errors: NodeJS.WriteStream;
  /** Aborted by a signal; Ctrl-C at a question calls `interrupt`, since a terminal that is being read sends none. */
  readonly interrupted: AbortSignal;
  readonly interrupt: () => void;
}

/** What Ctrl-C is where the terminal is read key by key. */
const CTRL_C = 0x03;
/** Without input for so long, nothing waits any more: what the system holds of a terminal is heard of at once. */
const QUIET_MS = 50;
/** A key that is held down never ends; what it does after so many rounds is typed at the question. */
const ROUNDS_MAX = 20;

/**
 * The line that was typed after the question was shown. What was typed before is thrown away: a yes must not answer a
 * question that nobody has read (CLI-37). `hidden`: without echo. From the first question on the terminal shows nothing
 * of what is typed between questions either. Rejects where the person interrupts, or ends the input (Ctrl-D).
 */
export async function askLine(
  { input, errors, interrupted, interrupt }: Asking,
  question: string,
  hidden: boolean,
): Promise<string> {
  await emptied(input, interrupt);
  let silent = false;
  const echo = new Writable({
    write: (chunk: Buffer, _encoding, done) => {
      if (!silent) errors.write(chunk);
      done();
    },
  });
  const lines = createInterface({ input, output: echo, terminal: true, historySize: 0 });
  const stop = new AbortController();
  // The end of input (Ctrl-D) is no answer, and would otherwise be waited for for ever.
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

/** What throws away the input of a terminal between two questions; of each terminal at most one. */
const discarding = new WeakMap<NodeJS.ReadStream, () => void>();

/**
 * From now on, what is typed is neither shown nor kept; Ctrl-C interrupts. The process may end meanwhile: this alone
 * keeps it from nothing, and the system gives the terminal back as it was.
 */
function discard(input: NodeJS.ReadStream, interrupt: () => void, typed: () => void = () => undefined): void {
  discarding.get(input)?.();
  const onData = (bytes: Buffer | string): void => {
    typed();
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

/** Reads and throws away until nothing waits, neither in this process nor in the system. */
async function emptied(input: NodeJS.ReadStream, interrupt: () => void): Promise<void> {
  let typed = true;
  discard(input, interrupt, () => {
    typed = true;
  });
  for (let round = 0; typed && round < ROUNDS_MAX; round++) {
    typed = false;
    await new Promise((resolve) => setTimeout(resolve, QUIET_MS));
  }
  discarding.get(input)?.();
}
