/**
 * The result of every reader of another program's export: entries, each with the items it becomes. Content that no
 * field here holds is named in a note beside the item, with the original entry as a file: nothing is dropped silently.
 */
import { text as utf8 } from '../protocol/bytes.js';
import { isVisible } from '../protocol/ids.js';
import { bytesSource, type BlobSource } from '../sdk/blobs/source.js';
import { type Detected, PAYLOAD_MAX, payloadSize } from '../sdk/payloads/shapes.js';
import { describeFile, mediaType } from './detect.js';

/** The other programs, as `--from` names them. */
export const PROGRAMS = ['bitwarden', 'chrome', 'firefox', 'keepass', 'vcard', 'markdown'] as const;
export type ForeignProgram = (typeof PROGRAMS)[number];

/** An item that an entry becomes. */
export interface Made extends Detected {
  /** Distinguishes the items of an entry; the id is derived from it and the entry's key. */
  readonly part: string;
  /** The bytes of a file. */
  readonly content?: BlobSource;
}

/** An entry of the other program. */
export interface Entry {
  /** Position in the source, for messages. */
  readonly where: string;
  /** What the other program calls such an entry. */
  readonly kind: string;
  /** Not a secret. */
  readonly name: string;
  /** Name of the bin; '': the default bin. */
  readonly folder: string;
  /** Identifies the entry in its source: the same in each export. */
  readonly key: string;
  /** ms; the time in the item's id. Undefined: not in the source. */
  readonly created?: number | undefined;
  /** ms; undefined: the time of the file. */
  readonly changed?: number | undefined;
  /** Empty: the entry is not imported, for the reason `left`. */
  readonly made: readonly Made[];
  readonly left?: string;
  /** Descriptions of what no field here holds, without values: listed in the note, and kept in the original. */
  readonly unplaced: readonly string[];
  /** Marks of the other program that are no content, and are not imported. */
  readonly marks: readonly string[];
}

/** The entries of a source. */
export interface ForeignEntries {
  readonly program: ForeignProgram;
  /** `Bitwarden JSON`. */
  readonly title: string;
  readonly entries: readonly Entry[];
}

/** A source that was read as a whole, and can be imported. `time`, ms: of entries that have none. */
export type ForeignSource = ForeignEntries & { readonly time: number };

/** Most entries of one source: they are in memory together. */
export const ENTRIES_MAX = 100_000;

/** A source, or an entry of it, that is refused. Nothing was written. */
export class ForeignError extends Error {
  override readonly name = 'ForeignError';
  constructor(
    /** The entry or the line; empty: the source as a whole. */
    readonly where: string,
    readonly why: string,
    readonly hint = 'Nothing was written.',
    options?: ErrorOptions,
  ) {
    super(`${where}: ${why}`, options);
  }
}

/** An entry before its items are made. */
export interface Draft extends Pick<Entry, 'where' | 'kind' | 'name' | 'folder' | 'key' | 'created' | 'changed'> {
  readonly program: ForeignProgram;
  /** The item that holds most of it; undefined: none does, and the entry becomes a note. */
  readonly main?: Detected | undefined;
  readonly notes: string;
  readonly files?: readonly { readonly name: string; readonly bytes: Uint8Array }[];
  readonly unplaced?: readonly string[];
  readonly marks?: readonly string[];
  /** The original entry as a file: its text, and the end of its name. Used where something is unplaced. */
  readonly original?: () => { readonly text: string; readonly ending: string };
}

/**
 * Most bytes of the originals of one source. They are in memory together, and may be far longer than the source: each
 * repeats the names of the columns or of the group, and deep levels are indented.
 */
const ORIGINALS_MAX = 256 * 1024 * 1024;
/** Most bytes of the attachments of one source, each counted as often as it is attached: it becomes as many files. */
const ATTACHED_MAX = 256 * 1024 * 1024;

