/** The state that a device reports, the reasons, and changes that were made while the server was unreachable. */
import t from 'tap';
import { REASONS, reasonOf } from '../src/sdk/reasons.js';
import { MemoryStore } from '../src/sdk/store/store.js';
import { openBinMeta, sealBinMeta } from '../src/crypto/bin-meta.js';
import { fingerprintOfMaster } from '../src/crypto/fingerprint.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { systemClock, type Clock } from '../src/protocol/clock.js';
import { newId, sealedRow, settle } from './support/client.js';
import { until } from './support/events.js';
import { TestClock } from './support/clock.js';
import {
  next,
  note,
  refusal,
  shows,
  wiretap,
  world,
  writes,
  type Client,
  type Wiretap,
} from './support/client-world.js';
import { counted, hurried, type Traffic } from './support/hurried.js';

/** A connection that a test can cut, and the client's traffic on it. */
interface Cable {
  readonly tap: Wiretap;
  readonly traffic: Traffic;
  cut: boolean;
}

function cable(clock: Clock = systemClock): Cable {
  const tap = wiretap(clock);
  const state = { cut: false };
  const { platform, traffic } = counted({
    ...tap.platform,
    fetch: async (url, init) => {
      if (state.cut) throw new TypeError('unreachable');
      return tap.platform.fetch(url, init);
    },
  });
  return Object.assign(state, { tap: { ...tap, platform }, traffic });
}

t.test('SDK-17: every reason has a sentence on its meaning and one on what to do', (t) => {
  for (const [reason, { meaning, whatToDo }] of Object.entries(REASONS)) {
    t.match(meaning, /^[A-Z].{20,}\.$/, reason);
    t.match(whatToDo, /^[A-Z].{20,}\.$/, reason);
  }
  t.match(reasonOf('rolled_back'), { about: 'item' });
  t.equal(reasonOf('toString'), undefined);
  t.end();
});

t.test('SDK-19: a master key has a fixed fingerprint, and a key of another length has none', (t) => {
  const key = new Uint8Array(32).fill(7);
  t.equal(fingerprintOfMaster(nodeSodium, key), '324d 826b b501 d78f 4f21 9ef1 3449 da27');
  t.not(fingerprintOfMaster(nodeSodium, new Uint8Array(32).fill(8)), '324d 826b b501 d78f 4f21 9ef1 3449 da27');
  t.throws(() => fingerprintOfMaster(nodeSodium, new Uint8Array(31)));
  t.end();
});

