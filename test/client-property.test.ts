/** Property tests of the client library against an honest server (support/client-script.ts). */
import fc from 'fast-check';
import t from 'tap';
import { errorCode } from '../src/protocol/error-code.js';
import { itemId } from './support/changes.js';
import { NAMES, play, scriptOf } from './support/client-script.js';
import { note } from './support/client-world.js';
import { inLongRun } from './support/long.js';
import { ClientWorld } from './support/simulated-device.js';

t.setTimeout(1_800_000);

/** Scripts of each property: in the usual run always the same ones, with `PROPERTY_RUNS=n` and in the long run others. */
const ASKED = process.env['PROPERTY_RUNS'];
const RUNS = Number(ASKED ?? inLongRun(40, 1_000));
const SEED = ASKED === undefined ? inLongRun({ seed: 1 }, {}) : {};

/** Plays scripts of these events; returns how many versions the servers made. */
async function versionsOf(names: typeof NAMES): Promise<number> {
  let versions = 0;
  const property = fc.asyncProperty(fc.nat(), scriptOf(names), async (seed, script) => {
    const { server } = await play(seed, script);
    versions += server.database.head;
  });
  await fc.assert(property, { ...SEED, numRuns: RUNS, includeErrorInReport: true });
  return versions;
}

t.test('CLIENT-65: a change that overwrites is kept where its program ends right after the conflict', async (t) => {
  const nothing = { a: 0, b: 0, c: 0 };
  await t.resolves(
    play(0, [
      { ...nothing, what: 'put' },
      { ...nothing, what: 'put', a: 1 },
      // The second one reaches the server first.
      { ...nothing, what: 'finish', a: 1 },
      // The first device's program ends after one more batch.
      { ...nothing, what: 'kill', b: 1 },
      { ...nothing, what: 'flow' },
    ]),
  );
  // The conflict is that of a change below, which does not overwrite.
  await t.resolves(
    play(0, [
      { ...nothing, what: 'put', a: 1, b: 1 },
      { ...nothing, what: 'put', b: 1, c: 1 },
      { ...nothing, what: 'kill', b: 3 },
      { ...nothing, what: 'put', b: 1 },
      { ...nothing, what: 'flow' },
      { ...nothing, what: 'put' },
    ]),
  );
});

t.test('CLIENT-65: a listing that is cut off beside the connection is no fault of the server', async (t) => {
  const nothing = { a: 0, b: 0, c: 0 };
  const changed = [2, 3, 0, 1, 2, 3, 0].flatMap((b): Parameters<typeof play>[1] => [
    { ...nothing, what: 'put', b, c: 1 },
    { ...nothing, what: 'flow', b: 1 },
  ]);
  const lost = Array.from({ length: 5 }).flatMap((): Parameters<typeof play>[1] => [
    { ...nothing, what: 'lose' },
    { ...nothing, what: 'pass', a: 2, b: 1 },
  ]);
  // The first page leaves out an item that changed again, and its former state comes after that.
  await t.resolves(
    play(0, [
      ...changed,
      { ...nothing, what: 'pull', a: 1, b: 2 },
      { ...nothing, what: 'finish' },
      ...lost,
      { ...nothing, what: 'frames', a: 1, b: 3 },
      { ...nothing, what: 'frames', a: 1, b: 3 },
    ]),
  );
});

t.test('CLIENT-67: a move based on the history before a restore changes no state of the one after it', async (t) => {
  const nothing = { a: 0, b: 0, c: 0 };
  await t.resolves(
    play(0, [
      { ...nothing, what: 'backup' },
      { ...nothing, what: 'put', c: 1 },
      { ...nothing, what: 'flow' },
      // The second device moves the item; the request is on its way.
      { ...nothing, what: 'move', a: 1, c: 1 },
      { ...nothing, what: 'restore' },
      // The first one reconnects after a second, and writes: other content has the same version.
      { ...nothing, what: 'flow', b: 1 },
      { ...nothing, what: 'pass', a: 1, b: 1 },
      { ...nothing, what: 'flow', b: 1 },
      { ...nothing, what: 'put', c: 1 },
      { ...nothing, what: 'flow', b: 1 },
      { ...nothing, what: 'finish' },
    ]),
  );
});

