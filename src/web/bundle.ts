/**
 * Bundles the web app from the compiled `src/web`. The same sources give the same bytes, so that anybody can compare
 * what a server serves with a build of the sources (`service-device verify-web`).
 */
import { hash } from 'node:crypto';
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { basename, dirname, join, relative } from 'node:path';
import { promisify } from 'node:util';
import { brotliCompress, gzip } from 'node:zlib';
import { build, type BuildOptions } from 'esbuild';
import { SERVICE_NAME } from '../protocol/limits.js';
import { webFileName, type WebAsset, type WebRelease } from '../protocol/web-app.js';
import { separateSodium } from './sodium-plugin.js';
import { PROJECT_ROOT, SERVER_VERSION } from '../root.js';

const SOURCE = join(PROJECT_ROOT, 'src', 'web');
const COMPILED = join(PROJECT_ROOT, 'build', 'src', 'web');
const TITLE = `${SERVICE_NAME.charAt(0).toUpperCase()}${SERVICE_NAME.slice(1)}`;
const HASH_CHARACTERS = 20;

interface File {
  readonly path: string;
  readonly bytes: Buffer;
}

const hashOf = (bytes: Buffer): string => hash('sha256', bytes, 'base64url');

/** A file whose name changes with its content, so that it can be cached forever. */
function named(name: string, type: string, bytes: Buffer): File {
  return { path: `/web/${name}.${hashOf(bytes).slice(0, HASH_CHARACTERS)}.${type}`, bytes };
}

const COMMON = {
  absWorkingDir: PROJECT_ROOT,
  bundle: true,
  minify: true,
  platform: 'browser',
  target: 'es2022',
  charset: 'utf8',
  // Licences go into a separate file.
  legalComments: 'none',
  logLevel: 'warning',
  write: false,
  metafile: true,
} as const satisfies BuildOptions;

/** Path of the page's entry script among the outputs. */
const PAGE = join('page', 'page.js');

async function bundle(entry: string, options: BuildOptions = {}) {
  const { outputFiles, metafile } = await build({ entryPoints: [entry], format: 'iife', ...options, ...COMMON });
  const [file] = outputFiles;
  if (file === undefined || outputFiles.length > 1) throw new Error(`${entry}: not one file`);
  // esbuild also lists `define` entries, in angle brackets.
  const inputs = Object.keys(metafile.inputs).filter((path) => !path.startsWith('<'));
  return { bytes: Buffer.from(file.contents), inputs };
}

/**
 * Splits the page's script: modules imported only by `import()`, and those they share with the rest, are separate
 * files. `first`: those of the first view, the entry first; `later`: the others.
 */
async function pageParts(entry: string) {
  const { outputFiles, metafile } = await build({
    ...COMMON,
    entryPoints: [entry],
    format: 'esm',
    splitting: true,
    outdir: 'page',
    entryNames: 'page',
    chunkNames: 'part-[hash]',
  });
  const texts = new Map(outputFiles.map(({ path, text }) => [relative(PROJECT_ROOT, path), text]));
  const files = new Map<string, File>();
  const open = new Set<string>();
  // A part's name is a hash of its bytes, which contain the names of its imports, so the imports are named first.
  const fileOf = (path: string): File => {
    const known = files.get(path);
    if (known !== undefined) return known;
    if (open.has(path)) throw new Error(`${path}: parts of the page import each other in a circle`);
    open.add(path);
    const imported = metafile.outputs[path]?.imports ?? [];
    const text = imported.reduce(
      (code, { path: other }) => code.replaceAll(basename(other), basename(fileOf(other).path)),
      texts.get(path) ?? '',
    );
    const file = named(path === PAGE ? 'page' : 'part', 'js', Buffer.from(text));
    files.set(path, file);
    return file;
  };
  const first = new Set<File>();
  const need = (path: string): void => {
    first.add(fileOf(path));
    for (const { path: other, kind } of metafile.outputs[path]?.imports ?? [])
      if (kind === 'import-statement') need(other);
  };
  need(PAGE);
  const later = [...texts.keys()].map(fileOf).filter((file) => !first.has(file));
  return { script: fileOf(PAGE), first: [...first], later, inputs: Object.keys(metafile.inputs) };
}

