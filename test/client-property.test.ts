/** Property tests of the client library against an honest server (support/client-script.ts). */
import fc from 'fast-check';
import t from 'tap';
import { NAMES, play, scriptOf } from './support/client-script.js';
import { inLongRun } from './support/long.js';

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

t.test('CLIENT-65: a change that overwrites is kept where its program ends right after the conflict', async () => {
  const nothing = { a: 0, b: 0, c: 0 };
  await play(0, [
    { ...nothing, what: 'put' },
    { ...nothing, what: 'put', a: 1 },
    // The second one reaches the server first.
    { ...nothing, what: 'finish', a: 1 },
    // The first device's program ends after one more batch.
    { ...nothing, what: 'kill', b: 1 },
    { ...nothing, what: 'flow' },
  ]);
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
