/** A server with two devices and sockets of theirs, for the tests of the real-time channel. */
import { mustWrite, newItem, type TestDevice } from './devices.js';
import type { WithTeardown } from './postgres.js';
import { Scene } from './scene.js';
import type { RunOptions } from './server.js';
import type { Shape } from './wire.js';

/** Claims a fresh server and pairs a second device. */
export async function world(t: WithTeardown, options: RunOptions = {}) {
  const { server, wire, first, second, ids: all } = await Scene.start(t, options);
  return {
    ...{ server, wire, first, second, all },
    /** A socket of a device that said hello from the beginning. */
    live: async (device: TestDevice, { shape = 'a', acks = false }: { shape?: Shape; acks?: boolean } = {}) => {
      const socket = await wire.connect({ shape, token: device.token });
      await socket.hello(0, { acks });
      return socket;
    },
    /** Writes a new item and answers its version. */
    put: async (device: TestDevice) => mustWrite(wire, device, newItem(all)),
  };
}