/** Throws `ForeignError` once the bytes that were given to it are more than `room`. */
function bound(room: number): (bytes: Uint8Array) => Uint8Array {
  return (bytes) => {
    room -= bytes.length;
    if (room < 0) throw new ForeignError('', 'its entries take too much memory');
    return bytes;
  };
}

/**
 * The entries of a source, from their drafts where they have some. Each is made before the next is taken, so that not
 * all drafts are in memory together. Throws `ForeignError`.
 */
export function entriesOf(all: Iterable<Draft | Entry>): Entry[] {
  const bounds = { original: bound(ORIGINALS_MAX), attached: bound(ATTACHED_MAX) };
  return Array.from(all, (one) => ('made' in one ? one : entryOf(one, bounds)));
}

type Bounds = Readonly<Record<'original' | 'attached', ReturnType<typeof bound>>>;

/** The entry of a draft. Throws `ForeignError` for a text that no item can hold, and beyond the bounds. */
function entryOf(draft: Draft, bounds: Bounds): Entry {
  const { program, main, notes, files = [], unplaced = [], marks = [], original: originalOf, ...entry } = draft;
  const { where, kind, name } = entry;
  const tooLong = (): ForeignError => new ForeignError(where, `a text is over ${PAYLOAD_MAX} bytes`);
  // Before anything is made of them.
  if (notes.length > PAYLOAD_MAX) throw tooLong();
  const made: Made[] = main === undefined ? [] : [{ part: 'main', ...main }];
  const attached = files.map(({ name, bytes }, at) => fileItem(`file ${at}`, name, bounds.attached(bytes)));
  const original = unplaced.length === 0 ? undefined : originalOf?.();
  const originalName = original === undefined ? '' : `${fileStem(name)}.${original.ending}`;
  if (main === undefined || isVisible(notes) || original !== undefined) {
    const rest = original === undefined ? '' : restText(program, unplaced, originalName);
    const text = joined('\n\n', titled(name, notes), rest);
    made.push({ part: 'note', type: 'text', payload: { text: isVisible(text) ? text : `(an empty ${kind})` } });
  }
  made.push(...attached);
  if (original !== undefined) made.push(fileItem('original', originalName, bounds.original(utf8(original.text))));
  for (const one of made) if (payloadSize(one.payload) > PAYLOAD_MAX) throw tooLong();
  return { ...entry, made, unplaced, marks };
}

/** The original entry as a file of JSON. Throws `ForeignError` where that is longer than a text can be. */
export function jsonOriginal(program: ForeignProgram, value: unknown) {
  try {
    return { text: `${JSON.stringify(value, null, 2)}\n`, ending: `${program}.json` };
  } catch (error) {
    throw new ForeignError('', 'an entry is too long', undefined, { cause: error });
  }
}

/** An entry that is not imported. */
export const leftBehind = (entry: Omit<Entry, 'made' | 'unplaced' | 'marks'> & { readonly left: string }): Entry => ({
  ...{ ...entry, made: [], unplaced: [], marks: [] },
});

function fileItem(part: string, name: string, bytes: Uint8Array): Made {
  const type = mediaType(name) ?? 'file';
  return { part, type, payload: describeFile(type, name, bytes.length), content: bytesSource(bytes) };
}

const restText = (program: ForeignProgram, unplaced: readonly string[], file: string): string =>
  `No field here holds: ${unplaced.join(', ')}.\nThe entry as it was in ${program} is the file “${file}”.`;

/** The texts that are not empty, with `by` between them. */
export const joined = (by: string, ...texts: readonly string[]): string => texts.filter((text) => text !== '').join(by);

/** The first line that is not blank. */
export function firstLine(text: string): string {
  const at = text.search(/\S/);
  const end = text.indexOf('\n', at);
  return at < 0 ? '' : text.slice(text.lastIndexOf('\n', at) + 1, end < 0 ? undefined : end);
}

/** The number of matches of a global expression, without a list of them: a cell of 64 MiB may be all line ends. */
export function matchesOf(text: string, pattern: RegExp): number {
  let count = 0;
  while (pattern.test(text)) count++;
  return count;
}

