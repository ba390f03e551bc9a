/** Property tests of the client library against an honest server (support/client-script.ts). */
import fc from 'fast-check';
import t, { type Test } from 'tap';
import { errorCode } from '../src/protocol/error-code.js';
import { itemId } from './support/changes.js';
import { NAMES, play, type Script, scriptOf } from './support/client-script.js';
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

/** Plays it. Rejects if something is wrong in the end. */
const playing = (script: Script): Promise<ClientWorld> =>
  play(
    0,
    script.map((one) => ({ a: 0, b: 0, c: 0, ...one })),
  );

const ends = (t: Test, script: Script): Promise<unknown> => t.resolves(playing(script), 'nothing is wrong in the end');

t.test('CLIENT-65: a change that overwrites is kept where its program ends right after the conflict', async (t) => {
  await ends(t, [
    { what: 'put' },
    { what: 'put', a: 1 },
    // The second one reaches the server first.
    { what: 'finish', a: 1 },
    // The first device's program ends after one more batch.
    { what: 'kill', b: 1 },
    { what: 'flow' },
  ]);
  // The conflict is that of a change below, which does not overwrite.
  await ends(t, [
    { what: 'put', a: 1, b: 1 },
    { what: 'put', b: 1, c: 1 },
    { what: 'kill', b: 3 },
    { what: 'put', b: 1 },
    { what: 'flow' },
    { what: 'put' },
  ]);
});

t.test('CLIENT-65: a file that overwrites is kept where its program ends while it is uploaded again', (t) =>
  ends(t, [
    { what: 'offline', a: 1 },
    { what: 'file', b: 2 },
    { what: 'pass', b: 1 },
    { what: 'online', a: 1 },
    { what: 'put', a: 1, b: 2 },
    { what: 'flow', a: 1, b: 1 },
    // The upload, the refusal, and the beginning of another upload.
    ...Array.from({ length: 5 }, () => ({ what: 'finish' }) as const),
    { what: 'kill' },
  ]),
);

t.test('CLIENT-65: a refused change that the store still keeps takes no later change with it', (t) =>
  ends(t, [
    { what: 'join' },
    { what: 'put', b: 879 },
    // It is refused, and its program takes a while to keep it.
    { what: 'put', a: 764, b: 827, c: 874 },
    { what: 'twin' },
    { what: 'pass', a: 15 },
    { what: 'put', a: 194, b: 543 },
    { what: 'kill', a: 310 },
    { what: 'put' },
  ]),
);

t.test('CLIENT-65: a listing that is cut off beside the connection is no fault of the server', async (t) => {
  const changed = [2, 3, 0, 1, 2, 3, 0].flatMap((b): Script => [
    { what: 'put', b, c: 1 },
    { what: 'flow', b: 1 },
  ]);
  const lost = Array.from({ length: 5 }).flatMap((): Script => [{ what: 'lose' }, { what: 'pass', a: 2, b: 1 }]);
  // The first page leaves out an item that changed again, and its former state comes after that.
  await ends(t, [
    ...changed,
    { what: 'pull', a: 1, b: 2 },
    { what: 'finish' },
    ...lost,
    { what: 'frames', a: 1, b: 3 },
    { what: 'frames', a: 1, b: 3 },
  ]);
});

t.test('CLIENT-67: a move based on the history before a restore changes no state of the one after it', async (t) => {
  await ends(t, [
    { what: 'backup' },
    { what: 'put', c: 1 },
    { what: 'flow' },
    // The second device moves the item; the request is on its way.
    { what: 'move', a: 1, c: 1 },
    { what: 'restore' },
    // The first one reconnects after a second, and writes: other content has the same version.
    { what: 'flow', b: 1 },
    { what: 'pass', a: 1, b: 1 },
    { what: 'flow', b: 1 },
    { what: 'put', c: 1 },
    { what: 'flow', b: 1 },
    { what: 'finish' },
  ]);
});

