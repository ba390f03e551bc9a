/** Attacks by sockets on a server that other tenants use, with the judge that measures what those notice. */
import { randomBytes } from 'node:crypto';
import type { Test } from 'tap';
import { join, newItem, writeBody, type TestDevice } from './devices.js';
import { until } from './events.js';
import type { Neighbour } from './hosted.js';
import { Judge, hostedServer, type HostedServer } from './judge.js';
import { SlowSocket } from './slow.js';
import { range } from './stream.js';

/** Sockets that a device may have. */
export const PER_DEVICE = 16;

/** A hosted server, an honest tenant with its judge, and a greedy one. */
export interface Stage {
  readonly place: HostedServer;
  readonly judge: Judge;
  readonly greedy: Neighbour;
  readonly devices: readonly TestDevice[];
}

/** A server with the limits that it has by default, but for those that only make a test slow. */
export async function stage(t: Test, count: number): Promise<Stage> {
  const place = await hostedServer(t, { RATE_READ_PER_S: '0', RATE_WRITE_PER_S: '0', RATE_PAIR_PER_MIN: '0' });
  const [honest, greedy] = [await place.tenant('anna'), await place.tenant('berta')];
  const devices = [greedy.device];
  for (const number of range(2, count))
    devices.push(await join(greedy.wire, greedy.device, { name: `greedy ${number}` }));
  return { place, judge: new Judge(place, honest), greedy, devices };
}

/** Writes ten items of 60,000 bytes in each batch; 24 are more than the system buffers for a connection. */
export async function fill({ wire, device }: Neighbour, devices: readonly TestDevice[], batches = 24): Promise<void> {
  const ids = devices.map(({ id }) => id);
  for (const _ of range(1, batches)) {
    const items = range(1, 10).map(() => writeBody('a', newItem(ids, { ct: randomBytes(60_000) })));
    const reply = await wire.post('/items/batch', { items }, { token: device.token, shape: 'a' });
    if (reply.status !== 200) throw new Error(reply.raw);
  }
}

/** Sockets of all the devices, as many as each may have, that say `hello` from 0 and do not read. */
export async function unread({ place, greedy, devices }: Stage): Promise<SlowSocket[]> {
  const { port } = place.server;
  const open = devices.flatMap(({ token }) =>
    range(1, PER_DEVICE).map(async () => {
      const socket = await SlowSocket.open({ port, token, host: greedy.host });
      socket.stopReading();
      socket.send({ type: 'hello', since: 0 });
      return socket;
    }),
  );
  return Promise.all(open);
}

/** What sockets have not sent, as the server counts it, bytes. */
export const unsent = async (place: HostedServer): Promise<number> => (await place.budgets())['sockets_unsent'] ?? NaN;
/** Resolves when the server holds nothing for anybody. */
export const released = async (place: HostedServer): Promise<void> =>
  until('every budget empty', async () => {
    const held = Object.values(await place.budgets());
    return held.length >= 6 && held.every((amount) => amount === 0);
  });

/** Sends frames as fast as it can, on a new socket whenever one was closed. */
export class Flood {
  readonly codes: number[] = [];
  refused = 0;
  private over = false;
  private readonly work: Promise<void>[];

  constructor({ place, greedy, devices }: Stage, frame: string) {
    const options = { port: place.server.port, token: devices[0]?.token ?? '', host: greedy.host };
    const again = async (): Promise<void> => {
      while (!this.over) {
        try {
          const socket = await SlowSocket.open(options);
          socket.send({ type: 'hello', since: 0 });
          while (!this.over && socket.closedWith === undefined) {
            for (const _ of range(1, 20)) socket.send(frame);
            await new Promise((resolve) => setImmediate(resolve));
          }
          if (socket.closedWith !== undefined) this.codes.push(socket.closedWith);
          socket.close();
        } catch (error) {
          if (!String(error).includes('429')) throw error;
          this.refused++;
          await new Promise((resolve) => setTimeout(resolve, 50));
        }
      }
    };
    this.work = range(1, 8).map(again);
  }

  async end(): Promise<void> {
    this.over = true;
    await Promise.all(this.work);
  }
}
