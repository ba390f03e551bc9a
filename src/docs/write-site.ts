/**
 * The complete reference: the pages of a folder, and pages and documents generated from the code. Written for a server
 * and for reading from disk; part of `npm run build`.
 */
import { mkdir, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { promisify } from 'node:util';
import { buffer } from 'node:stream/consumers';
import { brotliCompress, constants, gzip } from 'node:zlib';
import { build } from 'esbuild';
import { pack } from 'tar-stream';
import { ENDPOINT_ALIASES, endpointPages } from './endpoints-pages.js';
import { errorPages } from './errors-page.js';
import { frameSchemas } from './frame-schemas.js';
import { ARCHIVE, SAVED, SERVED, type Places } from './markdown.js';
import { openApi, type RouteFacts } from './openapi.js';
import { makeSite, type SiteFiles, type Source } from './site.js';

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
    // Is compressed already.
    if (name.endsWith('.png')) continue;
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

/** The generated pages. */
export const madePages = (routes: readonly RouteFacts[]): Source[] => [...errorPages(), ...endpointPages(routes)];

/** Rejects if a page cannot be made. */
export async function writeSite({ script, target, routes, ...options }: WriteOptions): Promise<void> {
  const { version } = options;
  const documents = {
    // The document with the conventional name is that of the default shape.
    'openapi.json': openApi('a', routes, version),
    'openapi-a.json': openApi('a', routes, version),
    'openapi-b.json': openApi('b', routes, version),
    'frames-a.json': frameSchemas('a'),
    'frames-b.json': frameSchemas('b'),
  };
  const parts = { ...options, made: madePages(routes), documents, script: await bundled(script) };
  const siteFor = async (places: Places): Promise<SiteFiles> => {
    const files = new Map(await makeSite({ ...parts, places }));
    for (const name of ENDPOINT_ALIASES) files.set(name, files.get('endpoints') ?? '');
    return files;
  };
  const saved = await siteFor(SAVED);
  const archive = await archived(saved);
  await writeAll(join(target, 'served'), (await packed(await siteFor(SERVED))).set(ARCHIVE, archive));
  await writeAll(join(target, 'saved'), new Map([...saved].map(([name, content]) => [fileName(name), content])));
}
