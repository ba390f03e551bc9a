/**
 * The command line without a terminal: commands run in this process with a scripted person in front of them, on real
 * clients and a real server; or as the built program, in a process of its own.
 */
import { spawn } from 'node:child_process';
import { closeSync, openSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { Readable, Writable } from 'node:stream';
import { validateMnemonic } from '@scure/bip39';
import { wordlist } from '@scure/bip39/wordlists/english.js';
import type { ProgramCall } from '../../src/terminal/program.js';
import { systemKeychain } from '../../src/cli/keychain.js';
import { nodeTerminal } from '../../src/terminal/process.js';
import { jsonLine } from '../../src/terminal/output.js';
import { runProgram } from '../../src/cli/program.js';
import { Secrets } from '../../src/cli/secrets.js';
import { CommandError, EXIT, type Screen, type Terminal } from '../../src/terminal/terminal.js';
import type { Identity } from '../../src/sdk/identity.js';
import { nodePlatform } from '../../src/sdk/node-platform.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import { systemClock } from '../../src/protocol/clock.js';
import { PROJECT_ROOT, RELEASE } from '../../src/root.js';
import { answering, type Answers } from './answers.js';
import { letIn, wiretap, world, type Wiretap, type World } from './client-world.js';
import { Notifier } from './events.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';
import { runServer } from './server.js';

export type Json = Record<string, unknown>;

export interface CallOptions {
  /** If given, a person is at the terminal, and answers. */
  readonly answers?: Answers;
  /** Standard input of a call without a person. */
  readonly input?: string | Buffer;
  readonly env?: Readonly<Record<string, string>>;
  /** Standard output is a terminal; default: if a person is there. */
  readonly screen?: boolean;
  readonly width?: number;
  /** A file that stands for the screen: it gets the control sequences. */
  readonly sequences?: string;
}

export interface Result {
  readonly code: number;
  readonly out: string;
  readonly notes: string;
  /** What was written to standard output as bytes. */
  readonly bytes: Buffer;
  /** Documents on standard output, with `--json`. */
  readonly data: readonly Json[];
  /** The `error` of `--json`. */
  readonly error: Json | undefined;
  readonly questions: readonly string[];
}

/** A phrase with one wrong word, which its checksum detects: one word in sixteen would match it. */
export function mistyped(phrase: string): string {
  const wrong = wordlist
    .map((word) => phrase.split(' ').with(3, word).join(' '))
    .find((words) => !validateMnemonic(words, wordlist));
  if (wrong === undefined) throw new Error('every word fits');
  return wrong;
}

/** A call under way. */
export interface Running {
  readonly result: Promise<Result>;
  /** The first line of output or notes that fits, perhaps one that is there already. */
  line(fits: RegExp): Promise<RegExpExecArray>;
  /** Its output and notes so far. */
  printed(): string[];
  interrupt(): void;
}

/** A person's machine: a home of its own, so that profiles of two people do not meet. */
export interface Machine {
  readonly home: string;
  readonly tap: Wiretap;
  /** The folder of its default profile. */
  readonly folder: string;
  start(argv: readonly string[], options?: CallOptions): Running;
  call(argv: readonly string[], options?: CallOptions): Promise<Result>;
  /** A call with `--json` that must succeed: its last document. */
  json(argv: readonly string[], options?: CallOptions): Promise<Json>;
}

/** A machine; its files are removed after the test. `parent`: where they lie. */
export async function machine(t: WithTeardown, tap: Wiretap = wiretap(), parent?: string): Promise<Machine> {
  const home = await temporaryFolder(t, parent);
  const start: Machine['start'] = (argv, options = {}) => started(tap, home, { argv, options });
  const call: Machine['call'] = (argv, options) => start(argv, options).result;
  return {
    home,
    tap,
    folder: join(home, 'service', 'device', 'default'),
    start,
    call,
    json: async (argv, options) => {
      const result = await call(['--json', ...argv], options);
      if (result.code !== 0)
        throw new Error(`${argv.join(' ')} ended with ${result.code}: ${JSON.stringify(result.error)}`);
      return result.data.at(-1) ?? {};
    },
  };
}

/** A machine that has claimed a server. */
export async function claimedDesk(t: WithTeardown): Promise<Machine> {
  const { port } = await runServer(t);
  const desk = await machine(t);
  await desk.json(['claim', `http://127.0.0.1:${port}`, '--show-phrase', '--name', 'Desk']);
  return desk;
}

/** A server with a device of the client library, and a machine that has joined it. */
export async function joinedDesk(t: WithTeardown, tap?: Wiretap): Promise<World & { readonly desk: Machine }> {
  const made = await world(t);
  const desk = await machine(t, tap);
  await letIn(made.first, (words) => desk.json(['join', made.url, ...words.split(' '), '--name', 'Desk']));
  return { ...made, desk };
}

function started(
  tap: Wiretap,
  home: string,
  { argv, options }: { readonly argv: readonly string[]; readonly options: CallOptions },
): Running {
  const lines: string[] = [];
  const out: string[] = [];
  const notes: string[] = [];
  const data: Json[] = [];
  const written: Buffer[] = [];
  const questions: string[] = [];
  let error: Json | undefined;
  const changed = new Notifier();
  const heard = (text: string): void => {
    lines.push(text);
    changed.notify();
  };
  const interruption = new AbortController();
  const env = { XDG_CONFIG_HOME: home, SERVICE_KEYCHAIN: 'off', ...options.env };
  const answerTo = answering(options.answers);
  const interactive = options.answers !== undefined;
  const fd = options.sequences === undefined ? undefined : openSync(options.sequences, 'a');
  const screen: Screen | undefined = fd === undefined ? undefined : { fd, write: (text) => void writeSync(fd, text) };
  const terminal = (json: boolean): Terminal => ({
    json,
    screen,
    interactive,
    onScreen: options.screen ?? interactive,
    colours: false,
    width: options.width ?? 100,
    env,
    interrupted: interruption.signal,
    print: (text) => {
      out.push(text);
      heard(text);
    },
    write: (bytes) => Promise.resolve(void written.push(Buffer.from(bytes))),
    data: (value) => {
      data.push(JSON.parse(JSON.stringify(value)) as Json);
      out.push(JSON.stringify(value));
      heard(JSON.stringify(value));
    },
    note: (text) => {
      notes.push(text);
      heard(text);
    },
    progress: () => undefined,
    ask: async (question) => {
      if (!interactive) throw new CommandError(EXIT.usage, 'this needs a terminal to ask at');
      questions.push(question);
      heard(question);
      const answer = answerTo(question);
      if (answer === undefined) throw new Error(`nobody was expected to ask: ${question}`);
      return answer;
    },
    openInput: () => Readable.from(options.input === undefined ? [] : [Buffer.from(options.input)]),
    readInput: async (max) => {
      const input = Buffer.from(options.input ?? '');
      if (input.length > max) throw new CommandError(EXIT.usage, `standard input is larger than ${max} bytes`);
      return input;
    },
  });
  const result = runProgram({
    argv,
    env,
    platform: tap.platform,
    version: '0.0.0',
    commit: 'unknown',
    terminal,
    write: (text) => void out.push(text),
    fail: (value) => (error = (value as { error: Json }).error),
  })
    .finally(() => fd !== undefined && closeSync(fd))
    .then((code) => ({
      code,
      out: out.join('\n'),
      notes: notes.join('\n'),
      bytes: Buffer.concat(written),
      data,
      error,
      questions,
    }));
  const line = async (fits: RegExp): Promise<RegExpExecArray> => {
    for (;;) {
      for (const text of lines) {
        const found = fits.exec(text);
        if (found !== null) return found;
      }
      const ended = await Promise.race([changed.next(), result]);
      if (ended !== undefined) throw new Error(`no line fits ${String(fits)}:\n${ended.out}\n${ended.notes}`);
    }
  };
  return { result, line, printed: () => [...lines], interrupt: () => interruption.abort() };
}

/** Text without the sequences that colour it or move the cursor. */
const plainText = (text: string): string => text.replace(/\u001b\[[\d;]*[A-Za-z]/g, '');

/** The built program. */
export const BINARY = join(PROJECT_ROOT, 'build/src/cli/main.js');

export interface Ended {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface Process {
  readonly ended: Promise<Ended>;
  readonly pid: number;
  /** The first part of standard output and error that fits, colours left out. */
  seen(fits: RegExp): Promise<RegExpExecArray>;
  write(text: string): void;
  kill(signal: NodeJS.Signals): void;
}

/**
 * One call of a program in this process, with pipes where its streams would be: what `runProcess` does with a process,
 * for a small part of the processor's time.
 */
export async function piped(
  run: (call: ProgramCall) => Promise<number>,
  { argv, env, input = '' }: Pick<ProgramCall, 'argv' | 'env'> & { readonly input?: string },
): Promise<Ended> {
  const written = { stdout: '', stderr: '' };
  const pipe = (name: keyof typeof written): NodeJS.WriteStream =>
    Object.assign(
      new Writable({
        write: (chunk, _, done) => {
          written[name] += String(chunk);
          done();
        },
      }),
      { isTTY: false },
    ) as unknown as NodeJS.WriteStream;
  const [output, errors] = [pipe('stdout'), pipe('stderr')];
  const streams = { input: Readable.from([Buffer.from(input)]) as unknown as NodeJS.ReadStream, output, errors };
  const terminal: ProgramCall['terminal'] = (json) =>
    nodeTerminal({ json, env, ...streams, interrupted: new AbortController().signal, interrupt: () => undefined });
  const code = await run({
    argv,
    env,
    terminal,
    write: (text) => void output.write(text),
    fail: (value) => void errors.write(`${jsonLine(value)}\n`),
  });
  return { code, signal: null, ...written };
}

/** What the built program would do with this home, in this process. */
export async function runHere(home: string, argv: readonly string[], input = ''): Promise<Ended> {
  const env = { XDG_CONFIG_HOME: home, HOME: home, SERVICE_KEYCHAIN: 'off' };
  const platform = await nodePlatform();
  return piped((call) => runProgram({ ...call, ...RELEASE, platform }), { argv, env, input });
}

/** Starts the built program, or `command` with it, in a process that sees this home and nothing else of the environment. */
export function spawnCli(
  t: WithTeardown,
  argv: readonly string[],
  options: {
    readonly home: string;
    readonly env?: Readonly<Record<string, string>>;
    readonly input?: string;
    readonly through?: readonly string[];
  },
): Process {
  const env = {
    PATH: process.env['PATH'],
    XDG_CONFIG_HOME: options.home,
    HOME: options.home,
    SERVICE_KEYCHAIN: 'off',
    ...options.env,
  };
  const [command = process.execPath, ...before] = options.through ?? [];
  const own = options.through === undefined ? [BINARY, ...argv] : [...before, ...argv];
  const child = spawn(command, own, { env, stdio: ['pipe', 'pipe', 'pipe'] });
  let stdout = '';
  let stderr = '';
  const changed = new Notifier();
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    stdout += text;
    changed.notify();
  });
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
    changed.notify();
  });
  // A child that ends before it has read everything is no failure of the test.
  child.stdin.on('error', () => undefined);
  if (options.through === undefined) child.stdin.end(options.input ?? '');
  const ended = new Promise<Ended>((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code, signal) => resolve({ code, signal, stdout, stderr }));
  });
  t.teardown(async () => {
    if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL');
    await ended;
  });
  return {
    ended,
    pid: child.pid ?? 0,
    write: (text) => void child.stdin.write(text),
    kill: (signal) => void child.kill(signal),
    seen: async (fits) => {
      for (;;) {
        const found = fits.exec(plainText(stdout + stderr));
        if (found !== null) return found;
        const over = await Promise.race([changed.next(), ended]);
        if (over !== undefined && fits.exec(plainText(stdout + stderr)) === null) {
          throw new Error(`ended with ${String(over.code)} and nothing fits ${String(fits)}:\n${stdout}\n${stderr}`);
        }
      }
    },
  };
}

/** Runs the program in a pseudo-terminal, as for a person; what is written to it is typed. */
export const typed = (t: WithTeardown, home: string, command: string, env: Record<string, string> = {}): Process =>
  spawnCli(t, ['-qfec', `stty cols 100; ${process.execPath} ${BINARY} ${command}`, '/dev/null'], {
    home,
    env: { TERM: 'xterm', ...env },
    through: ['script'],
  });

/** The identity of a profile's folder, opened as the program does. */
export async function identityIn(folder: string): Promise<Identity> {
  const keychain = systemKeychain({ clock: systemClock, onWait: () => undefined });
  const warn = (text: string): never => {
    throw new Error(text);
  };
  const found = await new Secrets({ sodium: nodeSodium, folder, keychain, setting: 'off', warn }).read();
  if (found === undefined) throw new Error(`no identity in ${folder}`);
  return found;
}
