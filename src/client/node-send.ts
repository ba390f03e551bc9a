/** Streamed uploads of Node. */
import { ReadableStream } from 'node:stream/web';
import { UNNAMED } from './exchange.js';
import type { SendBody } from './platform.js';

/**
 * `fetch` takes a body that it can iterate. With a `content-length` of ours it sends that many bytes as they are, and
 * rejects where they are fewer or more; without one it would send them chunked, which stores refuse.
 */
export const sendBody: SendBody = ({ url, headers, size, body, signal }) => {
  const init: RequestInit & { readonly duplex: 'half' } = {
    ...UNNAMED,
    method: 'PUT',
    headers: { ...headers, 'content-length': String(size) },
    // The types know the browsers' streams only; this is the same class.
    body: ReadableStream.from(body) as unknown as BodyInit,
    duplex: 'half',
    signal,
  };
  return fetch(url, init);
};
