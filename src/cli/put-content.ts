/**
 * The content that `put` writes: texts; files, which are streamed and never held in memory; and payloads, validated
 * against the shapes of the reference (Content types).
 */
import type { BigIntStats, Dirent } from 'node:fs';
import { open, opendir, type FileHandle } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import type { JsonObject } from '../crypto/payload.js';
import type { Sodium } from '../crypto/sodium.js';
import { isVisible } from '../protocol/ids.js';
import { CONTENT_TYPES, isContentType, type ContentType } from '../protocol/item.js';
import type { BlobSource, SourceIdentity } from '../sdk/blobs/source.js';
import * as shapes from '../sdk/payloads/shapes.js';
import { counted, sanitizeText } from '../terminal/output.js';
import { CommandError, EXIT, usageError } from '../terminal/terminal.js';
import { type Context, PROGRAM_NAME } from './context.js';
import { describeFile, mediaType, textFile, textOf } from '../import/detect.js';
import { PORTION_BYTES, portionsOf, readBytes } from '../files/read.js';
import { Spool } from './spool.js';

/** A type, the fields that follow from the content, and the file if it is one. The caller closes `content`. */
export interface Found extends shapes.Detected {
  readonly content?: HeldSource;
}

const NAMELESS = 'stdin';

/**
 * The content of a path, or of standard input (`-`). `name`: of the item, by default the file's. `type`: as given by
 * the user; undefined: detected.
 */
