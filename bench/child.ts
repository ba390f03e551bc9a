/** Processes that the bench starts: drivers, servers, references. Each prints JSON lines on stdout: {"event": ...}. */
import { spawn, type ChildProcessWithoutNullStreams, type SpawnOptions } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

/** A line that a child printed; the other fields depend on `event`. */
export interface Line {
  readonly event: string;
  readonly [field: string]: unknown;
}

/** A field of a line that must be a number. */
export function numberIn(line: Line, field: string): number {
  const value = line[field];
  if (typeof value !== 'number') throw new Error(`${line.event} has no number ${field}: ${JSON.stringify(line)}`);
  return value;
}

/** A field of a line that must be text. */
export function textIn(line: Line, field: string): string {
  const value = line[field];
  if (typeof value !== 'string') throw new Error(`${line.event} has no text ${field}: ${JSON.stringify(line)}`);
  return value;
}

/** The fields of a line that must be numbers. */
export const numbersIn = <N extends string>(line: Line, names: readonly N[]): Record<N, number> =>
  Object.fromEntries(names.map((name) => [name, numberIn(line, name)])) as Record<N, number>;

/** Options as arguments, `name=value`: 1 for true, nothing for false and undefined. */
export const pairs = (options: object): string[] =>
  Object.entries(options)
    .filter(([, value]) => value !== undefined && value !== false)
    .map(([name, value]) => `${name}=${value === true ? 1 : String(value)}`);

/** The command of a script of the bench, by its path without the extension, with options as `pairs` and Node's flags. */
export const nodeScript = (name: string, options: object = {}, flags: readonly string[] = []): string[] => [
  ...[process.execPath, ...flags, fileURLToPath(new URL(`./${name}.js`, import.meta.url))],
  ...pairs(options),
];

interface Waiter {
  readonly event: string;
  resolve(line: Line): void;
  reject(error: Error): void;
}

const running = new Set<Child>();
// No child outlives the bench, however the bench ends. A child that has to clean up (`tidies`) exits by itself when its
// stdin closes.
process.on('exit', () => {
  for (const child of running) if (!child.tidies) child.process.kill('SIGKILL');
});

function parse(text: string): Line | undefined {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && 'event' in value && typeof value.event === 'string') {
      return value as Line;
    }
  } catch {
    // Not JSON: a log line of the server under test.
  }
  return undefined;
}

const WAIT_MS = 180_000;
const STOP_MS = 20_000;

export class Child {
  readonly process: ChildProcessWithoutNullStreams;
  readonly name: string;
  /** Resolves when the process has ended, with its exit code, or -1 after a signal. */
  readonly ended: Promise<number>;
  private readonly said: Line[] = [];
  private readonly waiters: Waiter[] = [];
  private over = false;
  /** True: it cleans up and exits by itself when its stdin closes. */
  readonly tidies: boolean;

  constructor(name: string, command: readonly string[], options: SpawnOptions & { readonly tidies?: boolean } = {}) {
    this.tidies = options.tidies ?? false;
    const [file, ...args] = command;
    if (file === undefined) throw new Error('nothing to start');
    this.name = name;
    this.process = spawn(file, args, { ...options, stdio: ['pipe', 'pipe', 'pipe'] });
    running.add(this);
    this.ended = new Promise((resolve) => {
      this.process.once('error', (error) => this.finish(error.message, -1, resolve));
      this.process.once('exit', (code, signal) => this.finish(`exit ${code ?? signal}`, code ?? -1, resolve));
    });
    // Whatever its type says: a process without descriptors left starts children without pipes.
    if (!(this.process as Partial<typeof this.process>).stdin) throw new Error(`${name} was started without pipes`);
    // Writes to a child that has ended fail, which does not matter.
    this.process.stdin.on('error', () => undefined);
    createInterface({ input: this.process.stdout }).on('line', (text) => this.heard(text));
    createInterface({ input: this.process.stderr }).on('line', (text) => {
      process.stderr.write(`[${name}] ${text.slice(0, 500)}\n`);
    });
  }

  get pid(): number {
    if (this.process.pid === undefined) throw new Error(`${this.name} did not start`);
    return this.process.pid;
  }

  /** The next line with this event, already printed or yet to come. Rejects if the child ends without it. */
  async next(event: string, timeoutMs = WAIT_MS): Promise<Line> {
    const at = this.said.findIndex((line) => line.event === event);
    const line = this.said[at];
    if (line !== undefined) {
      this.said.splice(at, 1);
      return line;
    }
    if (this.over) throw new Error(`${this.name} ended before it said "${event}"`);
    let timer: NodeJS.Timeout | undefined;
    const coming = new Promise<Line>((resolve, reject) => {
      const waiter = { event, resolve, reject };
      this.waiters.push(waiter);
      timer = setTimeout(() => {
        // Else it would take the line that the next caller waits for.
        this.waiters.splice(this.waiters.indexOf(waiter), 1);
        reject(new Error(`${this.name} did not say "${event}" in ${timeoutMs / 1000} s`));
      }, timeoutMs);
    });
    return await coming.finally(() => clearTimeout(timer));
  }

  /** The line `result`, once the child has ended. */
  async result(): Promise<Line> {
    const line = await this.next('result');
    await this.ended;
    return line;
  }

  /** Sends one command line and waits for its answer. */
  async ask(command: string, event: string, timeoutMs = WAIT_MS): Promise<Line> {
    const answer = this.next(event, timeoutMs);
    this.process.stdin.write(`${command}\n`);
    return await answer;
  }

  /** Sends SIGTERM or the given signal, then SIGKILL if the child does not end. */
  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<void> {
    this.process.kill(signal);
    const timer = setTimeout(() => this.process.kill('SIGKILL'), STOP_MS);
    await this.ended;
    clearTimeout(timer);
  }

  private heard(text: string): void {
    const line = parse(text);
    if (line === undefined) return;
    const at = this.waiters.findIndex((waiter) => waiter.event === line.event);
    const [waiter] = at < 0 ? [] : this.waiters.splice(at, 1);
    if (waiter) waiter.resolve(line);
    else this.said.push(line);
  }

  private finish(how: string, code: number, resolve: (code: number) => void): void {
    this.over = true;
    running.delete(this);
    // Lines that are still in the pipe must arrive before their waiters are rejected.
    setImmediate(() => {
      for (const waiter of this.waiters.splice(0)) {
        waiter.reject(new Error(`${this.name}: ${how} before it said "${waiter.event}"`));
      }
      resolve(code);
    });
  }
}
