/**
 * `service-admin`, which sees nothing of our environment: in this process, at the code of the real terminal, or the built
 * program in a process of its own, which takes a second of a processor a call.
 */
import { join } from 'node:path';
import { runAdmin } from '../../src/server/admin/program.js';
import { PROJECT_ROOT, RELEASE } from '../../src/root.js';
import { piped, spawnCli, type Ended, type Json } from './cli.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';

const BINARY = join(PROJECT_ROOT, 'build/src/server/admin/main.js');

/** How a call ended. */
export interface AdminEnded extends Ended {
  /** The document of `--json`. */
  readonly data: Json;
  /** The `error` of `--json`. */
  readonly error: Json | undefined;
}

/** Calls of the program with one environment. */
export interface Admin {
  /** With `--json`. */
  json(...argv: string[]): Promise<AdminEnded>;
  plain(...argv: string[]): Promise<Ended>;
  /** In a pseudo-terminal that answers a question. */
  answering(question: RegExp, answer: string, ...argv: string[]): Promise<Ended>;
}

/** Variables that the libraries of the stores read from the process itself. */
const OF_LIBRARIES = /^(AWS|GOOGLE|METADATA)_/;

/** Does some work with these variables of the libraries, and no others. */
async function withVariables<T>(env: Readonly<Record<string, string>>, work: () => Promise<T>): Promise<T> {
  const take = (from: NodeJS.ProcessEnv): NodeJS.ProcessEnv =>
    Object.fromEntries(Object.entries(from).filter(([name]) => OF_LIBRARIES.test(name)));
  const become = (variables: NodeJS.ProcessEnv): void => {
    for (const name of Object.keys(take(process.env))) Reflect.deleteProperty(process.env, name);
    Object.assign(process.env, variables);
  };
  const before = take(process.env);
  become(take(env));
  return work().finally(() => become(before));
}

/** `env`: beside a `DATA_DIR` of its own. One call at a time. */
export async function admin(t: WithTeardown, env: Readonly<Record<string, string>>): Promise<Admin> {
  const home = await temporaryFolder(t);
  return adminOf(t, { home, env: variablesOf(home, env) }, (argv, options) =>
    withVariables(options.env, () => piped((call) => runAdmin({ ...call, ...RELEASE }), { argv, ...options })),
  );
}

/** The same as the built program. */
export async function builtAdmin(t: WithTeardown, env: Readonly<Record<string, string>>): Promise<Admin> {
  const home = await temporaryFolder(t);
  return adminOf(
    t,
    { home, env: variablesOf(home, env) },
    (argv, options) => spawnCli(t, [BINARY, ...argv], { ...options, input: '', through: [process.execPath] }).ended,
  );
}

interface Options {
  readonly home: string;
  readonly env: Readonly<Record<string, string>>;
}

const variablesOf = (home: string, env: Options['env']): Options['env'] => ({
  ...{ DATA_DIR: join(home, 'data'), TERM: 'xterm' },
  ...env,
});

function adminOf(
  t: WithTeardown,
  options: Options,
  call: (argv: readonly string[], options: Options) => Promise<Ended>,
): Admin {
  const plain: Admin['plain'] = (...argv) => call(argv, options);
  return {
    plain,
    json: async (...argv) => {
      const ended = await plain('--json', ...argv);
      const { error } = JSON.parse(ended.stderr.trim().split('\n').at(-1) || '{}') as { error?: Json };
      return { ...ended, error, data: JSON.parse(ended.stdout.trim() || '{}') as Json };
    },
    answering: async (question, answer, ...argv) => {
      const command = [process.execPath, BINARY, ...argv].join(' ');
      const call = spawnCli(t, ['-qfec', command, '/dev/null'], { ...options, through: ['script'] });
      await call.seen(question);
      call.write(`${answer}\r`);
      return call.ended;
    },
  };
}
