/** The terminal as the companion's commands see it: a port, so that they run in tests without one. */
import { askLine } from '../client/node-ask.js';
import { harmless } from '../protocol/harmless.js';
import { McpError } from './errors.js';

/** Where a command asks and prints. */
export interface Terminal {
  /** True where a person can be asked. */
  readonly interactive: boolean;
  /** A line of the result, on standard output. */
  print(text: string): void;
  /** A line for the person, on standard error. */
  note(text: string): void;
  /** Overwrites its own last text, on standard error; an empty text ends it. Where nobody watches, it prints nothing. */
  progress(text: string): void;
  /** Asks for a line; `hidden`: without echo. Throws `McpError` `interrupted`. Call it only where `interactive`. */
  ask(question: string, hidden?: boolean): Promise<string>;
  /** The first line of standard input, of at most `max` bytes, for scripts. */
  readLine(max: number): Promise<string>;
}

/** The streams of a process, and how it is interrupted. */
export interface Streams {
  readonly input: NodeJS.ReadStream;
  readonly output: NodeJS.WriteStream;
  readonly errors: NodeJS.WriteStream;
  readonly interrupted: AbortSignal;
  readonly interrupt: () => void;
}

const CLEAR_LINE = '\r\u001b[2K';
const WIDTH_DEFAULT = 80;

/** Binds the port to a process's streams. */
export function streamTerminal(streams: Streams): Terminal {
  const { input, output, errors } = streams;
  const interactive = input.isTTY && errors.isTTY;
  let shown = false;
  const clear = (): void => {
    if (shown) errors.write(CLEAR_LINE);
    shown = false;
  };
  return {
    interactive,
    print: (text) => {
      clear();
      output.write(`${text}\n`);
    },
    note: (text) => {
      clear();
      errors.write(`${text}\n`);
    },
    progress: (text) => {
      if (!errors.isTTY) return;
      clear();
      if (text === '') return;
      errors.write(harmless(text).slice(0, (errors.columns || WIDTH_DEFAULT) - 1));
      shown = true;
    },
    ask: async (question, hidden = false) => {
      clear();
      return askLine(streams, question, hidden).catch((cause: unknown) => {
        throw new McpError('interrupted', 'interrupted', { cause });
      });
    },
    readLine: (max) => firstLine(input, max),
  };
}

/** What stands before the first line break. */
export const firstLineOf = (text: string): string => text.split(/\r?\n/, 1)[0] ?? '';

async function firstLine(input: NodeJS.ReadStream, max: number): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of input) {
    const bytes = Buffer.from(chunk as Uint8Array);
    size += bytes.length;
    if (size > max) throw new McpError('usage', `standard input is larger than ${max} bytes`);
    chunks.push(bytes);
    if (bytes.includes('\n')) break;
  }
  return firstLineOf(Buffer.concat(chunks).toString('utf8'));
}
