/** The real terminal: standard input, output and error of this process. */
import { stripVTControlCharacters } from 'node:util';
import { askLine, type Asking } from './ask.js';
import { fitted, hasColours, jsonLine, sanitizeText } from './output.js';
import { endInterrupted, type Screen, type Terminal, usageError } from './terminal.js';

const WIDTH_DEFAULT = 80;
const CLEAR_LINE = '\r\u001b[2K';
const LINE_EVERY_MS = 10_000;

type Options = Pick<Terminal, 'json' | 'env'> &
  Pick<Asking, 'interrupted' | 'interrupt'> & {
    readonly streams: Pick<Asking, 'input' | 'errors'> & { readonly output: NodeJS.WriteStream };
  };

/** A terminal on a process's streams. */
export function nodeTerminal({ json, env, streams, interrupted, interrupt }: Options): Terminal {
  const { input, output, errors } = streams;
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
    outputIsTerminal: output.isTTY,
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
        output.write(bytes, (error) => (error === undefined || error === null ? resolve() : reject(error)));
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
      return askLine({ input, errors, interrupted, interrupt }, question, hidden).catch(endInterrupted);
    },
    openInput: () => input,
    readInput: (max) => readAll(input, max),
  };
}

const screenOf = (stream: NodeJS.WriteStream, fd: number): Screen | undefined =>
  stream.isTTY ? { fd, write: (sequence) => void stream.write(sequence) } : undefined;

async function readAll(input: NodeJS.ReadStream, max: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of input) {
    const bytes = Buffer.from(chunk as Uint8Array);
    size += bytes.length;
    if (size > max) throw usageError(`standard input is larger than ${max} bytes`);
    chunks.push(bytes);
  }
  return Buffer.concat(chunks);
}

/**
 * Progress on an output that cannot overwrite a line: a line every ten seconds, the first after ten seconds. An empty text
 * ends the work that the lines belong to.
 */
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
