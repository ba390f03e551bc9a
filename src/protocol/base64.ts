/**
 * Base64 on the wire (reference, HTTP, The two shapes): decodes either alphabet, padded or not; encodes in the shape's
 * alphabet.
 */

/** True in Node, which has a native codec: 64 KB take 42 us, against 790 us with a regular expression. */
const native = typeof Buffer === 'function' && typeof Buffer.from === 'function';

/** The number of bytes that a base64 text encodes, or -1 if its length is impossible. Padding is complete or absent. */
function base64Length(value: string): number {
  let chars = value.length;
  if (chars > 0 && value.charCodeAt(chars - 1) === 61) {
    if (chars % 4 !== 0) return -1;
    chars -= value.charCodeAt(chars - 2) === 61 ? 2 : 1;
  }
  return chars % 4 === 1 ? -1 : Math.floor((chars * 3) / 4);
}

/** Node decodes either alphabet under either name, but four times as fast under the matching one. */
const alphabetOf = (value: string): 'base64' | 'base64url' =>
  value.includes('+') || value.includes('/') ? 'base64' : 'base64url';

/**
 * Decodes base64 or base64url, padded or not. Undefined for anything else: white space, other characters, a wrong
 * length.
 */
export function decodeBase64(value: string): Uint8Array | undefined {
  const length = base64Length(value);
  if (length < 0) return undefined;
  if (native) {
    // Buffer skips invalid characters, which then show as missing bytes. It may map characters beyond ASCII into the
    // alphabet, but those are longer in UTF-8.
    const bytes = Buffer.from(value, alphabetOf(value));
    return bytes.length === length && Buffer.byteLength(value) === value.length ? bytes : undefined;
  }
  if (!/^[A-Za-z0-9+/_-]*={0,2}$/.test(value)) return undefined;
  return Uint8Array.from(atob(value.replaceAll('-', '+').replaceAll('_', '/')), (char) => char.charCodeAt(0));
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** Base64url without padding: shape A. */
export function toBase64Url(bytes: Uint8Array): string {
  if (native) return asBuffer(bytes).toString('base64url');
  return toBase64(bytes).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '');
}

/** Standard base64 with padding: shape B. */
export function toBase64(bytes: Uint8Array): string {
  if (native) return asBuffer(bytes).toString('base64');
  // Not a single call of `fromCharCode`: large arrays exceed the limit on arguments.
  let binary = '';
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary);
}