export async function foundIn(
  { terminal, platform: { sodium } }: Context,
  path: string,
  type: ContentType | undefined,
  name = basename(path),
): Promise<Found> {
  if (path === '-') return piped(sodium, terminal.openInput(), type, NAMELESS);
  const source = await FileSource.open(path);
  try {
    const found: Found = await (source.isFile ? ofFile(source, name, type) : piped(sodium, source.open(), type, name));
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
  const isFile = type === undefined ? media !== undefined || size > shapes.PAYLOAD_INLINE_MAX : shapes.holdsFile(type);
  if (isFile) return asFile(type ?? media ?? 'file', name, source);
  if (size > shapes.PAYLOAD_MAX) throw notText(`${name} is ${size} bytes`);
  const text = textOf(await source.start(shapes.PAYLOAD_MAX));
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
async function piped(sodium: Sodium, input: AsyncIterable<Uint8Array>, type: ContentType | undefined, name: string) {
  const taken: Uint8Array[] = [];
  let length = 0;
  const iterator = input[Symbol.asyncIterator]();
  const mayBeText = type === undefined || !shapes.holdsFile(type);
  const textMax = mayBeText ? shapes.PAYLOAD_MAX : 0;
  let ended = false;
  while (length <= textMax) {
    const next = await iterator.next();
    ended = next.done === true;
    if (next.done === true) break;
    taken.push(next.value);
    length += next.value.length;
  }
  const text = ended && mayBeText ? textOf(Buffer.concat(taken)) : undefined;
  if (text !== undefined) {
    if (!isVisible(text)) throw blankText('standard input');
    return type === undefined ? shapes.detectText(text) : { type: 'text' as const, payload: { text } };
  }
  if (type !== undefined && mayBeText) {
    await iterator.return?.();
    throw notText('standard input');
  }
  const all = async function* () {
    yield* taken;
    if (!ended) yield* { [Symbol.asyncIterator]: () => iterator };
  };
  return asFile(type ?? 'file', name, await Spool.of(sodium, all()));
}

export const blankText = (what: string): CommandError =>
  usageError(`${what} is empty or blank: nothing was written`, `For example: ${PROGRAM_NAME} put "milk, bread"`);

interface HeldSource extends BlobSource {
  /** Releases them. Called once. */
  close(): Promise<void>;
}

const HINT = 'Use --folder for folders.';

/** An open file. It is read through its handle: another file that gets its name meanwhile is not sent. */
class FileSource implements HeldSource {
  readonly size: number;
  /** False: a pipe, a device or a file without a size, which can be read once. */
  readonly isFile: boolean;
  /** Its path; its device, inode and time of modification. */
  readonly identity: SourceIdentity;
  /** `ctime`: unlike `mtime` it cannot be set back. A rename or another mode changes it, too. */
  private readonly changedAt: bigint;

  private constructor(
    private readonly handle: FileHandle,
    path: string,
    stat: BigIntStats,
    isFile: boolean,
  ) {
    this.size = Number(stat.size);
    this.isFile = isFile;
    this.changedAt = stat.ctimeNs;
    this.identity = { name: resolve(path), state: `${stat.dev}:${stat.ino}:${stat.mtimeNs}` };
  }

  /** Rejects with the system's error. */
  static async open(path: string): Promise<FileSource> {
    const handle = await open(path, 'r');
    try {
      const stat = await handle.stat({ bigint: true });
      if (stat.isDirectory())
        throw new CommandError(EXIT.failure, `${sanitizeText(path)}: that is a folder`, HINT, { code: 'eisdir' });
      // Files in /proc have content and say that they have none: they are read like a pipe.
      const isFile = stat.isFile() && (stat.size > 0n || (await readBytes(handle, 0, 1)).length === 0);
      return new FileSource(handle, path, stat, isFile);
    } catch (error) {
      await handle.close();
      throw error;
    }
  }

  open(): AsyncIterable<Uint8Array> {
    if (this.isFile) return portionsOf(this.handle);
    return this.handle.createReadStream({ autoClose: false, highWaterMark: PORTION_BYTES });
  }

  async isTouched(): Promise<boolean> {
    return this.isFile && (await this.handle.stat({ bigint: true })).ctimeNs !== this.changedAt;
  }

  /** Its first bytes, at most `most`. Regular files only. */
  start(most: number): Promise<Uint8Array> {
    return readBytes(this.handle, 0, Math.min(most, this.size));
  }

  close(): Promise<void> {
    return this.handle.close();
  }
}

const invalid = (message: string, hint?: string): CommandError => usageError(message, hint, 'bad_payload');

export const notText = (what: string): CommandError =>
  usageError(
    `${what}: a text is UTF-8, and has at most ${shapes.PAYLOAD_MAX} bytes`,
    'Put it as a file: --type file --file <path>.',
    'no_text',
  );

/** A content type. Throws `CommandError` `usage` for an unknown one. */
export function contentType(text: string): ContentType {
  if (isContentType(text)) return text;
  throw invalid(`there is no type "${text.slice(0, 40)}"`, `Types: ${CONTENT_TYPES.join(', ')}.`);
}

/** `name=value` pairs as a payload's fields; numbers are parsed. */
export function assigned(type: ContentType, pairs: readonly string[]): JsonObject {
  const fields: [string, unknown][] = pairs.map((pair) => {
    const at = pair.indexOf('=');
    if (at < 1) throw invalid('--set takes name=value', `For example: --set ${shapes.fieldsOf(type)[0] ?? 'name'}=...`);
    const name = pair.slice(0, at);
    const value = pair.slice(at + 1);
    if (shapes.kindOf(type, name) !== 'number') return [name, value];
    const number = value.trim() === '' ? NaN : Number(value);
    if (!Number.isFinite(number)) throw invalid(`${name} must be a number`);
    return [name, number];
  });
  return Object.fromEntries(fields);
}

/**
 * Validates a payload against its type's shape (`shapedPayload`). `isFile`: it describes a file. Throws `CommandError` with
 * code `bad_payload` (naming the field, never its value), `needs_file` or `no_text`.
 */
export function shaped(type: ContentType, given: JsonObject, isFile = false): JsonObject {
  const file = shapes.holdsFile(type);
  const give = 'Give it with --file <path>, or pipe it in with --file -.';
  if (file && !isFile) throw usageError(`type ${type} is a file`, give, 'needs_file');
  const payload = inShape(type, given);
  for (const name of shapes.mainFields(type))
    if (!shapes.isSecretField(type, name) && !isVisible(shapes.fieldText(payload, name) ?? ''))
      throw invalid(`${name} is empty or blank`);
  const bytes = shapes.payloadSize(payload);
  const room = file ? shapes.PAYLOAD_INLINE_MAX : shapes.PAYLOAD_MAX;
  if (bytes > room) throw notText(`${bytes} bytes are more than the ${room} that a ${type} holds`);
  return payload;
}

function inShape(type: ContentType, given: JsonObject): JsonObject {
  try {
    return shapes.shapedPayload(type, given);
  } catch (error) {
    throw error instanceof shapes.PayloadError ? invalid(error.message, error.hint) : error;
  }
}

/** Folders with more names are refused as a whole: a mistyped path must not write everything into the vault. */
const NAMES_MAX = 10_000;

/** A file, and the name of its item; default: the file's name. */
export interface Source {
  readonly path: string;
  readonly name?: string;
}

const LEFT_OUT = ['hidden', 'link', 'special file'] as const;
/** Why a name in a folder is left out: a link may lead out of the folder, and a device file has no end. */
export function reasonToLeave(entry: Dirent): (typeof LEFT_OUT)[number] | undefined {
  if (entry.name.startsWith('.')) return 'hidden';
  if (entry.isSymbolicLink()) return 'link';
  return entry.isFile() || entry.isDirectory() ? undefined : 'special file';
}

/**
 * The files in `folders`, sorted by name; a name is the path from the folder on, with slashes. Hidden names, symbolic
 * links and special files are left out. Throws `CommandError` `usage` for more than `most` names, and where there is no
 * file. `failed`: folders that cannot be read; `leftOut`: in words, '' for nothing.
 */
export async function filesIn(folders: readonly string[], most = NAMES_MAX) {
  const files: Required<Source>[] = [];
  const failed: { readonly path: string; readonly error: unknown }[] = [];
  const left = { hidden: 0, link: 0, 'special file': 0 };
  let seen = 0;
  const waiting = folders.map((path) => ({ path, name: basename(resolve(path)) })).reverse();
  for (let folder = waiting.pop(); folder !== undefined; folder = waiting.pop()) {
    const below: Required<Source>[] = [];
    try {
      for await (const entry of await opendir(folder.path)) {
        if (++seen > most) throw tooMany(most);
        const reason = reasonToLeave(entry);
        const inside = { path: join(folder.path, entry.name), name: `${folder.name}/${entry.name}` };
        if (reason !== undefined) left[reason]++;
        else if (entry.isDirectory()) below.push(inside);
        else files.push(inside);
      }
    } catch (error) {
      if (error instanceof CommandError) throw error;
      failed.push({ path: folder.path, error });
    }
    waiting.push(...below);
  }
  if (folders.length > 0 && files.length === 0 && failed.length === 0)
    throw usageError('there are no files to put', 'Hidden files and links are left out.');
  files.sort((one, other) => (one.name < other.name ? -1 : 1));
  const found = LEFT_OUT.filter((reason) => left[reason] > 0);
  const leftOut = found.map((reason) => counted(left[reason], reason, reason === 'hidden' ? reason : undefined));
  return { files, failed, leftOut: leftOut.join(', ') };
}

const tooMany = (most: number): CommandError =>
  usageError(`there are more than ${most} names: nothing was written`, 'Put a part of it.');