t.test('CLIENT-67: nor does the move of a file to which a device was added after it', async (t) => {
  await ends(t, [
    { what: 'file', b: 2, c: 5 },
    { what: 'pass', a: 2 },
    { what: 'join' },
    { what: 'flow' },
    { what: 'move', a: 2, b: 2 },
    { what: 'put' },
    { what: 'backup' },
    // The move waits; another device re-wraps the file after the restore.
    { what: 'pass', a: 6, b: 1 },
    { what: 'restore' },
    { what: 'put' },
  ]);
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
  const world = await playing([
    { what: 'backup' },
    // The second device's change is stored; the reply is on its way, and the connection is lost.
    { what: 'put', a: 1, c: 1 },
    { what: 'deliver' },
    { what: 'restore' },
    { what: 'flow', b: 1 },
    { what: 'cut', a: 1, b: 1 },
    { what: 'pass', a: 2, b: 1 },
    // The first one gives the item two later states.
    { what: 'flow', b: 1 },
    { what: 'put', c: 1 },
    { what: 'flow', b: 1 },
    { what: 'put', c: 1 },
    { what: 'flow', b: 1 },
    // The second one connects again, and gets the reset, then the reply.
    { what: 'finish', a: 1 },
    { what: 'frames', a: 1 },
    { what: 'frames', a: 1 },
    { what: 'finish' },
  ]);
  t.equal(world.devices[1]?.rejected.size, 1, 'the later state would have hidden it unnoticed');
});

t.test('CLIENT-66: a restore is no fault of the server where its reply or its first replay comes late', async (t) => {
  // A device that never caught up knows no epoch: its acknowledged change may be of the history before.
  await ends(t, [{ what: 'join' }, { what: 'put', a: 2 }, { what: 'flow' }, { what: 'restore' }, { what: 'put' }]);
  // The listing shows the restore, and an acknowledgement from before it still comes over the connection.
  await ends(t, [{ what: 'put' }, { what: 'finish' }, { what: 'restore' }, { what: 'pull', b: 161 }, { what: 'put' }]);
  // A first listing is of the history before, and the connection after it of the one after.
  await ends(t, [
    { what: 'join' },
    { what: 'pull', a: 470 },
    { what: 'deliver', a: 149 },
    { what: 'restore' },
    { what: 'put' },
    { what: 'rewrap' },
    { what: 'put' },
  ]);
  // A change is acknowledged while the first listing of its device is on the way, which is then of the history after.
  await ends(t, [
    { what: 'join' },
    { what: 'put', a: 584 },
    { what: 'pull', a: 980 },
    { what: 'lose', a: 122 },
    { what: 'flow' },
    { what: 'restore' },
    { what: 'put' },
  ]);
  // A first replay is cut off, and the history after it has as many versions.
  await ends(t, [
    { what: 'twin' },
    { what: 'finish' },
    { what: 'finish' },
    { what: 'frames', a: 2 },
    { what: 'frames', a: 2 },
    { what: 'restore' },
    { what: 'twin' },
    { what: 'offline', a: 2 },
    { what: 'put' },
  ]);
  // The reply is lost, and the content of the acknowledged version is requested from the history after.
  await ends(t, [{ what: 'put' }, { what: 'deliver' }, { what: 'lose' }, { what: 'restore' }, { what: 'put' }]);
});

t.test('SDK-16: a request with a renewed token, and an upload, that a revocation interrupts say so', async (t) => {
  await ends(t, [
    { what: 'join' },
    { what: 'join' },
    { what: 'tokens' },
    { what: 'revoke', a: 3, b: 2 },
    { what: 'put', a: 3 },
    { what: 'join' },
  ]);
  await ends(t, [{ what: 'revoke' }, { what: 'file', a: 1 }, { what: 'refuse', a: 1 }, { what: 'refuse' }]);
});

t.test('CLIENT-65: a write that overwrites is stored after three conflicts and a device that joined', async (t) => {
  await ends(t, [
    { what: 'tokens' },
    { what: 'put' },
    { what: 'put', a: 1 },
    { what: 'finish', a: 1 },
    { what: 'flow', b: 1 },
    { what: 'put' },
    { what: 'join' },
    { what: 'put', a: 2 },
    { what: 'join' },
  ]);
});

