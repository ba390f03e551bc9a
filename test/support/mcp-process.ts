/** The companion as its users start it: a process, its streams, and the pairing on disk. */
import { execFile } from 'node:child_process';
import { mkdir, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import type { Identity } from '../../src/sdk/identity.js';
import { savePairing } from '../../src/mcp/config-file.js';
import { pathsOf, type Paths } from '../../src/mcp/context.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import { world, type World } from './client-world.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';

const run = promisify(execFile);

/** The compiled program. */
export const PROGRAM = fileURLToPath(new URL('../../src/mcp/main.js', import.meta.url));

/** A machine's folder with a pairing in it, and the environment that leads there. */
export interface Home {
  readonly paths: Paths;
  readonly env: Record<string, string>;
}

/** Keeps an identity where the program looks for it. */
export async function home(t: WithTeardown, identity: Identity, more: Record<string, string> = {}): Promise<Home> {
  const folder = await temporaryFolder(t);
  const env = { PATH: process.env['PATH'] ?? '', HOME: folder, XDG_CONFIG_HOME: join(folder, 'config'), ...more };
  const paths = pathsOf(env);
  const keeper = { paths, note: () => undefined, platform: { sodium: nodeSodium } };
  await savePairing(keeper, { identity, passwords: false });
  return { paths, env };
}

/** A server, its first device, and a machine that was paired with it. */
export async function machine(t: WithTeardown): Promise<{ all: World; at: Home }> {
  const all = await world(t);
  await all.first.device.connect();
  const second = await all.pair('Agent');
  second.device.close();
  return { all, at: await home(t, second.identity()) };
}

/** The inspector's command line, with the program of this machine behind it. Answers what a call of it prints. */
export async function inspector(
  t: WithTeardown,
  at: Home,
): Promise<(...args: string[]) => Promise<Record<string, unknown>>> {
  // It looks for a package.json one folder above where it runs, and takes its own if there is one.
  const above = await temporaryFolder(t);
  const cwd = join(above, 'here');
  await mkdir(cwd);
  await writeFile(join(above, 'package.json'), '{"name":"@modelcontextprotocol/inspector","version":"0.0.0"}');
  const program = createRequire(import.meta.url).resolve('@modelcontextprotocol/inspector-cli/build/cli.js');
  return async (...args) => {
    const env = Object.entries(at.env).flatMap(([name, value]) => ['-e', `${name}=${value}`]);
    const { stdout } = await run(
      process.execPath,
      [program, '--cli', ...env, process.execPath, PROGRAM, 'serve', ...args],
      { cwd, env: { ...process.env, ...at.env } },
    );
    return JSON.parse(stdout) as Record<string, unknown>;
  };
}

/** A client of a program that was started for it. */
interface Started {
  readonly client: Client;
  readonly transport: StdioClientTransport;
  /** What it wrote to standard error so far. */
  readonly errors: () => string;
}

/** Starts `service-mcp serve` and speaks with it. Both end with the test. */
export async function started(t: WithTeardown, { env }: Home): Promise<Started> {
  const transport = new StdioClientTransport({
    command: process.execPath,
    args: [PROGRAM, 'serve'],
    env,
    stderr: 'pipe',
  });
  let errors = '';
  transport.stderr?.on('data', (chunk: Buffer) => {
    errors += chunk.toString('utf8');
  });
  const client = new Client({ name: 'test', version: '1' });
  t.teardown(async () => client.close());
  await client.connect(transport);
  await client.listTools();
  return { client, transport, errors: () => errors };
}
