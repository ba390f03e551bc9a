/** Payloads that do not fit into an item: the whole goes into a blob, and a short form of it stays beside. */
import { payloadBytes, payloadObject, type JsonObject } from '../../crypto/payload.js';
import type { PlainPayload } from '../../crypto/item.js';
import { CryptoRefusal } from '../../crypto/refusal.js';
import { PAYLOAD_INLINE_MAX } from './shapes.js';

/** Bytes of JSON that a payload in a blob may have: it is held as a whole by whoever reads it. */
export const PAYLOAD_MAX = 16 * 1024 * 1024;

/** A payload as JSON. Throws `CryptoRefusal` `too_large`. */
export function wholePayload(payload: PlainPayload): Uint8Array {
  const bytes = payloadBytes(payload);
  if (bytes.length > PAYLOAD_MAX)
    throw new CryptoRefusal('too_large', `a payload may have ${PAYLOAD_MAX} bytes: put it as a file`);
  return bytes;
}

/** Characters of a text that is cut; tried one after the other until the whole fits. */
const CUTS = [1_000, 100, 10] as const;

/** Not through the middle of a character: half of one is no Unicode. */
const start = (text: string, length: number): string =>
  text.length <= length ? text : text.slice(0, length).replace(/[\ud800-\udbff]$/, '');

/**
 * The short form: the same fields with their texts cut, so that a list has something to show. What is nested, and where
 * that does not help everything, is left out: this is shown, and never what the item says.
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
