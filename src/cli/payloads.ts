/** Payloads from the command line: parsed, and validated against the shapes of the reference (Content types). */
import {
  PAYLOAD_MAX,
  fieldsOf,
  fieldText,
  holdsFile,
  isSecretField,
  kindOf,
  mainFields,
  PAYLOAD_INLINE_MAX,
  PayloadError,
  payloadSize,
  shapedPayload,
} from '../sdk/payloads/shapes.js';
import type { JsonObject } from '../crypto/payload.js';
import { isVisible } from '../protocol/ids.js';
import { CONTENT_TYPES, isContentType, type ContentType } from '../protocol/item.js';
import { CommandError, EXIT } from '../terminal/terminal.js';

const bad = (message: string, hint?: string): CommandError =>
  new CommandError(EXIT.usage, message, hint, { code: 'bad_payload' });

/** The error of content that cannot be the text of an item. */
export const notText = (what: string): CommandError =>
  new CommandError(
    EXIT.usage,
    `${what}: a text is UTF-8, and has at most ${PAYLOAD_MAX} bytes`,
    'Put it as a file: --type file --file <path>.',
    { code: 'no_text' },
  );

/** A content type. Throws `CommandError` `usage` for an unknown one. */
export function contentType(text: string): ContentType {
  if (isContentType(text)) return text;
  throw bad(`there is no type "${text.slice(0, 40)}"`, `Types: ${CONTENT_TYPES.join(', ')}.`);
}

/** `name=value` pairs as a payload's fields; numbers are parsed. */
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
 * Validates a payload against its type's shape (`shapedPayload`). `of.file`: it describes a file. Throws `CommandError` with
 * code `bad_payload` (naming the field, never its value), `needs_file` or `no_text`.
 */
export function shaped(type: ContentType, given: JsonObject, of: { readonly file?: boolean } = {}): JsonObject {
  const file = holdsFile(type);
  if (file && of.file !== true) throw needsFile(type);
  const payload = inShape(type, given);
  for (const name of mainFields(type))
    if (!isSecretField(type, name) && !isVisible(fieldText(payload, name) ?? ''))
      throw bad(`${name} is empty or blank`);
  const bytes = payloadSize(payload);
  const room = file ? PAYLOAD_INLINE_MAX : PAYLOAD_MAX;
  if (bytes > room) throw notText(`${bytes} bytes are more than the ${room} that a ${type} holds`);
  return payload;
}

const needsFile = (type: ContentType): CommandError =>
  new CommandError(EXIT.usage, `type ${type} is a file`, `Give it with --file <path>, or pipe it in with --file -.`, {
    code: 'needs_file',
  });

function inShape(type: ContentType, given: JsonObject): JsonObject {
  try {
    return shapedPayload(type, given);
  } catch (error) {
    throw error instanceof PayloadError ? bad(error.message, error.hint) : error;
  }
}
