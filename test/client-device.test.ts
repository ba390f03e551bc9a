/** Devices stay in sync over a real server, even if it lists uncertified devices. */
import t from 'tap';
import { Device } from '../src/sdk/device.js';
import { ApiError, UncertifiedDeviceError } from '../src/sdk/errors.js';
import { fingerprintOfDevice } from '../src/sdk/device-list.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { toBase64Url } from '../src/protocol/base64.js';
import { systemClock, type Clock } from '../src/protocol/clock.js';
import { TestClock } from './support/clock.js';
import { fakeFetch, fakeSockets, listed, newId, newIdentity, settle } from './support/client.js';
import { next, note, refusal, shows, wiretap, world, writes, type Client } from './support/client-world.js';
import type { WithTeardown } from './support/postgres.js';
import { ClientWorld } from './support/simulated-device.js';
import { FRESH, MemoryStore, type Cursor } from '../src/sdk/store/store.js';

const texts = async ({ device }: Client): Promise<unknown[]> =>
  (await device.list()).map((item) => item.payload?.['text']).sort();

t.test('two devices in sync', async (t) => {
  const all = await world(t);
  const { first } = all;
  await first.device.connect();
  const second = await all.pair();
  await second.device.connect();

  await t.test('CLIENT-23 CLIENT-24: each write gives the version it was made against, and a later ts', async (t) => {
    const { id } = await first.device.put(note('one'));
    await shows(second, id);
    await second.device.put({ ...note('two'), id });
    const [made] = writes(first);
    const [changed] = writes(second);
    t.match(made, { ifVersion: 0 });
    t.match(changed, { ifVersion: 1 });
    t.ok(Number(changed?.['ts']) > Number(made?.['ts']));
    const behind = await all.open(second.identity(), { tap: wiretap(new TestClock(1_500_000_000_000)) });
    await behind.device.pull();
    await behind.device.put({ ...note('three'), id });
    t.equal(writes(behind)[0]?.['ts'], Number(changed?.['ts']) + 1, "even if the device's clock is years behind");
    t.match(await behind.device.get(id), { payload: { text: 'three' }, pending: false });
    const clock = new TestClock(Date.now() + 3_600_000);
    const ahead = await all.open(second.identity(), { tap: wiretap(clock) });
    await ahead.device.pull();
    await ahead.device.put({ ...note('four'), id });
    t.equal(writes(ahead)[0]?.['ts'], clock.now(), "and otherwise the clock's time");
  });

  await t.test('a change made against an old version is a conflict, unless it may overwrite', async (t) => {
    const { id, version } = await first.device.put(note('base'));
    const late = await all.open(second.identity());
    await late.device.pull();
    const newer = await first.device.put({ ...note('newer'), id });
    const error = await refusal(late.device.put({ ...note('mine'), id }));
    t.ok(error instanceof ApiError && error.code === 'conflict');
    await late.device.put({ ...note('mine'), id, onConflict: 'overwrite' });
    await shows(first, id, (item) => item.payload?.['text'] === 'mine');
    const given = writes(late).map((body) => body['ifVersion']);
    t.same([given[0], given.at(-1)], [version, newer.version], 'CLIENT-23: an overwrite gives the version it found');
    await first.device.delete(id);
    t.equal((await refusal(first.device.put({ ...note('back'), id }))).code, 'deleted_item', 'there is no restore');
  });

  await t.test('CLIENT-38: a moved item has a recomputed `sig`, and readers accept it', async (t) => {
    await first.device.bins.create('work', { name: 'Work', emoji: '🛠' });
    const { id } = await first.device.put(note('moving'));
    await shows(second, id);
    await first.device.move(id, 'work');
    t.match(await shows(second, id, (item) => item.binId !== 'inbox'), { binId: 'work', payload: { text: 'moving' } });
    t.same(await second.device.hidden(), []);
    const bins = await second.device.bins.list();
    t.match(
      bins.find((bin) => bin.id === 'work'),
      { label: { name: 'Work', emoji: '🛠' }, readable: true, itemCount: 1 },
    );
  });

  await t.test('CLIENT-26: no item of `inbox`, which cannot be deleted, is deleted', async (t) => {
    const { id } = await first.device.put(note('in the inbox'));
    const before = first.tap.calls.length;
    t.equal((await refusal(first.device.bins.remove('inbox'))).code, 'default_bin');
    t.equal(first.tap.calls.length, before, 'no call was made');
    t.match(await first.device.get(id), { payload: { text: 'in the inbox' } });
    await first.device.delete(id);
  });

  await t.test("CLIENT-25 CLIENT-26: deletes carry tags, and a bin's items are deleted before the bin", async (t) => {
    const ids = await Promise.all(
      ['a', 'b', 'c'].map(async (text) => (await first.device.put({ ...note(text), binId: 'work' })).id),
    );
    const warned: string[] = [];
    const stop = second.device.on('untagged_delete', ({ id }) => warned.push(id));
    const before = first.tap.calls.length;
    const gone = Promise.all(ids.map((id) => next(second, 'delete', (event) => event.id === id)));
    await first.device.bins.remove('work');
    await gone;
    stop();
    t.same(warned, [], 'every delete had a valid tag');
    const deletes = first.tap.calls.slice(before).filter(({ method }) => method === 'DELETE');
    t.equal(deletes.at(-1)?.path, '/bins/work');
    t.ok(
      deletes.slice(0, -1).every(({ path, body }) => path.startsWith('/items/') && typeof body?.['sig'] === 'string'),
    );
    t.equal(deletes.length, 5, 'four items and the bin');
    t.notOk((await second.device.bins.list()).some((bin) => bin.id === 'work'));
  });

  await t.test('CLIENT-26: a removal that fails ends when all its deletes are answered', async (t) => {
    await first.device.bins.create('both', { name: 'Both' });
    for (const text of ['a', 'b']) await first.device.put({ ...note(text), binId: 'both' });
    const before = first.tap.calls.length;
    const deletes = () => first.tap.calls.slice(before).filter(({ method }) => method === 'DELETE').length;
    first.tap.alterRequest = ({ method, body }) =>
      method === 'DELETE' && deletes() === 1 ? { ...body, sig: '' } : undefined;
    t.equal((await refusal(first.device.bins.remove('both'))).code, 'validation');
    t.equal(deletes(), 2, 'both were asked for');
    t.equal((await first.device.list({ binId: 'both' })).length, 1, 'one was refused');
    t.equal(first.device.waiting().count, 0, 'none waits');
    first.tap.alterRequest = () => undefined;
    await first.device.bins.remove('both');
  });

  await t.test(
    'CLIENT-27 CLIENT-28: after many concurrent writes both devices hold everything and report it complete',
    async (t) => {
      const made = [first, second].flatMap((client) =>
        Array.from({ length: 40 }, (_, at) => client.device.put(note(`${client.identity().name} ${at}`))),
      );
      await Promise.all(made);
      for (const client of [first, second]) {
        client.device.disconnect();
        const caughtUp = next(client, 'caught_up');
        await client.device.connect();
        t.match(await caughtUp, { complete: true });
      }
      t.same(await texts(first), await texts(second));
      const fresh = await all.open(first.identity());
      await fresh.device.pull();
      t.same(await texts(fresh), await texts(first), 'a device that reads everything over HTTP holds the same');
    },
  );

  await t.test('CLIENT-35: a connection that a listener ends as it begins does not prevent the next one', async (t) => {
    first.device.disconnect();
    const stop = first.device.on('connection', ({ state }) => {
      if (state === 'connecting') first.device.disconnect();
    });
    t.match(await refusal(first.device.connect()), { code: 'closed' });
    stop();
    const caughtUp = next(first, 'caught_up');
    await first.device.connect();
    t.match(await caughtUp, { complete: true });
  });

  await t.test('CLIENT-23: creations, edits, overwrites and re-wraps give `ifVersion`', async (t) => {
    const { id, version } = await first.device.put(note('for a third device'));
    const before = writes(first).length;
    const third = await all.pair();
    await first.device.rewrap();
    third.device.close();
    const rewraps = writes(first).slice(before);
    t.match(
      rewraps.find((body) => body['id'] === id),
      { ifVersion: version },
      'a re-wrap gives the version whose keys it adds to',
    );
    for (const client of [first, second])
      t.same(
        writes(client).filter((body) => !Number.isInteger(body['ifVersion'])),
        [],
      );
  });

  await t.test('CLIENT-20: no URL contains a token', (t) => {
    for (const client of [first, second]) {
      const { token } = client.identity();
      t.ok(client.tap.sockets.length > 1);
      t.notOk(client.tap.sockets.some((url) => url.includes(token.text)));
      t.notOk(client.tap.calls.some(({ path }) => path.includes(token.text)));
    }
    t.end();
  });

  await t.test('CLIENT-01: no content of an item or bin is readable in requests or in the database', async (t) => {
    await first.device.bins.create('secret', { name: 'Hippopotamus' });
    await first.device.put({
      binId: 'secret',
      type: 'password',
      payload: { service: 'Rhinoceros', user: 'me', secret: 'Crocodile' },
    });
    const rows = await all.server.sql(
      "SELECT convert_from(string_agg(t::text::bytea, ''::bytea), 'utf8') AS text FROM (SELECT i::text AS t FROM items i UNION ALL SELECT b::text FROM bins b) x",
    );
    /** A text, and the bytes that its runs of hex and base64 stand for. */
    const decoded = (text: string): string =>
      (
        [
          [/[0-9a-f]{8,}/gi, 'hex'],
          [/[\w+/-]{8,}/g, 'base64'],
        ] as const
      ) // prettier-ignore
        .flatMap(([runs, encoding]) => text.match(runs)?.map((run) => Buffer.from(run, encoding).toString('latin1')))
        .concat(text)
        .join('\n');
    const words = ['Hippopotamus', 'Rhinoceros', 'Crocodile'];
    for (const encoding of ['hex', 'base64', 'base64url'] as const)
      t.match(decoded(`"${Buffer.from(JSON.stringify({ words })).toString(encoding)}"`), /Crocodile/, encoding);
    const dump = String(rows[0]?.['text']).replaceAll('\\x', '');
    for (const seen of [dump, first.tap.sent()]) {
      t.match(seen, /secret/, "the bin's id is not secret: it is in the dump, and was sent");
      const readable = decoded(seen);
      for (const word of words) t.notOk(readable.includes(word), word);
    }
  });
  t.same([...first.problems, ...second.problems], []);
});

