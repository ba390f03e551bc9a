/** JSON objects as encrypted plaintext: item payloads and bin meta. */
import { isObject, parsedJson, text, utf8Text } from '../protocol/bytes.js';
import { CryptoRefusal } from './refusal.js';

/** Any JSON object; its values are not checked here. */
export type JsonObject = Readonly<Record<string, unknown>>;

/**
 * Levels of objects and arrays in a payload, counting itself. `JSON.parse` accepts any number, but recursive code such
 * as `JSON.stringify` overflows the stack at some thousands: one such item would break every listing.
 */
export const PAYLOAD_DEPTH_MAX = 64;

/**
 * True if JSON text is nested deeper than `levels`. Scans the text, since walking the value would recurse. `codeAt`:
 * the text's bytes or characters. Exact for valid JSON; arbitrary for anything else.
 */
export function nestedDeeper(levels: number, length: number, codeAt: (at: number) => number | undefined): boolean {
  let depth = 0;
  let quoted = false;
  for (let at = 0; at < length; at++) {
    const code = codeAt(at);
    if (quoted) {
      if (code === BACKSLASH) at++;
      else if (code === QUOTE) quoted = false;
    } else if (code === QUOTE) quoted = true;
    else if (code === OPEN_OBJECT || code === OPEN_ARRAY) {
      if (++depth > levels) return true;
    } else if (code === CLOSE_OBJECT || code === CLOSE_ARRAY) depth--;
  }
  return false;
}

const [QUOTE, BACKSLASH, OPEN_OBJECT, CLOSE_OBJECT, OPEN_ARRAY, CLOSE_ARRAY] = [0x22, 0x5c, 0x7b, 0x7d, 0x5b, 0x5d];

function expectDepth(bytes: Uint8Array): Uint8Array {
  if (nestedDeeper(PAYLOAD_DEPTH_MAX, bytes.length, (at) => bytes[at]))
    throw new CryptoRefusal('bad_payload', `the payload has more than ${PAYLOAD_DEPTH_MAX} levels`);
  return bytes;
}

/**
 * Plaintext bytes: the JSON text of an object; bytes are JSON text already. Throws `bad_payload` for a value without
 * JSON text, and for more than `PAYLOAD_DEPTH_MAX` levels, which no device would show.
 */
export const payloadBytes = (payload: JsonObject | Uint8Array): Uint8Array =>
  expectDepth(payload instanceof Uint8Array ? payload : text(jsonOf(payload)));

function jsonOf(payload: JsonObject): string {
  try {
    return JSON.stringify(payload);
  } catch {
    // Too many levels, a cycle, a bigint. The engine's message could quote the content.
    throw new CryptoRefusal('bad_payload', 'the payload cannot be written as JSON');
  }
}

/**
 * Decrypted bytes as a JSON object. Throws `bad_payload` for anything else: not UTF-8, not JSON, not an object, more
 * than `PAYLOAD_DEPTH_MAX` levels.
 */
export function payloadObject(bytes: Uint8Array): JsonObject {
  expectDepth(bytes);
  // Without the parser's own message, which would quote the plaintext.
  const refuse = (): Error => new CryptoRefusal('bad_payload', 'the payload is not JSON text in UTF-8');
  const json = utf8Text(bytes);
  if (json === undefined) throw refuse();
  const value = parsedJson(json, refuse);
  if (!isObject(value)) throw new CryptoRefusal('bad_payload', 'the payload is not a JSON object');
  return value;
}