/** The script that reads other programs' exports, in a worker of its own. */
async function readerOf() {
  const alias = { crypto: join(COMPILED, 'reader', 'node-crypto.js') };
  const { bytes, inputs } = await bundle(join(COMPILED, 'reader', 'main.js'), { alias });
  return { script: named('reader', 'js', bytes), inputs };
}

/** The engine's script, and libsodium's WebAssembly, which it loads. `reader`: the script that it starts. */
async function engineOf(reader: File) {
  let sodium: File | undefined;
  const place = (wasm: Buffer): string => (sodium = named('sodium', 'wasm', wasm)).path;
  const entry = join(COMPILED, 'engine', 'main.js');
  const define = { __READER__: JSON.stringify(reader.path) };
  const { bytes, inputs } = await bundle(entry, { format: 'esm', define, plugins: [separateSodium(place)] });
  if (sodium === undefined) throw new Error('the engine has no libsodium');
  return { script: named('engine', 'js', bytes), sodium, inputs };
}

/** The licences of the packages that are part of the bundles. */
async function licencesOf(inputs: readonly string[]): Promise<Buffer> {
  const folders = inputs.flatMap((path) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+(?=\/)/.exec(path) ?? []);
  const texts = [...new Set(folders)].sort().map(async (folder) => {
    const name = folder.slice(folder.lastIndexOf('node_modules/') + 'node_modules/'.length);
    return `${name}\n\n${(await readFile(join(PROJECT_ROOT, folder, 'LICENSE'), 'utf8')).trim()}\n`;
  });
  return Buffer.from((await Promise.all(texts)).join('\n\n'));
}

async function icons() {
  const icon = async (name: string, type: string): Promise<File> =>
    named(name, type, await readFile(join(SOURCE, 'icons', `${name}.${type}`)));
  const pictures = ['icon-192', 'icon-512', 'maskable-192', 'maskable-512'];
  const pngs = await Promise.all(pictures.map((name) => icon(name, 'png')));
  return { icon: await icon('icon', 'svg'), pngs };
}

function manifestOf(pngs: readonly File[]): File {
  const manifest = {
    id: '/',
    name: TITLE,
    short_name: TITLE,
    description: 'Notes, links, passwords and files that only your own devices can read.',
    start_url: '/',
    scope: '/',
    display: 'standalone',
    background_color: '#f3f4f2',
    theme_color: '#0b6b53',
    icons: pngs.map(({ path }) => {
      const [, purpose, size] = /\/(icon|maskable)-(\d+)\./.exec(path) ?? [];
      const image = { sizes: `${size}x${size}`, type: 'image/png', purpose: purpose === 'icon' ? 'any' : 'maskable' };
      return { src: path, ...image };
    }),
    // Handled by the service worker: the server refuses it unread.
    share_target: {
      action: '/web/share',
      method: 'POST',
      enctype: 'multipart/form-data',
      params: { title: 'title', text: 'text', url: 'url', files: [{ name: 'files', accept: ['*/*'] }] },
    },
  };
  return { path: '/manifest.webmanifest', bytes: Buffer.from(`${JSON.stringify(manifest)}\n`) };
}

/** index.html: each `{name}` in the template is replaced by its value. Throws for a name without a value. */
async function indexOf(values: Readonly<Record<string, string>>): Promise<File> {
  const template = await readFile(join(SOURCE, 'index.html'), 'utf8');
  const filled = template.replace(/\{([a-z]+)\}/g, (_, name: string) => {
    const value = values[name];
    if (value === undefined) throw new Error(`index.html: what is {${name}}?`);
    return value;
  });
  return { path: '/', bytes: Buffer.from(filled.replace(/^\s+/gm, '')) };
}

