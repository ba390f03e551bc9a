/**
 * The ten content types (the reference, Content types): fields and checks of their payloads, short forms of large
 * ones, and detection of a type. Pure.
 */
import { type JsonObject, payloadBytes, payloadObject } from '../../crypto/payload.js';
import { isObject, text as utf8 } from '../../protocol/bytes.js';
import { CONTENT_TYPES, isContentType, type ContentType } from '../../protocol/item.js';
import { AEAD_TAG_BYTES, INLINE_CIPHERTEXT_MAX } from '../../protocol/limits.js';
import type { PlainPayload } from '../../crypto/item.js';
import { CryptoRefusal } from '../../crypto/refusal.js';

/** The type of a field. */
type FieldKind = 'text' | 'number';

/**
 * The fields of a type. `main`: the required fields, which must not be empty; the first is the one that a pipe gets.
 * `file`: the content is a file's bytes.
 */
interface Shape {
  readonly fields: Readonly<Record<string, FieldKind>>;
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

/** Fields that are masked on screens, never searched and never listed. */
const SECRET: Readonly<Partial<Record<ContentType, readonly string[]>>> = { password: ['secret'] };

/** Largest payload in an item, as JSON, in bytes (ITEM-08). */
export const PAYLOAD_INLINE_MAX = INLINE_CIPHERTEXT_MAX - AEAD_TAG_BYTES;

/**
 * A payload that does not have the shape of its type, or an unknown type. The message names the field, never its
 * value.
 */
export class PayloadError extends Error {
  override readonly name = 'PayloadError';
  readonly code = 'bad_payload';
  /** `type`, `payload`, or `payload.` and the field. */
  readonly path: string;

