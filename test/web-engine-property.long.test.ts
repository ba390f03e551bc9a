/** Property tests of what the web app's engine opens, locks, forgets and becomes (support/engine-script.ts). */
import fc from 'fast-check';
import t from 'tap';
import { scriptOf } from './support/client-script.js';
import { NAMES, play } from './support/engine-script.js';
import { inLongRun } from './support/long.js';

t.setTimeout(1_800_000);

/** As in client-property.test.ts. */
const ASKED = process.env['PROPERTY_RUNS'];
const RUNS = Number(ASKED ?? inLongRun(20, 1_000));
const SEED = ASKED === undefined ? inLongRun({ seed: 1 }, {}) : {};

t.test('WEB-51 WEB-57 WEB-58 WEB-63: whatever happens, a device opens with what locked it last', async (t) => {
  let opened = 0;
  const property = fc.asyncProperty(scriptOf(NAMES), async (script) => {
    // Short ones: each enrolment takes a tenth of a second of a processor.
    const begin = ['claim', 'idle', 'go', 'idle'].map((what) => ({ what: what as 'idle', a: 0, b: 0, c: 0 }));
    opened += (await play([...begin, ...script.slice(0, 40)])).opened;
  });
  await fc.assert(property, { ...SEED, numRuns: RUNS, includeErrorInReport: true });
  t.ok(opened > RUNS, `${opened} times`);
});
