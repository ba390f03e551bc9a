/** The outbox of a device: base versions, refusals and waits, over an API that the test controls. */
import t from 'tap';
import { ApiError, isTransient, NetworkError } from '../src/sdk/errors.js';
import type { Identity } from '../src/sdk/identity.js';
import { ItemReader } from '../src/sdk/item-reader.js';
import { Device } from '../src/sdk/device.js';
import { storeError } from '../src/sdk/store/error.js';
import { MemoryStore, type Batch, type Entry, type Pending } from '../src/sdk/store/store.js';
import { moveTag } from '../src/crypto/item.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { LiveItem } from '../src/protocol/item.js';
import { fakeSockets, listed, newId, newIdentity, sealedRow, settle } from './support/client.js';
import { TestClock } from './support/clock.js';
import { note, refusal } from './support/client-world.js';
import { Gate, parts, SlowStore } from './support/outbox-parts.js';

/** A change that an earlier run of the program left in the store. */
function left(me: Identity, seq: number, base: number | null = 0): Extract<Pending, { kind: 'write' }> {
  const row = sealedRow(me, { version: 0 });
  return { kind: 'write', seq, id: row.id, base, version: null, row, rewrap: false };
}

const refused = (code: string, status: number): ApiError => new ApiError({ code, status, message: 'no' });

t.test('CLIENT-41: a version acknowledged while the next change is being stored becomes its ifVersion', async (t) => {
  const store = new SlowStore();
  const world = await parts(store);
  const id = newId();
  const first = world.writer.put({ ...note('one'), id });
  await settle();
  store.applying.close();
  const second = world.writer.put({ ...note('two'), id });
  await settle();
  world.sent[0]?.answer({ id, version: 5 });
  await settle();
  t.equal(world.sent.length, 1, 'a change that is not stored durably is not sent');
  store.applying.open();
  t.match(await first, { version: 5 });
  await settle();
  t.match(world.sent[1]?.writes, [{ id, ifVersion: 5 }]);
  world.sent[1]?.answer({ id, version: 6 });
  t.match(await second, { version: 6 });
});

t.test('CLIENT-41: the stored entry and the own change are read as one consistent state', async (t) => {
  const store = new SlowStore();
  const world = await parts(store);
  const row = sealedRow(world.me, { version: 3 });
  const entry = (version: number): Entry => ({ id: row.id, version, state: 'live', row: { ...row, version } });
  await store.apply({ entries: [entry(3)] });
  const { pending, stored } = world.outbox.add({ kind: 'write', id: row.id, base: 3, row, rewrap: false });
  await stored;
  const late = store.getting;
  late.close();
  const looking = world.outbox.look(row.id);
  await settle();
  store.getting = new Gate();
  await store.apply({ entries: [entry(5)] });
  await world.outbox.acknowledged(pending, 5, () => false);
  t.same(world.outbox.ids(), [], 'the change is acknowledged and has left the outbox');
  late.open();
  t.match(await looking, { entry: { version: 5 }, own: undefined }, 'not version 3 without an own change');
});

t.test('CLIENT-65: a change that was answered is acknowledged where the store fails as it is read again', async (t) => {
  const store = new SlowStore();
  const world = await parts(store);
  const id = newId();
  const put = world.writer.put({ ...note('one'), id });
  await settle();
  const [change] = await store.pending();
  if (change?.kind !== 'write') throw new Error('nothing was sent');
  const { row } = change;
  // The stream brings it before the reply, whose acknowledgement cannot be tidied up at first.
  await store.apply({ entries: [{ id, version: 5, state: 'live', row: { ...row, version: 5 } }] });
  const get = store.get.bind(store);
  const acknowledged = (): Pending | undefined => world.outbox.all().find(({ version }) => version !== null);
  store.get = (one) => (acknowledged() === undefined ? get(one) : Promise.reject(storeError('io')));
  world.sent[0]?.answer({ id, version: 5 });
  t.match(await put, { id, version: 5 }, 'the caller hears of its version');
  t.equal(acknowledged()?.id, id, 'and the change is still on top of the item');
  store.get = get;
  world.clock.advance(1_000);
  await settle();
  t.same([world.outbox.all(), await store.pending()], [[], []], 'until the store can be read');
});

