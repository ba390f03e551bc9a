/** Each package, installed alone, does what its README says: on this Node, and on Debian 13 with Node 24. */
import { spawn } from 'node:child_process';
import { copyFile, mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { basename, join } from 'node:path';
import t, { type Test } from 'tap';
import { Device } from '../src/sdk/device.js';
import { SavableIdentity } from '../src/sdk/identity.js';
import { nodePlatform } from '../src/sdk/node-platform.js';
import { RELEASE } from '../src/root.js';
import { until } from './support/events.js';
import { onOtherSystem, type Step, withoutOtherSystem } from './support/other-system.js';
import { RESOLUTIONS, typeProblems } from './support/package-types.js';
import { broughtInto, bundlesForBrowsers, fenced, OF_THE_SERVER, packAll, weightOf } from './support/packages.js';
import { temporaryFolder } from './support/postgres.js';
import { freePort } from './support/free-port.js';

t.setTimeout(30 * 60_000);

const { packages } = await packAll(t);
const VERSION = `${RELEASE.version} (${RELEASE.commit})`;
/** Makes a package.json in the folder: npm would install into the next folder above that has one. */
const FRESH = 'npm init -y';
const QUIET = '--omit=dev --prefer-offline --no-audit --no-fund --loglevel=error';
const STARTED_WITHIN_MS = 120_000;

/** Copies the tarballs, and nothing of the checkout. */
const bring = async (folder: string): Promise<void> => {
  for (const { tarball } of packages) await copyFile(tarball, join(folder, basename(tarball)));
};

/** Runs commands here, in a folder that holds the tarballs, with nothing of this process's environment. */
function here(folder: string): Step {
  const npm = join(homedir(), '.npm');
  const env = {
    PATH: process.env['PATH'] ?? '',
    HOME: folder,
    LANG: 'C.UTF-8',
    npm_config_cache: npm,
    npm_config_userconfig: join(homedir(), '.npmrc'),
    // Where this machine reaches the registry through a proxy with its own certificate.
    ...(process.env['NODE_EXTRA_CA_CERTS'] === undefined
      ? {}
      : { NODE_EXTRA_CA_CERTS: process.env['NODE_EXTRA_CA_CERTS'] }),
  };
  return async (command) => {
    const child = spawn('sh', ['-c', command], { cwd: folder, env, stdio: ['ignore', 'pipe', 'pipe'] });
    let said = '';
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => (said += chunk.toString()));
    const code = await new Promise<number | null>((resolve, reject) => {
      child.on('error', reject);
      child.on('close', resolve);
    });
    return { code, lines: said.split('\n').filter((line) => line !== '') };
  };
}

/** A machine without a checkout: a folder with the tarballs, where commands can be run. */
class Machine {
  constructor(
    private readonly t: Test,
    readonly folder: string,
    private readonly step: Step,
  ) {}

  readonly #ending = new Map<string, () => Promise<void>>();

  /** Runs a command; gives its output. Throws where it fails. */
  async types(command: string): Promise<string> {
    const { code, lines } = await this.step(command);
    const text = lines.filter((line) => !line.includes('Unknown user config')).join('\n');
    if (code !== 0) throw new Error(`${command}: ends with ${code ?? 'a signal'}\n${text}`);
    return text;
  }

  /** Starts the installed server as its README says, and gives its address; it ends with the test. */
  async serves(data: string): Promise<string> {
    const port = await freePort();
    const url = `http://127.0.0.1:${port}`;
    const variables = `PORT=${port} HOST=127.0.0.1 DATA_DIR=./${data}`;
    const group = Number(
      await this.types(`cd server && { ${variables} setsid npx service-server > ${data}.log 2>&1 & echo $!; }`),
    );
    const alive = (): boolean => {
      try {
        return process.kill(-group, 0);
      } catch {
        return false;
      }
    };
    const end = async (): Promise<void> => {
      if (alive()) process.kill(-group, 'SIGTERM');
      await until('the server’s end', () => !alive());
    };
    this.#ending.set(url, end);
    this.t.teardown(end);
    const healthy = async (): Promise<boolean> =>
      alive() &&
      (await fetch(`${url}/api/health`).then(
        ({ ok }) => ok,
        () => false,
      ));
    await until('a server', healthy, STARTED_WITHIN_MS);
    const said = async (): Promise<boolean> =>
      (await readFile(join(this.folder, 'server', `${data}.log`), 'utf8')).includes('/docs');
    await until('its greeting', said);
    return url;
  }

