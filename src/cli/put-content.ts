/** The content that `put` writes: a text, or a file of any size, which is streamed and never held in memory. */
import { createReadStream, type BigIntStats } from 'node:fs';
import { open, type FileHandle } from 'node:fs/promises';
import { basename, resolve } from 'node:path';
import type { BlobSource, SourceIdentity } from '../sdk/blobs/source.js';
import { textDetected, type Detected, PAYLOAD_MAX, holdsFile, PAYLOAD_INLINE_MAX } from '../sdk/payloads/shapes.js';
import { isVisible } from '../protocol/ids.js';
import type { ContentType } from '../protocol/item.js';
import { type Context, PROGRAM_NAME } from './context.js';
import { describeFile, mediaType, textFile, textOf } from './detect.js';
import { notText } from './payloads.js';
import { readBytes } from './read-bytes.js';
import { Spool } from './spool.js';
import { sanitizeText } from '../terminal/output.js';
import { CommandError, EXIT } from '../terminal/terminal.js';

/** A type, the fields that follow from the content, and the file if it is one. The caller closes `content`. */
export interface Found extends Detected {
  readonly content?: HeldSource;
}

/** Name of a file from standard input. */
const NAMELESS = 'stdin';

/**
 * The content of a path, or of standard input (`-`). `name`: of the item, by default the file's. `type`: as given by
 * the user; undefined: detected.
 */
export async function foundIn(
  context: Context,
  { path, name = basename(path) }: { readonly path: string; readonly name?: string | undefined },
  type: ContentType | undefined,
): Promise<Found> {
  if (path === '-') return piped(context, context.terminal.openInput(), { type, name: NAMELESS });
  const source = await FileSource.open(path);
  try {
    const found = source.isFile
      ? await ofFile(source, name, type)
      : await piped(context, source.open(), { type, name });
    if (found.content !== source) await source.close();
    return found;
  } catch (error) {
    await source.close();
    throw error;
  }
}

async function ofFile(source: FileSource, name: string, type: ContentType | undefined): Promise<Found> {
  const { size } = source;
  const media = mediaType(name);
  if (type !== undefined && holdsFile(type)) return asFile(type, name, source);
  if (type === undefined && (media !== undefined || size > PAYLOAD_INLINE_MAX))
    return asFile(media ?? 'file', name, source);
  if (size > PAYLOAD_MAX) throw notText(`${name} is ${size} bytes`);
  const text = textOf(await source.start(PAYLOAD_MAX));
  // A text without visible characters is a file: its bytes and its name are the content.
  if (text !== undefined && (type !== undefined || isVisible(text))) return textFile(name, text);
  if (type !== undefined) throw notText(`${name} is not text`);
  return asFile('file', name, source);
}

const asFile = (type: ContentType, name: string, content: HeldSource): Found => ({
  type,
  payload: describeFile(type, name, content.size),
  content,
});

/** A pipe: a text if it is one that an item can hold, otherwise a file, which is spooled to find out its length. */
async function piped(
  { platform }: Context,
  input: AsyncIterable<Uint8Array>,
  { type, name }: { readonly type: ContentType | undefined; readonly name: string },
): Promise<Found> {
  const taken: Uint8Array[] = [];
  let length = 0;
  const iterator = input[Symbol.asyncIterator]();
  const wanted = type === undefined || !holdsFile(type) ? PAYLOAD_MAX : 0;
  let ended = false;
  while (!ended && length <= wanted) {
    const next = await iterator.next();
    ended = next.done === true;
    if (next.done === true) break;
    taken.push(next.value);
    length += next.value.length;
  }
  const text = ended && length <= wanted ? textOf(Buffer.concat(taken)) : undefined;
  if (text !== undefined && wanted > 0) {
    if (!isVisible(text)) throw nothing('standard input');
    return type === undefined ? textDetected(text) : { type: 'text', payload: { text } };
  }
  if (type !== undefined && !holdsFile(type)) {
    await iterator.return?.();
    throw notText('standard input');
  }
  const all = async function* () {
    yield* taken;
    if (!ended) yield* { [Symbol.asyncIterator]: () => iterator };
  };
  return asFile(type ?? 'file', name, await Spool.of(platform.sodium, all()));
}

/** The error of a text without visible characters. */
export const nothing = (what: string): CommandError =>
  new CommandError(
    EXIT.usage,
    `${what} is empty or blank: nothing was written`,
    `For example: ${PROGRAM_NAME} put "milk, bread"`,
  );

/** A stream of bytes with resources to release. */
interface HeldSource extends BlobSource {
  /** Releases them. Called once. */
  close(): Promise<void>;
}

const READ_BYTES = 256 * 1024;
const FOLDERS = 'Use --folder for folders.';

/** An open file. It is read through its handle: another file that gets its name meanwhile is not sent. */
class FileSource implements HeldSource {
  readonly size: number;
  /** False: a pipe or a device, which has no size and can be read once. */
  readonly isFile: boolean;
  /** Its path; its device, inode and time of modification. */
  readonly identity: SourceIdentity;
  /** `ctime`: unlike `mtime` it cannot be set back. A rename or another mode changes it, too. */
  private readonly touchedAt: bigint;

  private constructor(
    private readonly handle: FileHandle,
    private readonly path: string,
    stat: BigIntStats,
  ) {
    this.size = Number(stat.size);
    this.isFile = stat.isFile();
    this.touchedAt = stat.ctimeNs;
    this.identity = { name: resolve(path), state: `${stat.dev}:${stat.ino}:${stat.mtimeNs}` };
  }

  /** Rejects with the system's error. */
  static async open(path: string): Promise<FileSource> {
    const handle = await open(path, 'r');
    try {
      const stat = await handle.stat({ bigint: true });
      if (stat.isDirectory())
        throw new CommandError(EXIT.failure, `${sanitizeText(path)}: that is a folder`, FOLDERS, { code: 'eisdir' });
      return new FileSource(handle, path, stat);
    } catch (error) {
      await handle.close();
      throw error;
    }
  }

  open(): AsyncIterable<Uint8Array> {
    if (this.isFile) return this.portions();
    return createReadStream(this.path, { fd: this.handle, autoClose: false, highWaterMark: READ_BYTES });
  }

  /** Each is valid until the next is requested: with new memory for each, tens of MiB would await collection. */
  private async *portions(): AsyncGenerator<Uint8Array> {
    const buffer = new Uint8Array(READ_BYTES);
    for (let at = 0; ;) {
      const { bytesRead } = await this.handle.read(buffer, 0, READ_BYTES, at);
      if (bytesRead === 0) return;
      at += bytesRead;
      yield buffer.subarray(0, bytesRead);
    }
  }

  async isTouched(): Promise<boolean> {
    return this.isFile && (await this.handle.stat({ bigint: true })).ctimeNs !== this.touchedAt;
  }

  /** Its first bytes, at most `most`. Regular files only. */
  start(most: number): Promise<Uint8Array> {
    return readBytes(this.handle, 0, Math.min(most, this.size));
  }

  async close(): Promise<void> {
    await this.handle.close();
  }
}
