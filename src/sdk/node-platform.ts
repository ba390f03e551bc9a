/** The platform of Node. */
import { ReadableStream } from 'node:stream/web';
import { WebSocket, type RawData } from 'ws';
import type { Sodium } from '../crypto/sodium.js';
import { systemClock } from '../protocol/clock.js';
import { errorCode } from '../protocol/error-code.js';
import { retryAfterSeconds } from '../protocol/retry-after.js';
import { withCertificateErrors } from './node-certificate.js';
import { CLOSE_WITHIN_MS, OPEN_WITHIN_MS, SERVER_FRAME_MAX, type OpenSocket, type Platform } from './platform.js';

/** Error codes of the import if the native module is not installed, or has no library for this system. */
const NOT_NATIVE: ReadonlySet<string> = new Set(['ERR_MODULE_NOT_FOUND', 'ADDON_NOT_FOUND', 'ERR_DLOPEN_FAILED']);

/** libsodium: the native module if it can be loaded, which runs slow calls off the main thread; else WebAssembly. */
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
  fetch: withCertificateErrors((url, init) => fetch(url, inPieces(init))),
  sockets: nodeSockets,
  clock: systemClock,
  random: Math.random,
});

/** Larger bodies are sent piece by piece, bytes. */
const PIECE_BYTES = 64 * 1024;

/**
 * A request whose large body is not copied: `fetch` copies the bytes that it is given, and the copies of a file's parts
 * wait for a collection, up to a hundred MiB of them. The length is named, since stores refuse a body without one.
 */
function inPieces(init: RequestInit): RequestInit {
  const { body } = init;
  if (!(body instanceof Uint8Array) || body.length <= PIECE_BYTES) return init;
  const headers = { ...(init.headers as Record<string, string>), 'content-length': String(body.length) };
  const pieces = ReadableStream.from(piecesOf(body)) as unknown as BodyInit;
  return { ...init, ...{ headers, duplex: 'half' }, body: pieces };
}

function* piecesOf(bytes: Uint8Array): Generator<Uint8Array, void, undefined> {
  for (let at = 0; at < bytes.length; at += PIECE_BYTES) yield bytes.subarray(at, at + PIECE_BYTES);
}

const textOf = (data: RawData): string =>
  Array.isArray(data) ? Buffer.concat(data).toString('utf8') : Buffer.from(data as ArrayBuffer).toString('utf8');

/** WebSockets of Node. */
export const nodeSockets: Platform['sockets'] = {
  open(url, events): OpenSocket {
    const socket = new WebSocket(url, {
      handshakeTimeout: OPEN_WITHIN_MS,
      maxPayload: SERVER_FRAME_MAX,
      perMessageDeflate: false,
      followRedirects: false,
    });
    socket.on('open', () => events.opened());
    socket.on('message', (data, isBinary) => {
      if (!isBinary) events.message(textOf(data));
    });
    let failure = '';
    let retryAfter: number | undefined;
    // `close` follows every `error` and is reported; without a listener the error would end the process.
    socket.on('error', (error) => {
      failure ||= error.message;
    });
    // The reply is not an upgrade: its status is reported, and the attempt ends.
    socket.on('unexpected-response', (_, response) => {
      failure = `Unexpected server response: ${response.statusCode}`;
      retryAfter = retryAfterSeconds(response.headers['retry-after']);
      socket.terminate();
    });
    socket.on('close', (code, reason) =>
      events.closed(code, reason.length > 0 ? reason.toString('utf8') : failure, retryAfter),
    );
    const ifOpen = (act: () => void): void => {
      if (socket.readyState === WebSocket.OPEN) act();
    };
    return {
      send: (text) => ifOpen(() => socket.send(text)),
      close: (code, reason) => {
        if (socket.readyState === WebSocket.CONNECTING) return socket.terminate();
        socket.close(code, reason);
        setTimeout(() => socket.terminate(), CLOSE_WITHIN_MS).unref();
      },
      pause: () => ifOpen(() => socket.pause()),
      resume: () => ifOpen(() => socket.resume()),
    };
  },
};