/** All files. The service worker is built last, because it contains the paths of the app shell. */
async function filesOf() {
  const reader = await readerOf();
  const [page, engine, style, { icon, pngs }] = await Promise.all([
    pageParts(join(COMPILED, 'ui', 'main.js')),
    engineOf(reader.script),
    bundle(join(SOURCE, 'ui', 'style.css')),
    icons(),
  ]);
  const sheet = named('style', 'css', style.bytes);
  const licences = named('licences', 'txt', await licencesOf([...page.inputs, ...engine.inputs, ...reader.inputs]));
  const manifest = manifestOf(pngs);
  const index = await indexOf({
    title: TITLE,
    version: SERVER_VERSION,
    engine: engine.script.path,
    page: page.script.path,
    // Preloaded; otherwise requested only after the page's script has arrived.
    shared: page.first
      .slice(1)
      .map(({ path }) => `<link rel="modulepreload" href="${path}" />`)
      .join('\n'),
    style: sheet.path,
    icon: icon.path,
    touch: pngs[0]?.path ?? '',
    licences: licences.path,
  });
  const shell = [index, ...page.first, ...page.later, sheet, engine.script, engine.sodium, icon, manifest];
  const state = hashOf(Buffer.concat(shell.map(({ bytes }) => bytes))).slice(0, HASH_CHARACTERS);
  const worker = await bundle(join(COMPILED, 'worker', 'main.js'), {
    define: {
      __SHELL__: JSON.stringify(shell.map(({ path }) => path)),
      __VERSION__: JSON.stringify(`${SERVER_VERSION}-${state}`),
    },
  });
  return {
    // The service worker does not keep the reader: most visitors never import, and the engine names its version.
    files: [...shell, ...pngs, licences, { path: '/sw.js', bytes: worker.bytes }, reader.script],
    first: [index, ...page.first, sheet],
    reader: reader.script,
    inputs: { page: page.inputs, engine: engine.inputs, worker: worker.inputs, reader: reader.inputs },
  };
}

/** Writes the file under a temporary name, and renames it when complete. */
async function put(path: string, bytes: Buffer): Promise<void> {
  await mkdir(dirname(path), { recursive: true });
  await writeFile(`${path}.new`, bytes);
  await rename(`${path}.new`, path);
}

async function write(file: File, target: string): Promise<WebAsset & { readonly files: readonly string[] }> {
  const { path, bytes } = file;
  const plain = webFileName(file);
  await put(join(target, plain), bytes);
  const asset = { path, sha256: hashOf(bytes), bytes: bytes.length };
  if (path.endsWith('.png')) return { ...asset, gzip: bytes.length, files: [plain] };
  const packed = await promisify(gzip)(bytes, { level: 9 });
  const brotli = join(target, `${plain}.br`);
  await put(join(target, `${plain}.gz`), packed);
  // Compression is slow. Names under `/web/` contain the content's hash, so an earlier build made the same file.
  const kept = path.startsWith('/web/') ? await readFile(brotli).catch(() => undefined) : undefined;
  await put(brotli, kept ?? (await promisify(brotliCompress)(bytes)));
  return { ...asset, gzip: packed.length, files: [plain, `${plain}.gz`, `${plain}.br`] };
}

/** Removes files of earlier builds. */
async function sweep(target: string, wanted: ReadonlySet<string>): Promise<void> {
  for (const name of await readdir(join(target, 'web'))) {
    if (!wanted.has(`web/${name}`)) await rm(join(target, 'web', name), { recursive: true });
  }
}

/**
 * Builds into the folder `target`. Rejects if a bundle cannot be made. `sizes`: after gzip, of index.html with the
 * page's script and style sheet, of the reader, and of all but the reader. `inputs`: the files that went into each
 * bundle, from the project's folder.
 */
export async function buildWeb(target: string) {
  const { files, first, reader, inputs } = await filesOf();
  const written = await Promise.all(files.map((file) => write(file, target)));
  await sweep(target, new Set(written.flatMap((asset) => asset.files)));
  const assets = written.map(({ path, sha256, bytes, gzip }): WebAsset => ({ path, sha256, bytes, gzip }));
  const release: WebRelease = { version: SERVER_VERSION, assets };
  await put(join(target, 'assets.json'), Buffer.from(`${JSON.stringify(release, null, 1)}\n`));
  const sum = (of: readonly File[]): number =>
    assets.reduce((all, { path, gzip }) => all + (of.some((file) => file.path === path) ? gzip : 0), 0);
  const whole = sum(files.filter((file) => file !== reader));
  return { release, sizes: { first: sum(first), whole, reader: sum([reader]) }, inputs };
}