t.test('CLIENT-65: a change made while the one below it is refused is based on what is left', async (t) => {
  // Within some of these microtasks the refusal is handled between the reading of the state and the change.
  for (let hops = -20; hops < 20; hops++) {
    const world = await parts(new SlowStore());
    const id = newId();
    const put = (text: string): void => void world.writer.put({ ...note(text), id }).catch(() => undefined);
    const refuse = (): unknown => world.sent[0]?.refuse(refused('conflict', 409));
    put('one');
    await settle();
    if (hops < 0) put('two');
    else refuse();
    for (let left = Math.abs(hops); left > 0; left--) await Promise.resolve();
    if (hops < 0) refuse();
    else put('two');
    await settle();
    t.same(world.outbox.baseless(), [], `${hops} microtasks after the refusal`);
  }
});

t.test('CLIENT-65: a refused change that the store still keeps takes no later change with it', async (t) => {
  const store = new MemoryStore();
  const before = await parts(store);
  const id = newId();
  // The program never ends what it does about the refusal.
  const first = before.writer.put({ ...note('one'), id, onRefused: () => new Promise(() => undefined) });
  await settle();
  before.sent[0]?.refuse(refused('conflict', 409));
  await t.rejects(first, { code: 'conflict' });
  const row = sealedRow(before.me, { id, version: 6 });
  await store.apply({ entries: [{ id, version: 6, state: 'live', row }] });
  before.writer.put({ ...note('two'), id, ts: row.ts + 1 }).catch(() => undefined);
  await settle();
  t.match(before.sent[1]?.writes, [{ id, ifVersion: 6 }]);
  before.sender.close(new Error('the program ends'));

  const world = await parts(store, before.me);
  world.sender.kick();
  await settle();
  t.match(world.sent[0]?.writes, [{ id, ifVersion: 0 }], 'what was not kept is told again');
  world.sent[0]?.refuse(refused('conflict', 409));
  await settle();
  t.match(world.rejected, [{ id, error: { code: 'conflict' } }]);
  t.equal(world.rejected.length, 1);
  t.match(world.sent[1]?.writes, before.sent[1]?.writes, 'the later one is sent as it was');
  world.sent[1]?.answer({ id, version: 7 });
  await settle();
  t.match(await store.pending(), [{ id, base: 6, version: 7 }]);
  t.equal((await store.pending()).length, 1);
});

t.test('CLIENT-69: nor does a store that fails as the refused change below is told leave one waiting', async (t) => {
  let fails = false;
  class Failing extends MemoryStore {
    override apply(batch: Batch): Promise<void> {
      if (!fails) return super.apply(batch);
      fails = false;
      return Promise.reject(new Error('no room'));
    }
  }
  const store = new Failing();
  const world = await parts(store);
  const id = newId();
  let keep = (): void => undefined;
  const onRefused = (): Promise<void> => new Promise((resolve) => (keep = resolve));
  const first = world.writer.put({ ...note('one'), id, onRefused });
  first.catch(() => undefined);
  await settle();
  const second = world.writer.put({ ...note('two'), id, onConflict: 'overwrite' });
  second.catch(() => undefined);
  await settle();
  const details = { version: 6, ts: 5 };
  fails = true;
  world.sent[0]?.refuse(new ApiError({ code: 'conflict', status: 409, message: 'no', details }));
  await settle();
  t.same(world.outbox.baseless(), []);
  keep();
  await settle();
  t.same(await store.pending(), world.outbox.ofItem(id), 'memory and store are one');
  world.clock.advance(2_000);
  await settle();
  world.sent[1]?.refuse(new ApiError({ code: 'conflict', status: 409, message: 'no', details }));
  await settle();
  t.match(world.rejected, [{ id }], 'the refused one is told again');
  t.match(world.sent[2]?.writes, [{ id, ifVersion: 6 }]);
  world.sent[2]?.answer({ id, version: 7 });
  t.match(await second, { version: 7 });
});

t.test('a change is shown at once, and sent only when it is stored durably', async (t) => {
  const store = new SlowStore();
  const world = await parts(store);
  store.applying.close();
  const putting = world.writer.put(note('one'));
  await settle();
  t.equal(world.outbox.ids().length, 1);
  world.sender.kick();
  await settle();
  t.same(world.sent, []);
  store.applying.open();
  await settle();
  t.equal(world.sent.length, 1);
  world.sent[0]?.answer({ id: world.sent[0].writes[0]?.['id'], version: 1 });
  await putting;
});

