/** The companion's package as its users get it: what is in it, what it pulls in, and that it pairs and serves. */
import { execFile } from 'node:child_process';
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import type { Tool } from '@modelcontextprotocol/sdk/types.js';
import { build } from 'esbuild';
import t, { type Test } from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { MCP_VERSION } from '../src/mcp/context.js';
import { CONTENT_TYPES } from '../src/protocol/item.js';
import { PROJECT_ROOT } from '../src/root.js';
import { broken, mutations, solve, TASKS, type Solved } from './support/agent-tasks.js';
import { spawnCli } from './support/cli.js';
import { wiretap, world, type World } from './support/client-world.js';
import { home, PROGRAM } from './support/mcp-process.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';

// npm installs a few hundred small files, on a machine that does other things meanwhile.
t.setTimeout(600_000);

const run = promisify(execFile);
const root = t;
const PASSWORD = 'a long password of the test';

interface Manifest {
  readonly name: string;
  readonly version: string;
  readonly license: string;
  readonly engines: Readonly<Record<string, string>>;
  readonly bin: Readonly<Record<string, string>>;
  readonly dependencies: Readonly<Record<string, string>>;
  readonly devDependencies?: Readonly<Record<string, string>>;
}

const manifestIn = async (folder: string): Promise<Manifest> =>
  JSON.parse(await readFile(join(folder, 'package.json'), 'utf8')) as Manifest;

const own = await manifestIn(join(PROJECT_ROOT, 'src/mcp'));
const project = await manifestIn(PROJECT_ROOT);

/** A server and its first device, which stretches words and passwords as real programs do. */
async function scene(t: WithTeardown): Promise<World> {
  const tap = wiretap();
  return world(t, { tap: { ...tap, platform: { ...tap.platform, sodium: nodeSodium } } });
}

t.test('MCP-18: the package names exactly what its program imports, in the versions of the project', async (t) => {
  const { metafile } = await build({
    entryPoints: [PROGRAM],
    bundle: true,
    platform: 'node',
    format: 'esm',
    packages: 'external',
    metafile: true,
    write: false,
    logLevel: 'silent',
    absWorkingDir: PROJECT_ROOT,
  });
  const outside = Object.keys(metafile.inputs).filter(
    (path) => !/build\/src\/(mcp|device|sdk|terminal|files|crypto|protocol)\//.test(path),
  );
  t.same(outside, [], 'the folders of the companion only');
  const libraries = Object.values(metafile.inputs)
    .flatMap(({ imports }) => imports)
    .filter(({ path, external }) => external === true && !path.startsWith('node:'))
    .map(({ path }) => /^(@[^/]+\/)?[^/]+/.exec(path)?.[0]);
  t.same([...new Set(libraries)].sort(), Object.keys(own.dependencies).sort());
  const versions = { ...project.dependencies, ...project.devDependencies };
  for (const [name, version] of Object.entries(own.dependencies)) t.equal(version, versions[name], name);
  t.equal(own.version, MCP_VERSION);
  t.equal(own.name, '@service/mcp');
  t.same(own.engines, project.engines);
  t.equal(own.license, project.license);
  t.same(own.bin, { 'service-mcp': 'dist/mcp/main.js' });
});

/** The names of all packages below a folder's node_modules, whatever folder they lie in. */
async function packagesBelow(folder: string): Promise<Set<string>> {
  const names = new Set<string>();
  for (const path of await readdir(join(folder, 'node_modules'), { recursive: true })) {
    if (!/(?:^|node_modules\/)(?:@[^/]+\/)?[^/]+\/package\.json$/.test(path)) continue;
    const { name } = JSON.parse(await readFile(join(folder, 'node_modules', path), 'utf8')) as {
      readonly name?: string;
    };
    if (name !== undefined) names.add(name);
  }
  return names;
}

interface Installed {
  readonly app: string;
  readonly program: string;
  readonly env: Readonly<Record<string, string>>;
}

/** Packs as `npm run mcp:pack` does, and installs the tarball into an empty folder. */
async function installed(t: WithTeardown): Promise<Installed> {
  const { stdout } = await run(process.execPath, [join(PROJECT_ROOT, 'build/src/mcp/pack.js')]);
  const app = join(await temporaryFolder(t), 'app');
  await mkdir(app);
  await writeFile(join(app, 'package.json'), '{}');
  const quiet = ['--prefer-offline', '--no-audit', '--no-fund', '--ignore-scripts=false'];
  await run('npm', ['install', ...quiet, join(PROJECT_ROOT, stdout.trim())], { cwd: app });
  const env = { PATH: process.env['PATH'] ?? '', HOME: app, XDG_CONFIG_HOME: join(app, 'config') };
  return { app, env, program: join(app, 'node_modules/.bin/service-mcp') };
}

let packed: Promise<Installed> | undefined;

