/**
 * The files that the build has written to be served: the web app (src/web/build.ts) and the reference
 * (src/docs/write-site.ts).
 */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { errorCode } from '../../protocol/error-code.js';
import { webFileName, type WebAsset, type WebRelease } from '../../protocol/web-app.js';
import type { Docs, WebApp, WebFile } from '../http/ports.js';

/** Content types of what the build writes, by extension. */
const TYPES: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.wasm': 'application/wasm',
  '.svg': 'image/svg+xml',
  '.png': 'image/png',
  '.json': 'application/json',
  '.txt': 'text/plain; charset=utf-8',
  '.gz': 'application/gzip',
  '.webmanifest': 'application/manifest+json',
};
/** Characters of a hash in an entity tag. */
const TAG_CHARACTERS = 27;
/** For names under `/web/`, which contain the file's hash. */
const IMMUTABLE = 'public, max-age=31536000, immutable';
/** For names that do not: revalidated by their entity tags. */
const REVALIDATED = 'no-cache';
/** Content types that the build does not compress. */
const UNCOMPRESSED: ReadonlySet<string> = new Set(['image/png', 'application/gzip']);

/** Handler of read errors: undefined for a file that was not built; throws any other. */
function ifAbsent(error: unknown): undefined {
  if (errorCode(error) !== 'ENOENT') throw error;
}

/** Reads a file that the build has written, with its compressed forms. Throws where one of them is missing. */
function readBuilt(folder: string, name: string): Pick<WebFile, 'type' | 'bytes' | 'compressed'> {
  const read = (suffix: string): Buffer => readFileSync(join(folder, `${name}${suffix}`));
  const type = TYPES[extname(name)];
  if (type === undefined) throw new Error(`no content type for ${join(folder, name)}`);
  const compressed = UNCOMPRESSED.has(type) ? {} : { compressed: { br: read('.br'), gzip: read('.gz') } };
  return { type, bytes: read(''), ...compressed };
}

function assetOf(folder: string, asset: WebAsset): WebFile {
  const cache = asset.path.startsWith('/web/') ? IMMUTABLE : REVALIDATED;
  return { ...readBuilt(folder, webFileName(asset)), hash: asset.sha256.slice(0, TAG_CHARACTERS), cache };
}

/**
 * Reads the web app; undefined where nothing was built. Rejects where a file of the build is missing.
 * `blobOrigin`: see `WebApp`.
 */
export async function openWebApp(folder: string, blobOrigin: string | undefined): Promise<WebApp | undefined> {
  const release = await readFile(join(folder, 'assets.json'), 'utf8').catch(ifAbsent);
  if (release === undefined) return undefined;
  const { assets } = JSON.parse(release) as WebRelease;
  const files = new Map(assets.map((asset) => [asset.path, assetOf(folder, asset)]));
  const style = assets.find(({ path }) => path.endsWith('.css'));
  if (style === undefined) throw new Error('the web app: no style sheet');
  return { file: (path) => files.get(path), style: style.path, blobOrigin };
}

/** Whether this is the compressed form of another file; `reference.tar.gz` is a file of its own. */
const isCompressed = (name: string): boolean => /\.(?:html|js|css|json|svg)\.(?:gz|br)$/.test(name);

function pageOf(folder: string, name: string): WebFile {
  const file = readBuilt(folder, name);
  const hash = createHash('sha256').update(file.type).update('\0').update(file.bytes).digest('base64url');
  return { ...file, hash: hash.slice(0, TAG_CHARACTERS), cache: REVALIDATED };
}

/** Lists the pages of the reference; undefined where nothing was built. A page is read when it is first requested. */
export async function openDocs(folder: string): Promise<Docs | undefined> {
  const found = await readdir(folder).catch(ifAbsent);
  if (found === undefined) return undefined;
  const names = new Map(found.filter((name) => !isCompressed(name)).map((name) => [name.replace(/\.html$/, ''), name]));
  const pages = new Map<string, WebFile>();
  return (requested) => {
    const name = names.get(requested === '' ? 'index' : requested);
    if (name === undefined) return undefined;
    const file = pages.get(name) ?? pageOf(folder, name);
    pages.set(name, file);
    return file;
  };
}
