/** The reference's pages, as src/docs/write-site.ts has written them. */
import { createHash } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import { errorCode } from '../../protocol/error-code.js';
import type { Docs, WebFile } from '../http/ports.js';
import { readBuilt, TAG_CHARACTERS } from './web.js';

/** Whether this is the compressed form of another file. */
const isForm = (name: string): boolean => /\.(?:html|js|css|json|svg)\.(?:gz|br)$/.test(name);

/** Pages are revalidated by their entity tags. */
const CACHE = 'no-cache';

function fileOf(folder: string, name: string): WebFile {
  const file = readBuilt(folder, name);
  const hash = createHash('sha256').update(file.type).update('\0').update(file.bytes).digest('base64url');
  return { ...file, hash: hash.slice(0, TAG_CHARACTERS), cache: CACHE };
}

/** Lists the pages; undefined where nothing was built. A page is read when it is first requested. */
export async function openDocs(folder: string): Promise<Docs | undefined> {
  let found: string[];
  try {
    found = await readdir(folder);
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw error;
  }
  const names = new Map(found.filter((name) => !isForm(name)).map((name) => [name.replace(/\.html$/, ''), name]));
  const kept = new Map<string, WebFile>();
  return {
    page: (asked) => {
      const name = names.get(asked === '' ? 'index' : asked);
      if (name === undefined) return undefined;
      const file = kept.get(name) ?? fileOf(folder, name);
      kept.set(name, file);
      return file;
    },
  };
}
