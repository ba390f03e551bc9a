/** Keys for a device that joined, for thousands of items: batches, progress, interruption, and what is resumed. */
import t from 'tap';
import { DeviceApi } from '../src/sdk/api.js';
import { ApiError, NetworkError } from '../src/sdk/errors.js';
import { Emitter, type RewrapProgress } from '../src/sdk/events.js';
import type { Call } from '../src/sdk/http.js';
import { Outbox } from '../src/sdk/outbox.js';
import { RewrapQueue } from '../src/sdk/rewrap-queue.js';
import { DeviceList } from '../src/sdk/device-list.js';
import { Sender } from '../src/sdk/sender.js';
import { MemoryStore, type Entry } from '../src/sdk/store/store.js';
import { Writer } from '../src/sdk/writer.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { toBase64Url } from '../src/protocol/base64.js';
import { listed, newIdentity, sealedRow, settle } from './support/client.js';
import { noBlobs } from './support/sealed-blobs.js';
import { TestClock } from './support/clock.js';
import { refusal } from './support/client-world.js';

const MINUTE = 60_000;

/** A device with `count` items, and another one that joined after they were written. The server accepts writes. */
async function crowd(count: number) {
  const me = newIdentity();
  const joined = newIdentity({ masterKey: me.masterKey });
  const clock = new TestClock();
  const store = new MemoryStore();
  const entries = Array.from({ length: count }, (_, at): Entry => {
    const row = sealedRow(me, { version: at + 1 });
    return { id: row.id, version: row.version, state: 'live', row };
  });
  await store.apply({ entries });
  const at: {
    head: number;
    refuse: () => Error | undefined;
    sizes: number[];
    written: string[];
    conflicts: Set<number>;
  } = {
    head: count,
    refuse: () => undefined,
    sizes: [],
    written: [],
    conflicts: new Set(),
  };
  const device = (of: typeof me) => ({
    ...{ id: of.deviceId, name: 'D', glyph: 'laptop', pubkey: toBase64Url(of.keys.publicKey), pairedAt: 1 },
    ...{ cert: toBase64Url(listed(of).cert), online: true, current: of === me },
  });
  const call: Call = (request) => {
    if (request.path === '/devices') {
      return Promise.resolve({ status: 200, body: { devices: [device(me), device(joined)] } });
    }
    const refused = at.refuse();
    if (refused !== undefined) return Promise.reject(refused);
    const body = JSON.parse(request.json ?? '{}') as { id: string; items?: { id: string }[] };
    const results = (body.items ?? [body]).map(({ id }) => ({ id, version: ++at.head }));
    const error = { code: 'conflict', message: 'another device was faster' };
    const answers = results.map((result, nth) => (at.conflicts.has(nth) ? { id: result.id, error } : result));
    at.sizes.push(results.length);
    at.written.push(...results.map(({ id }) => id));
    return Promise.resolve({ status: 200, body: body.items === undefined ? answers[0] : { results: answers } });
  };
  const api = new DeviceApi(call);
  const problems: Error[] = [];
  const progress: RewrapProgress[] = [];
  const rewrapped: number[] = [];
  const emitter = new Emitter((error) => problems.push(error));
  emitter.on('problem', ({ error }) => problems.push(error));
  emitter.on('rewrap_progress', (event) => progress.push(event));
  emitter.on('rewrapped', ({ items }) => rewrapped.push(items));
  const { emit } = emitter;
  const sodium = nodeSodium;
  const random = () => 0;
  const reader = { masterKey: me.masterKey, device: { id: me.deviceId, keys: me.keys } };
  const outbox = await Outbox.load(store, clock);
  const deviceList = new DeviceList({ api, sodium, identity: me, emit, clock });
  const sender = new Sender({ api, outbox, deviceList, sodium, reader, clock, random, emit });
  const writer = new Writer({ identity: me, store, outbox, sender, deviceList, sodium, reader, clock, blobs: noBlobs });
  const rewrapper = new RewrapQueue({ writer, deviceList, clock, random, emit });
  /** Advances the clock until `over`, so that the pauses pass. */
  const until = async (over: () => boolean): Promise<number> => {
    const begun = clock.now();
    for (let turns = 0; turns < 5_000 && !over(); turns++) {
      await settle();
      if (!over()) clock.advance(100);
    }
    return clock.now() - begun;
  };
  /** The stream confirms what was written. */
  const confirm = async (): Promise<void> => {
    const done = outbox.all();
    const confirmed = done.flatMap((own): Entry[] => {
      const { id, version } = own;
      if (version === null || own.kind === 'delete') return [];
      return [{ id, version, state: 'live', row: { ...own.row, version } }];
    });
    await store.apply({ entries: confirmed });
    await outbox.drop(done.filter(({ version }) => version !== null));
  };
  return { me, clock, store, at, problems, progress, rewrapped, outbox, sender, writer, rewrapper, until, confirm };
}

