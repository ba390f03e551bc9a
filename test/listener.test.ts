/** The connection on which an instance listens, and its replacement (src/server/storage/listener.ts). */
import { Socket } from 'node:net';
import { mock } from 'node:test';
import type pg from 'pg';
import t from 'tap';
import { Listener } from '../src/server/storage/listener.js';
import { Events, until } from './support/events.js';
import { beatBack, listeners, world } from './support/feeds.js';

t.test('INST-03: a first connection that could not listen to all channels is replaced', async (t) => {
  const { instance, pool } = await world(t);
  const a = instance('a');
  const write = Socket.prototype.write;
  const breaking = mock.method(Socket.prototype, 'write', function (this: Socket, ...sent: Parameters<typeof write>) {
    const text = 'LISTEN service_generations';
    const [bytes, ...rest] = sent;
    if (!Buffer.isBuffer(bytes) || !bytes.includes(text)) return write.apply(this, sent);
    const broken = Buffer.from(bytes.toString('latin1').replace(text, text.replace('N', '?')), 'latin1');
    return write.apply(this, [broken, ...rest] as typeof sent);
  });
  t.teardown(() => breaking.mock.restore());
  await a.feed.start();
  t.match(a.faults.all, [{ code: '42601' }]);
  breaking.mock.restore();
  const [before] = await listeners(pool);
  for (let beats = 0; beats < 2; beats++) await beatBack(a);
  t.equal(a.feed.heard.since, Infinity);
  await a.feed.register();
  await until('another connection', async () => (await listeners(pool)).every((pid) => pid !== before));
  await until('the end of its beginning', async () => Promise.resolve(a.feed.heard.since !== Infinity));
});

t.test('INST-03: of two replacements at once, the second to begin ends what the first has opened', async (t) => {
  const { url, pool } = await world(t);
  const asked: ((config: pg.ClientConfig) => void)[] = [];
  const connected = new Events<null>();
  const faults: unknown[] = [];
  const listener = new Listener({
    connection: () => new Promise((resolve) => asked.push(resolve)),
    channels: { replaced: () => undefined },
    onOpened: () => undefined,
    onConnected: () => connected.add(null),
    onFault: (error) => faults.push(error),
  });
  const answer = (n: number): void => asked[n]?.({ connectionString: url, application_name: `listener-${n}` });
  const started = listener.start();
  answer(0);
  await started;
  listener.replace();
  listener.replace();
  for (const n of [1, 2]) {
    answer(n);
    await connected.until(n + 1);
  }
  await until('one listener', async () => (await listeners(pool)).length === 1);
  await listener.close();
  await until('no listener', async () => (await listeners(pool)).length === 0);
  t.same(faults, []);
});
