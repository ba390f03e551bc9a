/** A command-line program as a process: signals, streams, and an end with its exit code. */
import { endProcess, interruptible } from './process.js';
import type { ProgramCall } from './call.js';
import type { Failure } from './failure.js';
import { nodeTerminal } from './node-terminal.js';
import { EXIT, type ExitCode } from './terminal.js';
import { jsonLine } from './text.js';

/** What a process runs. */
export interface ProgramProcess {
  /** After an interruption a command may put away what it has in hand for so long, ms. Absent: as every device. */
  readonly graceMs?: number;
  readonly failureOf: (error: unknown) => Failure;
  readonly run: (call: ProgramCall) => Promise<ExitCode>;
}

/** Runs the program with this process's arguments, environment and streams, and ends the process. */
export async function runProcess({ graceMs, failureOf, run }: ProgramProcess): Promise<never> {
  const { signal, interrupt } = interruptible(graceMs);
  for (const stream of [process.stdout, process.stderr]) {
    stream.on('error', (error: NodeJS.ErrnoException) => {
      // Whoever read has gone (`| head`): there is nobody left to tell.
      process.exit(error.code === 'EPIPE' ? EXIT.ok : EXIT.failure);
    });
  }
  process.on('uncaughtException', (error) => {
    process.stderr.write(`Error: ${failureOf(error).message}\n`);
    process.exit(EXIT.failure);
  });
  // Nothing is left that could bring the command on: without this the process would end with Node's 13, and in silence.
  process.on('beforeExit', () => {
    const message = 'the command stopped half way: what it waited for can never come';
    const hint = 'What was said to be written or kept is. Run it again; if it stops again, report it.';
    const json = process.argv.includes('--json');
    const said = json ? jsonLine({ error: { code: 'failure', message, hint } }) : `Error: ${message}\n${hint}`;
    process.stderr.write(`${said}\n`);
    process.exit(EXIT.failure);
  });
  const code = await run({
    argv: process.argv.slice(2),
    env: process.env,
    terminal: (json) =>
      nodeTerminal({
        json,
        env: process.env,
        streams: { input: process.stdin, output: process.stdout, errors: process.stderr },
        interrupted: signal,
        interrupt,
      }),
    write: (text) => void process.stdout.write(text),
    fail: (value) => void process.stderr.write(`${jsonLine(value)}\n`),
  });
  return endProcess(code);
}
