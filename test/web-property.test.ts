/** Property tests of the web app's engine, on the library and an honest server (support/browser-script.ts). */
import fc from 'fast-check';
import t, { type Test } from 'tap';
import { NAMES, play } from './support/browser-script.js';
import { scriptOf, type Script } from './support/client-script.js';
import { inLongRun } from './support/long.js';

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
