/** Property tests of the web app's engine, on the library and an honest server (support/browser-script.ts). */
import fc from 'fast-check';
import t, { type Test } from 'tap';
import { ClientError } from '../src/sdk/errors.js';
import { NAMES, play } from './support/browser-script.js';
import { itemId } from './support/changes.js';
import { scriptOf, type Script } from './support/client-script.js';
import { inLongRun } from './support/long.js';
import { SimulatedBrowser } from './support/simulated-browser.js';
import { ClientWorld } from './support/simulated-device.js';

t.setTimeout(1_800_000);

/** As in client-property.test.ts. */
const ASKED = process.env['PROPERTY_RUNS'];
const RUNS = Number(ASKED ?? inLongRun(100, 1_000));
const SEED = ASKED === undefined ? inLongRun({ seed: 1 }, {}) : {};

const ends = (t: Test, script: Script<(typeof NAMES)[number]>): Promise<unknown> =>
  t.resolves(
    play(
      0,
      script.map((one) => ({ a: 0, b: 0, c: 0, ...one })),
    ),
    'nothing is wrong in the end',
  );

t.test('WEB-82: a refused change is kept where its tab dies right after the refusal', (t) =>
  ends(t, [
    { what: 'put', a: 1, b: 2 },
    { what: 'flow', a: 1, b: 1 },
    { what: 'kill', b: 3 },
    { what: 'save', b: 4, c: 1 },
    { what: 'flow' },
  ]),
);

t.test('WEB-82: one that is kept does not lose the change below it, without which it could not be sent', (t) =>
  ends(t, [
    { what: 'put' },
    { what: 'put', b: 1 },
    { what: 'finish' },
    { what: 'put', a: 1, b: 1 },
    { what: 'save', b: 2 },
    { what: 'flow', a: 1, b: 1 },
    { what: 'storage', b: 2 },
    { what: 'finish' },
  ]),
);

t.test('WEB-82: a page is told that its change is kept by that change, not by another one of the item', async (t) => {
  // Two tabs save at once: the disk fails for the second one, or its tab dies before that one is stored.
  await ends(t, [{ what: 'storage', b: 1, c: 1 }, { what: 'save' }, { what: 'put' }]);
  await ends(t, [{ what: 'kill', b: 9 }, { what: 'save' }, { what: 'put' }, { what: 'save' }, { what: 'put' }]);
});

t.test('WEB-82: a refused change is there once where the tab dies while it is written as a copy', (t) =>
  ends(t, [
    { what: 'put', a: 1 },
    { what: 'flow', a: 1, b: 1 },
    { what: 'save', a: 1 },
    { what: 'flow' },
    { what: 'resend' },
    { what: 'kill' },
    { what: 'start' },
    { what: 'flow' },
    { what: 'resend' },
  ]),
);

t.test('WEB-82: a refused change of an item that is damaged on this device is kept too', async (t) => {
  const world = new ClientWorld(0);
  const browser = new SimulatedBrowser(world, 1);
  await world.join(browser);
  await world.flow();
  const { session } = browser;
  if (session === undefined) throw new Error('no session');
  const put = session.put({ id: itemId(0), binId: 'inbox', type: 'text', payload: { text: 'a text' } });
  await world.idle();
  Object.assign(session.device, { get: () => Promise.reject(new ClientError('damaged_item', 'damaged')) });
  const [call] = world.calls;
  if (call === undefined) throw new Error('nothing was sent');
  world.refuse(call, 2);
  await put;
  await world.idle();
  t.match(session.notices.list.value, [{ kind: 'rejected', title: 'a text', canResend: true, isNew: false }]);
  browser.close();
});

t.test('WEB-59: an import is stopped when the browser is locked, also while it waits for the server', async (t) => {
  const world = new ClientWorld(0);
  const browser = new SimulatedBrowser(world, 1);
  await world.join(browser);
  const { session } = browser;
  if (session === undefined) throw new Error('no session');
  const signal = session.imports.begin();
  await session.close();
  t.ok(signal.aborted);
});

t.test('WEB-56: a file is written once where its tab dies before it has forgotten it', (t) =>
  ends(t, [{ what: 'upload', c: 1 }, { what: 'kill', b: 7 }, { what: 'flow' }]),
);

t.test(
  'WEB-92 WEB-52: a disk that fails brings back no cancelled upload, and carries out no undone deletion',
  async (t) => {
    await ends(t, [{ what: 'upload' }, { what: 'storage' }, { what: 'cancel' }]);
    await ends(t, [{ what: 'remove' }, { what: 'storage' }, { what: 'undo' }]);
  },
);

t.test('WEB-52 WEB-53 WEB-56 WEB-82: whatever happens, what a page was told is kept is kept', async (t) => {
  let versions = 0;
  const property = fc.asyncProperty(fc.nat(), scriptOf(NAMES), async (seed, script) => {
    versions += (await play(seed, script)).server.database.head;
  });
  await fc.assert(property, { ...SEED, numRuns: RUNS, includeErrorInReport: true });
  t.ok(versions > RUNS, `${versions} versions`);
});