t.test('uncertified devices', async (t) => {
  const all = await world(t);
  const { first } = all;
  await first.device.connect();
  const intruder = nodeSodium.boxKeyPair();

  await t.test(
    'CLIENT-05 CLIENT-06: a device that the server inserted gets no key, and the write error names it',
    async (t) => {
      const id = newId();
      first.tap.alterReply = ({ path }, answer) => {
        if (path !== '/devices') return undefined;
        const [own] = answer['devices'] as object[];
        const slipped = { ...own, id, pubkey: toBase64Url(intruder.publicKey), current: false };
        return { devices: [own, slipped] };
      };
      const told = next(first, 'uncertified');
      await first.device.devices.refresh();
      t.match((await told).devices, [{ id }]);
      const error = await refusal(first.device.put(note('secret')));
      t.ok(error instanceof UncertifiedDeviceError);
      t.match(error.message, id);
      t.same(writes(first), [], 'nothing was written');
      t.match(await refusal(first.device.devices.certify(id, '0000 0000')), { code: 'fingerprint' });
      first.tap.alterReply = () => undefined;
      await first.device.devices.refresh();
    },
  );

  await t.test("CLIENT-05: a key that the server swapped under a certified device's id gets nothing", async (t) => {
    const second = await all.pair();
    first.tap.alterReply = ({ path }, answer) =>
      path === '/devices'
        ? {
            devices: (answer['devices'] as { id: string }[]).map((device) =>
              device.id === second.device.id ? { ...device, pubkey: toBase64Url(intruder.publicKey) } : device,
            ),
          }
        : undefined;
    await first.device.devices.refresh();
    t.ok((await refusal(first.device.put(note('secret')))) instanceof UncertifiedDeviceError);
    first.tap.alterReply = () => undefined;
    await first.device.devices.refresh();
    t.same((await first.device.devices.recipients()).length, 2);
  });

  await t.test('CLIENT-07: after an uncertified device is certified or revoked the write succeeds', async (t) => {
    for (const way of ['certify', 'revoke'] as const) {
      const stranger = await all.pair(`Stranger ${way}`);
      await all.server.sql('UPDATE devices SET cert = NULL WHERE id = $1', [stranger.device.id]);
      const fresh = await all.open(first.identity());
      t.ok((await refusal(fresh.device.put(note(way)))) instanceof UncertifiedDeviceError);
      if (way === 'certify') await fresh.device.devices.certify(stranger.device.id, stranger.device.fingerprint);
      else await fresh.device.revoke(stranger.device.id);
      t.type((await fresh.device.put(note(way))).version, 'number');
      const sealed = Object.keys((writes(fresh)[0]?.['payloadEnc'] as { keys: object }).keys);
      t.equal(sealed.includes(stranger.device.id), way === 'certify');
    }
  });

  await t.test('a device whose own certificate is missing certifies itself', async (t) => {
    await all.server.sql('UPDATE devices SET cert = NULL WHERE id = $1', [first.device.id]);
    const fresh = await all.open(first.identity());
    await fresh.device.put(note('own'));
    const [row] = await all.server.sql('SELECT cert IS NOT NULL AS there FROM devices WHERE id = $1', [
      first.device.id,
    ]);
    t.equal(row?.['there'], true);
    t.equal(
      first.device.fingerprint,
      fingerprintOfDevice(nodeSodium, { id: first.device.id, pubkey: first.identity().keys.publicKey }),
    );
  });
});

