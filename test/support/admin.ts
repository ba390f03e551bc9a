/** The built `service-admin`, in a process that sees nothing of our environment. */
import { join } from 'node:path';
import { PROJECT_ROOT } from '../../src/root.js';
import { spawnCli, type Ended, type Json } from './cli.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';

const BINARY = join(PROJECT_ROOT, 'build/src/cli/admin/main.js');

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

/** `env`: beside a `DATA_DIR` of its own. */
export async function admin(t: WithTeardown, env: Readonly<Record<string, string>>): Promise<Admin> {
  const home = await temporaryFolder(t);
  const options = { home, env: { DATA_DIR: join(home, 'data'), TERM: 'xterm', ...env } };
  const plain: Admin['plain'] = (...argv) =>
    spawnCli(t, [BINARY, ...argv], { ...options, input: '', through: [process.execPath] }).ended;
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
