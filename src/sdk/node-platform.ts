/** Everything of Node that a client touches. */
import { nodeSodium } from '../crypto/sodium-node.js';
import { systemClock } from '../protocol/clock.js';
import { certificateTold } from './node-certificate.js';
import { sendBody } from './node-send.js';
import { nodeSockets } from './node-socket.js';
import type { Platform } from './platform.js';

/** What a device in Node runs on: libsodium as a native module, `fetch`, WebSockets, the system's clock. */
export const nodePlatform = (): Platform => ({
  sodium: nodeSodium,
  fetch: certificateTold((url, init) => fetch(url, init)),
  sendBody,
  sockets: nodeSockets,
  clock: systemClock,
  random: Math.random,
});