t.test('MCP-19: the packed package installs alone, pairs and serves', async (t) => {
  packed ??= installed(root);
  const { app, env, program } = await packed;
  const unpacked = join(app, 'node_modules/@service/mcp');
  t.same((await readdir(unpacked)).sort(), ['LICENSE', 'README.md', 'dist', 'package.json']);
  const names = await packagesBelow(app);
  t.ok(names.has('@service/mcp') && names.has('libsodium-sumo'), 'the packages were found');
  const servers = Object.keys(project.dependencies).filter((name) => own.dependencies[name] === undefined);
  t.ok(servers.length > 15, "the server's libraries");
  const forbidden = ['uwebsockets', 'uWebSockets.js', 'sodium-native', 'typia', 'pg-pool', 'pg-protocol', ...servers];
  t.same(
    forbidden.filter((name) => names.has(name)),
    [],
  );
  const lock = JSON.parse(await readFile(join(app, 'package-lock.json'), 'utf8')) as {
    readonly packages: Readonly<Record<string, { readonly hasInstallScript?: boolean }>>;
  };
  const scripts = Object.entries(lock.packages).filter(([, { hasInstallScript }]) => hasInstallScript === true);
  t.same(
    scripts.map(([path]) => path),
    [],
    'nothing runs at installation',
  );

  const version = await run(program, ['--version'], { env });
  t.equal(version.stdout, `${own.version}\n`);
  const { url, first } = await scene(t);
  await first.device.connect();
  const offer = await first.device.offerPairing(() => true);
  const pairing = await run(program, ['pair', '--host', url, '--code', offer.words, '--name', 'Agent'], { env });
  t.match(pairing.stdout, /^Paired\./);
  const id = await offer.joined;
  const status = await run(program, ['status', '--json'], { env });
  t.match(JSON.parse(status.stdout), { paired: true, device: { id, name: 'Agent' }, account: { devices: 2 } });

  const client = new Client({ name: 'test', version: '1' });
  t.teardown(async () => client.close());
  await client.connect(new StdioClientTransport({ command: program, args: ['serve'], env, stderr: 'ignore' }));
  const { tools } = await client.listTools();
  t.same(tools.map(({ name }) => name).sort(), ['sb_delete_item', 'sb_list_items', 'sb_put_item', 'sb_search']);
  const put = { name: 'sb_put_item', arguments: { bin: 'inbox', payload: { text: 'from the package' } } };
  t.match(await client.callTool(put), { structuredContent: { id: String, version: Number } });
  await first.device.pull();
  t.match(await first.device.list(), [{ payload: { text: 'from the package' }, senderDevice: id }]);
});

t.test('MCP-20: at a terminal the words are seen and the password is not', async (t) => {
  const { url, first } = await scene(t);
  await first.device.connect();
  await first.device.setPassword(PASSWORD);
  const home = await temporaryFolder(t);
  const typed = (command: string) =>
    spawnCli(t, ['-qfec', `stty cols 200; ${process.execPath} ${PROGRAM} ${command}`, '/dev/null'], {
      home,
      env: { TERM: 'xterm' },
      through: ['script'],
    });
  const stopped = typed(`pair --host ${url}`);
  await stopped.seen(/May agents read the secrets of your passwords\? \[y\/N\] /);
  stopped.write('\r');
  await stopped.seen(/The six words that the other device shows: /);
  stopped.write('\u0003');
  t.match(await stopped.ended, { code: 130, stdout: /Error \(interrupted\)/ });

  const offer = await first.device.offerPairing(() => true);
  const pair = typed(`pair --host ${url} --name Agent > ${join(home, 'out')}`);
  await pair.seen(/\[y\/N\] /);
  pair.write('\r');
  await pair.seen(/The six words that the other device shows: /);
  pair.write(`${offer.words}\r`);
  await pair.seen(/Account password: /);
  pair.write('not that one\r');
  await pair.seen(/not the account password/);
  await pair.seen(/Account password: [^]*Account password: /);
  pair.write(`${PASSWORD}\r`);
  const ended = await pair.ended;
  t.equal(ended.code, 0, ended.stdout);
  t.ok(ended.stdout.includes(offer.words), 'the words are echoed, once');
  t.match(ended.stdout, /Digits: \d{3} \d{3}/);
  t.notMatch(ended.stdout, /long password|not that one/);
  t.match(
    await readFile(join(home, 'out'), 'utf8'),
    /^Paired\. This machine is "Agent"[^\n]*\nSecrets of passwords are withheld[^\n]*\n[^\n]*\n$/,
  );
});

/** Solves all tasks with the packed companion, one after the other. */
async function solved(t: Test): Promise<{ readonly all: readonly Solved[]; readonly tools: readonly Tool[] }> {
  packed ??= installed(root);
  const { program } = await packed;
  const { first, pair } = await world(t);
  await first.device.connect();
  const second = await pair('Agent');
  second.device.close();
  const { env } = await home(t, second.identity());
  const client = new Client({ name: 'test', version: '1' });
  t.teardown(async () => client.close());
  await client.connect(new StdioClientTransport({ command: program, args: ['serve'], env, stderr: 'ignore' }));
  const { tools } = await client.listTools();
  const all: Solved[] = [];
  let passwords = 'withhold';
  for (const task of TASKS) {
    const wanted = task.passwords ?? 'withhold';
    if (wanted !== passwords) await run(program, ['passwords', wanted], { env });
    passwords = wanted;
    all.push(await solve(t, task, { client, device: first.device }));
  }
  return { all, tools };
}

/** What answers have only where a server lies or is away. */
const UNSEEN = /\/items\/properties\/(?:unreadable|onServer|blob\/properties\/problem)/;

t.test('MCP-97 MCP-98 MCP-99: thirty tasks in plain words are solved by the packed companion', async (t) => {
  t.equal(TASKS.length, 30);
  t.equal(new Set(TASKS.map(({ name }) => name)).size, 30);
  const { all, tools } = await solved(t);
  const types = all.flatMap(({ calls }) => calls.map(({ result }) => result.structuredContent?.['type']));
  for (const type of CONTENT_TYPES) t.ok(types.includes(type), `${type} is put`);
  for (const one of all) t.same(broken(one, tools), [], `${one.task.name}: words, answers and definitions tell it all`);
  for (const { missing, tools: fewer } of mutations(tools)) {
    if (UNSEEN.test(missing)) continue;
    t.ok(
      all.some((one) => broken(one, fewer).length > 0),
      `without ${missing} a task fails`,
    );
  }
});
