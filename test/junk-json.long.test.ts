/** How long a device of another tenant waits while a device sends junk as fast as it may. */
import t from 'tap';
import { Judge, street } from './support/judge.js';
import { JUNK, sendJunk } from './support/junk.js';

const ROUNDS = 25;
const PER_SECOND = 9;

t.test('FAIR-42: under nine junk bodies a second another tenant waits at most 3 times as long', async (t) => {
  const place = await street(t);
  const [attacker, neighbour] = [await place.tenant('attacker'), await place.tenant('neighbour')];
  const judge = new Judge(place, neighbour);
  judge.begin();
  await judge.after(ROUNDS);
  const idle = await judge.end();
  for (const [name, body] of Object.entries(JUNK)) {
    judge.begin();
    let [ended, sent] = [false, 0];
    const attack = (async () => {
      const pending: Promise<string>[] = [];
      for (; !ended; sent++) {
        pending.push(sendJunk(attacker, body));
        await new Promise((resolve) => setTimeout(resolve, 1_000 / PER_SECOND));
      }
      return Promise.all(pending);
    })();
    await judge.after(ROUNDS);
    ended = true;
    const outcomes = await attack;
    const seen = await judge.end();
    t.same(seen.refusals, [], name);
    for (const outcome of new Set(outcomes)) t.match(outcome, /^(400 invalid_payload|429 rate_limited)$/, name);
    const bound = Math.max(3 * idle.medianMs, 10);
    t.ok(
      seen.medianMs <= bound,
      `${name}: ${sent} bodies, median ${seen.medianMs.toFixed(1)} ms, idle ${idle.medianMs.toFixed(1)} ms`,
    );
    t.comment(
      `${name}: median ${seen.medianMs.toFixed(1)} ms, worst ${seen.worstMs.toFixed(0)} ms; idle ${idle.medianMs.toFixed(1)} ms`,
    );
  }
});
