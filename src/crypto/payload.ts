/** JSON objects as encrypted plaintext: item payloads (contract 7) and bin meta (contract 6). */
import { text } from '../protocol/bytes.js';
import { CryptoRefusal } from './refusal.js';

/** Any object of JSON; its values are not looked at here. */
export type JsonObject = Readonly<Record<string, unknown>>;

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Plaintext bytes: of an object its JSON text, of bytes (JSON text made by the caller) themselves. */
export const payloadBytes = (payload: JsonObject | Uint8Array): Uint8Array =>
  payload instanceof Uint8Array ? payload : text(JSON.stringify(payload));

/** Decrypted bytes as a JSON object. Throws `bad_payload` for anything else: no UTF-8, no JSON, no object. */
export function payloadObject(bytes: Uint8Array): JsonObject {
  let value: unknown;
  try {
    value = JSON.parse(utf8.decode(bytes));
  } catch {
    // The parser's message would quote the plaintext.
    throw new CryptoRefusal('bad_payload', 'the payload is not JSON text in UTF-8');
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new CryptoRefusal('bad_payload', 'the payload is not a JSON object');
  }
  return value as JsonObject;
}
