/** The program `service-load`: its commands and options, and one call of it. */
import { ProtocolError } from '../sdk/errors.js';
import { PrivateFileError } from '../files/private.js';
import { failureFrom, type Failure } from '../terminal/failure.js';
import { newProgram, type ProgramCall, type Run, runCall } from '../terminal/program.js';
import { type Release, releaseText } from '../terminal/output.js';
import { CommandError, EXIT, type ExitCode } from '../terminal/terminal.js';
import { registerAgent } from './commands/agent.js';
import { registerClean } from './commands/clean.js';
import { registerDevices } from './commands/devices.js';
import { registerRun } from './commands/run.js';
import type { LoadCommand, LoadContext } from './context.js';
import { CrewError } from './orders.js';
import { Refused } from './target.js';

/** The program with all its commands; a test compares the reference with it. */
export function loadProgramOf(run: Run<LoadContext>, version = ''): LoadCommand {
  const program = newProgram<LoadContext>('service-load', 'Loads your own server and reports the results.', run)
    .option('--json', 'results as JSON, for scripts')
    .version(version, '-V, --version', 'the version of this program')
    .examples(
      'run --url http://localhost:8080 --tenants 32 --devices 5 --rate 200 --seconds 60',
      'run --url https://sync.example.org --confirm sync.example.org --device-list devices.json',
      'clean --url http://localhost:8080     # what a killed run has left',
    );
  for (const register of [registerRun, registerAgent, registerDevices, registerClean]) register(program);
  return program;
}

const WRONG_TOKEN = 'ADMIN_TOKEN must be the same here and on the server.';
const NO_TENANTS =
  'Only a server in multi mode creates tenants; for others run service-load devices, then use --device-list.';
const HINTS: ReadonlyMap<string, string> = new Map([
  ['not_found', NO_TENANTS],
  ['forbidden', WRONG_TOKEN],
  ['no_token', WRONG_TOKEN],
]);

function known(error: Error): Failure | undefined {
  const { message } = error;
  if (error instanceof Refused) {
    const exitCode = error.transient ? EXIT.unavailable : EXIT.refused;
    const text =
      error.status === 0 ? `the server cannot be reached (${error.code})` : `the server refuses (${error.code})`;
    return { exitCode, code: error.code, message: text, hint: HINTS.get(error.code) };
  }
  if (error instanceof CrewError) return { exitCode: EXIT.unavailable, code: 'agent', message };
  if (error instanceof PrivateFileError || error instanceof ProtocolError)
    return { exitCode: EXIT.usage, code: 'usage', message };
  if (error.name === 'AbortError') return new CommandError(EXIT.interrupted, 'interrupted');
  return undefined;
}

/** Any error of this program as a failure. */
export const loadFailureOf = (error: unknown): Failure => failureFrom(error, known);

/** Runs one call to its end. Does not reject. */
export const runLoad = (call: ProgramCall & Release): Promise<ExitCode> =>
  runCall<LoadContext>(call, {
    failureOf: loadFailureOf,
    programOf: (run) => loadProgramOf(run, releaseText(call)),
    contextOf: (terminal) => ({ terminal, release: { version: call.version, commit: call.commit } }),
  });
