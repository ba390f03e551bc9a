/** What kind of content something is of which nobody said it. Pure. */
import type { JsonObject } from '../../crypto/payload.js';
import { CONTENT_TYPES, type ContentType } from '../../protocol/item.js';
import { fieldsOf, mainFields, PayloadError, shapedPayload } from './shapes.js';

/** A type, and the fields that follow from the content. */
export interface Detected {
  readonly type: ContentType;
  readonly payload: JsonObject;
}

/** An address alone is a link, anything else a text. */
export function textDetected(text: string): Detected {
  const trimmed = text.trim();
  if (/^https?:\/\/\S+$/i.test(trimmed) && URL.canParse(trimmed)) {
    return { type: 'link', payload: { url: trimmed, site: new URL(trimmed).hostname } };
  }
  return { type: 'text', payload: { text } };
}

/** Of several types that fit, the first of these that does: what a payload of so few fields most likely is. */
const LIKELIEST: readonly ContentType[] = [
  ...(['text', 'link', 'password', 'code', 'contact', 'location', 'file', 'image', 'video', 'audio'] as const),
];

/**
 * The type of a payload by its fields: one that has all of them and whose main ones are there. `{text}` alone goes by
 * the text (`textDetected`). Throws `PayloadError` where no type has all of these fields.
 */
export function payloadDetected(given: JsonObject): Detected {
  const names = Object.keys(given);
  const { text } = given;
  if (names.length === 1 && typeof text === 'string') return textDetected(text);
  const fits = LIKELIEST.filter((type) => {
    const fields = fieldsOf(type);
    return names.every((name) => fields.includes(name)) && mainFields(type).every((name) => Object.hasOwn(given, name));
  });
  const type = names.length === 0 ? undefined : (fits.find((one) => isSound(one, given)) ?? fits[0]);
  if (type === undefined)
    throw new PayloadError(
      '',
      'has fields that no type has, and a type was not given',
      `Say which of the types it is: ${CONTENT_TYPES.join(', ')}.`,
    );
  return { type, payload: given };
}

/** Fields of the right kind decide between types that share a name. */
function isSound(type: ContentType, given: JsonObject): boolean {
  try {
    shapedPayload(type, given);
    return true;
  } catch (error) {
    if (error instanceof PayloadError) return false;
    throw error;
  }
}