  /** Ends a server, and npx above it. */
  async ends(url: string): Promise<void> {
    await this.#ending.get(url)?.();
  }
}

/** Checks what an installed package brought: its size, and that it has nothing of the server. */
async function weighed(t: Test, folder: string, max: number): Promise<void> {
  const { bytes, onDisk } = await weightOf(folder);
  t.comment(`${folder}: ${(bytes / 1e6).toFixed(1)} MB in files, ${(onDisk / 1e6).toFixed(1)} MB on the disk`);
  t.ok(bytes <= max, `${bytes} bytes`);
  const brought = await broughtInto(folder);
  t.ok(brought.length > 10, 'the packages were found');
  t.same(
    OF_THE_SERVER.filter((name) => brought.includes(name)),
    [],
  );
}

/** Opens the first device of the client's README here, which pairs others; gives a function for their words. */
async function letsIn(t: Test, identity: string): Promise<() => Promise<string>> {
  const problems: unknown[] = [];
  const device = await Device.open({
    ...{ platform: await nodePlatform(), identity: SavableIdentity.parse(identity) },
    onProblem: (error) => problems.push(error),
  });
  t.teardown(() => device.close());
  await device.connect();
  return async () => (await device.offerPairing(() => true)).words;
}

const RPC = [
  {
    ...{ id: 1, method: 'initialize' },
    params: { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'test', version: '1' } },
  },
  { method: 'notifications/initialized' },
  { id: 2, method: 'tools/call', params: { name: 'sb_list_items', arguments: { bin: 'inbox' } } },
];

