/** Helpers for bytes, text and JSON that run in Node and in browsers. */

const utf8 = new TextEncoder();

/** Text as UTF-8 bytes. */
export const text = (value: string): Uint8Array => utf8.encode(value);

/** Keeps a byte order mark: a text must come back byte for byte. */
const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** UTF-8 bytes as text; undefined for other bytes. */
export function utf8Text(bytes: Uint8Array): string | undefined {
  try {
    return strict.decode(bytes);
  } catch {
    return undefined;
  }
}

export function concat(parts: readonly Uint8Array[]): Uint8Array {
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

/**
 * LP(x1..xn): each part as a u32 big-endian length, then its bytes (reference, Cryptography).
 * Injective: a signature over an LP cannot be valid for another list.
 */
export function lengthPrefixed(...parts: readonly (string | Uint8Array)[]): Uint8Array {
  const raw = parts.map((part) => (typeof part === 'string' ? text(part) : part));
  const out = new Uint8Array(raw.reduce((sum, part) => sum + 4 + part.length, 0));
  const view = new DataView(out.buffer);
  let at = 0;
  for (const part of raw) {
    view.setUint32(at, part.length);
    out.set(part, at + 4);
    at += 4 + part.length;
  }
  return out;
}

/** Bytes as a string with one character per byte: a compact key, where many are kept. */
export const byteText = (bytes: Uint8Array): string =>
  // Spreading would use an iterator, which takes several times as long.
  String.fromCharCode.apply(null, bytes as unknown as number[]);

/** Compares raw bytes, for `sort`: the order of device ids in a blob item's tag (reference, Cryptography). */
export function compareBytes(a: Uint8Array, b: Uint8Array): number {
  const shared = Math.min(a.length, b.length);
  for (let i = 0; i < shared; i++) {
    const difference = (a[i] ?? 0) - (b[i] ?? 0);
    if (difference !== 0) return difference;
  }
  return a.length - b.length;
}

/** Not constant time: for public values only. */
export const equalBytes = (a: Uint8Array, b: Uint8Array): boolean => compareBytes(a, b) === 0;

/** True for an object of JSON, as opposed to a list or null. */
export const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** The value of JSON text. Throws what `refuse` makes of the error of any other text. */
export function parsedJson(json: string, refuse: (cause: unknown) => Error): unknown {
  try {
    return JSON.parse(json);
  } catch (cause) {
    throw refuse(cause);
  }
}

/** A collection is suggested after so many discarded bytes, by an allocation of the other size. */
const DISCARDED_BYTES = 8 * 1024 * 1024;
const UNTOUCHED_BYTES = 64 * 1024 * 1024;
let discarded = 0;

/**
 * Counts bytes that the platform has copied or taken over (chunks of a stream, the body of a `fetch`), and suggests
 * collections to V8: it does not count such memory, so that dead copies of a large file pile up to hundreds of MiB. A
 * buffer of its own is counted, and takes no memory until it is touched.
 */
export function discard(bytes: number): void {
  // Node counts these copies itself. There each collection would only stop the program, for as long as its heap is large.
  if ('process' in globalThis) return;
  discarded += bytes;
  if (discarded < DISCARDED_BYTES) return;
  discarded = 0;
  try {
    void new ArrayBuffer(UNTOUCHED_BYTES);
  } catch {
    // Where there is no room even for this, V8 has collected before it failed.
  }
}
