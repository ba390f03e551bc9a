/** The build of the web app: the same bytes from the same sources, its sizes, and what is in which bundle. */
import { createHash } from 'node:crypto';
import { cp, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { brotliDecompressSync, gunzipSync } from 'node:zlib';
import t from 'tap';
import { webFileName } from '../src/protocol/web-app.js';
import { PROJECT_ROOT, WEB_FOLDER } from '../src/root.js';
import { buildWeb } from '../src/web/bundle.js';
import { temporaryFolder } from './support/postgres.js';

const filesIn = async (folder: string): Promise<Map<string, string>> => {
  const names = await readdir(folder, { recursive: true, withFileTypes: true });
  const files = names.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
  const hashed = files.sort().map(async (path): Promise<[string, string]> => {
    const hash = createHash('sha256')
      .update(await readFile(path))
      .digest('base64url');
    return [path.slice(folder.length + 1), hash];
  });
  return new Map(await Promise.all(hashed));
};

const folder = await temporaryFolder(t);
// Over what an earlier build compressed, which takes most of a build and is kept by its name; all else is made anew.
const kept = async (path: string): Promise<boolean> => path.endsWith('.br') || (await stat(path)).isDirectory();
await cp(WEB_FOLDER, folder, { recursive: true, filter: kept });
await writeFile(join(folder, 'web', 'page.earlier.js'), '');
const { release, sizes, inputs } = await buildWeb(folder);
const read = async (path: string): Promise<string> => readFile(join(folder, webFileName({ path })), 'utf8');

t.test('WEB-11: the same sources give the same files, and names under /web/ derive from their hash', async (t) => {
  const first = await filesIn(folder);
  t.same(first, await filesIn(WEB_FOLDER), 'the same files as those of npm run build');
  t.same(JSON.parse(await readFile(join(WEB_FOLDER, 'assets.json'), 'utf8')), release);
  for (const { path, sha256, bytes } of release.assets) {
    const file = await readFile(join(folder, webFileName({ path })));
    t.same([first.get(webFileName({ path })), file.length], [sha256, bytes], path);
    if (path.startsWith('/web/')) t.ok(path.includes(`.${sha256.slice(0, 20)}.`), path);
    if (path.endsWith('.png')) continue;
    t.same(gunzipSync(await readFile(join(folder, `${webFileName({ path })}.gz`))), file, path);
    t.same(brotliDecompressSync(await readFile(join(folder, `${webFileName({ path })}.br`))), file, path);
  }
  const expected = release.assets.flatMap(({ path }) => {
    const name = webFileName({ path });
    return path.endsWith('.png') ? [name] : [name, `${name}.br`, `${name}.gz`];
  });
  t.same([...first.keys()].sort(), ['assets.json', ...expected].sort(), 'no other file, and none of earlier builds');
});

t.test('WEB-12: the first view has at most 60 KB after gzip, the app 350 KB, the reader of exports 110 KB', (t) => {
  t.ok(sizes.first > 1_000 && sizes.first <= 60 * 1024, `${sizes.first} bytes`);
  t.ok(sizes.whole > sizes.first && sizes.whole <= 350 * 1024, `${sizes.whole} bytes`);
  t.ok(sizes.reader > 1_000 && sizes.reader <= 110 * 1024, `${sizes.reader} bytes`);
  const all = release.assets.reduce((sum, { gzip }) => sum + gzip, 0);
  t.equal(sizes.whole + sizes.reader, all, 'each file counts');
  t.end();
});

t.test('WEB-13: page and service worker have no code of client, cryptography or libsodium', async (t) => {
  /** Of the client library only what describes data or makes promises of requests, and computes nothing with keys. */
  const pure =
    /^build\/src\/(web|protocol)\/|^build\/src\/sdk\/(payloads\/shapes|query|reasons|store\/indexed-db|ulid)\.js$/;
  const interface_ = /node_modules\/(preact|@preact\/signals(-core)?|lucide-preact|uqr)\//;
  const strays = (['page', 'worker'] as const).flatMap((bundle) =>
    inputs[bundle].filter((path) => !pure.test(path) && !interface_.test(path)).map((path) => `${bundle}: ${path}`),
  );
  t.same(strays, []);
  t.ok(inputs.page.length > 20 && inputs.worker.length > 0, 'their files were found');
  t.ok(
    inputs.engine.some((path) => path.includes('libsodium')),
    'the engine has libsodium',
  );
  const sodium = release.assets.find(({ path }) => /^\/web\/sodium\.[\w-]{20}\.wasm$/.test(path));
  t.ok(sodium, 'the WebAssembly of libsodium is a file of its own');
  t.ok((await read('/sw.js')).includes(sodium?.path ?? '?'), 'the service worker keeps it for use without a network');
  const engine = release.assets.find(({ path }) => path.startsWith('/web/engine.'))?.path ?? '';
  t.ok((await read(engine)).includes(`fetch("${sodium?.path ?? ''}")`));
  t.same(
    inputs.engine.filter((path) =>
      /^build\/src\/(server|cli|mcp|terminal)\/|\/node-|node_modules\/(preact|kdbxweb|hash-wasm|mime)\//.test(path),
    ),
    [],
    'nor has the engine what reads files of other programs',
  );
});

t.test(
  'WEB-101: what reads files of other programs is a script of its own, without keys, that only the engine names',
  async (t) => {
    const reader = release.assets.find(({ path }) => path.startsWith('/web/reader.'))?.path ?? '?';
    t.ok(inputs.reader.some((path) => path.includes('kdbxweb')));
    t.same(
      inputs.reader.filter((path) => /libsodium|^build\/src\/(web\/(?!reader\/)|sdk\/store|cli|server)/.test(path)),
      [],
    );
    for (const { path } of release.assets.filter(({ path }) => !/\.(?:png|wasm)$/.test(path)))
      t.equal((await read(path)).includes(reader), path.startsWith('/web/engine.'), path);
    t.notMatch(await read(reader), /__require|require\("crypto"\)/);
  },
);

t.test('WEB-14: page, manifest and shell refer to files of the build, and to nothing external', async (t) => {
  const paths = new Set(release.assets.map(({ path }) => path));
  const index = await read('/');
  const referred = [...index.matchAll(/(?:src|href|content)="(\/[^"]*)"/g)].map(([, path = '']) => path);
  t.ok(referred.length >= 7, referred.join(' '));
  const manifest = JSON.parse(await read('/manifest.webmanifest')) as {
    readonly icons: readonly { readonly src: string; readonly sizes: string; readonly purpose: string }[];
  };
  t.same(
    manifest.icons.map(({ sizes: size, purpose }) => `${size} ${purpose}`),
    ['192x192 any', '512x512 any', '192x192 maskable', '512x512 maskable'],
  );
  t.match(manifest, { name: 'Service', display: 'standalone', start_url: '/', share_target: { action: '/web/share' } });
  const worker = await read('/sw.js');
  const shell = JSON.parse(/\["\/",[^\]]*\]/.exec(worker)?.[0] ?? '[]') as string[];
  t.ok(shell.length >= 10, shell.join(' '));
  for (const path of [...referred, ...manifest.icons.map(({ src }) => src), ...shell]) t.ok(paths.has(path), path);
  for (const name of ['page', 'style', 'engine', 'icon'])
    t.match(worker, new RegExp(`"/web/${name}\\.[\\w-]{20}\\.`), `the shell has the ${name}`);
  const parts = release.assets.map(({ path }) => path).filter((path) => /^\/web\/(page|part)\./.test(path));
  t.ok(parts.length >= 3, 'what the first view does not need is a part of its own');
  for (const path of parts) {
    t.ok(worker.includes(JSON.stringify(path)), `the shell has ${path}`);
    for (const [, other = ''] of (await read(path)).matchAll(/(?:from|import\(?)\s*"\.\/([^"]+)"/g))
      t.ok(paths.has(`/web/${other}`), `${path} imports ${other}`);
  }
  t.notMatch(worker, /__SHELL__|__VERSION__/);
  t.notMatch(index, /<style|style=|<script>/);
  t.notMatch(index + worker + JSON.stringify(manifest), /https?:/);
  const licences = release.assets.find(({ path }) => path.startsWith('/web/licences.'))?.path ?? '';
  for (const name of ['preact', 'libsodium-wrappers-sumo']) t.ok((await read(licences)).includes(`${name}\n\n`), name);
  const manifestOfPackage = JSON.parse(await readFile(join(PROJECT_ROOT, 'src/server/package.json'), 'utf8')) as {
    readonly files: readonly string[];
  };
  t.ok(manifestOfPackage.files.includes('build/web'), 'the package of the server has the files');
});