async function story(t: Test, folder: string, step: Step): Promise<void> {
  const at = new Machine(t, folder, step);
  let url = '';

  await t.test('the server starts in an empty folder, and reports its version', async (t) => {
    await at.types(`mkdir server && cd server && ${FRESH} && npm install ${QUIET} ../service-server-*.tgz`);
    t.equal(await at.types('cd server && npx service-admin --version'), VERSION);
    t.equal(await at.types('cd server && npx service-server --version'), VERSION);
    url = await at.serves('data');
    t.same(await (await fetch(`${url}/api/health`)).json(), { ok: true, ...RELEASE });
    for (const [path, text] of Object.entries({ '/': '<!doctype html>', '/docs/releases': 'Taking a version back' }))
      t.match(await (await fetch(`${url}${path}`, { headers: { accept: 'text/html' } })).text(), text, path);
    t.match(await readFile(join(folder, 'server/data.log'), 'utf8'), `service-device claim http://localhost:`);
  });

  await t.test('PKG-05 PKG-06 SDK-30 STORE-19: the client: README, types, and bundle for browsers', async (t) => {
    await at.types(
      `mkdir client && cd client && ${FRESH} && npm pkg set type=module && npm install ${QUIET} ../service-client-*.tgz`,
    );
    await weighed(t, join(folder, 'client'), 12e6);
    const app = join(folder, 'client');
    const { onDisk } = await weightOf(join(app, 'node_modules'));
    t.ok(onDisk <= 12 * 1024 * 1024, `${onDisk} bytes on the disk`);
    const brought = await broughtInto(app);
    t.ok(brought.includes('@service/client') && brought.includes('classic-level'));
    t.notOk(brought.includes('sodium-native'));
    const readme = await readFile(join(app, 'node_modules/@service/client/README.md'), 'utf8');
    await writeFile(join(app, 'first.mjs'), fenced(readme, 'js').replace('http://localhost:8080', url));
    t.match(
      await at.types('cd client && node first.mjs'),
      /^The only way back when all devices are lost: (?:[a-z]+ ?){12}\n\{ text: 'hello' \}$/,
    );
    t.same((await readdir(app)).filter((name) => !/^(?:node_modules|package(?:-lock)?\.json)$/.test(name)).sort(), [
      'first.mjs',
      'identity.json',
      'store',
    ]);
    await bundlesForBrowsers(t, app);
    for (const how of Object.keys(RESOLUTIONS) as (keyof typeof RESOLUTIONS)[])
      t.same(await typeProblems(app, how), [], how);
    const native = 'process.report.getReport().sharedObjects.some((path) => path.includes("sodium"))';
    await writeFile(
      join(app, 'native.mjs'),
      `await (await import('@service/client')).nodePlatform(); console.log(${native});\n`,
    );
    t.equal(await at.types('cd client && node native.mjs'), 'false', 'the client uses WebAssembly');
    await at.types(`cd client && npm install ${QUIET} sodium-native@5`);
    t.equal(
      await at.types('cd client && node native.mjs'),
      'true',
      'the client uses the native one that the application has',
    );
  });

  const words = await letsIn(t, await readFile(join(folder, 'client/identity.json'), 'utf8'));

  await t.test('the command line claims, writes, reads and joins', async (t) => {
    await at.types(`npm install -g --prefix "$PWD/cli" ${QUIET} ./service-cli-*.tgz`);
    await weighed(t, join(folder, 'cli'), 70e6);
    const device = (line: string): Promise<string> =>
      at.types(`PATH="$PWD/cli/bin:$PATH" HOME="$PWD" SERVICE_KEYCHAIN=off service-device ${line}`);
    t.equal(await device('--version'), VERSION);
    const own = await at.serves('other');
    t.match(await device(`claim ${own} --show-phrase`), / 12 [a-z]+\n[^]*the first device of/);
    await device('put "milk, bread"');
    await writeFile(join(folder, 'film.mp4'), Buffer.alloc(300_000, 7));
    await device('put --file film.mp4');
    t.match(await device('list'), /film\.mp4[^]*milk, bread/);
    t.match(await device(`verify-web ${own}`), /same/i);
    await device(`--profile second join ${url} ${await words()} --name Second`);
    t.match(await device('--profile second list'), 'hello');
  });

  await t.test('MCP-19: the companion pairs and serves', async (t) => {
    await at.types(`npm install -g --prefix "$PWD/mcp" ${QUIET} ./service-mcp-*.tgz`);
    await weighed(t, join(folder, 'mcp'), 70e6);
    t.notOk((await broughtInto(join(folder, 'mcp'))).includes('sodium-native'));
    const companion = (line: string): string =>
      `PATH="$PWD/mcp/bin:$PATH" XDG_CONFIG_HOME="$PWD/agent" service-mcp ${line}`;
    t.equal(await at.types(companion('--version')), VERSION);
    t.match(await at.types(companion(`pair --host ${url} --code "${await words()}" --name Agent`)), /^Paired\./m);
    t.match(await at.types(companion('status')), 'Agent');
    await writeFile(
      join(folder, 'rpc.jsonl'),
      RPC.map((message) => `${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`).join(''),
    );
    const answers = await at.types(`${companion('serve')} < rpc.jsonl`);
    t.match(answers, /"id":1\}/);
    t.match(answers, /hello/, 'the companion lists what the client wrote');
  });

  await t.test('the operator’s commands make a backup and verify it', async (t) => {
    // With the server stopped: on the other system a step has mounts of its own, and does not see the server's database.
    await at.ends(url);
    await at.types('cd server && DATA_DIR=./data npx service-admin backup service.tar.gz');
    t.match(await at.types('cd server && npx service-admin verify service.tar.gz'), /\S/);
    t.match(await readFile(join(folder, 'server/data.log'), 'utf8'), /SIGTERM: finishing/);
  });
}

t.test('PKG-04 PKG-08 PKG-09 PKG-10 MCP-19: each package alone does what its README says, on this Node', async (t) => {
  const folder = join(await temporaryFolder(t), 'machine');
  await mkdir(folder);
  await bring(folder);
  await story(t, folder, here(folder));
});

t.test(
  'PKG-04 PKG-08 PKG-09 PKG-10: each package alone does what its README says, on Debian 13 with Node 24',
  { skip: withoutOtherSystem() ?? false },
  async (t) => {
    await onOtherSystem(
      (line) => void process.stderr.write(`  debian 13: ${line}\n`),
      async (step, folder) => {
        t.match((await step('. /etc/os-release && echo "$VERSION_ID" && node --version')).lines, ['13', /^v24\./]);
        await t.test('the steps of the READMEs', async (t) => story(t, folder, step));
      },
      bring,
    );
  },
);