t.test('keys for devices that join', async (t) => {
  // The test controls timers of two minutes and more; the shorter ones of the network take real time.
  const minutes = new TestClock();
  const setTimer: Clock['setTimer'] = (ms, fn) => (ms < 120_000 ? systemClock : minutes).setTimer(ms, fn);
  const clock: Clock = { now: () => minutes.now(), setTimer };
  const all = await world(t);
  const { first } = all;
  await first.device.connect();
  const ids = [];
  for (const text of ['one', 'two', 'three']) ids.push((await first.device.put(note(text))).id);
  const keysOf = async (): Promise<number[]> => {
    const page = await all.open(first.identity());
    const seen: number[] = [];
    page.tap.alterReply = ({ path }, answer) => {
      if (!path.startsWith('/items?')) return undefined;
      for (const item of answer['items'] as { payloadEnc: { keys: object } | null }[]) {
        if (item.payloadEnc !== null) seen.push(Object.keys(item.payloadEnc.keys).length);
      }
      return undefined;
    };
    await page.device.pull();
    return seen;
  };

  await t.test('CLIENT-36: the pairing device re-wraps at once', async (t) => {
    const rewrapped = next(first, 'rewrapped');
    await all.pair();
    t.match(await rewrapped, { items: 3 });
    t.same(await keysOf(), [2, 2, 2]);
    t.ok(first.tap.calls.filter(({ path }) => path === '/items/batch').length >= 1, 'in batches');
  });

  await t.test('CLIENT-37: after 10 minutes another device re-wraps what is still missing', async (t) => {
    const patient = await all.open(first.identity(), { tap: wiretap(clock) });
    await patient.device.connect();
    // The pairing device re-wraps nothing, since the server lists no devices to it.
    first.tap.alterReply = ({ path }) => (path === '/devices' ? { devices: [] } : undefined);
    const neglected = next(first, 'rewrapped');
    await all.pair('Third');
    t.match(await neglected, { items: 0 });
    first.tap.alterReply = () => undefined;
    t.same((await keysOf()).filter((count) => count === 3).length, 0);
    const rewrapped = next(patient, 'rewrapped');
    minutes.advance(9 * 60_000);
    await settle();
    t.notOk(writes(patient).length, 'not after 9 minutes');
    minutes.advance(2 * 60_000);
    t.match(await rewrapped, { items: 3 });
    t.same(await keysOf(), [3, 3, 3]);
  });

  await t.test('a write that lacks a device which joined meanwhile is sealed for it and sent again', async (t) => {
    const fresh = await all.open(first.identity());
    await fresh.device.devices.list();
    const joined = await all.pair('Fourth');
    const { id } = await fresh.device.put(note('for all'));
    t.equal(writes(fresh).length, 2);
    await joined.device.pull();
    t.match(await joined.device.get(id), { payload: { text: 'for all' } });
    const nonces = writes(fresh).map((body) => (body['payloadEnc'] as { nonce: string }).nonce);
    t.equal(nonces[0], nonces[1], 'the same content keeps its nonce, which is used for one text only');
  });
});

