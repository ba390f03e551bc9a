/** The examples of the reference, each run as it stands on its page. */
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { copyFile, mkdir, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { EXAMPLES, SDK_BEGIN, SDK_END, VARIABLES } from '../src/docs/examples.js';
import { endpointPages } from '../src/docs/endpoints-pages.js';
import { documented, openApi } from '../src/docs/openapi.js';
import { PROJECT_ROOT } from '../src/root.js';
import { Device, join as joinDevice, nodePlatform, prepareClaim } from '../src/sdk/node.js';
import { ALL_ROWS } from '../src/server/app/route-table.js';
import { compile, FOR_MODULES } from './support/compile.js';
import { Documented } from './support/documented.js';
import { ExampleStage } from './support/examples.js';
import { temporaryFolder } from './support/postgres.js';
import { runServer } from './support/server.js';

t.setTimeout(600_000);

interface Outcome {
  readonly code: number | null;
  readonly out: string;
  readonly err: string;
}

async function run(program: string, args: readonly string[], env: NodeJS.ProcessEnv, cwd: string): Promise<Outcome> {
  const child = spawn(program, args, {
    env: { PATH: process.env['PATH'], ...env },
    cwd,
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: 60_000,
  });
  const said = { out: '', err: '' };
  child.stdout.on('data', (chunk: Buffer) => (said.out += chunk.toString()));
  child.stderr.on('data', (chunk: Buffer) => (said.err += chunk.toString()));
  const code = await new Promise<number | null>((resolve, reject) => child.on('close', resolve).on('error', reject));
  return { code, ...said };
}

const rows = documented(ALL_ROWS).map(({ method, path }) => `${method} ${path}`);
const pages = new Map(endpointPages(ALL_ROWS).map(({ name, markdown }) => [name, markdown]));

t.test('REF-17: every endpoint has its example on its page, with variables that are explained', (t) => {
  t.same(Object.keys(EXAMPLES).sort(), [...rows].sort());
  const all = [...pages.values()].join('\n');
  for (const [key, { shell, sdk, without, prints }] of Object.entries(EXAMPLES)) {
    t.ok(all.includes(`\`\`\`sh\n${shell}\n\`\`\``), `${key}: shell`);
    t.ok(
      all.includes(sdk === undefined ? (without ?? '-') : `\`\`\`ts\n${sdk}\n${SDK_END}\n\`\`\``),
      `${key}: library`,
    );
    t.equal(
      prints === undefined,
      sdk === undefined,
      `${key}: an example of the library has an expected output, and no other has`,
    );
    for (const [, name = ''] of shell.matchAll(/\$([A-Z_]+)\b/g)) t.ok(VARIABLES[name], `${key}: ${name}`);
  }
  const used = Object.values(EXAMPLES)
    .map(({ shell, sdk = '' }) => shell + sdk)
    .join('\n');
  t.same(
    Object.keys(VARIABLES).filter((name) => !new RegExp(`\\b${name}\\b`).test(used)),
    [],
    'every explained variable is used',
  );
  t.end();
});

const MISSING = ['bash', 'curl'].filter(
  (name) => !['/usr/bin', '/bin', '/usr/local/bin'].some((folder) => existsSync(join(folder, name))),
);
const skip = MISSING.length > 0 && `this machine has no ${MISSING.join(' and no ')}`;

t.test('REF-17: every shell example does what it says when pasted as it stands', { skip }, async (t) => {
  const stage = await ExampleStage.open(t);
  const folder = await temporaryFolder(t);
  await writeFile(join(folder, '.curlrc'), stage.curlrc);
  const documents = new Documented(openApi('a', ALL_ROWS, '1'));
  for (const key of rows) {
    const { shell = '' } = EXAMPLES[key] ?? {};
    const { variables, whileRunning } = await stage.ready(key);
    const ended = run('bash', ['-c', shell], { ...variables, CURL_HOME: folder }, folder);
    await whileRunning?.();
    const { code, out, err } = await ended;
    t.equal(code, 0, code === 0 ? key : `${key}: ${out}${err}`);
    const [method = '', path = ''] = key.split(' ');
    const template = path.replaceAll(/:([a-z]+)/g, '{$1}');
    const place = [
      'paths',
      template,
      method.toLowerCase(),
      'responses',
      '200',
      'content',
      'application/json',
      'schema',
    ];
    if (path.startsWith('/api/')) t.equal(documents.faults(place, JSON.parse(out)), '', `${key}: ${out.slice(0, 200)}`);
    t.not(out, '', `${key}: it prints something`);
  }
});

/** An example as a module of its own, between the lines that surround every example. */
const moduleOf = (sdk: string): string => `${SDK_BEGIN}\n${sdk}\n${SDK_END}\n`;

t.test('REF-18: every example of the library compiles, runs and prints what it should', async (t) => {
  const [server, empty] = [await runServer(t), await runServer(t)];
  const [HOST, EMPTY_HOST] = [server, empty].map(({ port }) => `http://127.0.0.1:${port}`) as [string, string];
  const platform = await nodePlatform();
  const claimed = await prepareClaim({ platform, serverUrl: HOST, name: 'First', glyph: 'laptop' });
  const identity = await claimed.register();
  const device = await Device.open({ platform, identity, onProblem: (error) => t.fail(error.message) });
  await device.connect();
  const offer = await device.offerPairing(() => true);
  const other = { platform, serverUrl: HOST, name: 'Second', glyph: 'phone', words: offer.words } as const;
  await Promise.all([joinDevice({ ...other, onDigits: () => undefined }), offer.joined]);
  device.close();
  const folder = await temporaryFolder(t);
  // The library, so that the examples import it by its name.
  const library = join(folder, 'node_modules/@service/client');
  await mkdir(library, { recursive: true });
  await copyFile(join(PROJECT_ROOT, 'src/sdk/package.json'), join(library, 'package.json'));
  await symlink(join(PROJECT_ROOT, 'build'), join(library, 'build'));
  await writeFile(join(folder, 'package.json'), '{"type":"module"}');
  await writeFile(join(folder, 'identity.json'), JSON.stringify(identity), { mode: 0o600 });
  const examples = rows.flatMap((key, at) => {
    const { sdk, prints } = EXAMPLES[key] ?? {};
    return sdk === undefined || prints === undefined
      ? []
      : [{ key, sdk, prints, file: join(folder, `example-${at}.ts`) }];
  });
  t.ok(examples.length > 20);
  for (const { file, sdk } of examples) await writeFile(file, moduleOf(sdk));
  const options = {
    ...FOR_MODULES,
    types: ['node'],
    typeRoots: [join(PROJECT_ROOT, 'node_modules/@types')],
    paths: { '@service/client': [join(PROJECT_ROOT, 'build/src/sdk/node.d.ts')] },
  };
  const files = examples.map(({ file }) => file);
  t.same(await compile(files, options), []);
  const env = { EMPTY_HOST, PHRASE: claimed.phrase };
  // One after the other in one process: each is a module with a device of its own.
  const steps = examples.map(
    ({ key, file }) => `console.log('\\f${key}');\nawait import('${file.replace(/ts$/, 'js')}');`,
  );
  await writeFile(join(folder, 'all.mjs'), steps.join('\n'));
  const { code, out, err } = await run(process.execPath, [join(folder, 'all.mjs')], env, folder);
  t.same([code, err], [0, ''], out);
  const printed = out.split('\f').slice(1);
  t.equal(printed.length, examples.length);
  for (const [at, { key, prints }] of examples.entries())
    t.match((printed[at] ?? '').slice(key.length).trim(), prints, key);
});
