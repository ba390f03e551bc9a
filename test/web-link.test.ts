/** The client's side of the link without a browser: what is under way while the engine changes. */
import { once } from 'node:events';
import t from 'tap';
import { Link } from '../src/web/link/client.js';
import { ANNOUNCEMENTS, channelOf, type Announcement, type ToEngine } from '../src/web/link/messages.js';
import type { WithTeardown } from './support/postgres.js';

/** A client, and the messages that the engines of a browser exchange with it. */
async function scene(t: WithTeardown) {
  const before = Object.getOwnPropertyDescriptor(globalThis, 'navigator');
  const locks = { request: (_: string, granted: () => unknown) => Promise.resolve().then(granted) };
  Object.defineProperty(globalThis, 'navigator', { configurable: true, value: { locks } });
  const channels: BroadcastChannel[] = [];
  const open = (name: string): BroadcastChannel => {
    const channel = new BroadcastChannel(name);
    channels.push(channel);
    return channel;
  };
  const announced = once(open(ANNOUNCEMENTS) as never, 'message');
  const link = new Link();
  channels.push(...Object.values(link).filter((value) => value instanceof BroadcastChannel));
  t.teardown(() => {
    for (const channel of channels) channel.close();
    Object.defineProperty(globalThis, 'navigator', before ?? { configurable: true, value: undefined });
  });
  const [{ data }] = (await announced) as [MessageEvent<Announcement>];
  const channel = open(channelOf('client' in data ? data.client : ''));
  const asked = async (): Promise<ToEngine> => {
    const [message] = (await once(channel as never, 'message')) as [MessageEvent<ToEngine>];
    return message.data;
  };
  return { link, channel, asked };
}

for (const how of ['lost', 'stopped'] as const)
  t.test(`WEB-46: a stream that was ${how} while its reader paused ends with an error`, async (t) => {
    const { link, channel, asked } = await scene(t);
    channel.postMessage({ kind: 'welcome', id: 0, engine: 'one' });
    const stop = new AbortController();
    const chunks = link.read('content', { id: 'film', from: 0 }, stop.signal);
    const requested = asked();
    const first = chunks.next();
    const { id } = await requested;
    channel.postMessage({ kind: 'chunk', id, bytes: new Uint8Array(3) });
    t.match(await first, { done: false });
    if (how === 'lost') channel.postMessage({ kind: 'welcome', id: 0, engine: 'two' });
    else stop.abort();
    await new Promise((resolve) => setTimeout(resolve, 50));
    const code = how === 'lost' ? 'engine_lost' : 'cancelled';
    await t.rejects(chunks.next(), { name: 'LinkError', problem: { code } });
  });