t.test('the state of a device', async (t) => {
  const all = await world(t);
  const { first } = all;
  await first.device.connect();
  const second = await all.pair();

  await t.test('SDK-18: a device reports its state and connection, what waits and what is hidden', async (t) => {
    const store = new MemoryStore();
    const clock = new TestClock(Math.floor(Date.now() / 1_000) * 1_000 - 3_600_000);
    const line = cable(clock);
    const client = await all.open(first.identity(), { tap: line.tap, store });
    t.match(await client.device.status(), {
      state: 'open',
      connection: { state: 'closed' },
      cursor: { since: 0, epoch: null },
      caughtUp: null,
      missing: null,
      held: { itemCount: 0, versionSum: 0 },
      pending: { count: 0, waiting: 0, oldestAgeMs: null },
      hidden: { count: 0, byReason: {} },
      devices: null,
      clockOffsetMs: null,
      deviceId: first.device.id,
    });
    const { id, version } = await first.device.put(note('here'));
    const read = next(client, 'devices');
    await client.device.connect();
    await read;
    const standing = await client.device.status();
    t.match(standing, {
      connection: { state: 'connected' },
      cursor: { since: version },
      caughtUp: { version, complete: true, at: clock.now() },
      held: { itemCount: 1 },
      devices: { active: 2, uncertified: [] },
    });
    const offset = standing.clockOffsetMs ?? 0;
    t.ok(Math.abs(offset - 3_600_000) < 60_000, `the clock is an hour behind: ${offset}`);
    line.cut = true;
    client.device.disconnect();
    t.equal((await refusal(hurried(clock, line.traffic, client.device.put(note('waits'))))).code, 'queued');
    clock.advance(60_000);
    const row = sealedRow(client.identity(), { version: 9_000 });
    const forged = { id: row.id, version: 9_000, state: 'quarantined', reason: 'bad_sig', row, kept: null } as const;
    const mute = { id: newId(), version: 9_001, state: 'deleted', tagged: false, kept: row } as const;
    await store.apply({ entries: [forged, mute] });
    const later = await client.device.status();
    t.match(later, {
      connection: { state: 'closed' },
      pending: { count: 1, waiting: 1 },
      hidden: { count: 2, byReason: { bad_sig: 1, untagged_delete: 1 } },
    });
    t.ok((later.pending.oldestAgeMs ?? 0) >= 60_000);
    const again = await all.open(first.identity(), { tap: cable(clock).tap, store });
    t.ok(((await again.device.status()).pending.oldestAgeMs ?? 0) >= 60_000, 'after a restart too');
    t.type(await client.device.get(id), 'object');
    client.device.close();
    t.match(await client.device.status(), { state: 'closed' });
  });

  await t.test('SDK-18: a device reports uncertified devices in its state', async (t) => {
    const stranger = await all.pair('Stranger');
    await all.server.sql('UPDATE devices SET cert = NULL WHERE id = $1', [stranger.device.id]);
    await first.device.devices.refresh();
    const { devices } = await first.device.status();
    t.match(devices?.uncertified, [{ id: stranger.device.id, fingerprint: stranger.device.fingerprint }]);
    await first.device.revoke(stranger.device.id);
    t.match((await first.device.status()).devices, { uncertified: [] });
  });

  await t.test('SDK-19: all devices of a user show the same fingerprint of the master key', async (t) => {
    const [one, other] = [await first.device.status(), await second.device.status()];
    t.match(one.masterFingerprint, /^([0-9a-f]{4} ){7}[0-9a-f]{4}$/);
    t.equal(other.masterFingerprint, one.masterFingerprint);
    t.not(other.fingerprint, one.fingerprint);
  });

  await t.test('SDK-08: bins and devices can be followed: the list at once, then each list that differs', async (t) => {
    const bins: string[][] = [];
    const followed = await second.device.bins.subscribe((list) => bins.push(list.map(({ id }) => id)));
    const names: string[][] = [];
    const devices = await second.device.devices.subscribe((list) => names.push(list.map(({ name }) => name)));
    t.equal(bins.length, 1);
    t.ok(names[0]?.includes('Second'));
    const own = next(second, 'bins');
    await second.device.bins.create('own', { name: 'Own' });
    await own;
    t.ok(bins.at(-1)?.includes('own'), 'own changes too, without a socket');
    await second.device.connect();
    await second.device.bins.refresh('changed');
    const told = bins.length;
    await second.device.bins.refresh('changed');
    t.equal(bins.length, told, 'a list that does not differ is not reported');
    const foreign = next(second, 'bins', ({ bins: list }) => list.some(({ id }) => id === 'foreign'));
    await first.device.bins.create('foreign', { name: 'Foreign' });
    await foreign;
    t.same(
      followed.current.map(({ id }) => id),
      bins.at(-1),
    );
    t.ok(bins.at(-1)?.includes('foreign'));
    const joined = next(second, 'devices', ({ devices: list }) => list.some(({ name }) => name === 'Newcomer'));
    await all.pair('Newcomer');
    await joined;
    t.ok(names.at(-1)?.includes('Newcomer'));
    followed.close();
    devices.close();
    const before = bins.length;
    await second.device.bins.create('unseen', { name: 'Unseen' });
    await second.device.bins.refresh('changed');
    t.equal(bins.length, before);
  });

  await t.test('BIN-09: a bin whose reply was lost is made once, and the id of another is still refused', async (t) => {
    const tap = wiretap();
    const { fetch } = tap.platform;
    let lose = true;
    const platform = {
      ...tap.platform,
      fetch: async (url: string, init: RequestInit) => {
        const reply = await fetch(url, init);
        if (init.method !== 'POST' || !url.endsWith('/bins') || !lose) return reply;
        lose = false;
        throw new TypeError('the reply is lost');
      },
    };
    const client = await all.open(first.identity(), { tap: { ...tap, platform } });
    t.match(await client.device.bins.create('once', { name: 'Once' }), { id: 'once', label: { name: 'Once' } });
    t.equal((await refusal(client.device.bins.create('once', { name: 'Twice' }))).code, 'conflict');
    lose = true;
    const error = await refusal(client.device.bins.create('once', { name: 'Twice' }));
    t.equal(error.code, 'conflict', 'after a lost refusal too');
    t.match(
      (await client.device.bins.list()).filter(({ id }) => id === 'once'),
      [{ label: { name: 'Once' } }],
    );
  });

  await t.test('BIN-05: a bin that is renamed keeps the fields of its meta that another client added', async (t) => {
    const sodium = nodeSodium;
    const keys = { masterKey: first.identity().masterKey, binId: 'once' };
    const meta = sealBinMeta(sodium, keys, { name: 'Once', emoji: '🛒', colour: { hue: 3 } });
    await all.server.sql("UPDATE bins SET meta = $1 WHERE id = 'once'", [meta]);
    await first.device.bins.rename('once', { name: 'Twice' });
    const [bin] = await all.server.sql("SELECT meta FROM bins WHERE id = 'once'");
    t.same(openBinMeta(sodium, keys, bin?.['meta'] as Uint8Array), { name: 'Twice', colour: { hue: 3 } });
  });
});

