/**
 * How deep and how large JSON is, found out on its bytes. A parser builds an object for every two bytes of `[[[[...`,
 * and holds everybody up while it does; this looks at each byte once and builds nothing.
 */

/** Objects and lists inside one another at most. */
export const JSON_DEPTH_MAX = 32;
/** Names and values at most. The largest honest batch, 1 MiB for 100 devices, has about 16,000. */
export const JSON_COUNT_MAX = 32_768;

/** Which bound a text is beyond. */
export type JsonExcess = 'depth' | 'count';

const QUOTE = 0x22;
const BACKSLASH = 0x5c;

/** What a byte outside of strings means. What is none of these is part of a number, `true`, `false` or `null`. */
const BETWEEN = 1;
const OPENS = 2;
const CLOSES = 3;
const KINDS = new Uint8Array(256);
for (const byte of [0x20, 0x09, 0x0a, 0x0d, 0x2c, 0x3a]) KINDS[byte] = BETWEEN;
for (const byte of [0x5b, 0x7b]) KINDS[byte] = OPENS;
for (const byte of [0x5d, 0x7d]) KINDS[byte] = CLOSES;
KINDS[QUOTE] = 4;

/** Where the string ends whose first byte is at `start`: behind its closing quote, or at the end of the bytes. */
function endOfString(bytes: Buffer, start: number): number {
  const { length } = bytes;
  let at = bytes.indexOf(QUOTE, start);
  if (at < 0) return length;
  let escapes = 0;
  while (at - escapes > start && bytes[at - escapes - 1] === BACKSLASH) escapes++;
  if (escapes % 2 === 0) return at + 1;
  // From an escaped quote on byte by byte: a string of nothing else would cost a search for each.
  for (at++; at < length; at++) {
    const byte = bytes[at];
    if (byte === QUOTE) return at + 1;
    if (byte === BACKSLASH) at++;
  }
  return length;
}

/**
 * Whether JSON is beyond the bounds; undefined where it is not. Every name and every value counts, lists and objects
 * too. Of bytes that are no JSON the answer means nothing but that a parser may be asked.
 */
export function jsonExcess(bytes: Buffer): JsonExcess | undefined {
  const { length } = bytes;
  let depth = 0;
  let count = 0;
  for (let at = 0; at < length;) {
    const byte = bytes[at++] ?? 0;
    const kind = KINDS[byte];
    if (kind === BETWEEN) continue;
    if (kind === CLOSES) {
      depth--;
      continue;
    }
    if (++count > JSON_COUNT_MAX) return 'count';
    if (byte === QUOTE) at = endOfString(bytes, at);
    else if (kind === OPENS) {
      if (++depth > JSON_DEPTH_MAX) return 'depth';
    } else while (at < length && KINDS[bytes[at] ?? 0] === 0) at++;
  }
  return undefined;
}
