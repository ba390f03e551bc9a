/**
 * The file of a backup: a gzipped tar, readable without this program. The parts of the tables come first, then blobs
 * and the list of objects. The manifest, with the SHA-256 of each, comes last, when all of them are known: a file
 * without a manifest is truncated.
 */
import { createHash, hash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open } from 'node:fs/promises';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGunzip } from 'node:zlib';
import { extract, pack, type Pack } from 'tar-stream';
import { FILE_MODE } from '../../../files/durable.js';
import { asError } from '../../../protocol/error-code.js';
import { blobNameIn, blobPath, type BlobName } from '../../../protocol/ids.js';
import { NewFile } from '../../../terminal/new-file.js';
import { CommandError, EXIT } from '../../../terminal/terminal.js';
import type { BlobContent, LocalStore } from '../../blobs/objects/local.js';
import { tapped, type Chunks, type Dump, type DumpedSchema, type Restored } from '../../storage/dump.js';
import { gathered, gzipBlocks } from './blocks.js';
import {
  ArchiveError,
  bytesOf,
  FORMAT,
  linesOf,
  manifestOf,
  objectsOf,
  type BlobPart,
  type BucketName,
  type ListedObject,
  type Listing,
  type Manifest,
  type ObjectList,
  type Part,
} from './manifest.js';

/** A bucket whose list of objects goes into the backup. */
export type ObjectsSource = BucketName & { readonly pages: Listing };

/** Source of the rows and blobs of a backup. Tables are in the order in which they are restored. */
interface BackupSource extends Omit<Dump, 'about' | 'blobsOfItems'>, DumpedSchema {
  /** Milliseconds since 1970. */
  readonly createdAt: number;
  /** The server's version. */
  readonly version: string;
  /** Left out: blobs are in no folder. Read after the rows, whose blobs exist by then; newer blobs do no harm. */
  readonly blobs?: AsyncIterable<BlobContent>;
  /** Left out: there is no bucket, or no list is wanted. Read after the rows, for the same reason. */
  readonly objects?: ObjectsSource;
}

/** Bytes of a table that are held in memory at a time. */
const PART_BYTES = 4 * 1024 * 1024;
/** Largest manifest that is read, and therefore written, bytes. The entry of a part or a blob takes about 180. */
const MANIFEST_BYTES_MAX = 256 * 1024 * 1024;
const MANIFEST = 'manifest.json';

/** Called repeatedly with the bytes done and the estimated total. */
export type Progress = (done: number, total: number) => void;

const BLOBS = 'blobs/';
const OBJECTS = 'objects/';

const sha256 = (bytes: Uint8Array): string => hash('sha256', bytes);
const numbered = (folder: string, n: number): string => folder + String(n).padStart(6, '0');

/** Adds an entry as a stream, since a blob may exceed the memory. Resolves with its entry for the manifest. */
async function addEntry(
  tar: Pack,
  header: { readonly name: string; readonly size: number; readonly mtime: Date },
  chunks: Chunks,
): Promise<BlobPart> {
  const digest = createHash('sha256');
  let bytes = 0;
  const counted = tapped(chunks, (chunk) => {
    digest.update(chunk);
    bytes += chunk.length;
  });
  await pipeline(counted, tar.entry({ ...header, mode: FILE_MODE }));
  return { name: header.name, bytes, sha256: digest.digest('hex') };
}

/** Adds the list of objects. Each part holds whole pages, hence whole lines, and can be read on its own. */
async function addObjects(
  { store, bucket, prefix, pages }: ObjectsSource,
  add: (name: string, bytes: Uint8Array) => Promise<BlobPart>,
  onPage: () => void,
): Promise<ObjectList> {
  const parts: BlobPart[] = [];
  let [count, size] = [0, 0];
  const lines = linesOf(pages, (page) => {
    count += page.length;
    size += page.reduce((sum, object) => sum + object.size, 0);
    onPage();
  });
  for await (const bytes of gathered(lines, PART_BYTES)) {
    parts.push(await add(numbered(OBJECTS, parts.length), bytes));
  }
  return { store, bucket, prefix, count, size, parts };
}

const NEWLINE = 10;

/** How many rows there are: in COPY's text format each is a line, and line breaks inside it are escaped. */
function rowsIn(bytes: Buffer): number {
  let count = 0;
  for (let at = bytes.indexOf(NEWLINE); at !== -1; at = bytes.indexOf(NEWLINE, at + 1)) count++;
  return count;
}