/** Notes under their name, unless they begin with it. */
function titled(name: string, notes: string): string {
  if (!isVisible(notes)) return name;
  return name === '' || firstLine(notes).trim() === name.trim() ? notes : `${name}\n\n${notes}`;
}

const STEM_MAX = 80;

/** A name as part of a file's name. */
function fileStem(name: string): string {
  const begin = name.slice(0, 4 * STEM_MAX);
  const safe = begin.replace(/[\p{Cc}\p{Cf}\p{Cs}/\\<>:"|?*]/gu, '_').trim();
  return Array.from(safe).slice(0, STEM_MAX).join('') || 'entry';
}

/** A login. */
type Login = Readonly<Record<'name' | 'url' | 'user' | 'secret', string>>;

const hostOf = (url: string): string | undefined => (URL.canParse(url) ? new URL(url).hostname : undefined);

/** Name and address as the one field that holds both; `serviceParts` is the inverse. */
export function serviceOf(name: string, url: string): string {
  if (url === '') return name;
  return name === '' || name === url || name === hostOf(url) ? url : `${name} (${url})`;
}

/** The name and the address in a service; what is no valid address is part of the name. */
export function serviceParts(service: string): { readonly name: string; readonly url: string } {
  const [, named = '', inside = ''] = /^(.*\S) \(([a-z][\w+.-]*:\/\/\S+)\)$/is.exec(service) ?? [];
  const url = inside === '' ? service : inside;
  const name = inside === '' ? (hostOf(url) ?? '') : named;
  const isAddress = /^[a-z][\w+.-]*:\/\/\S+$/i.test(url) && serviceOf(name, url) === service;
  return isAddress ? { name, url } : { name: service, url: '' };
}

/** The item of a login; undefined where it has neither user nor secret nor an address that is a link. */
export function loginItem({ name, url, user, secret }: Login): Draft['main'] {
  if (secret !== '' || user !== '')
    return { type: 'password', payload: { service: serviceOf(name, url), user, secret } };
  const site = /^https?:/i.test(url) ? hostOf(url) : undefined;
  return site === undefined ? undefined : { type: 'link', payload: { url, title: name, desc: '', site } };
}

/** `3 custom fields`; empty for none. */
export const some = (count: number, noun: string, plural = `${noun}s`): string[] =>
  count <= 0 ? [] : [`${count} ${count === 1 ? noun : plural}`];

/** Numbers the entries that share a key, in their order, so that each keeps its own id. */
export function keyCounter(): (key: string) => string {
  const seen = new Map<string, number>();
  return (key) => {
    const count = (seen.get(key) ?? 0) + 1;
    seen.set(key, count);
    return JSON.stringify([key, count]);
  };
}

/** A file's bytes as text, without a byte order mark. Throws `ForeignError`. */
export function foreignText(bytes: Uint8Array): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch (error) {
    throw new ForeignError('', 'it is not UTF-8', 'Export it again as UTF-8. Nothing was written.', { cause: error });
  }
}

/** A date as ms; undefined where `value` is none. */
export function timeOf(value: string): number | undefined {
  const ms = Date.parse(value);
  return Number.isFinite(ms) ? ms : undefined;
}

/** The notes of a login, after its address where no item holds that. */
export const notesWith = (main: Draft['main'], url: string, notes: string): string =>
  main === undefined ? joined('\n\n', url, notes) : notes;

/** How a locked source is opened. */
export interface Secrets {
  /** Gives what `open` gives for the password, which it may ask for again after a `WrongPassword`. */
  readonly unlock: <T>(program: ForeignProgram, open: (password: string) => Promise<T>) => Promise<T>;
  /** The bytes of the key file; undefined: there is none. */
  readonly keyFile: () => Promise<Uint8Array | undefined>;
}

/** The source does not open with this password. */
export class WrongPassword extends Error {
  override readonly name = 'WrongPassword';
  constructor(options?: ErrorOptions) {
    super('The file does not open: another password or key file, or it is damaged.', options);
  }
}
