/** A folder of Markdown and other files: every file becomes an item, its folder the bin. Bytes and names are kept. */
import { lstat, readdir } from 'node:fs/promises';
import { createReadStream, type Dirent } from 'node:fs';
import { join } from 'node:path';
import { errorCode } from '../../protocol/error-code.js';
import { isVisible } from '../../protocol/ids.js';
import type { BlobSource } from '../../sdk/blobs/source.js';
import { PAYLOAD_INLINE_MAX, PAYLOAD_MAX, payloadSize } from '../../sdk/payloads/shapes.js';
import { CommandError, EXIT } from '../../terminal/terminal.js';
import { describeFile, languageOf, mediaType, textFile, textOf } from '../../import/detect.js';
import { reasonToLeave } from '../put-content.js';
import { readBytes, withFile } from '../../files/read.js';
import { type Entry, ForeignError, leftBehind, type Made } from '../../import/entries.js';
import { FOLDER_FORMAT, MANIFEST } from './folder-export.js';

/** Most files and folders of one source. */
const FILES_MAX = 50_000;
/** Most bytes of all texts: they are in memory together. */
const TEXTS_MAX = 256 * 1024 * 1024;
const DEPTH_MAX = 32;

/** The files of a folder. Throws `ForeignError` over a bound or without any Markdown, `CommandError` for what cannot be read. */
export async function readMarkdown(folder: string): Promise<readonly Entry[]> {
  await expectNotOurs(folder);
  const entries: Entry[] = [];
  let texts = 0;
  const waiting: string[][] = [[]];
  for (let path = waiting.pop(); path !== undefined; path = waiting.pop()) {
    const found = await readdir(join(folder, ...path), { withFileTypes: true }).catch(unreadable(path.join('/')));
    const below: string[][] = [];
    for (const one of found.sort((a, b) => (a.name < b.name ? -1 : 1))) {
      const own = [...path, one.name];
      if (entries.length + waiting.length + below.length >= FILES_MAX)
        throw new ForeignError(own.join('/'), `the folder has more than ${FILES_MAX} files`);
      if (one.isDirectory() && !one.name.startsWith('.')) below.push(own);
      else {
        const entry = await entryAt(folder, own, one);
        texts += entry.made.reduce((sum, { payload }) => sum + payloadSize(payload), 0);
        if (texts > TEXTS_MAX) throw new ForeignError(own.join('/'), 'the folder has more than 256 MiB of text');
        entries.push(entry);
      }
    }
    if (path.length > DEPTH_MAX)
      throw new ForeignError(path.join('/'), `folders are nested more than ${DEPTH_MAX} deep`);
    waiting.push(...below.reverse());
  }
  if (!entries.some(({ name, made }) => made.length > 0 && languageOf(name) === 'markdown'))
    throw new ForeignError('', 'the folder has no Markdown file', 'Add single files with `put --file`.');
  return entries;
}

const MANIFEST_HEAD = 1024;

/** Refuses the output of `export --to folder`: its table of passwords would become a note, which `search` reads. */
async function expectNotOurs(folder: string): Promise<void> {
  const path = join(folder, MANIFEST);
  // Opening a pipe of this name would hang.
  const isFile = (await lstat(path).catch(() => undefined))?.isFile() === true;
  const head = isFile ? withFile(path, (handle) => readBytes(handle, 0, MANIFEST_HEAD)) : Promise.resolve(undefined);
  // A manifest that cannot be read is that of another program, or reported as any other file.
  if ((await head.catch(() => undefined))?.includes(FOLDER_FORMAT) !== true) return;
  const instead = 'An archive, or `--to bitwarden`, can be imported.';
  throw new ForeignError('', 'it is what `export --to folder` wrote', instead);
}

const unreadable =
  (where: string) =>
  (error: unknown): never => {
    const message = `${where === '' ? 'The folder' : where} cannot be read (${errorCode(error)}). Nothing was written.`;
    throw new CommandError(EXIT.usage, message, undefined, { cause: error });
  };

async function entryAt(root: string, path: readonly string[], found: Dirent): Promise<Entry> {
  const where = path.join('/');
  const name = found.name;
  const place = { where, kind: 'file', name, folder: path.slice(0, -1).join('/'), key: where };
  const reason = reasonToLeave(found);
  if (reason !== undefined) return leftBehind({ ...place, left: LEFT[reason] });
  const { made, changed } = await madeOf(join(root, ...path), name).catch(unreadable(where));
  const kind = made.type === 'code' ? (languageOf(name) ?? 'text') : made.type;
  return { ...place, kind, changed, made: [made], unplaced: [], marks: [] };
}

const LEFT = { hidden: 'hidden', link: 'a link', 'special file': 'no file' } as const;

const madeOf = (path: string, name: string): Promise<{ readonly made: Made; readonly changed: number }> =>
  withFile(path, async (handle) => {
    const { size, mtimeMs } = await handle.stat();
    const changed = Math.floor(mtimeMs);
    const most = languageOf(name) === 'markdown' ? PAYLOAD_MAX / 2 : PAYLOAD_INLINE_MAX;
    if (mediaType(name) === undefined && size <= most) {
      const text = textOf(await readBytes(handle, 0, size));
      if (text !== undefined && isVisible(text)) return { made: { part: 'main', ...textFile(name, text) }, changed };
    }
    const type = mediaType(name) ?? 'file';
    const content = contentAt(path, name, size);
    return { made: { part: 'main', type, payload: describeFile(type, name, size), content }, changed };
  });

/** The bytes of a file, opened only while they are read: there may be thousands. */
const contentAt = (path: string, name: string, size: number): BlobSource => ({
  size,
  open: async function* () {
    if (size === 0) return;
    let read = 0;
    for await (const bytes of createReadStream(path, { end: size - 1 })) {
      read += (bytes as Uint8Array).length;
      yield bytes as Uint8Array;
    }
    if (read < size) throw new CommandError(EXIT.failure, `${name} became shorter while it was read.`);
  },
});