t.test('a change that cannot be stored is not kept and not sent', async (t) => {
  const store = new MemoryStore();
  const world = await parts(store);
  store.apply = () => Promise.reject(new Error('disk full'));
  t.match(await refusal(world.writer.put(note('lost'))), { message: 'disk full' });
  t.same(world.outbox.ids(), []);
  t.same(world.sent, []);
});

t.test('a change whose base version is lost is not sent and is reported once; the others are sent', async (t) => {
  const store = new MemoryStore();
  const me = newIdentity();
  const [stuck, fine] = [left(me, 1, null), left(me, 2)];
  await store.apply({ pending: [stuck, fine] });
  const world = await parts(store, me);
  world.sender.kick();
  await settle();
  t.match(world.sent, [{ writes: [{ id: fine.id }] }]);
  world.sent[0]?.answer({ id: fine.id, version: 1 });
  await settle();
  for (let kick = 0; kick < 3; kick++) world.sender.kick();
  await settle();
  t.equal(world.sent.length, 1);
  t.equal(world.problems.length, 1);
  t.match(world.problems, [{ name: 'ProtocolError' }]);
  t.match(world.problems[0]?.message, stuck.id);
});

t.test('a re-wrap refused while the next one is prepared fails its caller, with no unhandled rejection', async (t) => {
  const store = new SlowStore();
  const world = await parts(store);
  const rows = [1, 2].map((version) => sealedRow(world.me, { version }));
  await store.apply({
    entries: rows.map((row) => ({ id: row.id, version: row.version, state: 'live', row: { ...row, master: null } })),
  });
  const unhandled: unknown[] = [];
  const note = (reason: unknown): void => void unhandled.push(reason);
  process.on('unhandledRejection', note);
  t.teardown(() => process.off('unhandledRejection', note));
  const rewrapping = world.writer.rewrapMissing();
  // The second item is read from the store while the reply to the first one arrives.
  for (let round = 0; round < 1_000 && world.sent.length === 0; round++) {
    store.getting.close();
    await settle();
    world.sender.kick();
    await settle();
    if (world.sent.length === 0) store.getting.open();
  }
  world.sent[0]?.refuse(refused('validation', 400));
  await settle();
  t.same(unhandled, []);
  store.getting.open();
  await settle();
  world.sent[1]?.answer({ id: rows[1]?.id, version: 3 });
  t.equal((await refusal(rewrapping)).code, 'validation', 'the caller gets the refusal');
});

t.test('CLIENT-42: a temporarily refused change waits longer each time, and is reported once', async (t) => {
  const store = new MemoryStore();
  const me = newIdentity();
  const full = left(me, 1);
  await store.apply({ pending: [full] });
  const world = await parts(store, me);
  const times: number[] = [];
  const begun = world.clock.now();
  world.sender.kick();
  for (let second = 0; second <= 300; second++) {
    await settle();
    const open = world.sent.splice(0);
    for (const { refuse } of open) refuse(refused('storage_cap_exceeded', 413));
    if (open.length > 0) times.push((world.clock.now() - begun) / 1_000);
    await settle();
    world.clock.advance(500);
  }
  t.same(times, [0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 61.5, 91.5, 121.5], 'half a second, doubled up to half a minute');
  t.match(world.problems, [{ code: 'storage_cap_exceeded' }]);
  t.equal(world.problems.length, 1);
  t.same(world.outbox.ids(), [full.id], 'the change is kept');
  const other = world.writer.put(note('small'));
  await settle();
  t.equal(world.sent.length, 1, 'another change is sent without it');
  t.notMatch(world.sent[0]?.writes, [{ id: full.id }]);
  world.sent[0]?.answer({ id: world.sent[0].writes[0]?.['id'], version: 1 });
  await other;
  t.same(world.rejected, []);
});

t.test('STORE-15: a refusal is reported before the change leaves the store', async (t) => {
  const store = new MemoryStore();
  const me = newIdentity();
  const refusable = left(me, 1);
  await store.apply({ pending: [refusable] });
  const world = await parts(store, me);
  // A program that ends here must not have removed a change about which nothing was said.
  const { apply } = store;
  const told: number[] = [];
  store.apply = async (batch) => {
    await Promise.resolve();
    if (batch.done?.includes(refusable.seq) === true) told.push(world.rejected.length);
    return apply.call(store, batch);
  };
  world.sender.kick();
  await settle();
  world.sent[0]?.refuse(refused('conflict', 409));
  await settle();
  t.same(told, [1]);
  t.same(await store.pending(), []);
});

