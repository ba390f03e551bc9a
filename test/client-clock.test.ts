/** A device whose clock is days ahead, on a real server. */
import { randomBytes } from 'node:crypto';
import t, { type Test } from 'tap';
import { monotonic } from '../src/protocol/clock.js';
import { bytesSource } from '../src/sdk/blobs/source.js';
import { MemoryStore } from '../src/sdk/store/store.js';
import { note, refusal, shows, wiretap, world, writes } from './support/client-world.js';
import { ShiftedClock, TestClock } from './support/clock.js';
import { ClientWorld } from './support/simulated-device.js';
import { until } from './support/events.js';
import { counted, hurried } from './support/hurried.js';

const DAY_MS = 24 * 3_600_000;
const AHEAD_MS = 3 * DAY_MS;

/** Another program of the first device, whose clock is ahead; `hides`: the server's `Date`, as from another origin. */
async function ahead(t: Test, hides: boolean, { byMs = AHEAD_MS, server = new ShiftedClock() } = {}) {
  const all = await world(t, { clock: server });
  await all.first.device.connect();
  const clock = new TestClock(Date.now() + byMs);
  const tap = wiretap(clock);
  /** `refuses`: the server's times in refusals that a lying server sends. */
  const at = { down: false, refuses: [] as number[] };
  const fetch = async (url: string, init: RequestInit): Promise<Response> => {
    if (at.down) throw new TypeError('unreachable');
    const refused = init.method === 'POST' && /\/api\/items(\?|$)/.test(url) ? at.refuses.pop() : undefined;
    if (refused !== undefined) {
      tap.calls.push({
        method: 'POST',
        path: '/items',
        body: JSON.parse(init.body as string) as Record<string, unknown>,
      });
      const error = { code: 'validation', message: 'ts', details: { serverTime: refused } };
      return new Response(JSON.stringify({ error }), { status: 400 });
    }
    const reply = await tap.platform.fetch(url, init);
    const headers = new Headers(reply.headers);
    if (hides) headers.delete('date');
    return new Response(await reply.arrayBuffer(), { status: reply.status, headers });
  };
  const { platform, traffic } = counted({ ...tap.platform, fetch });
  const client = await all.open(all.first.identity(), { tap: { ...tap, platform }, store: new MemoryStore() });
  await client.device.devices.list();
  const times = (): number[] => writes({ tap }).map(({ ts }) => Math.round((Number(ts) - Date.now()) / DAY_MS));
  return { ...all, client, clock, traffic, at, times };
}

t.test('CLIENT-70: what waits for a time does not wait for a clock that is set back, and a jump ahead counts', (t) => {
  let time = 1_000;
  const now = monotonic({ now: () => time });
  const readings = [1_000, 1_500, 200, 700, 100, 100, 5_100].map((at) => {
    time = at;
    return now();
  });
  t.same(readings, [1_000, 1_500, 1_500, 2_000, 2_000, 2_000, 7_000]);
  t.end();
});

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
  const { first, client, clock, traffic, at, times } = await ahead(t, true);
  at.down = true;
  const waiting = async (work: Promise<unknown>): Promise<void> => {
    t.equal((await refusal(hurried(clock, traffic, work))).code, 'queued');
  };
  await waiting(client.device.put(note('early')));
  const id = (await client.device.list())[0]?.id ?? '';
  await waiting(client.device.put({ ...note('late'), id }));
  await waiting(client.device.put(note('moved')));
  const moved = (await client.device.list()).find(({ payload }) => payload?.['text'] === 'moved')?.id ?? '';
  const bin = await first.device.bins.create('other', { name: 'Other' });
  await waiting(client.device.move(moved, bin.id));
  at.down = false;
  await hurried(clock, traffic, client.device.pull());
  const late = shows(first, id, ({ payload }) => payload?.['text'] === 'late');
  t.match(await hurried(clock, traffic, late), { payload: { text: 'late' } });
  const there = shows(first, moved, ({ binId }) => binId === bin.id);
  const found = await hurried(clock, traffic, there);
  t.match(found, { payload: { text: 'moved' } }, 'the tag of the move covers the new time');
  t.ok(times().includes(0));
});

