/** Property tests of the client library against an honest server (support/client-script.ts). */
import fc from 'fast-check';
import t from 'tap';
import { NAMES, play, scriptOf } from './support/client-script.js';
import { inLongRun } from './support/long.js';

t.setTimeout(600_000);

const RUNS = Number(process.env['PROPERTY_RUNS'] ?? inLongRun(60, 1_000));

t.test('CLIENT-62: whatever happens on the way, no change is lost and no honest server accused', async (t) => {
  const names = NAMES.filter((name) => !['backup', 'restore'].includes(name));
  let versions = 0;
  let events = 0;
  const tally = new Map<string, number>();
  const count = (what: string): unknown => tally.set(what, (tally.get(what) ?? 0) + 1);
  const property = fc.asyncProperty(fc.nat(), scriptOf(names), async (seed, script) => {
    const world = await play(seed, script);
    versions += world.server.database.head;
    events += script.length;
    for (const { outcome, kind, program } of world.asked)
      count(`${kind} ${program.alive ? '' : 'died '}${outcome instanceof Error ? `${outcome.name} ${String((outcome as { code?: string }).code)}` : outcome === undefined ? 'open' : 'ok'}`);
    for (const { rejected } of world.devices) for (const _ of rejected) count('rejected');
    count('requests'); tally.set('requests', (tally.get('requests') ?? 0) + world.requests);
  });
  await fc.assert(property, { numRuns: RUNS, includeErrorInReport: true });
  t.comment(`${events} events, ${versions} versions`);
  t.comment(JSON.stringify([...tally].sort()));
  t.ok(versions > RUNS, 'the scripts changed items');
});