t.test('CLIENT-43: a temporary refusal drops no write, alone or inside a batch', async (t) => {
  for (const code of ['internal', 'unavailable', 'storage_unavailable', 'rate_limited']) {
    t.ok(isTransient(refused(code, 0)), code);
  }
  t.ok(isTransient(refused('http_502', 502)), "a proxy's error is judged by its status");
  t.notOk(isTransient(refused('validation', 0)));
  const store = new MemoryStore();
  const me = newIdentity();
  const [unlucky, lucky] = [left(me, 1), left(me, 2)];
  await store.apply({ pending: [unlucky, lucky] });
  const world = await parts(store, me);
  world.sender.kick();
  await settle();
  t.equal(world.sent[0]?.path, '/items/batch');
  const error = { code: 'internal', message: 'no' };
  world.sent[0]?.answer({
    results: [
      { id: unlucky.id, error },
      { id: lucky.id, version: 1 },
    ],
  });
  await settle();
  const waiting = world.writer.put({ ...note('behind it'), id: unlucky.id });
  await settle();
  t.match(world.sent[1], { path: '/items', writes: [{ id: unlucky.id }] }, 'the refused write is sent again, alone');
  world.sent[1]?.refuse(refused('internal', 500));
  t.equal((await refusal(waiting)).code, 'queued', 'the caller learns that the write is queued');
  t.same(world.rejected, []);
  t.same(world.outbox.ids().includes(unlucky.id), true);
});

t.test('a batch holds at most 1 MiB and 100 writes', async (t) => {
  const store = new MemoryStore();
  const me = newIdentity();
  const big = Array.from({ length: 40 }, (_, at) => {
    const row = sealedRow(me, { version: 0, payload: { text: 'x'.repeat(40_000) } });
    return { kind: 'write' as const, seq: at + 1, id: row.id, base: 0, version: null, row, rewrap: false };
  });
  const small = Array.from({ length: 120 }, (_, at) => left(me, 100 + at));
  await store.apply({ pending: [...big, ...small] });
  const world = await parts(store, me);
  world.sender.kick();
  const ids: unknown[] = [];
  for (let version = 1; ids.length < 160; version++) {
    await settle();
    const [load] = world.sent.splice(0);
    if (load === undefined) break;
    t.ok(JSON.stringify({ items: load.writes }).length <= 1024 * 1024 && load.writes.length <= 100);
    ids.push(...load.writes.map((write) => write['id']));
    load.answer({ results: load.writes.map((write, at) => ({ id: write['id'], version: version * 1_000 + at })) });
  }
  t.same(
    ids,
    [...big, ...small].map((pending) => pending.id),
    'in order, each once',
  );
});

t.test(
  'CLIENT-60: a batch that does not arrive in time becomes smaller, and larger again with each that does',
  async (t) => {
    const store = new MemoryStore();
    const me = newIdentity();
    const pending = Array.from({ length: 60 }, (_, at) => {
      const row = sealedRow(me, { version: 0, payload: { text: 'x'.repeat(40_000) } });
      return { kind: 'write' as const, seq: at + 1, id: row.id, base: 0, version: null, row, rewrap: false };
    });
    await store.apply({ pending });
    const world = await parts(store, me);
    world.sender.kick();
    const sizes: number[] = [];
    const MOST = 150_000;
    let [written, version] = [0, 0];
    for (let round = 0; round < 100 && written < 60; round++) {
      await settle();
      const [load] = world.sent.splice(0);
      if (load === undefined) {
        world.clock.advance(60_000);
        continue;
      }
      const size = JSON.stringify({ items: load.writes }).length;
      sizes.push(size);
      if (size > MOST) {
        // A client that waits this long has given up the request.
        world.clock.advance(15_000);
        load.refuse(new NetworkError('timeout', 'no answer'));
        continue;
      }
      written += load.writes.length;
      const results = load.writes.map((write) => ({ id: write['id'], version: ++version }));
      load.answer(load.path === '/items/batch' ? { results } : results[0]);
    }
    t.equal(written, 60, 'all arrive');
    t.ok((sizes[0] ?? 0) > 900_000 && (sizes[1] ?? 0) < 530_000, 'halved');
    const fits = sizes.findIndex((size) => size <= MOST);
    t.ok(
      sizes.slice(fits).some((size) => size > 1.2 * (sizes[fits] ?? 0)),
      'larger again',
    );
    t.ok(sizes.filter((size) => size > MOST).length < sizes.length / 2, 'less than half of the batches are too large');
    t.same(world.rejected, []);
  },
);

