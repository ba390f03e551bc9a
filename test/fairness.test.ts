/** One caller takes all he can get, and a device of another tenant goes on as if he were not there. */
import t, { type Test } from 'tap';
import { Stage } from './support/attacks.js';

t.setTimeout(300_000);

/** What a server may hold beyond what it had before, MiB: nothing here depends on how many connections an attacker has. */
const GROWTH_MAX = 150;

async function judged(t: Test, attack: (stage: Stage) => Promise<void>): Promise<void> {
  const stage = await Stage.start(t);
  const { judge, place } = stage;
  judge.begin();
  await judge.after(3);
  t.same((await judge.end()).refusals, [], 'all is well before');
  const before = await place.memory();
  judge.begin();
  await attack(stage);
  const { refusals, calls, peakMib } = await judge.end();
  t.same(refusals, [], `of ${calls} calls`);
  t.ok(peakMib - before < GROWTH_MAX, `${Math.round(peakMib - before)} MiB more`);
  await stage.released();
}

t.test('FAIR-07: a device that asks for page after page and reads none', (t) => judged(t, (stage) => stage.pages(10)));

t.test('FAIR-08: four hundred page reads in one burst', (t) => judged(t, (stage) => stage.burst(400)));

t.test('FAIR-14: pages of the reference that nobody reads, in waves and without an account', (t) =>
  judged(t, (stage) => stage.docs(8)),
);

t.test('FAIR-11: half-sent bodies of one stranger', (t) => judged(t, (stage) => stage.halves(540)));
