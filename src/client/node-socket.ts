/** The socket port bound to `ws`, for Node, which has no WebSocket of its own before version 22. */
import { WebSocket, type RawData } from 'ws';
import type { OpenSocket, SocketPort } from './platform.js';

/** No frame of the contract comes near this: an item is at most 64 KB of ciphertext and 1,000 keys. */
const FRAME_MAX = 8 * 1024 * 1024;
const OPEN_WITHIN_MS = 20_000;
/** A peer that does not answer the closing handshake is cut off. */
const CLOSE_WITHIN_MS = 2_000;

const textOf = (data: RawData): string =>
  Array.isArray(data) ? Buffer.concat(data).toString('utf8') : Buffer.from(data as ArrayBuffer).toString('utf8');

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
    socket.on('error', (error) => {
      failure = error.message;
    });
    socket.on('close', (code, reason) => events.closed(code, reason.length > 0 ? reason.toString('utf8') : failure));
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
