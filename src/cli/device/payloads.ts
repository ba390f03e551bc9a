/** The ten shapes of contract 7: what a payload of each type holds, checked before it is sealed. */
import type { JsonObject } from '../../crypto/payload.js';
import { CONTENT_TYPES, isContentType, type ContentType } from '../../protocol/item.js';
import { PAYLOAD_INLINE_MAX, PAYLOAD_MAX } from '../../client/payload-blob.js';
import { CommandError, EXIT } from './terminal.js';

type Kind = 'text' | 'number';

/** A type's fields; `main` is what a pipe gets, and must say something; file: what it describes is one. */
interface Shape {
  readonly fields: Readonly<Record<string, Kind>>;
  readonly main: readonly string[];
  readonly file?: boolean;
}

const SHAPES: Readonly<Record<ContentType, Shape>> = {
  password: { fields: { service: 'text', user: 'text', secret: 'text' }, main: ['secret'] },
  link: { fields: { url: 'text', title: 'text', desc: 'text', site: 'text' }, main: ['url'] },
  text: { fields: { text: 'text' }, main: ['text'] },
  code: { fields: { lang: 'text', label: 'text', text: 'text' }, main: ['text'] },
  image: { fields: { w: 'number', h: 'number', label: 'text', mime: 'text' }, main: ['label'], file: true },
  file: { fields: { name: 'text', size: 'number', mime: 'text' }, main: ['name'], file: true },
  audio: { fields: { duration: 'number', label: 'text', mime: 'text' }, main: ['label'], file: true },
  video: { fields: { title: 'text', duration: 'number', mime: 'text' }, main: ['title'], file: true },
  contact: { fields: { name: 'text', role: 'text', email: 'text', phone: 'text' }, main: ['name'] },
  location: { fields: { name: 'text', addr: 'text', lat: 'number', lng: 'number' }, main: [] },
};

/** Fields that are masked on a screen, never searched and never shown in lists. */
const SECRET: Readonly<Partial<Record<ContentType, readonly string[]>>> = { password: ['secret'] };

const bad = (message: string, hint?: string): CommandError =>
  new CommandError(EXIT.usage, message, hint, { code: 'bad_payload' });

/** Bytes of JSON that an item takes, in a blob where it has to (`PutRequest.payload`). */
export { PAYLOAD_MAX };

/** Said of what cannot be the text of an item. */
export const notText = (what: string): CommandError =>
  new CommandError(
    EXIT.usage,
    `${what}: a text is UTF-8, and has at most ${PAYLOAD_MAX} bytes`,
    'Put it as a file: --type file --file <path>.',
    { code: 'no_text' },
  );

/** A type as typed. Throws `CommandError` `usage` for one outside the ten. */
export function contentType(text: string): ContentType {
  if (isContentType(text)) return text;
  throw bad(`there is no type "${text.slice(0, 40)}"`, `Types: ${CONTENT_TYPES.join(', ')}.`);
}

/** Names of a type's fields. */
export const fieldsOf = (type: ContentType): readonly string[] => Object.keys(SHAPES[type].fields);
/** True where a field is not for every eye. */
export const isSecretField = (type: ContentType, field: string): boolean => SECRET[type]?.includes(field) ?? false;
/** The one field that a pipe gets; undefined: all of them. */
export const mainField = (type: ContentType): string | undefined => SHAPES[type].main[0];

/** `name=value` pairs as a payload's fields, numbers read as such. */
export function assigned(type: ContentType, pairs: readonly string[]): JsonObject {
  const fields: [string, unknown][] = pairs.map((pair) => {
    const at = pair.indexOf('=');
    if (at < 1) throw bad('--set takes name=value', `For example: --set ${fieldsOf(type)[0] ?? 'name'}=...`);
    const name = pair.slice(0, at);
    const value = pair.slice(at + 1);
    if (SHAPES[type].fields[name] !== 'number') return [name, value];
    const number = value.trim() === '' ? NaN : Number(value);
    if (!Number.isFinite(number)) throw bad(`${name} must be a number`);
    return [name, number];
  });
  return Object.fromEntries(fields);
}

/**
 * A payload in its type's shape: known fields only, each of its kind, texts that were not given empty, so that every
 * client finds them. `of.file`: a file comes with it. Throws `CommandError` code `bad_payload`, naming the field and never
 * its value, `needs_file` or `no_text`.
 */
