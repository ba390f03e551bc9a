/** A client under test: a program of any language that takes commands as lines of JSON (the reference, Conformance). */
import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process';
import { createInterface } from 'node:readline';
import type { Json } from '../proxy.js';

/** A command takes seconds; a client that a lie keeps busy must stop by itself within this time. */
const COMMAND_MAX_MS = 40_000;
const LINE_MAX = 4 * 1024 * 1024;
const STDERR_MAX = 4_000;

/** The client ended, timed out, printed an invalid line, or failed with an honest server. */
export class Faulty extends Error {
  override readonly name = 'Faulty';
}

/** A running client. */
export class Client {
  /** What it reported. */
  readonly problems: string[] = [];
  /** Commands that it said it does not know. */
  readonly cannot: string[] = [];
  private readonly child: ChildProcessWithoutNullStreams;
  private take: (line: Json) => void = () => undefined;
  private fail: (error: Faulty) => void = () => undefined;
  private stderr = '';
  private gone: Faulty | undefined;

  constructor([program = '', ...args]: readonly string[]) {
    this.child = spawn(program, args, { stdio: ['pipe', 'pipe', 'pipe'] });
    const gone = (how: string): void => {
      this.gone ??= new Faulty(how);
      this.fail(this.gone);
    };
    this.child.on('error', (error) => gone(`it could not be started: ${error.message}`));
    this.child.on('exit', (code, signal) => gone(`it ended (${signal ?? `exit code ${code ?? ''}`})`));
    this.child.stdin.on('error', () => undefined);
    this.child.stderr.on('data', (chunk: Buffer) => {
      this.stderr = `${this.stderr}${chunk.toString('utf8')}`.slice(-STDERR_MAX);
    });
    createInterface({ input: this.child.stdout }).on('line', (text) => this.line(text));
  }

  /** The end of what it wrote to standard error. */
  get complaints(): string {
    return this.stderr;
  }

  /** Sends a command; resolves with all lines but the last, `done`. Rejects with `Faulty`. */
  async do(command: Json, onLine: (line: Json) => void = () => undefined): Promise<readonly Json[]> {
    const lines: Json[] = [];
    return new Promise((resolve, reject) => {
      const name = String(command['do']);
      const timer = setTimeout(() => {
        reject(new Faulty(`it did not come to an end of '${name}' within ${COMMAND_MAX_MS / 1000} s`));
      }, COMMAND_MAX_MS);
      const ended = (): void => {
        clearTimeout(timer);
        this.take = () => undefined;
        this.fail = () => undefined;
      };
      this.fail = (error) => {
        ended();
        reject(error);
      };
      this.take = (line) => {
        if (line['done'] === true) {
          ended();
          resolve(lines);
          return;
        }
        if ('problem' in line) this.problems.push(String(line['problem']));
        if (line['cannot'] === true) this.cannot.push(name);
        lines.push(line);
        onLine(line);
      };
      if (this.gone !== undefined) this.fail(this.gone);
      else this.child.stdin.write(`${JSON.stringify(command)}\n`);
    });
  }

  end(): void {
    this.fail = () => undefined;
    this.child.stdin.end();
    this.child.kill('SIGKILL');
  }

  private line(text: string): void {
    try {
      const line = text.length > LINE_MAX ? null : (JSON.parse(text) as unknown);
      if (typeof line !== 'object' || line === null) throw new SyntaxError();
      this.take(line as Json);
    } catch {
      this.fail(new Faulty(`it printed a line that is no JSON object: ${JSON.stringify(text.slice(0, 100))}`));
    }
  }
}
