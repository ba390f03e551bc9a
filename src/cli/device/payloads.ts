/** Payloads as they are typed on a command line: read, held against the shapes of contract 7, refused in its words. */
import {
  fieldsOf,
  isBlobType,
  kindOf,
  PAYLOAD_MAX,
  PayloadError,
  payloadSize,
  shapedPayload,
} from '../../client/payload-shapes.js';
import type { JsonObject } from '../../crypto/payload.js';
import { CONTENT_TYPES, isContentType, type ContentType } from '../../protocol/item.js';
import { CommandError, EXIT } from './terminal.js';

const bad = (message: string, hint?: string): CommandError =>
  new CommandError(EXIT.usage, message, hint, { code: 'bad_payload' });

/** Said of everything that would need a blob. */
export const needsBlob = (what: string): CommandError =>
  new CommandError(
    EXIT.usage,
    `${what}: files of that kind come with blob storage, which this version does not have yet`,
    `Texts up to ${PAYLOAD_MAX} bytes can be put.`,
    { code: 'needs_blob' },
  );

/** A type as typed. Throws `CommandError` `usage` for one outside the ten. */
export function contentType(text: string): ContentType {
  if (isContentType(text)) return text;
  throw bad(`there is no type "${text.slice(0, 40)}"`, `Types: ${CONTENT_TYPES.join(', ')}.`);
}

/** `name=value` pairs as a payload's fields, numbers read as such. */
export function assigned(type: ContentType, pairs: readonly string[]): JsonObject {
  const fields: [string, unknown][] = pairs.map((pair) => {
    const at = pair.indexOf('=');
    if (at < 1) throw bad('--set takes name=value', `For example: --set ${fieldsOf(type)[0] ?? 'name'}=...`);
    const name = pair.slice(0, at);
    const value = pair.slice(at + 1);
    if (kindOf(type, name) !== 'number') return [name, value];
    const number = value.trim() === '' ? NaN : Number(value);
    if (!Number.isFinite(number)) throw bad(`${name} must be a number`);
    return [name, number];
  });
  return Object.fromEntries(fields);
}

/**
 * A payload in its type's shape (`shapedPayload`). Throws `CommandError` code `bad_payload`, naming the field and never
 * its value, or `needs_blob`.
 */
export function shaped(type: ContentType, given: JsonObject): JsonObject {
  if (isBlobType(type)) throw needsBlob(`type ${type}`);
  const payload = inShape(type, given);
  const bytes = payloadSize(payload);
  if (bytes > PAYLOAD_MAX) throw needsBlob(`${bytes} bytes are more than an item holds`);
  return payload;
}

function inShape(type: ContentType, given: JsonObject): JsonObject {
  try {
    return shapedPayload(type, given);
  } catch (error) {
    throw error instanceof PayloadError ? bad(error.message, error.hint) : error;
  }
}
