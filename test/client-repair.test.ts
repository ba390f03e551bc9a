/** The completeness check: missing items are detected and fetched, or reported where that is impossible. */
import t from 'tap';
import { MemoryStore } from '../src/sdk/store/store.js';
import type { DeviceEvents } from '../src/sdk/events.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { sealedRow } from './support/client.js';
import { next, note, refusal, shows, wiretap, world, type Client } from './support/client-world.js';
import { until } from './support/events.js';

const listings = (client: Client): number => client.tap.calls.filter(({ path }) => path.includes('since=0')).length;

t.test('completeness over a socket', async (t) => {
  const all = await world(t);
  const { first } = all;
  await first.device.connect();

  await t.test('SDK-09: items lost from the stream are fetched, and reported by id and version', async (t) => {
    const second = await all.pair();
    const { id: kept } = await first.device.put(note('kept'));
    const { id: removed } = await first.device.put(note('removed'));
    await second.device.connect();
    const repaired: DeviceEvents['repaired'][] = [];
    second.device.on('repaired', (event) => repaired.push(event));
    // One new item, one new state and one delete are swallowed.
    let swallowed = 0;
    second.tap.bend = (frame) => {
      if (!['item', 'delete'].includes(String(frame['type']))) return frame;
      swallowed++;
      return null;
    };
    const fresh = await first.device.put(note('swallowed'));
    const before = (await second.device.get(kept))?.version;
    const changed = await first.device.put({ ...note('changed'), id: kept });
    const gone = await first.device.delete(removed);
    // A reply may be faster than the push to the other device.
    await until('the three frames', () => swallowed === 3);
    second.tap.bend = (frame) => frame;
    const { id: last } = await first.device.put(note('not swallowed'));
    await shows(second, last);
    t.equal(await second.device.get(fresh.id), undefined);
    second.device.disconnect();
    const caughtUp = next(second, 'caught_up');
    await second.device.connect();
    t.match(await caughtUp, { complete: true });
    t.equal(repaired.length, 1);
    t.equal(repaired[0]?.count, 3);
    t.same(
      new Set(repaired[0]?.items.map((item) => JSON.stringify(item))),
      new Set([
        JSON.stringify({ id: fresh.id, version: fresh.version, held: null }),
        JSON.stringify({ id: kept, version: changed.version, held: before }),
        JSON.stringify({
          id: removed,
          version: gone.version,
          held: repaired[0]?.items.find(({ id }) => id === removed)?.held ?? -1,
        }),
      ]),
    );
    t.match(await second.device.get(fresh.id), { payload: { text: 'swallowed' } });
    t.match(await second.device.get(kept), { payload: { text: 'changed' } });
    t.equal(await second.device.get(removed), undefined);
  });

  await t.test('SDK-10: an item that cannot be fetched is reported by version, several by count and sum', async (t) => {
    for (const hidden of [1, 2]) {
      const tap = wiretap();
      const client = await all.open(first.identity(), { tap });
      tap.bend = (frame) =>
        frame['type'] === 'caught_up'
          ? {
              ...frame,
              itemCount: Number(frame['itemCount']) + hidden,
              versionSum: Number(frame['versionSum']) + 1_000 * hidden,
            }
          : frame;
      const missing = next(client, 'missing');
      const caughtUp = next(client, 'caught_up');
      await client.device.connect();
      t.match(await missing, {
        lacking: { itemCount: hidden, versionSum: 1_000 * hidden },
        named: hidden === 1 ? [{ id: null, version: 1_000 }] : [],
      });
      t.same((await missing).named.length, hidden === 1 ? 1 : 0);
      t.match(await caughtUp, { complete: false });
      t.match(await client.device.status(), { missing: await missing, caughtUp: { complete: false } });
      const asked = listings(client);
      client.device.disconnect();
      const again = next(client, 'missing');
      await client.device.connect();
      await again;
      t.equal(listings(client), asked, 'the same gap does not cause everything to be read again at each connection');
      tap.bend = (frame) => frame;
      client.device.disconnect();
      await client.device.connect();
      t.match(await client.device.status(), { missing: null, caughtUp: { complete: true } });
      client.device.close();
    }
  });

  await t.test('SDK-10: an item that the server lost is reported by id and version, and stays readable', async (t) => {
    const store = new MemoryStore();
    const client = await all.open(first.identity(), { store });
    await client.device.connect();
    client.device.disconnect();
    const row = sealedRow(client.identity(), { version: 1, payload: { text: 'lost by the server' } });
    await store.apply({ entries: [{ id: row.id, version: 1, state: 'live', row }] });
    const missing = next(client, 'missing');
    await client.device.connect();
    t.match(await missing, { unlisted: [row.id], named: [{ id: row.id, version: 1 }] });
    t.match(await client.device.get(row.id), { payload: { text: 'lost by the server' } });
    t.same((await client.device.status()).orphaned, [row.id]);
  });
});

t.test('completeness over HTTP', async (t) => {
  const all = await world(t);
  const { first } = all;
  const made: { readonly id: string; readonly version: number }[] = [];
  for (const text of ['one', 'two', 'three']) made.push(await first.device.put(note(text)));

  await t.test('SDK-11: the check without a socket fetches and reports what a listing left out', async (t) => {
    const client = await all.open(first.identity());
    client.tap.lie = ({ path }, answer) =>
      path.startsWith('/items?') ? { ...answer, items: (answer['items'] as object[]).slice(1) } : undefined;
    await client.device.pull();
    t.equal((await client.device.list()).length, 2);
    const missing = next(client, 'missing');
    t.equal(await client.device.check(), false);
    t.match(await missing, { named: [{ id: null, version: made[0]?.version }] });
    client.tap.lie = () => undefined;
    const repaired = next(client, 'repaired');
    t.equal(await client.device.check(), true);
    t.match(await repaired, { count: 1, items: [{ id: made[0]?.id, version: made[0]?.version, held: null }] });
    t.equal((await client.device.list()).length, 3);
    const fresh = await all.open(first.identity());
    t.equal(await fresh.device.check(), true);
    t.equal(listings(fresh), 1, 'nothing is read twice where nothing is missing');
  });

  await t.test('SDK-12: a damaged item is reported, disturbs no other, and is repaired by resync', async (t) => {
    const store = new MemoryStore();
    const client = await all.open(first.identity(), { store });
    await client.device.pull();
    const id = made[1]?.id ?? '';
    const entry = await store.get(id);
    if (entry?.state !== 'live' || entry.row.inline === null) throw new Error('the item is here');
    const ct = nodeSodium.random(entry.row.inline.ct.length);
    const damaged = { ...entry.row, inline: { ...entry.row.inline, ct } };
    await store.apply({ entries: [{ ...entry, row: damaged }] });
    t.match(await refusal(client.device.get(id)), { code: 'damaged_item', message: /resync/ });
    t.equal((await client.device.list()).length, 2);
    const shown = await client.device.query({}, () => undefined);
    t.equal(shown.current.length, 2);
    t.match(client.problems, [{ code: 'damaged_item' }, { code: 'damaged_item' }]);
    await client.device.resync();
    t.match(await client.device.get(id), { payload: { text: 'two' } });
    t.same(await client.device.hidden(), [], 'the true row is not quarantined as an old one');
  });
});
