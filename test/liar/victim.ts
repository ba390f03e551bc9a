/** The platform of a device behind the liar. */
import { nodeSockets } from '../../src/sdk/node-platform.js';
import type { Platform } from '../../src/sdk/platform.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import { systemClock, type Clock } from '../../src/protocol/clock.js';

/** Waits below this are pauses between attempts and are shortened; longer ones are timeouts and stay. */
const PAUSE_MAX_MS = 5_000;

/** The system's clock with short pauses, whose length is tested elsewhere. */
const hurried: Clock = {
  now: () => systemClock.now(),
  setTimer: (ms, callback) => systemClock.setTimer(ms < PAUSE_MAX_MS ? ms / 20 : ms, callback),
};

/** The platform of the tests' own process. */
export const platform: Platform = {
  sodium: nodeSodium,
  fetch: async (url, init) => fetch(url, init),
  sockets: nodeSockets,
  clock: hurried,
  random: () => 0,
};
