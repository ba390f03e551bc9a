/** Archives in memory. */
import type { ByteSink, ByteSource } from '../../src/sdk/archive/archive.js';

/** Reads from bytes. */
export function bytesSource(bytes: Uint8Array): ByteSource {
  let at = 0;
  return {
    read: (length) => {
      const part = bytes.slice(at, at + length);
      at += part.length;
      return Promise.resolve(part);
    },
  };
}

/** Gathers what is written. */
export function bytesSink(): { readonly sink: ByteSink; readonly written: () => Uint8Array } {
  const parts: Uint8Array[] = [];
  return {
    sink: (bytes) => {
      parts.push(bytes.slice());
      return Promise.resolve();
    },
    written: () => new Uint8Array(Buffer.concat(parts)),
  };
}
