/** A reply to a change that comes long after the stream has brought the change, on a real server. */
import t, { type Test } from 'tap';
import { note, wiretap, world, type Wiretap } from './support/client-world.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';

t.setTimeout(180_000);

/** How long the stream waits for a reply, ms. */
const WAITS_MS = 5_000;

/**
 * A program has written `id`, its stream has brought that as `version`, and `answer` decides what the reply says. `other`:
 * another program.
 */
async function written(t: Test) {
  const clock = new TestClock();
  const tap = wiretap(clock);
  let answer: (version: number) => void = () => undefined;
  const named = new Promise<number>((resolve) => (answer = resolve));
  const fetch: Wiretap['platform']['fetch'] = async (url, init) => {
    const reply = await tap.platform.fetch(url, init);
    if (init.method !== 'POST' || !/\/api\/items(\?|$)/.test(url)) return reply;
    const stored = (await reply.json()) as Record<string, unknown>;
    return Response.json({ ...stored, version: await named });
  };
  const { first, open } = await world(t);
  const slow = { ...tap, platform: { ...tap.platform, fetch } };
  const { device, problems } = await open(first.identity(), { tap: slow });
  await device.connect();
  const outcome = device.put(note('mine'));
  await until('the ack waits for the reply', () => {
    return tap.frames.some(({ type }) => type === 'ack') && clock.hasTimer(WAITS_MS);
  });
  const { id = '', version } = tap.frames.find(({ type }) => type === 'ack') as { id?: string; version: number };
  clock.advance(WAITS_MS);
  await until('the change is applied', async () => (await device.status()).cursor.since >= version);
  return { device, problems, other: first.device, id, version, answer, outcome };
}

t.test('LIAR-48: a later version than the true one is found, and the write has the true one', async (t) => {
  const { device, problems, version, answer, outcome } = await written(t);
  answer(version + 1_000);
  t.match(await outcome, { version });
  t.match(problems, [{ name: 'ProtocolError', code: 'wrong_reply' }]);
  t.equal(device.waiting().count, 0);
});

t.test('RETRY-01: the version of a delete by another program of this device is believed', async (t) => {
  const { device, problems, other, id, version, answer, outcome } = await written(t);
  await other.pull();
  const deleted = await other.delete(id);
  t.ok(deleted.version > version);
  answer(deleted.version);
  t.match(await outcome, { version: deleted.version });
  await device.pull();
  t.equal(await device.get(id), undefined);
  t.same(problems, []);
  t.equal(device.waiting().count, 0);
});

for (const what of ['move', 'delete'] as const) {
  t.test(
    `CLIENT-65: a ${what} by another program of this device is seen, where the reply to a retry names it`,
    async (t) => {
      const clock = new TestClock();
      const tap = wiretap(clock);
      let lost = 0;
      const fetch: Wiretap['platform']['fetch'] = async (url, init) => {
        const reply = await tap.platform.fetch(url, init);
        if (init.method === 'POST' && /\/api\/items(\?|$)/.test(url) && lost++ === 0) throw new TypeError('cut');
        return reply;
      };
      const { first, open } = await world(t);
      const { device, problems } = await open(first.identity(), {
        tap: { ...tap, platform: { ...tap.platform, fetch } },
      });
      await device.connect();
      const outcome = device.put(note('mine'));
      await until('the reply is lost', () => lost === 1 && tap.frames.some(({ type }) => type === 'ack'));
      const { id = '' } = tap.frames.find(({ type }) => type === 'ack') as { id?: string };
      const other = first.device;
      await other.pull();
      await other.bins.create('other', { name: 'Other' });
      const changed = what === 'move' ? await other.move(id, 'other') : await other.delete(id);
      await until('the retry is due', () => {
        clock.advance(100);
        return lost === 2;
      });
      t.match(await outcome, { version: changed.version });
      await until('the change is applied', async () => (await device.status()).cursor.since >= changed.version);
      t.equal((await device.get(id))?.binId, what === 'move' ? 'other' : undefined);
      t.equal(await device.check(), true);
      t.same(problems, []);
    },
  );
}
