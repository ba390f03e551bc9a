/** Writes the site for a server and for reading from disk; part of `npm run build`. */
import { mkdir, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { promisify } from 'node:util';
import { buffer } from 'node:stream/consumers';
import { brotliCompress, constants, gzip } from 'node:zlib';
import { build } from 'esbuild';
import { pack } from 'tar-stream';
import { ARCHIVE, SAVED, SERVED } from './markdown.js';
import type { RouteFacts } from './openapi.js';
import { makeReference } from './reference.js';
import type { SiteFiles } from './site.js';

/** Nearly as small as with quality 11, which takes a hundred times as long. */
const BROTLI = { params: { [constants.BROTLI_PARAM_QUALITY]: 6 } };

interface WriteOptions {
  /** The pages' folder (src/docs). */
  readonly folder: string;
  /** The compiled script of the pages. */
  readonly script: string;
  /** The folder in which `served` and `saved` are created. */
  readonly target: string;
  readonly version: string;
  readonly routes: readonly RouteFacts[];
}

/** The script of the pages and what it imports, as one classic script. */
async function bundled(entry: string): Promise<string> {
  const { outputFiles } = await build({
    entryPoints: [entry],
    bundle: true,
    minify: true,
    format: 'iife',
    target: 'es2022',
    write: false,
    logLevel: 'silent',
  });
  return outputFiles[0]?.text ?? '';
}

/** True if compression makes the file smaller. */
const isPacked = (name: string): boolean => !/\.(?:png|gz)$/.test(name);

/** The name of a page's file on disk. */
const fileName = (name: string): string => (extname(name) === '' ? `${name}.html` : name);

async function writeAll(folder: string, files: ReadonlyMap<string, string | Buffer>): Promise<void> {
  await mkdir(folder, { recursive: true });
  for (const [name, content] of files) {
    await writeFile(join(folder, `${name}.new`), content);
    await rename(join(folder, `${name}.new`), join(folder, name));
  }
  const left = (await readdir(folder)).filter((name) => !files.has(name));
  for (const name of left) await rm(join(folder, name), { recursive: true });
}

/** The files, with the compressed forms of those that compress. */
async function packed(files: SiteFiles): Promise<Map<string, string | Buffer>> {
  const out = new Map<string, string | Buffer>();
  for (const [page, content] of files) {
    const name = fileName(page);
    out.set(name, content);
    if (!isPacked(name)) continue;
    out.set(`${name}.gz`, await promisify(gzip)(content, { level: 9 }));
    out.set(`${name}.br`, await promisify(brotliCompress)(content, BROTLI));
  }
  return out;
}

/** Reproducible: contains no times, so that the same pages give the same bytes. */
async function archived(files: SiteFiles): Promise<Buffer> {
  const tar = pack();
  for (const [name, content] of files) tar.entry({ name: `reference/${fileName(name)}`, mtime: new Date(0) }, content);
  tar.finalize();
  return promisify(gzip)(await buffer(tar), { level: 9 });
}

/** Rejects if a page cannot be made. */
export async function writeSite({ script, target, ...options }: WriteOptions): Promise<void> {
  const common = { ...options, script: await bundled(script) };
  const saved = await makeReference({ ...common, places: SAVED });
  const served = await makeReference({ ...common, places: SERVED });
  const archive = await archived(saved);
  await writeAll(join(target, 'served'), (await packed(served)).set(ARCHIVE, archive));
  await writeAll(join(target, 'saved'), new Map([...saved].map(([name, content]) => [fileName(name), content])));
}
