/** `service-load` in this process, as another program's calls (support/cli.ts); its workers are processes all the same. */
import { readFile } from 'node:fs/promises';
import { createServer, type RequestListener } from 'node:http';
import { join } from 'node:path';
import { PROJECT_ROOT, RELEASE } from '../../src/root.js';
import { runLoad } from '../../src/load/program.js';
import type { Report } from '../../src/load/report.js';
import { Target } from '../../src/load/target.js';
import { piped, type Ended, type Json } from './cli.js';
import { openFor } from './loopback-server.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';
import { ADMIN_TOKEN } from './server.js';

/** The built program. */
export const PROGRAM = join(PROJECT_ROOT, 'build/src/load/main.js');
export const SECRET = 'secret-of-the-load-tests';

/** An HTTP server on this machine, and a target that sends requests to it. */
export async function answering(t: WithTeardown, listener: RequestListener): Promise<{ url: string; target: Target }> {
  const url = `http://127.0.0.1:${await openFor(t, createServer(listener))}`;
  const target = new Target(url, { connections: 4, from: [] });
  t.teardown(() => target.close());
  return { url, target };
}

/** Calls of the program. */
export interface Load {
  readonly folder: string;
  call(...argv: string[]): Promise<Ended & { readonly error: Json | undefined }>;
  /** A run, with the report that it leaves. */
  run(...argv: string[]): Promise<Ended & { readonly report: Report; readonly page: string }>;
}

/** `env`: beside the operator's token. */
export async function load(t: WithTeardown, env: Readonly<Record<string, string>> = {}): Promise<Load> {
  const folder = await temporaryFolder(t);
  let runs = 0;
  const all = { ADMIN_TOKEN, LOAD_SECRET: SECRET, ...env };
  const call: Load['call'] = async (...argv) => {
    const ended = await piped((to) => runLoad({ ...to, ...RELEASE }), { argv, env: all });
    const last = ended.stderr.trim().split('\n').at(-1) ?? '';
    const { error } = (last.startsWith('{"error"') ? JSON.parse(last) : {}) as { error?: Json };
    return { ...ended, error };
  };
  return {
    folder,
    call,
    run: async (...argv) => {
      const out = join(folder, `run-${++runs}`);
      const ended = await call('run', '--out', out, ...argv);
      const [page, json] = await Promise.all(
        ['html', 'json'].map((ending) =>
          readFile(`${out}.${ending}`, 'utf8').catch(() => {
            throw new Error(`no report: ${ended.stderr}`);
          }),
        ),
      );
      return { ...ended, page: page ?? '', report: JSON.parse(json ?? '') as Report };
    },
  };
}