/** Two devices and an honest server, of which the test moves every request and frame. */
async function simulated() {
  const world = new ClientWorld(1);
  for (let n = 0; n < 2; n++) await world.join();
  const [first, second] = world.devices;
  if (first?.device === undefined || second?.device === undefined) throw new Error('no devices');
  return { world, first: first.device, second: second.device };
}

t.test('SDK-16: a call that the revocation of the device interrupts says so', async (t) => {
  const { world, first, second } = await simulated();
  const others = world.devices.slice(0, 1);
  await world.flow(others);
  const revoked = first.revoke(second.id);
  await world.flow(others);
  await revoked;
  // The write waits for the list of devices, which this program has not read yet.
  const put = second.put(note('no'));
  await world.idle();
  const me = world.calls.find(({ request }) => request.path === '/me');
  if (me === undefined) throw new Error('the epoch is not asked for');
  await world.finish(me);
  t.equal((await refusal(put)).code, 'revoked');
  second.reconnect(); // as on `online`: a listener of the platform must not throw
});

t.test('CLIENT-43: a write that lacked a key for a device is stored where that device is revoked by now', async (t) => {
  const { world, first } = await simulated();
  await world.flow();
  await world.join();
  const put = first.put(note('kept'));
  await world.idle();
  const write = world.calls.find(({ request }) => /^\/items\?epoch=/.test(request.path));
  if (write === undefined) throw new Error('nothing is written');
  await world.deliver(write);
  t.match(write.reply, { status: 400, body: { error: { details: { missingDevices: [world.devices[2]?.id] } } } });
  const [gone] = world.server.devices.slice(-1);
  if (gone !== undefined) await world.server.revoke(gone.id);
  await world.flow();
  t.match(await put, { version: 1 });
});