t.test('changes made while the server is unreachable', async (t) => {
  const all = await world(t);
  const { first } = all;
  await first.device.connect();
  await first.device.bins.create('work', { name: 'Work' });
  const second = await all.pair();
  const offline = async (known: boolean) => {
    const clock = new TestClock();
    const line = cable(clock);
    const client = await all.open(second.identity(), { tap: line.tap });
    if (known) await client.device.pull();
    line.cut = true;
    const queued = async (work: Promise<unknown>): Promise<void> => {
      t.equal((await refusal(hurried(clock, line.traffic, work))).code, 'queued');
    };
    const restored = async (): Promise<void> => {
      line.cut = false;
      await hurried(clock, line.traffic, client.device.pull());
      const sent = async (): Promise<void> => {
        await until('nothing waits', async () => {
          await settle();
          return (await client.device.status()).pending.waiting === 0;
        });
      };
      await hurried(clock, line.traffic, sent());
    };
    return { client, queued, restored };
  };
  const asked = (client: Client): string[] =>
    client.tap.calls.flatMap(({ method, path, body }) => {
      if (path === '/items/batch') return (body?.['items'] as { id: string }[]).map(({ id }) => `put ${id}`);
      if (path === '/items') return [`put ${String(body?.['id'])}`];
      if (path.endsWith('/reconcile')) return [`move ${path.split('/')[2] ?? ''}`];
      return method === 'DELETE' ? [`delete ${path.split('/')[2] ?? ''}`] : [];
    });

  await t.test('SDK-20: changes are sent in the order they were made, each item’s on top of one another', async (t) => {
    const { id: old } = await first.device.put(note('old'));
    const { client, queued, restored } = await offline(true);
    const [one, two] = [newId(), newId()];
    await queued(client.device.put({ ...note('one'), id: one }));
    await queued(client.device.put({ ...note('two'), id: two }));
    await queued(client.device.put({ ...note('one again'), id: one }));
    await queued(client.device.move(one, 'work'));
    await queued(client.device.move(old, 'work'));
    await queued(client.device.delete(two));
    t.match(await client.device.get(one), { binId: 'work', payload: { text: 'one again' }, pending: true });
    t.equal(await client.device.get(two), undefined, 'each is shown at once');
    t.equal((await refusal(client.device.put({ ...note('no'), id: two }))).code, 'deleted_item');
    t.same(writes(client), []);
    await restored();
    const made = [`put ${one}`, `put ${two}`, `put ${one}`, `move ${one}`, `move ${old}`, `delete ${two}`];
    t.same(asked(client), made, 'in the order they were made, each once');
    t.match(await shows(first, one, ({ binId }) => binId === 'work'), { payload: { text: 'one again' } });
    t.match(await shows(first, old, ({ binId }) => binId === 'work'), { payload: { text: 'old' } });
    // The last change: its reply may arrive before the push to the other device.
    await until('the delete', async () => (await first.device.get(two)) === undefined);
  });

  await t.test(
    'SDK-21: a program that never read the device list keeps the change, and all devices get keys',
    async (t) => {
      const { client, queued, restored } = await offline(false);
      const id = newId();
      await queued(client.device.put({ ...note('from nowhere'), id }));
      t.match(await client.device.get(id), { payload: { text: 'from nowhere' }, pending: true });
      await restored();
      const bodies = writes(client).filter((body) => body['id'] === id);
      const keys = bodies.map((body) => Object.keys((body['payloadEnc'] as { keys: object }).keys));
      t.same(keys[0], [second.device.id], 'sealed for this device, whose key it knows');
      t.same(new Set(keys.at(-1)), new Set([first.device.id, second.device.id]));
      t.match(await shows(first, id), { payload: { text: 'from nowhere' } });
    },
  );

  await t.test('SDK-22: a change that another device overtook is reported and can be sent again', async (t) => {
    const { id } = await first.device.put(note('base'));
    const { id: doomed } = await first.device.put(note('doomed'));
    const { client, queued, restored } = await offline(true);
    await queued(client.device.put({ ...note('mine'), id }));
    await queued(client.device.put({ ...note('mine too'), id: doomed }));
    await first.device.put({ ...note('theirs'), id });
    await first.device.delete(doomed);
    const overtaken = next(client, 'rejected', (event) => event.id === id);
    const late = next(client, 'rejected', (event) => event.id === doomed);
    await restored();
    const { row, error } = await overtaken;
    t.match(error, { code: 'conflict' });
    t.match(await client.device.get(id), { payload: { text: 'theirs' }, pending: false }, 'the stored text is shown');
    if (row === null) throw new Error('a rejected write has its row');
    await client.device.resend(row);
    await shows(first, id, (item) => item.payload?.['text'] === 'mine');
    const lost = (await late).row;
    if (lost === null) throw new Error('a rejected write has its row');
    t.equal((await refusal(client.device.resend(lost))).code, 'deleted_item');
    const copy = await client.device.resend(lost, 'copy');
    t.not(copy.id, doomed);
    t.match(await shows(first, copy.id), { payload: { text: 'mine too' } });
  });
});
