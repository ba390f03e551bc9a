/** A device of the client library that dials a liar instead of its server. */
import { Device } from '../../src/client/device.js';
import type { Identity } from '../../src/client/identity.js';
import { nodeSockets } from '../../src/client/node-socket.js';
import type { Platform } from '../../src/client/platform.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import { systemClock } from '../../src/protocol/clock.js';
import type { Liar } from './liar.js';
import type { WithTeardown } from './postgres.js';

/** The platform of the tests' own process. */
export const platform: Platform = {
  sodium: nodeSodium,
  fetch: async (url, init) => fetch(url, init),
  sockets: nodeSockets,
  clock: systemClock,
  random: Math.random,
};

export interface Victim {
  readonly device: Device;
  readonly problems: Error[];
}

/** Opens a device that dials the liar. */
export async function victim(t: WithTeardown, liar: Liar, identity: Identity): Promise<Victim> {
  const problems: Error[] = [];
  const own = { ...identity, serverUrl: liar.url };
  const device = await Device.open({ platform, identity: own, onProblem: (error) => problems.push(error) });
  t.teardown(() => device.close());
  return { device, problems };
}