/** Resolves with the backup's manifest, and how many rows of each table are in it. */
async function fill(tar: Pack, source: BackupSource, onProgress: Progress) {
  const { createdAt, version, schema, postgres } = source;
  const mtime = new Date(createdAt);
  const add = (name: string, bytes: Uint8Array): Promise<BlobPart> =>
    addEntry(tar, { name, size: bytes.length, mtime }, [bytes]);
  const parts: Part[] = [];
  const tables: Record<string, { columns: readonly string[] }> = {};
  const counts: Record<string, number> = {};
  let done = 0;
  const advance = (bytes: number): void => onProgress((done += bytes), source.bytes);
  for (const table of source.tables) {
    const { columns, rows } = await source.read(table);
    tables[table] = { columns };
    let count = 0;
    for await (const bytes of gathered(rows, PART_BYTES)) {
      count += rowsIn(bytes);
      parts.push({ ...(await add(numbered(`database/${table}/`, parts.length), bytes)), table });
      advance(bytes.length);
    }
    counts[table] = count;
  }
  const blobs: BlobPart[] = [];
  for await (const { name, size, bytes } of source.blobs ?? []) {
    const chunks = tapped(bytes, (chunk) => advance(chunk.length));
    blobs.push({ ...(await addEntry(tar, { name: BLOBS + name, size, mtime }, chunks)), name });
  }
  const objects = source.objects && (await addObjects(source.objects, add, () => advance(0)));
  const kept = { blobs: source.blobs && blobs, objects };
  const manifest: Manifest = { format: FORMAT, createdAt, version, schema, postgres, tables, parts, ...kept };
  const text = Buffer.from(`${JSON.stringify(manifest, null, 1)}\n`);
  if (text.length > MANIFEST_BYTES_MAX)
    throw new CommandError(
      EXIT.refused,
      `the local store has ${blobs.length} blobs, too many for one backup`,
      'Keep them in a bucket (STORAGE_KIND), or copy DATA_DIR with all servers stopped.',
    );
  await add(MANIFEST, text);
  tar.finalize();
  return { manifest, rows: counts };
}

/** Writes a backup. A failure leaves nothing behind. */
export async function writeArchive(path: string, source: BackupSource, onProgress: Progress, force = false) {
  const file = await NewFile.create(path, force);
  const tar = pack();
  try {
    const written = pipeline(tar, gzipBlocks, async (blocks: AsyncIterable<Buffer>) => {
      for await (const block of blocks) await file.write(block);
    });
    // Each failure ends the other side, which would wait forever: a full disk the reading, a lost database the writing.
    const filled = fill(tar, source, onProgress).catch((error: unknown) => {
      tar.destroy(asError(error));
      throw error;
    });
    // Both must have ended before the file is closed.
    await Promise.allSettled([filled, written]);
    // `written` comes first: if the file cannot be written, that causes the failure of `filled`.
    const [, backup] = await Promise.all([written, filled]);
    await file.finish();
    return backup;
  } catch (error) {
    await file.abandon();
    throw error;
  }
}

/** Receives a blob, and must read its bytes to the end. */
type OnBlob = (blob: BlobName, bytes: AsyncIterable<Uint8Array>) => Promise<unknown>;

/**
 * The entries in order up to the manifest, none larger than a part or a manifest may be; blobs are passed to `onBlob`
 * instead. Throws `ArchiveError` if anything follows the manifest.
 */
async function* entriesOf(
  path: string,
  onBlob: OnBlob = () => Promise.reject(new ArchiveError('a blob among the tables')),
  onRead?: (bytes: number) => void,
): AsyncGenerator<{ readonly name: string; readonly bytes: Buffer }> {
  const tar = extract();
  const file = createReadStream(path);
  file.on('data', (chunk) => onRead?.(chunk.length));
  const reading = pipeline(file, createGunzip(), tar);
  // The loop below also passes a rejection to the caller; without this handler an earlier one would end the process.
  reading.catch(() => undefined);
  let ended = false;
  for await (const entry of tar) {
    if (ended) throw new ArchiveError('there is data after the manifest');
    const { name, size, type } = entry.header;
    ended = name === MANIFEST;
    const blob = type === 'file' && name.startsWith(BLOBS) ? blobNameIn(name.slice(BLOBS.length)) : undefined;
    if (blob !== undefined) {
      await onBlob(blob, entry as AsyncIterable<Uint8Array>);
      continue;
    }
    const max = name === MANIFEST ? MANIFEST_BYTES_MAX : 2 * PART_BYTES;
    if (type !== 'file' || size > max) throw new ArchiveError(`${JSON.stringify(name)} does not belong in a backup`);
    const chunks: Buffer[] = [];
    for await (const chunk of entry) chunks.push(chunk as Buffer);
    yield { name, bytes: Buffer.concat(chunks) };
  }
  await reading;
}

