/** A server with two devices and sockets of theirs, for the tests of the real-time channel. */
import { mustWrite, newItem, type TestDevice } from './devices.js';
import type { WithTeardown } from './postgres.js';
import { Scene } from './scene.js';
import type { RunOptions, Running } from './server.js';
import type { Shape, Socket, Wire } from './wire.js';

interface World {
  readonly server: Running;
  readonly wire: Wire;
  readonly first: TestDevice;
  readonly second: TestDevice;
  readonly all: string[];
  /** A socket of a device that said hello at the head. */
  live(device: TestDevice, options?: { shape?: Shape; acks?: boolean }): Promise<Socket>;
  /** Writes a new item and answers its version. */
  put(device: TestDevice): Promise<number>;
}

/** Claims a fresh server and pairs a second device. */
export async function world(t: WithTeardown, options: RunOptions = {}): Promise<World> {
  const { server, wire, first, second, ids: all } = await Scene.start(t, options);
  return {
    server,
    wire,
    first,
    second,
    all,
    async live(device, { shape = 'a', acks = false } = {}) {
      const socket = await wire.connect({ shape, token: device.token });
      await socket.hello(0, { acks });
      return socket;
    },
    put: async (device) => mustWrite(wire, device, newItem(all)),
  };
}
