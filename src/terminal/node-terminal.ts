/** The real terminal: standard input, output and error of this process. */
import { askLine } from './ask.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { fitted, jsonLine } from './text.js';
import { CommandError, endInterrupted, EXIT, type Terminal } from './terminal.js';

const WIDTH_DEFAULT = 80;
const CLEAR_LINE = '\r\u001b[2K';
const LINE_EVERY_MS = 10_000;

/** What the real terminal is made of. */
export interface TerminalOptions {
  readonly json: boolean;
  readonly env: Terminal['env'];
  readonly streams: { readonly input: NodeJS.ReadStream } & Readonly<Record<'output' | 'errors', NodeJS.WriteStream>>;
  /** Aborted by a signal; Ctrl-C at a question calls `interrupt`, since a terminal that is being read sends none. */
  readonly interrupted: AbortSignal;
  readonly interrupt: () => void;
}

/** Binds the port to a process's streams. */
export function nodeTerminal(options: TerminalOptions): Terminal {
  const { json, env, streams, interrupted, interrupt } = options;
  const { input, output, errors } = streams;
  const interactive = input.isTTY && output.isTTY;
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
    outputIsTerminal: output.isTTY,
    colours: output.isTTY && !json && (env['NO_COLOR'] ?? '') === '' && env['TERM'] !== 'dumb',
    get width() {
      return output.columns || WIDTH_DEFAULT;
    },
    print: (text) => {
      clear();
      output.write(`${text}\n`);
    },
    write: (bytes) =>
      new Promise((resolve, reject) => {
        output.write(bytes, (error) => (error === undefined || error === null ? resolve() : reject(error)));
      }),
    data: (value) => {
      clear();
      output.write(`${jsonLine(value)}\n`);
    },
    note: (text) => {
      clear();
      errors.write(`${json ? jsonLine({ note: text }) : text}\n`);
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
      if (!input.isTTY || !errors.isTTY) {
        throw new CommandError(
          EXIT.usage,
          'this needs a terminal to ask at',
          'See `--help` for the options of scripts.',
        );
      }
      return askLine({ input, errors, interrupted, interrupt }, question, hidden).catch(endInterrupted);
    },
    openInput: () => input,
    readInput: (max) => readAll(input, max),
  };
}

async function readAll(input: NodeJS.ReadStream, max: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of input) {
    const bytes = Buffer.from(chunk as Uint8Array);
    size += bytes.length;
    if (size > max) throw new CommandError(EXIT.usage, `standard input is larger than ${max} bytes`);
    chunks.push(bytes);
  }
  return Buffer.concat(chunks);
}

/** Progress where the line cannot be written over; '' ends the work that the lines are of. */
export function progressLines(
  write: (line: string) => void,
  now: () => number = () => performance.now(),
): (text: string) => void {
  let last: number | undefined;
  return (text) => {
    const at = now();
    if (text === '') last = undefined;
    else if (last === undefined) last = at;
    else if (at - last >= LINE_EVERY_MS) {
      last = at;
      write(text);
    }
  };
}