t.test('SDK-13: thousands of items are re-wrapped in batches of at most 100, with pauses and progress', async (t) => {
  const world = await crowd(2_500);
  const run = world.rewrapper.run();
  const took = await world.until(() => world.rewrapped.length > 0);
  t.equal(await run, 2_500);
  t.same(world.rewrapped, [2_500]);
  t.same(world.progress[0], { done: 0, total: 2_500 });
  t.same(world.progress.at(-1), { done: 2_500, total: 2_500 });
  t.equal(world.progress.length, 26, 'once at the start, and once per batch');
  t.same(
    world.at.sizes,
    Array.from({ length: 25 }, () => 100),
    'a batch is one request, which counts as one write',
  );
  t.equal(new Set(world.at.written).size, 2_500);
  t.equal(world.at.written.length, 2_500, 'each once');
  t.ok(took >= 24 * 500, 'most of the write rate is left to the user');
  t.same(world.problems, []);
});

t.test('SDK-13: the user’s own write waits for one batch at most', async (t) => {
  const world = await crowd(1_000);
  const run = world.rewrapper.run();
  await world.until(() => world.at.written.length > 0);
  const own = world.writer.put({ binId: 'inbox', type: 'text', payload: { text: 'mine' } });
  await settle();
  const { id } = await own;
  t.ok(world.at.written.indexOf(id) <= 200);
  await world.until(() => world.rewrapped.length > 0);
  t.equal(await run, 1_000);
});

t.test('SDK-14: an interrupted run is resumed, and nothing is written twice', async (t) => {
  const world = await crowd(500);
  const stop = new AbortController();
  const run = refusal(world.rewrapper.run(stop.signal));
  const second = refusal(world.rewrapper.run());
  await world.until(() => world.at.written.length >= 200);
  stop.abort();
  t.equal((await run).code, 'cancelled');
  t.equal((await second).code, 'cancelled', 'a caller that shares the run is cancelled too');
  const before = world.at.written.length;
  t.ok(before >= 200 && before < 500);
  await world.confirm();
  world.rewrapper.resume();
  await world.until(() => world.rewrapped.length > 0);
  t.same(world.rewrapped, [500 - before], 'the run resumes at once, with only what is missing');
  t.equal(new Set(world.at.written).size, 500);
  t.equal(world.at.written.length, 500);
  t.same(world.problems, [], 'a requested end is not reported as a problem');
});

t.test('SDK-14: a run that a lost connection ended resumes at once when the connection is back', async (t) => {
  const world = await crowd(300);
  world.at.refuse = () => (world.at.written.length >= 100 ? new NetworkError('network', 'unreachable') : undefined);
  world.rewrapper.now();
  await world.until(() => world.problems.length > 0);
  t.match(world.problems[0], { code: 'queued' });
  world.at.refuse = () => undefined;
  await world.until(() => world.outbox.all().every(({ version }) => version !== null));
  await world.confirm();
  world.rewrapper.resume();
  await world.until(() => world.rewrapped.length > 0);
  t.equal(new Set(world.at.written).size, 300);
  t.equal(world.at.written.length, 300);
});

t.test('SDK-14: a deferred run begins after ten minutes, once, and not on a closed device', async (t) => {
  const world = await crowd(10);
  world.rewrapper.later();
  world.rewrapper.resume();
  world.clock.advance(9 * MINUTE);
  await settle();
  t.same(world.at.written, []);
  world.clock.advance(MINUTE);
  await world.until(() => world.rewrapped.length > 0);
  t.same(world.rewrapped, [10]);
  world.rewrapper.later();
  world.rewrapper.close();
  world.rewrapper.later();
  t.equal(world.clock.waiting, 0);
});

t.test('SDK-13: a permanent refusal ends the run with its reason; a conflict does not', async (t) => {
  const world = await crowd(150);
  world.at.conflicts.add(7);
  const run = world.rewrapper.run();
  await world.until(() => world.rewrapped.length > 0);
  t.equal(await run, 148, 'one conflict in each batch');
  const other = await crowd(1);
  other.at.refuse = () => new ApiError({ code: 'validation', status: 400, message: 'no' });
  t.equal((await refusal(other.rewrapper.run())).code, 'validation');
});
