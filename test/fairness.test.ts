/** A caller that takes all that it can get does not affect a device of another tenant. */
import t, { type Test } from 'tap';
import { Stage } from './support/attacks.js';

t.setTimeout(600_000);

/** What a server may hold beyond what it had before, MiB: nothing here depends on how many connections an attacker has. */
const GROWTH_MAX = 150;

async function judged(t: Test, attack: (stage: Stage) => Promise<void>): Promise<void> {
  const stage = await Stage.start(t);
  const { judge, place } = stage;
  judge.begin();
  await judge.after(3);
  t.same((await judge.end()).refusals, [], 'no call is refused before the attack');
  const before = await place.memory();
  judge.begin();
  await attack(stage);
  const { refusals, calls, peakMib } = await judge.end();
  t.same(refusals, [], `of ${calls} calls`);
  t.ok(peakMib - before < GROWTH_MAX, `${Math.round(peakMib - before)} MiB more`);
  await stage.released();
}

t.test('FAIR-07: a device that requests page after page and reads none causes no refusal of others', (t) =>
  judged(t, (stage) => stage.pages(10)),
);

t.test('FAIR-08: four hundred page reads in one burst cause no refusal of others', (t) =>
  judged(t, (stage) => stage.burst(400)),
);

t.test('FAIR-14: unread pages of the reference, requested without a token, cost the devices nothing', (t) =>
  judged(t, (stage) => stage.docs(8)),
);

t.test('FAIR-11: half-sent bodies of an unauthenticated client do not affect devices', (t) =>
  judged(t, (stage) => stage.halves(540)),
);
