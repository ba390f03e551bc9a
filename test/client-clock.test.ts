/** A device whose clock is days ahead, on a real server. */
import { randomBytes } from 'node:crypto';
import t, { type Test } from 'tap';
import { bytesSource } from '../src/sdk/blobs/source.js';
import { MemoryStore } from '../src/sdk/store/store.js';
import { next, note, refusal, shows, wiretap, world, writes } from './support/client-world.js';
import { TestClock } from './support/clock.js';
import { hurried, NO_TRAFFIC } from './support/hurried.js';

const DAY_MS = 24 * 3_600_000;
const AHEAD_MS = 3 * DAY_MS;

/** Another program of the first device, whose clock is ahead; `hides`: the server's `Date`, as from another origin. */
async function ahead(t: Test, hides: boolean) {
  const all = await world(t);
  await all.first.device.connect();
  const clock = new TestClock(Date.now() + AHEAD_MS);
  const tap = wiretap(clock);
  const at = { down: false };
  const fetch = async (url: string, init: RequestInit): Promise<Response> => {
    if (at.down) throw new TypeError('unreachable');
    const reply = await tap.platform.fetch(url, init);
    const headers = new Headers(reply.headers);
    if (hides) headers.delete('date');
    return new Response(await reply.arrayBuffer(), { status: reply.status, headers });
  };
  const platform = { ...tap.platform, fetch };
  const client = await all.open(all.first.identity(), { tap: { ...tap, platform }, store: new MemoryStore() });
  await client.device.devices.list();
  const times = (): number[] => writes({ tap }).map(({ ts }) => Math.round((Number(ts) - Date.now()) / DAY_MS));
  return { ...all, client, clock, at, times };
}

t.test('CLIENT-61: a device whose clock is days ahead writes at the server’s time, where it knows that', async (t) => {
  const { first, client, times } = await ahead(t, false);
  const { id } = await client.device.put(note('a'));
  t.same(times(), [0], 'one request');
  const item = await shows(first, id);
  t.ok(Math.abs(item.ts - Date.now()) < DAY_MS / 2);
  await client.device.put({ ...note('b'), id, ts: Date.now() + AHEAD_MS });
  t.same(times(), [0, 0], 'also where the caller names a time');
});

t.test('CLIENT-61: where it does not, the refusal tells it, and the write is sealed anew', async (t) => {
  const { first, client, times } = await ahead(t, true);
  const { id } = await client.device.put(note('a'));
  t.same(times(), [3, 0]);
  t.match(await shows(first, id), { payload: { text: 'a' } }, 'it opens');
  await client.device.put(note('b'));
  t.same(times(), [3, 0, 0], 'from now on it knows');
  const content = bytesSource(randomBytes(100_000));
  const file = await client.device.put({ binId: 'inbox', type: 'file', payload: { name: 'x' }, content });
  t.match(await shows(first, file.id), { type: 'file' }, 'a file is bound to the right time from the beginning');
});

t.test('CLIENT-61: what waited without a server is sealed anew; nothing of it is lost', async (t) => {
  const { first, client, clock, at, times } = await ahead(t, true);
  at.down = true;
  const waiting = async (work: Promise<unknown>): Promise<void> => {
    t.equal((await refusal(hurried(clock, NO_TRAFFIC, work))).code, 'queued');
  };
  await waiting(client.device.put(note('early')));
  const id = (await client.device.list())[0]?.id ?? '';
  await waiting(client.device.put({ ...note('late'), id }));
  await waiting(client.device.put(note('moved')));
  const moved = (await client.device.list()).find(({ payload }) => payload?.['text'] === 'moved')?.id ?? '';
  const bin = await first.device.bins.create('other', { name: 'Other' });
  await waiting(client.device.move(moved, bin.id));
  at.down = false;
  const rejected = next(client, 'rejected');
  await hurried(clock, NO_TRAFFIC, client.device.pull());
  const late = shows(first, id, ({ payload }) => payload?.['text'] === 'late');
  t.match(await hurried(clock, NO_TRAFFIC, late), { payload: { text: 'late' } });
  t.match(
    await hurried(clock, NO_TRAFFIC, rejected),
    { id: moved, error: { code: 'validation' } },
    'reported, with its content',
  );
  t.ok(times().includes(0));
});
