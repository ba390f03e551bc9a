/** The web app's files, read once at start from what src/web/build.ts has written. */
import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { errorCode } from '../../protocol/error-code.js';
import { webFileName, type WebAsset, type WebRelease } from '../../protocol/web-app.js';
import type { WebApp, WebFile } from '../http/ports.js';

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
export const TAG_CHARACTERS = 27;
/** For names under `/web/`, which contain the file's hash. */
const FOR_EVER = 'public, max-age=31536000, immutable';

/** Content types that the build does not compress. */
const UNPACKED: ReadonlySet<string> = new Set(['image/png', 'application/gzip']);

/** Reads a file that the build has written, with its compressed forms. Throws where one of them is missing. */
export function readBuilt(folder: string, name: string): Pick<WebFile, 'type' | 'bytes' | 'packed'> {
  const read = (suffix: string): Buffer => readFileSync(join(folder, `${name}${suffix}`));
  const type = TYPES[extname(name)];
  if (type === undefined) throw new Error(`no content type for ${join(folder, name)}`);
  const packed = UNPACKED.has(type) ? {} : { packed: { br: read('.br'), gzip: read('.gz') } };
  return { type, bytes: read(''), ...packed };
}

function fileOf(folder: string, asset: WebAsset): WebFile {
  const cache = asset.path.startsWith('/web/') ? FOR_EVER : 'no-cache';
  return { ...readBuilt(folder, webFileName(asset)), hash: asset.sha256.slice(0, TAG_CHARACTERS), cache };
}

/**
 * Reads the web app; undefined where nothing was built. Rejects where a file of the build is missing.
 * `blobOrigin`: see `WebApp`.
 */
export async function openWebApp(folder: string, blobOrigin: string | undefined): Promise<WebApp | undefined> {
  let release: WebRelease;
  try {
    release = JSON.parse(await readFile(join(folder, 'assets.json'), 'utf8')) as WebRelease;
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw error;
  }
  const { assets } = release;
  const files = new Map(assets.map((asset) => [asset.path, fileOf(folder, asset)]));
  const style = assets.find(({ path }) => path.endsWith('.css'));
  if (style === undefined) throw new Error('the web app: no style sheet');
  return { file: (path) => files.get(path), style: style.path, blobOrigin };
}