t.test('SDK-33: changes made while the server does not answer are shown before any answer', async (t) => {
  const me = newIdentity();
  const { publicKey: pubkey, cert } = listed(me);
  const own = { id: me.deviceId, name: 'Test', glyph: 'laptop', pubkey, cert, pairedAt: 1 };
  const remembered = [{ ...own, revokedAt: null, lastSeenAt: null, online: true, current: true }];
  for (const devices of [remembered, undefined]) {
    const clock = new TestClock();
    let requests = 0;
    const fetch = (_: string, { signal }: RequestInit) =>
      new Promise<Response>((_, reject) => {
        requests++;
        signal?.addEventListener('abort', () => reject(new DOMException('ended', 'AbortError')));
      });
    const platform = { sodium: nodeSodium, fetch, sockets: fakeSockets().port, clock, random: () => 0 };
    const store = new MemoryStore();
    const [moved, gone] = [sealedRow(me, { version: 1 }), sealedRow(me, { version: 2 })];
    const entries = [moved, gone].map((row): Entry => ({ id: row.id, version: row.version, state: 'live', row }));
    await store.apply({ entries });
    const device = await Device.open({ platform, identity: me, store, devices, onProblem: () => undefined });
    const query = await device.query({}, () => undefined);
    const binOf = (id: string) => query.current.find((item) => item.id === id)?.binId;
    const made = [device.put(note('one')), device.put(note('two'))];
    // The device list was never read: it is waited for once, for one second at most.
    if (devices === undefined) {
      await settle();
      clock.advance(1_000);
    }
    await settle();
    const shown = query.current.filter(({ pending }) => pending).map(({ payload }) => payload?.['text']);
    t.same(new Set(shown), new Set(['one', 'two']));
    made.push(device.move(moved.id, 'work'), device.delete(gone.id), device.put({ ...note('three'), id: moved.id }));
    await settle();
    t.equal(query.current.length, 3);
    t.equal(binOf(moved.id), 'inbox');
    t.equal(binOf(gone.id), undefined);
    t.ok(requests > 0, 'requests were sent');
    device.close();
    const outcomes = await Promise.allSettled(made);
    t.ok(
      outcomes.every(({ status }) => status === 'rejected'),
      'no request was answered',
    );
    t.equal(clock.waiting, 0);
  }
});

/** An item that the server has, in a new world. */
async function withItem() {
  const store = new SlowStore();
  const world = await parts(store);
  const row = sealedRow(world.me, { version: 3 });
  await store.apply({ entries: [{ id: row.id, version: 3, state: 'live', row }] });
  const { outbox, me, problems } = world;
  const reader = { masterKey: me.masterKey, device: { id: me.deviceId, keys: me.keys } };
  const onProblem = (error: Error): void => void problems.push(error);
  const items = new ItemReader({ store, outbox, sodium: nodeSodium, reader, onProblem });
  return { ...world, items, id: row.id };
}

t.test('CLIENT-58: a delete that was not sent can be undone, and leaves nothing behind', async (t) => {
  const { sender, writer, items, id, sent, store } = await withItem();
  sender.hold('owner');
  const deleted = writer.delete(id);
  await settle();
  t.match(await items.deleted(), [{ id, pending: false }]);
  t.equal(await items.get(id), undefined);
  t.equal(await writer.withdraw(id), true);
  await t.rejects(deleted, { code: 'cancelled' });
  t.match(await items.get(id), { id, version: 3, pending: false });
  t.same(await items.deleted(), []);
  t.same(await store.pending(), []);
  t.equal(await writer.withdraw(id), false, 'a delete is undone only once');
  sender.release('owner');
  await settle();
  t.same(sent, []);
});

