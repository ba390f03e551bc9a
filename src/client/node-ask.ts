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

/** The line that was typed. `hidden`: without echo. Rejects where the person interrupts, or ends the input (Ctrl-D). */
export async function askLine(
  { input, errors, interrupted, interrupt }: Asking,
  question: string,
  hidden: boolean,
): Promise<string> {
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
  }
}
