/** What a device behind the liar runs on. */
import { nodeSockets } from '../../src/client/node-socket.js';
import type { Platform } from '../../src/client/platform.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import { systemClock } from '../../src/protocol/clock.js';

/** The platform of the tests' own process; waits are shorter where chance may make them so. */
export const platform: Platform = {
  sodium: nodeSodium,
  fetch: async (url, init) => fetch(url, init),
  sockets: nodeSockets,
  clock: systemClock,
  random: () => 0,
};