t.test('CLIENT-61: a server cannot have a write sealed at a later time, or at one that no server takes', async (t) => {
  const { first, client, at, times } = await ahead(t, false, { byMs: 0 });
  for (const time of [Number.MAX_SAFE_INTEGER, Date.now() + 30 * DAY_MS, 0]) {
    at.refuses = [time];
    t.equal((await refusal(client.device.put(note('a')))).code, 'validation', String(time));
  }
  t.same(times(), [0, 0, 0], 'each was sent once, as it was');
  const { id } = await client.device.put(note('b'));
  t.ok(Math.abs((await shows(first, id)).ts - Date.now()) < DAY_MS / 2);
});

/** Whether the first device gets this text. Time passes for the other one meanwhile. */
const arrives = ({ first, clock, traffic }: Awaited<ReturnType<typeof ahead>>, id: string, text: string) =>
  hurried(
    clock,
    traffic,
    shows(first, id, ({ payload }) => payload?.['text'] === text),
  );

/** Puts what the server, which is down, cannot get. */
async function queued(
  { client, clock, traffic }: Awaited<ReturnType<typeof ahead>>,
  put: ReturnType<typeof note> & { readonly id?: string },
) {
  t.equal((await refusal(hurried(clock, traffic, client.device.put(put)))).code, 'queued');
}

t.test(
  'CLIENT-61: of two writes of an item, of which only the second was too far ahead, neither is lost',
  async (t) => {
    const all = await ahead(t, true, { byMs: DAY_MS - 3_600_000 });
    const { client, clock, traffic, at } = all;
    at.down = true;
    await queued(all, note('one'));
    const id = (await client.device.list())[0]?.id ?? '';
    clock.advance(2 * 3_600_000);
    await queued(all, { ...note('two'), id });
    at.down = false;
    await hurried(clock, traffic, client.device.pull());
    t.match(await arrives(all, id, 'two'), { payload: { text: 'two' } });
  },
);

t.test('CLIENT-61: a write that waited is not lost to a server whose clock is days behind for a while', async (t) => {
  const server = new ShiftedClock();
  const all = await ahead(t, true, { byMs: 60_000, server });
  const { first, client, clock, traffic, at } = all;
  const { id } = await first.device.put(note('one'));
  await client.device.pull();
  at.down = true;
  await queued(all, { ...note('two'), id });
  const told: unknown[] = [];
  client.device.on('rejected', (event) => told.push(event));
  const problems = client.problems.length;
  server.advance(-AHEAD_MS);
  at.down = false;
  await hurried(clock, traffic, client.device.pull());
  await hurried(
    clock,
    traffic,
    until('a refusal', () => client.problems.length > problems),
  );
  server.advance(AHEAD_MS);
  t.match(await arrives(all, id, 'two'), { payload: { text: 'two' } });
  t.same(told, []);
});

t.test('CLIENT-61: a file whose upload is the first to learn the server’s time is dated by it', async (t) => {
  const world = new ClientWorld(0);
  await world.join();
  await world.flow();
  const [first] = world.devices;
  if (first?.device === undefined) throw new Error('no device');
  first.skew = AHEAD_MS;
  const content = bytesSource(Buffer.from('its content'));
  const put = first.device.put({ binId: 'inbox', type: 'file', payload: { name: 'name' }, content });
  await world.flow();
  t.match(await put, { version: 1 });
  first.device.close();
});

t.test('ITEM-43: a device that joins gets the keys of items that are too far ahead for a new write', async (t) => {
  const server = new ShiftedClock();
  const { first, pair } = await ahead(t, true, { server });
  const { id } = await first.device.put(note('one'));
  server.advance(-AHEAD_MS);
  const second = await pair();
  await second.device.pull();
  t.match(await second.device.get(id), { payload: { text: 'one' } });
});