t.test('CLIENT-65: a write whose reply was lost and that was deleted since accuses nobody', async (t) => {
  const { world, first, second } = await simulated();
  const [, other] = world.devices;
  if (other === undefined) throw new Error('no other device');
  await world.flow();
  const id = newId();
  const put = first.put({ ...note('deleted'), id });
  await world.idle();
  const [write] = world.calls;
  if (write === undefined) throw new Error('nothing is written');
  await world.deliver(write);
  world.lose(write);
  await world.flow([other]);
  const deleted = second.delete(id);
  await world.flow([other]);
  t.match(await deleted, { version: 2 });
  // The retry is answered with the version that the item has now; then the delete comes.
  await world.pass(1_000, true);
  t.match(await put, { version: 2 });
  await world.flow();
  t.equal(await first.get(id), undefined);
  t.same(world.findings, []);
});

/** A device without a connection, which has read the history `old`, or as the cursor says. `pass` lets seconds go by. */
async function unconnected(
  t: WithTeardown,
  answer: Parameters<typeof fakeFetch>[0],
  cursor: Cursor = { since: 7, epoch: 'old' },
) {
  const identity = newIdentity();
  const own = listed(identity);
  const device = {
    ...{ id: own.id, name: 'Test', glyph: 'laptop', pairedAt: 1, online: true, current: true },
    ...{ pubkey: toBase64Url(own.publicKey), cert: toBase64Url(own.cert), revokedAt: null, lastSeenAt: null },
  };
  const { fetch, requests } = fakeFetch((call, n) => {
    if (call.path === '/devices') return { body: { devices: [device] } };
    return call.path === '/bins' ? { body: { bins: [] } } : answer(call, n);
  });
  const store = new MemoryStore();
  await store.apply({ cursor });
  const clock = new TestClock();
  const platform = { sodium: nodeSodium, fetch, sockets: fakeSockets().port, clock, random: () => 0.5 };
  const problems: unknown[] = [];
  const opened = await Device.open({ platform, identity, store, onProblem: (error) => problems.push(error) });
  t.teardown(() => opened.close());
  const pass = async (seconds: number): Promise<void> => {
    for (let passed = 0; passed < seconds; passed++) {
      await settle();
      clock.advance(1_000);
    }
  };
  return { device: opened, store, problems, requests, pass };
}

const MISMATCH = { status: 409, body: { error: { code: 'epoch_mismatch', message: 'another' } } };
const isRead = ({ path }: { readonly path: string }): boolean => path.startsWith('/items?since');

