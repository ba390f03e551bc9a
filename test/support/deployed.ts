/** The files of deploy/, and the programs that read them. */
import { spawnSync } from 'node:child_process';
import { cp, mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { temporaryFolder, type WithTeardown } from './postgres.js';
import { DEPLOY } from './proxies.js';

export const deployed = async (name: string): Promise<string> => readFile(join(DEPLOY, name), 'utf8');

export interface Ran {
  readonly status: number | null;
  readonly output: string;
}

export const ran = (command: string, args: readonly string[], env: Readonly<Record<string, string>> = {}): Ran => {
  const { status, stdout, stderr } = spawnSync(command, args, {
    encoding: 'utf8',
    env: { PATH: process.env['PATH'], HOME: '/nonexistent', ...env },
  });
  return { status, output: `${stdout}${stderr}` };
};

/** What a compose file says once its variables are filled in; `env` undefined: without an .env. */
export async function composed(t: WithTeardown, env?: string): Promise<Ran & { readonly config: unknown }> {
  const folder = join(await temporaryFolder(t), 'deploy');
  await mkdir(folder);
  await cp(join(DEPLOY, 'compose.yaml'), join(folder, 'compose.yaml'));
  if (env !== undefined) await writeFile(join(folder, '.env'), env);
  const { status, output } = ran('docker-compose', ['-f', join(folder, 'compose.yaml'), 'config']);
  if (status !== 0) return { status, output, config: undefined };
  const toJson = 'import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)';
  const { stdout } = spawnSync('python3', ['-c', toJson], { encoding: 'utf8', input: output });
  return { status, output, config: JSON.parse(stdout) as unknown };
}

export const REQUIRED = ['DOMAIN', 'TOKEN_SECRET', 'POSTGRES_PASSWORD'];
const VALUES: Readonly<Record<string, string>> = {
  DOMAIN: 'sync.example.com',
  TOKEN_SECRET: '0123456789abcdef0123456789abcdef',
  POSTGRES_PASSWORD: 'abcdef0123456789',
};
export const filled = (example: string, but: readonly string[] = []): string =>
  example.replace(/^([A-Z_]+)=$/gm, (line, name: string) =>
    but.includes(name) ? line : `${line}${VALUES[name] ?? ''}`,
  );
