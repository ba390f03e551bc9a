/** Property tests of the command line against a real server (support/cli-script.ts). */
import fc from 'fast-check';
import t, { type Test } from 'tap';
import { FAULTS } from './support/cli-line.js';
import { NAMES, play, scriptOf, type Script } from './support/cli-script.js';
import { inLongRun } from './support/long.js';
import { smallDisk } from './support/small-disk.js';

t.setTimeout(1_800_000);

/** Scripts of each property: in the usual run always the same ones, with `PROPERTY_RUNS=n` and in the long run others. */
const ASKED = process.env['PROPERTY_RUNS'];
const RUNS = Number(ASKED ?? inLongRun(12, 100));
const SEED = ASKED === undefined ? inLongRun({ seed: 1 }, {}) : {};

const ends = (t: Test, script: Script): Promise<unknown> => t.resolves(play(script), 'nothing was wrong');

t.test('CBLOB-49: a large file is there once where its command was ended as its item was written', async (t) => {
  for (const fault of ['kill after', 'interrupt after', 'kill'] as const)
    for (const c of [7, 8, 9])
      await ends(t, [
        { what: 'fault', b: FAULTS.indexOf(fault), c },
        { what: 'send' },
        { what: 'uploads', b: 1 },
        { what: 'send' },
      ]);
});

t.test('STORE-18: a damaged copy does not say that nothing was lost where a change that waited is', (t) =>
  ends(t, [{ what: 'away' }, { what: 'put', c: 6 }, { what: 'rot', b: 9_353 }]),
);

t.test('CLI-18 CLI-19 CLI-38: whatever fails on the way, no command lies and nothing is lost or doubled', async (t) => {
  const disk = await smallDisk(t, '64m');
  let changes = 0;
  const property = fc.asyncProperty(scriptOf(NAMES), async (script) => {
    changes += (await play(script, { disk })).accepted.length;
  });
  await fc.assert(property, { ...SEED, numRuns: RUNS, includeErrorInReport: true });
  t.ok(changes > RUNS, `${changes} changes`);
});