t.test(
  'CLIENT-67: a move on top of one that a restore makes void, made while that is dropped, is dropped too',
  async (t) => {
    const world = new ClientWorld(0);
    await world.join();
    await world.join();
    await world.flow();
    const [first, second] = world.devices;
    if (first === undefined || second === undefined) throw new Error('no devices');
    const put = (of: typeof first, n: number) => of.device?.put({ ...note(world.nextText()), id: itemId(n) });
    for (const n of [0, 1, 0]) {
      void put(first, n);
      await world.flow();
      if (n === 1) world.server.takeBackup();
    }
    second.goOffline();
    const refused = second.device?.move(itemId(0), 'other').catch(() => undefined);
    put(second, 1)?.catch(() => undefined);
    await world.pass(20_000, false);
    await refused;
    world.server.restore();
    await world.pass(20_000, false);
    const { store } = second;
    const get = store.get.bind(store);
    let again: Promise<unknown> | undefined;
    store.get = async (id) => {
      // The changes are looked through, in their order.
      if (again === undefined && id === itemId(1) && (await store.cursor()).reset === true) {
        again = second.device?.move(itemId(0), 'other').catch(errorCode);
        await world.idle();
      }
      return get(id);
    };
    second.offline = false;
    second.device?.reconnect();
    await world.flow([second]);
    await world.pass(20_000, true);
    t.equal(await again, 'reset');
    t.match(await second.store.get(itemId(0)), { version: 1 }, 'it has the tag of its content');
    for (const { device } of world.devices) device?.close();
  },
);

t.test('CLIENT-67: a reply from before a restore that comes within the replay after it is not recorded', async (t) => {
  const nothing = { a: 0, b: 0, c: 0 };
  const world = await play(0, [
    { ...nothing, what: 'backup' },
    // The second device's change is stored; the reply is on its way, and the connection is lost.
    { ...nothing, what: 'put', a: 1, c: 1 },
    { ...nothing, what: 'deliver' },
    { ...nothing, what: 'restore' },
    { ...nothing, what: 'flow', b: 1 },
    { ...nothing, what: 'cut', a: 1, b: 1 },
    { ...nothing, what: 'pass', a: 2, b: 1 },
    // The first one gives the item two later states.
    { ...nothing, what: 'flow', b: 1 },
    { ...nothing, what: 'put', c: 1 },
    { ...nothing, what: 'flow', b: 1 },
    { ...nothing, what: 'put', c: 1 },
    { ...nothing, what: 'flow', b: 1 },
    // The second one connects again, and gets the reset, then the reply.
    { ...nothing, what: 'finish', a: 1 },
    { ...nothing, what: 'frames', a: 1 },
    { ...nothing, what: 'frames', a: 1 },
    { ...nothing, what: 'finish' },
  ]);
  t.equal(world.devices[1]?.rejected.size, 1, 'the later state would have hidden it unnoticed');
});

