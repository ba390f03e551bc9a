/** One caller takes all he can get, and a device of another tenant goes on as if he were not there. */
import { randomBytes } from 'node:crypto';
import t, { type Test } from 'tap';
import { newItem, writeBody } from './support/devices.js';
import { until } from './support/events.js';
import { BASE } from './support/hosted.js';
import { Judge, requestText, street, Unread, type Neighbour, type Street } from './support/judge.js';
import { range } from './support/stream.js';

t.setTimeout(300_000);

/** What a server may hold beyond what it had before: nothing here depends on how many connections an attacker has. */
const GROWTH_MAX_MIB = 350;

/** Fills a tenant so that each page of its items has about 4 MiB. */
async function fill({ wire, device }: Neighbour, pages = 1): Promise<void> {
  const full = (): unknown => writeBody('a', newItem([device.id], { ct: randomBytes(60_000) }));
  for (const _ of range(1, 8 * pages)) {
    const items = Array.from({ length: 10 }, full);
    const reply = await wire.post('/items/batch', { items }, { token: device.token, shape: 'a' });
    if (reply.status !== 200) throw new Error(reply.raw);
  }
}

async function stage(t: Test) {
  // Without rates: what one asks for is bounded by his shares alone.
  const place = await street(t, { RATE_READ_PER_S: '0', RATE_WRITE_PER_S: '0' });
  const [honest, greedy] = [await place.tenant('anna'), await place.tenant('berta')];
  await fill(greedy);
  const judge = new Judge(place, honest);
  judge.begin();
  await judge.after(3);
  const idle = await judge.end();
  t.same(idle.refusals, []);
  const open: Unread[] = [];
  t.teardown(() => open.forEach((unread) => unread.destroy()));
  const attack = async (text: string): Promise<void> => void open.push(await Unread.open(place.server.port, text));
  const { host, device } = greedy;
  const page = requestText('/api/items?since=0', { host, token: device.token });
  return { place, judge, idle, open, attack, greedy, page };
}

async function released(t: Test, place: Street, open: Unread[]): Promise<void> {
  for (const unread of open) unread.destroy();
  await until('every budget empty', async () => Object.values(await place.budgets()).every((held) => held === 0));
  t.ok(Object.keys(await place.budgets()).length >= 4);
}

t.test('FAIR-07: a device that asks for page after page and reads none', async (t) => {
  const { place, judge, idle, open, attack, page } = await stage(t);
  judge.begin();
  for (const round of range(1, 10)) {
    for (const _ of range(1, 20)) await attack(page);
    await judge.after(round);
  }
  const seen = await judge.end();
  t.comment(`${JSON.stringify(idle)} ${JSON.stringify({ ...seen, refusals: seen.refusals.length })}`);
  t.same(seen.refusals, []);
  t.ok(seen.peakMib - idle.peakMib < GROWTH_MAX_MIB, `${seen.peakMib - idle.peakMib} MiB more`);
  await released(t, place, open);
});

t.test('FAIR-08: four hundred page reads in one burst', async (t) => {
  const { place, judge, idle, open, attack, page } = await stage(t);
  judge.begin();
  await Promise.all(range(1, 400).map(() => attack(page)));
  await judge.after(10);
  const seen = await judge.end();
  t.comment(`${JSON.stringify(idle)} ${JSON.stringify({ ...seen, refusals: seen.refusals.length })}`);
  t.same(seen.refusals, []);
  t.ok(seen.peakMib - idle.peakMib < GROWTH_MAX_MIB, `${seen.peakMib - idle.peakMib} MiB more`);
  await released(t, place, open);
});

t.test('FAIR-14: pages of the reference that nobody reads, in waves and without an account', async (t) => {
  const { place, judge, idle, open, attack } = await stage(t);
  judge.begin();
  // Each connection asks for many at once: as long as the system takes them they cost the server nothing.
  const docs = requestText('/docs/endpoints-b', { address: '203.0.113.9' });
  for (const round of range(1, 8)) {
    await Promise.all(range(1, 250).map(() => attack(docs)));
    await judge.after(round);
  }
  const seen = await judge.end();
  t.comment(`${JSON.stringify(idle)} ${JSON.stringify({ ...seen, refusals: seen.refusals.length })}`);
  t.same(seen.refusals, []);
  t.ok(seen.peakMib - idle.peakMib < GROWTH_MAX_MIB, `${seen.peakMib - idle.peakMib} MiB more`);
  await released(t, place, open);
});

t.test('FAIR-11: half-sent bodies of one stranger', async (t) => {
  const { place, judge, open, attack } = await stage(t);
  const half =
    `POST /api/devices/reauth HTTP/1.1\r\nHost: ${BASE.replace(/^/, 'anna.')}\r\nX-Forwarded-For: 203.0.113.9\r\n` +
    `Content-Type: application/json\r\nContent-Length: 65536\r\n\r\n${'x'.repeat(65_000)}`;
  await Promise.all(range(1, 540).map(() => attack(half)));
  judge.begin();
  await judge.after(10);
  const seen = await judge.end();
  t.comment(JSON.stringify({ ...seen, refusals: seen.refusals.length }));
  t.same(seen.refusals, []);
  await released(t, place, open);
});