  constructor(
    /** The name of a payload field, or `type`; empty: the whole payload. */
    field: string,
    /** The rule that is violated. */
    readonly rule: string,
    /** How to correct it. */
    readonly hint?: string,
  ) {
    super(`${field === '' ? 'the payload' : shownField(field)} ${rule}`);
    this.path = field === 'type' ? field : ['payload', field.slice(0, 40)].filter((part) => part !== '').join('.');
  }
}

/** A field name as shown in a message: the caller's may contain any character and have any length. */
const shownField = (field: string): string => (/^\w{1,40}$/.test(field) ? field : JSON.stringify(field.slice(0, 40)));

/** The field names of a type. */
export const fieldsOf = (type: ContentType): readonly string[] => Object.keys(SHAPES[type].fields);
/** The type of a field; undefined: the content type has no such field. */
export const kindOf = (type: ContentType, field: string): FieldKind | undefined =>
  Object.hasOwn(SHAPES[type].fields, field) ? SHAPES[type].fields[field] : undefined;
/**
 * True for a field that must be masked. Where a type has secrets, so is any field that the type does not have: another
 * program may have written it, and it may repeat the secret or be a further one.
 */
export const isSecretField = (type: ContentType, field: string): boolean => {
  const secret = SECRET[type];
  return secret !== undefined && (secret.includes(field) || kindOf(type, field) === undefined);
};
/** The field that a pipe gets; undefined: all fields. */
export const mainField = (type: ContentType): string | undefined => SHAPES[type].main[0];
/** The fields that a payload of the type must have. */
export const mainFields = (type: ContentType): readonly string[] => SHAPES[type].main;
/**
 * True for types whose blob is the file itself, described by the payload. The blob of any other type is the whole
 * payload as JSON, and the item has a truncated one.
 */
export const holdsFile = (type: ContentType): boolean => SHAPES[type].file === true;

/** The payload of a file, of a type that `holdsFile`. */
export const filePayload = (
  type: ContentType,
  { name, size, mime }: { readonly name: string; readonly size: number; readonly mime: string },
): JsonObject => ({ [mainField(type) ?? 'name']: name, ...(type === 'file' ? { size } : {}), mime });

/** Size of a payload as JSON, in bytes. */
export const payloadSize = (payload: JsonObject): number => utf8(JSON.stringify(payload)).length;

/** Checks that a type is one of the ten. Throws `PayloadError`. */
export function expectType(type: unknown): ContentType {
  if (isContentType(type)) return type;
  throw new PayloadError('type', `must be one of ${CONTENT_TYPES.join(', ')}`);
}

/**
 * Checks a payload against the shape of its type: an object of known fields of the right types, with all main fields.
 * `others`: additional allowed fields, with any content. Returns the fields that are not undefined. Throws
 * `PayloadError`.
 */
export function checkedPayload(type: ContentType, given: unknown, others: readonly string[] = []): JsonObject {
  if (!isObject(given)) throw new PayloadError('', 'must be an object', known(type));
  const payload = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
  for (const [name, value] of Object.entries(payload)) {
    const kind = kindOf(type, name);
    if (kind === undefined && others.includes(name)) continue;
    if (kind === undefined) throw new PayloadError(name, `is no field of type ${type}`, known(type));
    if (kind === 'text' ? typeof value !== 'string' : typeof value !== 'number' || !Number.isFinite(value))
      throw new PayloadError(name, `must be ${kind === 'text' ? 'a text' : 'a number'}`);
  }
  for (const name of SHAPES[type].main)
    if (payload[name] === undefined || payload[name] === '') throw new PayloadError(name, 'is missing', known(type));
  if (type === 'location') expectLocation(payload);
  if (type === 'link') expectUrl(payload['url']);
  return payload;
}

/**
 * As `checkedPayload`; missing texts become empty, so that every client finds them. Does not check the size
 * (`payloadSize`). Throws `PayloadError`.
 */
export function shapedPayload(type: ContentType, given: JsonObject): JsonObject {
  const payload = checkedPayload(type, given);
  const texts = Object.entries(SHAPES[type].fields).filter(([, kind]) => kind === 'text');
  return { ...Object.fromEntries(texts.map(([name]) => [name, ''])), ...payload };
}

const known = (type: ContentType): string => `Fields of ${type}: ${fieldsOf(type).join(', ')}.`;

function expectLocation({ name, addr, lat, lng }: JsonObject): void {
  if ((lat === undefined) !== (lng === undefined))
    throw new PayloadError(lat === undefined ? 'lat' : 'lng', 'is missing: lat and lng come together');
  const named = [name, addr].some((value) => typeof value === 'string' && value !== '');
  if (!named && lat === undefined)
    throw new PayloadError('', 'of a location needs a name, an address, or lat and lng', known('location'));
  if (typeof lat === 'number' && Math.abs(lat) > 90) throw new PayloadError('lat', 'must be from -90 to 90');
  if (typeof lng === 'number' && Math.abs(lng) > 180) throw new PayloadError('lng', 'must be from -180 to 180');
}

function expectUrl(url: unknown): void {
  if (typeof url !== 'string' || !URL.canParse(url)) throw new PayloadError('url', 'is not an address');
}

/** A field of another device's payload as text; undefined where it is absent or has another type. */
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

/** One line that identifies an item in a list, unsanitized. Never contains a secret. */
export function titleOf(type: ContentType, payload: JsonObject | null): string {
  const parts = TITLE[type].flatMap((field) => fieldText(payload, field) || []);
  if (type === 'password')
    return parts.length === 2 ? `${parts[0] ?? ''} (${parts[1] ?? ''})` : (parts[0] ?? '(no name)');
  const first = parts[0] ?? ['lat', 'lng'].flatMap((field) => fieldText(payload, field) || []).join(', ');
  return (first.split('\n').find((line) => line.trim() !== '') ?? '(empty)').trim().slice(0, TITLE_MAX);
}

/** Largest payload in a blob, as JSON, in bytes: it is read into memory as a whole. */
export const PAYLOAD_MAX = 16 * 1024 * 1024;

/** A payload as JSON. Throws `CryptoRefusal` `too_large`. */
export function wholePayload(payload: PlainPayload): Uint8Array {
  const bytes = payloadBytes(payload);
  if (bytes.length > PAYLOAD_MAX)
    throw new CryptoRefusal('too_large', `a payload may have ${PAYLOAD_MAX} bytes: put it as a file`);
  return bytes;
}

/** Lengths to which texts are truncated, tried in order until the result fits. */
const CUTS = [1_000, 100, 10] as const;

/** The first characters of a text, without splitting a surrogate pair. */
const start = (text: string, length: number): string =>
  text.length <= length ? text : text.slice(0, length).replace(/[\ud800-\udbff]$/, '');

/**
 * The short form of a large payload, for display only: its fields with truncated texts. Nested fields are dropped, and
 * all fields if the result is still too large.
 */
export function cutPayload(payload: PlainPayload): JsonObject {
  const whole = payloadObject(payloadBytes(payload));
  for (const length of CUTS) {
    const fields = Object.entries(whole).flatMap(([name, value]): [string, unknown][] => {
      if (typeof value === 'string') return [[name, start(value, length)]];
      return typeof value === 'object' && value !== null ? [] : [[name, value]];
    });
    const cut = Object.fromEntries(fields);
    if (payloadBytes(cut).length <= PAYLOAD_INLINE_MAX / 4) return cut;
  }
  return {};
}

/** A type, and the fields derived from the content. */
export interface Detected {
  readonly type: ContentType;
  readonly payload: JsonObject;
}

/** A URL alone is a link, anything else a text. */
export function detectText(text: string): Detected {
  const trimmed = text.trim();
  if (/^https?:\/\/\S+$/i.test(trimmed) && URL.canParse(trimmed))
    return { type: 'link', payload: { url: trimmed, site: new URL(trimmed).hostname } };
  return { type: 'text', payload: { text } };
}

/** Of several matching types the first in this order is chosen. */
const LIKELIEST: readonly ContentType[] = [
  ...(['text', 'link', 'password', 'code', 'contact', 'location', 'file', 'image', 'video', 'audio'] as const),
];

/**
 * The type of a payload by its fields: it has all of them, and its main fields are present. `{text}` alone is decided
 * by the text (`detectText`). Throws `PayloadError` where no type has all of these fields.
 */
export function detectPayload(given: JsonObject): Detected {
  const names = Object.keys(given);
  const { text } = given;
  if (names.length === 1 && typeof text === 'string') return detectText(text);
  const fits = LIKELIEST.filter((type) => {
    const fields = fieldsOf(type);
    return names.every((name) => fields.includes(name)) && mainFields(type).every((name) => Object.hasOwn(given, name));
  });
  const type = names.length === 0 ? undefined : (fits.find((one) => isValid(one, given)) ?? fits[0]);
  if (type === undefined)
    throw new PayloadError(
      '',
      'has fields that no type has, and a type was not given',
      `Say which of the types it is: ${CONTENT_TYPES.join(', ')}.`,
    );
  return { type, payload: given };
}

/** True where the payload is valid for the type: a type for which it is comes before others that have these fields. */
function isValid(type: ContentType, given: JsonObject): boolean {
  try {
    shapedPayload(type, given);
    return true;
  } catch (error) {
    if (error instanceof PayloadError) return false;
    throw error;
  }
}