t.test('CLIENT-66: a restore is no fault of the server where its reply or its first replay comes late', async (t) => {
  const nothing = { a: 0, b: 0, c: 0 };
  // A device that never caught up knows no epoch: its acknowledged change may be of the history before.
  await t.resolves(
    play(0, [
      { ...nothing, what: 'join' },
      { ...nothing, what: 'put', a: 2 },
      { ...nothing, what: 'flow' },
      { ...nothing, what: 'restore' },
      { ...nothing, what: 'put' },
    ]),
  );
  // The listing shows the restore, and an acknowledgement from before it still comes over the connection.
  await t.resolves(
    play(0, [
      { ...nothing, what: 'put' },
      { ...nothing, what: 'finish' },
      { ...nothing, what: 'restore' },
      { ...nothing, what: 'pull', b: 161 },
      { ...nothing, what: 'put' },
    ]),
  );
  // A first listing is of the history before, and the connection after it of the one after.
  await t.resolves(
    play(0, [
      { ...nothing, what: 'join' },
      { ...nothing, what: 'pull', a: 470 },
      { ...nothing, what: 'deliver', a: 149 },
      { ...nothing, what: 'restore' },
      { ...nothing, what: 'put' },
      { ...nothing, what: 'rewrap' },
      { ...nothing, what: 'put' },
    ]),
  );
  // A change is acknowledged while the first listing of its device is on the way, which is then of the history after.
  await t.resolves(
    play(0, [
      { ...nothing, what: 'join' },
      { ...nothing, what: 'put', a: 584 },
      { ...nothing, what: 'pull', a: 980 },
      { ...nothing, what: 'lose', a: 122 },
      { ...nothing, what: 'flow' },
      { ...nothing, what: 'restore' },
      { ...nothing, what: 'put' },
    ]),
  );
  // The reply is lost, and the content of the acknowledged version is requested from the history after.
  await t.resolves(
    play(0, [
      { ...nothing, what: 'put' },
      { ...nothing, what: 'deliver' },
      { ...nothing, what: 'lose' },
      { ...nothing, what: 'restore' },
      { ...nothing, what: 'put' },
    ]),
  );
});

t.test('CLIENT-69: a store that fails for a moment leaves no change behind', async (t) => {
  const nothing = { a: 0, b: 0, c: 0 };
  // It fails as a refused change is removed.
  await t.resolves(
    play(0, [
      { ...nothing, what: 'put' },
      { ...nothing, what: 'put', a: 33 },
      { ...nothing, what: 'finish' },
      { ...nothing, what: 'storage', a: 1, b: 2 },
      { ...nothing, what: 'finish' },
    ]),
  );
  // It fails as an acknowledged change is recorded, which the stream has brought already.
  await t.resolves(
    play(0, [
      { ...nothing, what: 'put', a: 343, b: 5 },
      { ...nothing, what: 'put' },
      { ...nothing, what: 'put', b: 193, c: 1 },
      { ...nothing, what: 'finish', a: 3 },
      { ...nothing, what: 'storage' },
      { ...nothing, what: 'finish', a: 248 },
      { ...nothing, what: 'finish' },
    ]),
  );
});

t.test('CLIENT-70: a clock that is set back delays no change and no connection', async (t) => {
  const nothing = { a: 0, b: 0, c: 0 };
  // The connection is lost, and the clock set back by three days before the next attempt is due.
  await t.resolves(
    play(0, [
      { ...nothing, what: 'pass' },
      { ...nothing, what: 'restart' },
      { ...nothing, what: 'put' },
      { ...nothing, what: 'frames' },
      { ...nothing, what: 'clock', b: 4 },
      { ...nothing, what: 'online' },
      { ...nothing, what: 'put' },
    ]),
  );
  // A server that falls silent is given up after 90 s.
  const world = new ClientWorld(0);
  await world.join();
  await world.flow();
  const [first] = world.devices;
  const { link } = first ?? {};
  if (first === undefined || link === undefined) throw new Error('no connection');
  link.mute = true;
  first.skew = -3 * 24 * 3_600_000;
  await world.pass(100_000, true);
  t.ok(link.ended, 'it is given up');
  t.not(first.link, link);
  for (const { device } of world.devices) device?.close();
});

t.test('CLIENT-65: whatever fails on the way, no change is lost and no honest server is accused', async (t) => {
  const versions = await versionsOf(NAMES.filter((name) => name !== 'backup' && name !== 'restore'));
  t.ok(versions > RUNS, `${versions} versions`);
});

t.test(
  'CLIENT-66: where the server is restored meanwhile, nothing newer is lost, and that alone is said',
  async (t) => {
    const versions = await versionsOf(NAMES);
    t.ok(versions > RUNS, `${versions} versions`);
  },
);