export function shaped(type: ContentType, given: JsonObject, of: { readonly file?: boolean } = {}): JsonObject {
  const { fields, main, file = false } = SHAPES[type];
  if (file && of.file !== true) throw needsFile(type);
  for (const [name, value] of Object.entries(given)) {
    const kind = Object.hasOwn(fields, name) ? fields[name] : undefined;
    if (kind === undefined) throw bad(`type ${type} has no field "${name.slice(0, 40)}"`, known(type));
    if (kind === 'text' ? typeof value !== 'string' : typeof value !== 'number' || !Number.isFinite(value)) {
      throw bad(`${name} must be ${kind === 'text' ? 'a text' : 'a number'}`);
    }
  }
  for (const name of main)
    if (given[name] === undefined || given[name] === '') throw bad(`${name} is missing`, known(type));
  if (type === 'location') expectPlace(given);
  if (type === 'link') expectUrl(given['url']);
  const texts = Object.entries(fields).filter(([, kind]) => kind === 'text');
  const payload = { ...Object.fromEntries(texts.map(([name]) => [name, ''])), ...given };
  const bytes = Buffer.byteLength(JSON.stringify(payload));
  const room = file ? PAYLOAD_INLINE_MAX : PAYLOAD_MAX;
  if (bytes > room) throw notText(`${bytes} bytes are more than the ${room} that a ${type} holds`);
  return payload;
}

const needsFile = (type: ContentType): CommandError =>
  new CommandError(EXIT.usage, `type ${type} is a file`, `Give it by --file <path>, or pipe it in with --file -.`, {
    code: 'needs_file',
  });

const known = (type: ContentType): string => `Fields of ${type}: ${fieldsOf(type).join(', ')}.`;

function expectPlace({ name, addr, lat, lng }: JsonObject): void {
  if ((lat === undefined) !== (lng === undefined)) throw bad('lat and lng come together');
  const named = [name, addr].some((value) => typeof value === 'string' && value !== '');
  if (!named && lat === undefined) throw bad('a location needs a name, an address, or lat and lng', known('location'));
  if (typeof lat === 'number' && Math.abs(lat) > 90) throw bad('lat is from -90 to 90');
  if (typeof lng === 'number' && Math.abs(lng) > 180) throw bad('lng is from -180 to 180');
}

function expectUrl(url: unknown): void {
  if (typeof url !== 'string' || !URL.canParse(url)) throw bad('url is not an address');
}

/** A field of a payload from another device, as text; undefined where it is not there or no text or number. */
export function fieldText(payload: JsonObject | null, field: string): string | undefined {
  const value = payload !== null && Object.hasOwn(payload, field) ? payload[field] : undefined;
  if (typeof value === 'string') return value;
  return typeof value === 'number' || typeof value === 'boolean' ? String(value) : undefined;
}

/** A payload without its secrets, for lists and events. */
export function withoutSecrets(type: ContentType, payload: JsonObject | null): JsonObject | null {
  if (payload === null) return null;
  return Object.fromEntries(Object.entries(payload).filter(([field]) => !isSecretField(type, field)));
}

const TITLE: Readonly<Record<ContentType, readonly string[]>> = {
  password: ['service', 'user'],
  link: ['title', 'url'],
  text: ['text'],
  code: ['label', 'text'],
  image: ['label', 'mime'],
  file: ['name', 'mime'],
  audio: ['label', 'mime'],
  video: ['title', 'mime'],
  contact: ['name', 'email'],
  location: ['name', 'addr'],
};

const TITLE_MAX = 200;

/** One line that tells an item from the others; not made harmless yet. Never has a secret in it. */
export function titleOf(type: ContentType, payload: JsonObject | null): string {
  const parts = TITLE[type].flatMap((field) => fieldText(payload, field) || []);
  if (type === 'password')
    return parts.length === 2 ? `${parts[0] ?? ''} (${parts[1] ?? ''})` : (parts[0] ?? '(no name)');
  const first = parts[0] ?? `${fieldText(payload, 'lat') ?? ''} ${fieldText(payload, 'lng') ?? ''}`;
  return (first.split('\n').find((line) => line.trim() !== '') ?? '(empty)').trim().slice(0, TITLE_MAX) || '(empty)';
}