/** Reads the whole file and compares it with its manifest. Throws `ArchiveError`; changes nothing. */
export async function verifyArchive(path: string, onProgress: Progress): Promise<Manifest> {
  const handle = await open(path, 'r');
  const { size } = await handle.stat().finally(() => handle.close());
  let read = 0;
  const seen: BlobPart[] = [];
  let listed = 0;
  let manifest: Manifest | undefined;
  const onBlob: OnBlob = async (blob, chunks) => seen.push(await summed(blob, chunks));
  const onRead = (count: number): void => onProgress((read += count), size);
  try {
    for await (const { name, bytes } of entriesOf(path, onBlob, onRead)) {
      if (name === MANIFEST) manifest = manifestOf(bytes);
      else seen.push({ name, bytes: bytes.length, sha256: sha256(bytes) });
      if (isObjects(name)) listed += objectsOf(bytes).length;
    }
  } catch (error) {
    if (error instanceof ArchiveError) throw error;
    throw new ArchiveError('the file is no backup, or is damaged or cut off', { cause: error });
  }
  if (manifest === undefined) throw new ArchiveError('the file has no manifest: it was cut off');
  const { parts, blobs = [], objects } = manifest;
  requireSame([...parts, ...blobs, ...(objects?.parts ?? [])], seen);
  if (listed !== (objects?.count ?? 0))
    throw new ArchiveError('the list of objects is not as long as the manifest says');
  return manifest;
}

const isObjects = (name: string): boolean => name.startsWith(OBJECTS);

const changed = (): ArchiveError => new ArchiveError('the file changed while it was being restored');

/** The list of objects of a verified archive, a part at a time, each compared with the manifest again. */
export async function* readObjectList(path: string, manifest: Manifest): AsyncGenerator<readonly ListedObject[]> {
  const said = manifest.objects?.parts ?? [];
  let next = 0;
  for await (const { name, bytes } of entriesOf(path, summed)) {
    if (name === MANIFEST) break;
    if (!isObjects(name)) continue;
    if (sha256(bytes) !== said[next++]?.sha256) throw changed();
    yield objectsOf(bytes);
  }
  if (next !== said.length) throw changed();
}

/** Throws `ArchiveError` if the entries read differ from the manifest. */
function requireSame(said: readonly BlobPart[], read: readonly BlobPart[]): void {
  const same = (one: BlobPart, at: number): boolean => {
    const other = read[at];
    return one.name === other?.name && one.bytes === other.bytes && one.sha256 === other.sha256;
  };
  if (said.length === read.length && said.every(same)) return;
  const wrong = said.find((part, at) => !same(part, at));
  throw new ArchiveError(`the file is damaged: ${wrong?.name ?? 'a part'} does not match the manifest`);
}

/** Reads a blob to its end and hashes it. */
async function summed(blob: BlobName, chunks: Chunks): Promise<BlobPart> {
  const digest = createHash('sha256');
  let bytes = 0;
  for await (const chunk of chunks) {
    digest.update(chunk);
    bytes += chunk.length;
  }
  return { name: blobPath(blob), bytes, sha256: digest.digest('hex') };
}

/**
 * Writes the blobs of a verified archive into the store of a stopped server, comparing each with the manifest again. A
 * stored blob with other content is replaced: blobs never change, so it is damaged. Resolves with the number of blobs.
 */
export async function restoreBlobs(
  path: string,
  { blobs = [] }: Manifest,
  store: LocalStore,
  onProgress: Progress,
): Promise<number> {
  if (blobs.length === 0) return 0;
  const said = new Map(blobs.map((blob) => [blob.name, blob.sha256]));
  const total = bytesOf(blobs);
  let restored = 0;
  let done = 0;
  const onBlob: OnBlob = async (blob, chunks) => {
    const draft = await store.create(blob);
    try {
      const written = tapped(chunks, async (bytes) => {
        await draft.write(bytes);
        onProgress((done += bytes.length), total);
      });
      const { name, sha256: found } = await summed(blob, written);
      if (found !== said.get(name)) throw changed();
      if ((await store.head(blob)) !== undefined && (await summed(blob, store.read(blob))).sha256 !== found)
        await store.remove(blob);
      await draft.commit();
      restored++;
    } finally {
      await draft.discard();
    }
  };
  for await (const { name } of entriesOf(path, onBlob)) if (name === MANIFEST) break;
  if (restored !== said.size) throw changed();
  return restored;
}

/**
 * The tables of a verified archive, for a single pass in order. Each part is compared with the manifest again, since
 * the file may have changed after it was verified.
 */
export async function* readArchive(path: string, manifest: Manifest, onProgress: Progress): AsyncGenerator<Restored> {
  const total = bytesOf(manifest.parts);
  const entries = entriesOf(path);
  let done = 0;
  let next = 0;
  try {
    for (const [table, { columns }] of Object.entries(manifest.tables)) {
      const rows = async function* (): AsyncGenerator<Buffer> {
        for (; manifest.parts[next]?.table === table; next++) {
          const found = await entries.next();
          if (found.done === true || sha256(found.value.bytes) !== manifest.parts[next]?.sha256) throw changed();
          onProgress((done += found.value.bytes.length), total);
          yield found.value.bytes;
        }
      };
      yield { table, columns, rows: Readable.from(rows()) };
    }
    // The part belongs to no table, or to an earlier one: its rows would be silently left out.
    if (next < manifest.parts.length) throw new ArchiveError(`${manifest.parts[next]?.name ?? ''} belongs to no table`);
  } finally {
    await entries.return(undefined);
  }
}
