/**
 * The backup's file: a gzipped tar, so that a person without this program can look into it. Parts of tables first, each
 * with its SHA-256 in the manifest, which comes last because only then all of them are known. A file without a
 * manifest was cut off.
 */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream, createWriteStream } from 'node:fs';
import { open, rename, rm } from 'node:fs/promises';
import { dirname } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGunzip } from 'node:zlib';
import { extract, pack, type Pack } from 'tar-stream';
import { FILE_MODE } from '../../../files/durable.js';
import { blobNameIn } from '../../../protocol/ids.js';
import { gzipBlocks } from './blocks.js';
import { ArchiveError, FORMAT, manifestOf } from './manifest.js';
import { linesOf, objectsOf } from './object-lines.js';
import type {
  BackupSource,
  BlobPart,
  BlobContent,
  ListedObject,
  Manifest,
  ObjectList,
  ObjectsSource,
  Part,
  TableRows,
} from './ports.js';

/** What memory holds of a table at a time, bytes. */
const PART_BYTES = 4 * 1024 * 1024;
/** A manifest of a database of 4 TiB. */
const MANIFEST_BYTES_MAX = 256 * 1024 * 1024;
const MANIFEST = 'manifest.json';

/** Told now and then: bytes done of about so many. */
export type Progress = (done: number, total: number) => void;

const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');
const partName = (table: string, n: number): string => `database/${table}/${String(n).padStart(6, '0')}`;

function addEntry(tar: Pack, name: string, bytes: Buffer, at: Date): Promise<void> {
  return new Promise((resolve, reject) => {
    const entry = tar.entry({ name, size: bytes.length, mtime: at, mode: FILE_MODE }, (error) => {
      if (error) reject(error);
      else resolve();
    });
    entry.end(bytes);
  });
}

const BLOBS = 'blobs/';
const OBJECTS = 'objects/';

/** Streamed: a blob may be larger than the memory. */
async function addBlob(
  tar: Pack,
  { name, size, bytes }: BlobContent,
  { at, onBytes }: { readonly at: Date; readonly onBytes: (count: number) => void },
): Promise<BlobPart> {
  const hash = createHash('sha256');
  const header = { name: BLOBS + name, size, mtime: at, mode: FILE_MODE };
  let entry: ReturnType<Pack['entry']> | undefined;
  const added = new Promise<void>((resolve, reject) => {
    entry = tar.entry(header, (error) => (error ? reject(error) : resolve()));
  });
  // Told by the await below as well; unheard before it would end the process.
  added.catch(() => undefined);
  for await (const chunk of bytes) {
    hash.update(chunk);
    onBytes(chunk.length);
    // Where the file cannot be written the entry fails, and there is no drain to wait for.
    if (entry?.write(chunk) === false) await Promise.race([once(entry, 'drain'), added]);
  }
  entry?.end(Buffer.alloc(0));
  await added;
  return { name, bytes: size, sha256: hash.digest('hex') };
}

/** Chunks of a stream gathered to parts; the last one may be shorter. An empty stream gives none. */
async function* partsOf(stream: AsyncIterable<unknown>): AsyncGenerator<Buffer> {
  let gathered: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of stream) {
    gathered.push(chunk as Buffer);
    bytes += (chunk as Buffer).length;
    if (bytes < PART_BYTES) continue;
    yield Buffer.concat(gathered);
    gathered = [];
    bytes = 0;
  }
  if (bytes > 0) yield Buffer.concat(gathered);
}

/** Whole pages lie in each part, and so whole lines: a part can be read by itself. */
async function addObjects(tar: Pack, source: ObjectsSource, at: Date, onPage: () => void): Promise<ObjectList> {
  const { store, bucket, prefix, pages } = source;
  const parts: BlobPart[] = [];
  let [count, size] = [0, 0];
  const lines = linesOf(pages, (page) => {
    count += page.length;
    size += page.reduce((sum, object) => sum + object.size, 0);
    onPage();
  });
  for await (const bytes of partsOf(lines)) {
    const name = OBJECTS + String(parts.length).padStart(6, '0');
    parts.push({ name, bytes: bytes.length, sha256: sha256(bytes) });
    await addEntry(tar, name, bytes, at);
  }
  return { store, bucket, prefix, count, size, parts };
}