t.test('CLIENT-69: a store that fails for a moment leaves no change behind', async (t) => {
  // It fails as a refused change is removed.
  await ends(t, [
    { what: 'put' },
    { what: 'put', a: 33 },
    { what: 'finish' },
    { what: 'storage', a: 1, b: 2 },
    { what: 'finish' },
  ]);
  // It fails as an acknowledged change is recorded, which the stream has brought already.
  await ends(t, [
    { what: 'put', a: 343, b: 5 },
    { what: 'put' },
    { what: 'put', b: 193, c: 1 },
    { what: 'finish', a: 3 },
    { what: 'storage' },
    { what: 'finish', a: 248 },
    { what: 'finish' },
  ]);
});

t.test(
  'CLIENT-69: nor do acknowledged changes keep their version where it fails as another history begins',
  async (t) => {
    await ends(t, [
      { what: 'join' },
      { what: 'tokens' },
      { what: 'file', a: 1 },
      { what: 'flow' },
      { what: 'twin' },
      { what: 'restore' },
      { what: 'pass', a: 2, b: 1 },
      { what: 'pull', a: 1, b: 1 },
      { what: 'kill', a: 1, b: 3 },
      { what: 'storage', a: 1, b: 1 },
      { what: 'put' },
      { what: 'flow', a: 1 },
    ]);
    // The item is changed between the failure and the next attempt, and the program ends.
    await ends(t, [
      { what: 'cut', a: 1 },
      { what: 'file', a: 1 },
      { what: 'pass', a: 2 },
      { what: 'restore' },
      { what: 'file', a: 1, b: 2 },
      { what: 'flow' },
      { what: 'disconnect', a: 1, b: 1 },
      { what: 'move', a: 1, b: 1 },
      { what: 'storage', a: 1 },
      { what: 'flow' },
      { what: 'put', a: 1 },
      { what: 'kill', a: 1 },
      { what: 'move' },
      { what: 'start', a: 1 },
      { what: 'bin', a: 1, c: 1 },
    ]);
  },
);

t.test('CLIENT-66: nor is a write made with a clock that is behind what the restore has lost', (t) =>
  ends(t, [
    { what: 'put', a: 135, b: 463 },
    { what: 'clock', b: 289 },
    { what: 'put', a: 633 },
    { what: 'finish' },
    { what: 'restore' },
    { what: 'put', b: 707 },
    { what: 'put', a: 217 },
    { what: 'put', b: 375 },
    { what: 'finish' },
  ]),
);

t.test('SDK-04: a query shows an item that was moved and moved back while it was read', (t) =>
  ends(t, [
    { what: 'join' },
    { what: 'put', a: 2, b: 2, c: 1 },
    { what: 'move', a: 2, b: 2, c: 1 },
    { what: 'move', a: 2, b: 2 },
  ]),
);

t.test('SDK-04: a query shows what arrived while the queries were read anew, after the store had failed', (t) =>
  ends(t, [
    { what: 'join' },
    { what: 'storage', a: 2, b: 1, c: 8 },
    { what: 'flow' },
    { what: 'put', a: 2 },
    { what: 'put', a: 2, b: 2 },
    { what: 'put' },
  ]),
);

t.test('CLIENT-65: re-wraps that were stored are sent where the store fails at a later one', (t) =>
  ends(t, [
    { what: 'join' },
    { what: 'rewrap', a: 1 },
    { what: 'storage', a: 1, c: 976 },
    { what: 'lose' },
    { what: 'finish' },
    { what: 'put' },
  ]),
);

t.test('CLIENT-70: a clock that is set back delays no change and no connection', async (t) => {
  // The connection is lost, and the clock set back by three days before the next attempt is due.
  await ends(t, [
    { what: 'pass' },
    { what: 'restart' },
    { what: 'put' },
    { what: 'frames' },
    { what: 'clock', b: 4 },
    { what: 'online' },
    { what: 'put' },
  ]);
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
