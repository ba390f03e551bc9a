/** The package as others get it: what would be in it, and what its entries pull in. The long test packs it and uses it. */
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join, normalize } from 'node:path';
import { promisify } from 'node:util';
import { build } from 'esbuild';
import t from 'tap';
import { PROJECT_ROOT } from '../src/root.js';
import { entriesOf, type Manifest } from './support/manifest.js';

t.setTimeout(600_000);

const run = promisify(execFile);

t.test("STORE-20: Node's entry needs the client's libraries only", async (t) => {
  const { metafile } = await build({
    entryPoints: [join(PROJECT_ROOT, 'build/src/sdk/node.js')],
    bundle: true,
    platform: 'node',
    format: 'esm',
    packages: 'external',
    metafile: true,
    write: false,
    logLevel: 'silent',
  });
  const outside = Object.keys(metafile.inputs).filter(
    (path) => !/build\/src\/(sdk|files|crypto|protocol)\//.test(path),
  );
  t.same(outside, [], 'client, files, crypto and protocol only');
  const libraries = Object.values(metafile.inputs)
    .flatMap((input) => input.imports)
    .filter(({ path, external }) => external === true && !path.startsWith('node:'))
    .map(({ path }) =>
      path
        .split('/')
        .slice(0, path.startsWith('@') ? 2 : 1)
        .join('/'),
    );
  t.same([...new Set(libraries)].sort(), ['@scure/bip39', 'classic-level', 'sodium-native', 'ws']);
});

t.test('STORE-19: the package would have its entries and programs, and no tests', async (t) => {
  const packing = ['pack', '--dry-run', '--ignore-scripts', '--offline', '--json'];
  const { stdout } = await run('npm', packing, { cwd: PROJECT_ROOT, maxBuffer: 64 * 1024 * 1024 });
  const [packed] = JSON.parse(stdout) as { readonly files: readonly { readonly path: string }[] }[];
  const files = new Set(packed?.files.map(({ path }) => path));
  const manifest = JSON.parse(await readFile(join(PROJECT_ROOT, 'package.json'), 'utf8')) as Manifest;
  const targets = [...entriesOf(manifest), ...Object.values(manifest.bin)];
  t.ok(targets.length >= 7, 'the entries were found');
  for (const target of targets) t.ok(files.has(normalize(target)), target);
  const others = [...files].filter((path) => !/^(build\/src(?!\/web\/)|build\/web|sql)\/|^[^/]+$/.test(path));
  t.same(others, [], 'what is built and the migrations only');
});