async function fill(tar: Pack, source: BackupSource, onProgress: Progress): Promise<Manifest> {
  const at = new Date(source.createdAt);
  const parts: Part[] = [];
  const tables: Record<string, { columns: readonly string[] }> = {};
  let done = 0;
  for (const table of source.tables) {
    const { columns, rows } = await source.read(table);
    tables[table] = { columns };
    for await (const bytes of partsOf(rows)) {
      const name = partName(table, parts.length);
      parts.push({ name, table, bytes: bytes.length, sha256: sha256(bytes) });
      await addEntry(tar, name, bytes, at);
      onProgress((done += bytes.length), source.bytes);
    }
  }
  const blobs: BlobPart[] = [];
  for await (const blob of source.blobs ?? []) {
    blobs.push(await addBlob(tar, blob, { at, onBytes: (count) => onProgress((done += count), source.bytes) }));
  }
  const list = source.objects;
  const onPage = (): void => onProgress(done, source.bytes);
  const listed = list === undefined ? {} : { objects: await addObjects(tar, list, at, onPage) };
  const { createdAt, version, schema, postgres } = source;
  const kept = { ...(source.blobs === undefined ? {} : { blobs }), ...listed };
  const manifest: Manifest = { format: FORMAT, createdAt, version, schema, postgres, tables, parts, ...kept };
  await addEntry(tar, MANIFEST, Buffer.from(`${JSON.stringify(manifest, null, 1)}\n`), at);
  tar.finalize();
  return manifest;
}

/**
 * Writes a backup. The file appears under its name when it is whole and on the disk, readable by its owner only;
 * whatever fails before leaves nothing behind.
 */