t.test('CLIENT-67: a device that has read nothing asks for the epoch before its first change', async (t) => {
  const figures = { storageUsedBytes: 0, storageCapBytes: 1, itemCount: 0, deviceCount: 1, devicesOnline: 0 };
  let down = true;
  const { device, store, requests, pass } = await unconnected(
    t,
    ({ method, body }) => {
      if (method === 'POST') return { body: { id: (body as { id: string }).id, version: 1 } };
      if (down) return { status: 503, body: { error: { code: 'unavailable', message: 'down' } } };
      const server = { ...figures, version: '1', region: 'x', headVersion: 0, versionSum: 0, epoch: 'new' };
      return { body: { device: { id: device.id, name: 'Test', glyph: 'laptop', pairedAt: 1 }, server } };
    },
    FRESH,
  );
  const put = refusal(device.put(note('one')));
  await pass(60);
  t.match(await put, { name: 'QueuedError' });
  t.equal(requests.filter(({ method }) => method === 'POST').length, 0, 'nothing is sent to a history without a name');
  down = false;
  await pass(120);
  await device.put(note('two'));
  const asked = requests.filter(({ path }) => path === '/me').length;
  await device.put(note('three'));
  t.equal(requests.filter(({ path }) => path === '/me').length, asked, 'once');
  const writes = requests.filter(({ method }) => method === 'POST');
  t.same(
    writes.map(({ path }) => path),
    Array(3).fill('/items?epoch=new'),
  );
  t.match(await store.cursor(), { since: 0, epoch: 'new' });
});

t.test(
  'CLIENT-68: a device that writes without a connection reads another history, and sends its changes',
  async (t) => {
    const gone = { id: newId(), binId: 'inbox', version: 1, deletedAt: 1 };
    const page = { items: [], nextSince: 1, hasMore: false, epoch: 'new' };
    let pages = 0;
    const { device, store, problems, requests, pass } = await unconnected(t, ({ method, path, body }) => {
      if (method === 'POST' && path === '/items?epoch=new')
        return { body: { id: (body as { id: string }).id, version: 2 } };
      if (method === 'POST') return MISMATCH;
      // The first replay is cut off.
      if (pages++ === 0) return { body: { ...page, items: [gone], hasMore: true, reset: true } };
      return pages < 9 ? new Error('no server') : { body: page };
    });
    const put = refusal(device.put(note('kept')));
    await pass(180);
    t.match(await put, { name: 'QueuedError' });
    t.same(await store.pending().then((all) => all.map(({ version }) => version)), [2]);
    t.match(await store.cursor(), { epoch: 'new' });
    t.same(problems, []);
    const reads = requests.filter(isRead).length;
    t.ok(reads < 20, `${reads} reads`);
  },
);

t.test('CLIENT-68: a server that names another history each time is asked ever more rarely', async (t) => {
  let pages = 0;
  const { device, requests, pass } = await unconnected(t, ({ method }) => {
    if (method === 'POST') return MISMATCH;
    return { body: { items: [], nextSince: 0, hasMore: false, epoch: `epoch ${++pages}`, reset: true } };
  });
  t.match(await refusal(device.put(note('kept'))), { name: 'QueuedError' });
  await pass(600);
  const writes = requests.filter(({ method }) => method === 'POST').length;
  t.ok(writes > 3 && writes < 30, `${writes} writes`);
  t.ok(requests.filter(isRead).length <= writes, `${requests.filter(isRead).length} reads`);
});

t.test('CLIENT-31: the caller of a change learns of a replay that is cut off just before its request', async (t) => {
  const gone = { id: newId(), binId: 'inbox', version: 1, deletedAt: 1 };
  const { device, pass } = await unconnected(t, ({ method, path }) => {
    if (method === 'POST') return MISMATCH;
    if (path.includes('since=1')) return new Error('no server');
    return { body: { items: [gone], nextSince: 1, hasMore: true, epoch: 'new', reset: true } };
  });
  const pulling = refusal(device.pull());
  const put = refusal(device.put(note('kept')));
  await pass(120);
  t.match(await pulling, { name: 'NetworkError' });
  t.match(await put, { name: 'QueuedError' });
});
