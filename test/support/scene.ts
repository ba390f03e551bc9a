/** The usual scene of a black-box test: a claimed server, two devices, sockets that watch. */
import type { Test } from 'tap';
import { claim, join, mustWrite, newItem, type TestDevice, type TestItem } from './devices.js';
import { runServer, type RunOptions, type Running } from './server.js';
import type { WithTeardown } from './postgres.js';
import type { Ask, Json, Reply, Shape, Socket, Wire } from './wire.js';

export class Scene {
  private constructor(
    readonly server: Running,
    readonly first: TestDevice,
    readonly second: TestDevice,
  ) {}

  /** `more`: fields of the first device's claim. */
  static async start(t: WithTeardown, options: RunOptions = {}, more: Json = {}): Promise<Scene> {
    const server = await runServer(t, options);
    const first = await claim(server.wire, more);
    return new Scene(server, first, await join(server.wire, first, { name: 'second' }));
  }

  get wire(): Wire {
    return this.server.wire;
  }

  /** Both devices' ids. */
  get ids(): string[] {
    return [this.first.id, this.second.id];
  }

  /** What the first device asks with. */
  as(shape: Shape, device: TestDevice = this.first): Ask {
    return { token: device.token, shape };
  }

  /** A valid item for both devices. */
  item(more: Partial<TestItem> = {}): TestItem {
    return newItem(this.ids, more);
  }

  /** An item that is written by the first device. */
  async written(more: Partial<TestItem> = {}): Promise<TestItem & { readonly version: number }> {
    const item = this.item(more);
    return { ...item, version: await mustWrite(this.wire, this.first, item) };
  }

  /** A socket of a device (the second by default) that has caught up. */
  async watch(device: TestDevice = this.second, shape: Shape = 'a'): Promise<Socket> {
    const socket = await this.wire.connect({ token: device.token, shape });
    await socket.hello(await this.head());
    return socket;
  }

  async head(): Promise<number> {
    return (await this.me()).number('server.headVersion');
  }

  async me(): Promise<Reply> {
    return this.wire.get('/me', this.as('a'));
  }

  /** The row of an item as a shape gives it; undefined where there is none. */
  async row(id: string, shape: Shape = 'a'): Promise<Json | undefined> {
    return (await this.rows(shape)).find((row) => row['id'] === id);
  }

  /** All rows above `since`. */
  async rows(shape: Shape = 'a', since = 0): Promise<Json[]> {
    const out: Json[] = [];
    for (let from = since; ; from = Number(out.at(-1)?.['version'])) {
      const reply = await this.wire.get(`/items?since=${from}&limit=1000`, this.as(shape));
      out.push(...reply.list('items'));
      if (reply.at(shape === 'a' ? 'hasMore' : 'has_more') !== true) return out;
    }
  }

  /** Proves that `work` pushed nothing to `socket` (of the second device) and took no version. */
  async quietly<T>(t: Test, socket: Socket, work: () => Promise<T>): Promise<T> {
    const head = await this.head();
    const result = await work();
    const marker = await this.written();
    t.equal(marker.version, head + 1, 'no version was taken');
    const frame = await socket.next();
    t.equal(frame['id'] ?? (frame['item'] as Json | undefined)?.['id'], marker.id, 'nothing was pushed');
    return result;
  }
}