export async function writeArchive(path: string, source: BackupSource, onProgress: Progress): Promise<Manifest> {
  const temporary = `${path}.${process.pid}.partial`;
  const tar = pack();
  try {
    const written = pipeline(tar, gzipBlocks, createWriteStream(temporary, { flags: 'wx', mode: FILE_MODE }));
    // One failing must not leave the other waiting: a full disk ends the reading, a lost database the writing.
    const filled = fill(tar, source, onProgress).catch((error: unknown) => {
      tar.destroy(error instanceof Error ? error : new Error(String(error)));
      throw error;
    });
    const [manifest] = await Promise.all([filled, written]);
    await sync(temporary);
    await rename(temporary, path);
    await sync(dirname(path));
    return manifest;
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}

async function sync(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

interface TarEntry {
  readonly name: string;
  readonly bytes: Buffer;
}

/** Told of a blob: its name and its bytes, which it reads to their end. */
type OnBlob = (name: string, bytes: AsyncIterable<Uint8Array>) => Promise<void>;

/** Entries one after the other, none larger than a part or a manifest may be; blobs are handed to `onBlob`. */
async function* entriesOf(
  path: string,
  onRead: (bytes: number) => void,
  onBlob: OnBlob = () => Promise.reject(new ArchiveError('a blob among the tables')),
): AsyncGenerator<TarEntry> {
  const tar = extract();
  const file = createReadStream(path);
  file.on('data', (chunk) => onRead(chunk.length));
  const reading = pipeline(file, createGunzip(), tar);
  // Told by the loop below as well; unheard here it would end the process.
  reading.catch(() => undefined);
  for await (const entry of tar) {
    const { name, size, type } = entry.header;
    if (type === 'file' && name.startsWith(BLOBS) && blobNameIn(name.slice(BLOBS.length)) !== undefined) {
      await onBlob(name.slice(BLOBS.length), entry as AsyncIterable<Uint8Array>);
      continue;
    }
    const most = name === MANIFEST ? MANIFEST_BYTES_MAX : 2 * PART_BYTES;
    if (type !== 'file' || size > most) throw new ArchiveError(`${JSON.stringify(name)} does not belong into a backup`);
    const chunks: Buffer[] = [];
    for await (const chunk of entry) chunks.push(chunk as Buffer);
    yield { name, bytes: Buffer.concat(chunks) };
  }
  await reading;
}

/** Reads the whole file and compares it with its manifest. Throws `ArchiveError`; touches nothing. */
export async function verifyArchive(path: string, onProgress: Progress): Promise<Manifest> {
  const handle = await open(path, 'r');
  const { size } = await handle.stat();
  await handle.close();
  let read = 0;
  const seen: BlobPart[] = [];
  const seenBlobs: BlobPart[] = [];
  const seenObjects: BlobPart[] = [];
  let objects = 0;
  let manifest: Manifest | undefined;
  const onBlob: OnBlob = async (name, chunks) => {
    if (manifest !== undefined) throw new ArchiveError('there is something behind the manifest');
    seenBlobs.push(await summed(name, chunks));
  };
  const onRead = (count: number): void => onProgress((read += count), size);
  try {
    for await (const { name, bytes } of entriesOf(path, onRead, onBlob)) {
      if (manifest !== undefined) throw new ArchiveError('there is something behind the manifest');
      if (name === MANIFEST) manifest = manifestOf(bytes);
      else (isObjects(name) ? seenObjects : seen).push({ name, bytes: bytes.length, sha256: sha256(bytes) });
      if (isObjects(name)) objects += readObjects(bytes).length;
    }
  } catch (error) {
    if (error instanceof ArchiveError) throw error;
    throw new ArchiveError('the file is damaged or cut off', { cause: error });
  }
  if (manifest === undefined) throw new ArchiveError('the file has no manifest: it was cut off');
  requireSame(manifest.parts, seen);
  requireSame(manifest.blobs ?? [], seenBlobs);
  requireSame(manifest.objects?.parts ?? [], seenObjects);
  if (objects !== (manifest.objects?.count ?? 0)) {
    throw new ArchiveError('the list of objects is not as long as the manifest says');
  }
  return manifest;
}

const isObjects = (name: string): boolean => name.startsWith(OBJECTS);

function readObjects(bytes: Buffer): ListedObject[] {
  const objects = objectsOf(bytes);
  if (objects === undefined) throw new ArchiveError('the list of objects cannot be read');
  return objects;
}

/** The list of objects of a verified archive, a part at a time. Each is compared with the manifest again. */
export async function* readObjectList(path: string, manifest: Manifest): AsyncGenerator<readonly ListedObject[]> {
  const said = manifest.objects?.parts ?? [];
  let next = 0;
  for await (const { name, bytes } of entriesOf(path, () => undefined, drained)) {
    if (name === MANIFEST) break;
    if (!isObjects(name)) continue;
    if (sha256(bytes) !== said[next++]?.sha256) throw new ArchiveError('the file changed while it was restored');
    yield readObjects(bytes);
  }
  if (next !== said.length) throw new ArchiveError('the file changed while it was restored');
}

/** A blob that nobody wants now: the file is read past it. */
const drained: OnBlob = async (name, chunks) => {
  await summed(name, chunks);
};

/** Throws `ArchiveError` where what was read is not what the manifest says. */
function requireSame(said: readonly BlobPart[], read: readonly BlobPart[]): void {
  const same = (one: BlobPart, at: number): boolean => {
    const other = read[at];
    return one.name === other?.name && one.bytes === other.bytes && one.sha256 === other.sha256;
  };
  if (said.length === read.length && said.every(same)) return;
  const wrong = said.find((part, at) => !same(part, at));
  throw new ArchiveError(`the file is damaged: ${wrong?.name ?? 'a part'} is not what the manifest says`);
}

/** A blob's bytes, read to their end; `take` is given each piece. */
async function summed(
  name: string,
  chunks: AsyncIterable<Uint8Array>,
  take: (bytes: Uint8Array) => Promise<void> | void = () => undefined,
): Promise<BlobPart> {
  const hash = createHash('sha256');
  let bytes = 0;
  for await (const chunk of chunks) {
    hash.update(chunk);
    bytes += chunk.length;
    await take(chunk);
  }
  return { name, bytes, sha256: hash.digest('hex') };
}

/** Where blobs of a backup go. */
export interface BlobPlace {
  write(bytes: Uint8Array): Promise<void>;
  /** The blob is whole. */
  commit(): Promise<unknown>;
  /** Leaves nothing behind; after `commit` it does nothing. */
  discard(): Promise<void>;
}

/** Gives the blobs of a verified archive to their places, each compared with the manifest again. Resolves with their number. */
export async function restoreBlobs(
  { path, manifest, onProgress }: { readonly path: string; readonly manifest: Manifest; readonly onProgress: Progress },
  open: (name: string) => Promise<BlobPlace>,
): Promise<number> {
  const said = new Map(manifest.blobs?.map((blob) => [blob.name, blob.sha256]));
  const total = manifest.blobs?.reduce((sum, blob) => sum + blob.bytes, 0) ?? 0;
  let restored = 0;
  let done = 0;
  const onBlob: OnBlob = async (name, chunks) => {
    const place = await open(name);
    try {
      const { sha256: found } = await summed(name, chunks, async (bytes) => {
        await place.write(bytes);
        onProgress((done += bytes.length), total);
      });
      if (found !== said.get(name)) throw new ArchiveError('the file changed while it was restored');
      await place.commit();
      restored++;
    } finally {
      await place.discard();
    }
  };
  for await (const { name } of entriesOf(path, () => undefined, onBlob)) if (name === MANIFEST) break;
  return restored;
}

/**
 * The tables of a verified archive, for one pass in order. Each part is compared with the manifest again: the file may
 * have changed since.
 */
export async function* readArchive(path: string, manifest: Manifest, onProgress: Progress): AsyncGenerator<TableRows> {
  const total = manifest.parts.reduce((sum, part) => sum + part.bytes, 0);
  const entries = entriesOf(path, () => undefined);
  let done = 0;
  let next = 0;
  try {
    for (const [table, { columns }] of Object.entries(manifest.tables)) {
      const rows = async function* (): AsyncGenerator<Buffer> {
        for (; manifest.parts[next]?.table === table; next++) {
          const found = await entries.next();
          if (found.done === true || sha256(found.value.bytes) !== manifest.parts[next]?.sha256) {
            throw new ArchiveError('the file changed while it was restored');
          }
          onProgress((done += found.value.bytes.length), total);
          yield found.value.bytes;
        }
      };
      yield { table, columns, rows: Readable.from(rows()) };
    }
    // A part of no table, or of one that was before: its rows would be left out, and nobody told.
    if (next < manifest.parts.length) throw new ArchiveError(`${manifest.parts[next]?.name ?? ''} is of no table`);
  } finally {
    await entries.return(undefined);
  }
}
