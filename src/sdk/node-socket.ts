/** The socket port bound to `ws`, for Node, which has no WebSocket of its own before version 22. */
import { WebSocket, type RawData } from 'ws';
import { FRAME_MAX, type OpenSocket, type SocketPort } from './platform.js';

const OPEN_WITHIN_MS = 20_000;
/** A peer that does not answer the closing handshake is cut off. */
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
    // `close` follows every `error` and tells the owner; without a listener the error would end the process.
    let failure = '';
    let retryAfter: number | undefined;
    socket.on('error', (error) => {
      failure ||= error.message;
    });
    // An answer to the upgrade that is none: what it says is noted, and the attempt is over.
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
