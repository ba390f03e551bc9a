/** The platform of Node. */
import type { Sodium } from '../crypto/sodium.js';
import { systemClock } from '../protocol/clock.js';
import { withCertificateErrors } from './node-certificate.js';
import {
  type Platform,
  type SendBody,
  type StreamedPut,
  FRAME_MAX,
  type OpenSocket,
  type SocketPort,
} from './platform.js';
import { asError, errorCode } from '../protocol/error-code.js';
import { request as requestHttp, type ClientRequest, type IncomingMessage } from 'node:http';
import { request as requestHttps } from 'node:https';
import { Readable } from 'node:stream';
import { WebSocket, type RawData } from 'ws';

/** The native module is not installed, or has no library for this system. */
const NOT_NATIVE: ReadonlySet<string> = new Set(['ERR_MODULE_NOT_FOUND', 'ADDON_NOT_FOUND', 'ERR_DLOPEN_FAILED']);

/** libsodium as a native module where there is one, which keeps slow calls off the main thread; else as WebAssembly. */
async function loadSodium(): Promise<Sodium> {
  try {
    return (await import('../crypto/sodium-node.js')).nodeSodium;
  } catch (error) {
    if (!NOT_NATIVE.has(errorCode(error))) throw error;
  }
  return (await import('../crypto/sodium-browser.js')).loadBrowserSodium();
}

/**
 * The platform of a device in Node: libsodium, `fetch`, WebSockets, the system clock. libsodium is that of the package
 * `sodium-native` where it is installed, else WebAssembly. Rejects where neither can be loaded.
 */
export const nodePlatform = async (): Promise<Platform> => ({
  sodium: await loadSodium(),
  fetch: withCertificateErrors((url, init) => fetch(url, init)),
  sendBody,
  sockets: nodeSockets,
  clock: systemClock,
  random: Math.random,
});

/** Statuses without a body. */
const EMPTY: ReadonlySet<number> = new Set([204, 205, 304]);

function responseOf(incoming: IncomingMessage): Response {
  const status = incoming.statusCode ?? 502;
  const headers = new Headers();
  for (const [name, values] of Object.entries(incoming.headersDistinct))
    for (const value of values ?? []) headers.append(name, value);
  if (!EMPTY.has(status)) return new Response(streamOf(incoming), { status, headers });
  incoming.resume();
  return new Response(null, { status, headers });
}

/** Node's types and those of the DOM declare the same class of streams twice. */
const streamOf = (incoming: IncomingMessage): ReadableStream<Uint8Array> =>
  Readable.toWeb(incoming) as unknown as ReadableStream<Uint8Array>;

/** Resolves when there is room again, or when the request has ended. */
const room = (outgoing: ClientRequest): Promise<void> =>
  new Promise((resolve) => {
    const end = (): void => {
      for (const name of ['drain', 'close', 'response'] as const) outgoing.off(name, end);
      resolve();
    };
    for (const name of ['drain', 'close', 'response'] as const) outgoing.on(name, end);
  });

/** Writes the body with backpressure, until the store has answered. */
async function feed(outgoing: ClientRequest, body: StreamedPut['body'], answered: () => boolean): Promise<void> {
  for await (const chunk of body) {
    if (answered() || outgoing.destroyed) return;
    if (!outgoing.write(chunk)) await room(outgoing);
  }
  outgoing.end();
}

/**
 * Not with `fetch`: unless it follows redirects it keeps a copy of a streamed body in memory. Follows no redirect.
 * Rejects with a `TypeError`, as `fetch` does.
 */
export const sendBody: SendBody = ({ url, headers, size, body, signal }) =>
  new Promise((resolve, reject) => {
    const request = url.startsWith('https:') ? requestHttps : requestHttp;
    const outgoing = request(url, { method: 'PUT', headers: { ...headers, 'content-length': size }, signal });
    let answered = false;
    outgoing.on('error', (cause) => reject(new TypeError('the upload was cut off', { cause })));
    // An answer that switches protocols ends the request without an error.
    outgoing.on('close', () => reject(new TypeError('the upload was cut off')));
    outgoing.on('response', (incoming) => {
      answered = true;
      // The rest of the body is not wanted, and the connection cannot be reused.
      if (!outgoing.writableEnded) incoming.on('close', () => outgoing.destroy());
      try {
        resolve(responseOf(incoming));
      } catch (cause) {
        // An invalid status (999): an exception thrown here would end the process.
        outgoing.destroy();
        reject(new TypeError('the store answers with something that is not HTTP', { cause }));
      }
    });
    feed(outgoing, body, () => answered).catch((error: unknown) => outgoing.destroy(asError(error)));
  });

const OPEN_WITHIN_MS = 20_000;
/** A peer that does not answer the closing handshake is disconnected after this. */
const CLOSE_WITHIN_MS = 2_000;

const textOf = (data: RawData): string =>
  Array.isArray(data) ? Buffer.concat(data).toString('utf8') : Buffer.from(data as ArrayBuffer).toString('utf8');

const secondsOf = (header: string | undefined): number | undefined =>
  header !== undefined && /^\d{1,9}$/.test(header) ? Number(header) : undefined;

/** WebSockets of Node. */
export const nodeSockets: SocketPort = {
  open(url, events): OpenSocket {
    const socket = new WebSocket(url, {
      handshakeTimeout: OPEN_WITHIN_MS,
      maxPayload: FRAME_MAX,
      perMessageDeflate: false,
      followRedirects: false,
    });
    socket.on('open', () => events.opened());
    socket.on('message', (data, isBinary) => {
      if (!isBinary) events.message(textOf(data));
    });
    // `close` follows every `error` and is reported; without a listener the error would end the process.
    let failure = '';
    let retryAfter: number | undefined;
    socket.on('error', (error) => {
      failure ||= error.message;
    });
    // The answer is no upgrade: its status is reported, and the attempt is over.
    socket.on('unexpected-response', (_, response) => {
      failure = `Unexpected server response: ${response.statusCode}`;
      retryAfter = secondsOf(response.headers['retry-after']);
      socket.terminate();
    });
    socket.on('close', (code, reason) =>
      events.closed(code, reason.length > 0 ? reason.toString('utf8') : failure, retryAfter),
    );
    return {
      send: (text) => {
        if (socket.readyState === WebSocket.OPEN) socket.send(text);
      },
      close: (code, reason) => {
        if (socket.readyState === WebSocket.CONNECTING) {
          socket.terminate();
          return;
        }
        socket.close(code, reason);
        setTimeout(() => socket.terminate(), CLOSE_WITHIN_MS).unref();
      },
      pause: () => {
        if (socket.readyState === WebSocket.OPEN) socket.pause();
      },
      resume: () => {
        if (socket.readyState === WebSocket.OPEN) socket.resume();
      },
    };
  },
};