t.test('CLIENT-58: a delete that is being sent or was acknowledged cannot be undone', async (t) => {
  const { writer, items, id, sent } = await withItem();
  const deleted = writer.delete(id);
  await settle();
  t.equal(sent.length, 1);
  t.equal(await writer.withdraw(id), false, 'under way');
  sent[0]?.answer({ id, version: 4 });
  t.match(await deleted, { version: 4 });
  t.equal(await writer.withdraw(id), false, 'acknowledged');
  t.equal(await items.get(id), undefined);
  t.same(await items.deleted(), [], 'an acknowledged delete is final');
});

t.test('CLIENT-58: a change queued below an undone delete is sent; a write cannot be undone', async (t) => {
  const { sender, writer, items, id, sent, me } = await withItem();
  sender.hold('owner');
  const written = writer.put({ ...note('newer'), id });
  await settle();
  t.equal(await writer.withdraw(id), false);
  const deleted = writer.delete(id);
  await settle();
  t.match(await items.deleted(), [{ id, pending: true, payload: { text: 'newer' } }]);
  const [one, other] = await Promise.all([writer.withdraw(id), writer.withdraw(id)]);
  t.same([one, other], [true, false]);
  await t.rejects(deleted, { code: 'cancelled' });
  sender.release('owner');
  await settle();
  t.match(sent, [{ writes: [{ id, ifVersion: 3 }] }]);
  sent[0]?.answer({ id, version: 4 });
  await written;
  t.match(await items.get(id), { payload: { text: 'newer' }, senderDevice: me.deviceId });
});

t.test('CLIENT-58: where the store fails during an undo, the delete stays and is sent', async (t) => {
  const { sender, writer, items, id, sent, store } = await withItem();
  sender.hold('owner');
  const deleted = writer.delete(id);
  await settle();
  const { apply } = store;
  store.apply = () => Promise.reject(new Error('the disk is full'));
  await t.rejects(writer.withdraw(id), { message: 'the disk is full' });
  store.apply = apply;
  t.equal(await items.get(id), undefined);
  sender.release('owner');
  await settle();
  t.equal(sent.length, 1);
  sent[0]?.answer({ id, version: 4 });
  t.match(await deleted, { version: 4 });
});

/** An item that a restored server has as another device left it, and this device's write of it, which waits with that base. */
async function restored(entry: (row: LiveItem, me: Identity) => Entry) {
  const me = newIdentity();
  const store = new MemoryStore();
  const write = { ...left(me, 1), base: 6 };
  await store.apply({ entries: [entry(write.row, me)], pending: [write] });
  const world = await parts(store, me);
  world.sender.kick();
  await settle();
  const [sent] = world.sent;
  return { ...world, write, sent };
}

const AFTERWARDS: readonly (readonly [string, (row: LiveItem, me: Identity) => Entry])[] = [
  ['stored', (row) => ({ id: row.id, version: 6, state: 'live', row: { ...row, version: 6 } })],
  [
    'moved',
    (row, { masterKey }) => {
      const sig = moveTag(nodeSodium, row, { binId: 'elsewhere', masterKey });
      return { id: row.id, version: 6, state: 'live', row: { ...row, version: 6, binId: 'elsewhere', sig } };
    },
  ],
  ['deleted', ({ id }) => ({ id, version: 6, state: 'deleted', tagged: true, kept: null })],
  [
    'not shown',
    (row) => {
      const kept = { ...row, ts: row.ts + 1 };
      return { id: row.id, version: 6, state: 'quarantined', reason: 'rolled_back', row, kept };
    },
  ],
];
for (const [what, entry] of AFTERWARDS)
  t.test(
    `STORE-15: after a restore a write that was ${what} since is done when the server recognises it`,
    async (t) => {
      const { store, problems, write, sent } = await restored(entry);
      t.match(sent?.writes, [{ id: write.id, ifVersion: 6 }]);
      // The server answers a write that it has with the version that the item has now.
      sent?.answer({ id: write.id, version: 6 });
      await settle();
      t.same(await store.pending(), []);
      t.same(problems, []);
    },
  );

t.test('LIAR-121: a reply that nothing has changed is not believed where the item has other content', async (t) => {
  const { store, problems, write, sent } = await restored(({ id }, own) => {
    const row = { ...sealedRow(own, { version: 6 }), id };
    return { id, version: 6, state: 'live', row };
  });
  sent?.answer({ id: write.id, version: 6 });
  await settle();
  t.match(await store.pending(), [{ id: write.id, version: null }]);
  t.match(problems, [{ code: 'wrong_reply' }]);
});
