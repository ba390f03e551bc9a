/** How long a device of another tenant waits while a device sends junk as fast as it may. */
import t from 'tap';
import { Judge, servedInTime, hostedServer } from './support/judge.js';
import { JUNK, sendJunk } from './support/junk.js';

const ROUNDS = 25;
const PER_SECOND = 9;

t.test(
  'FAIR-15 FAIR-42: under nine junk bodies a second another tenant is refused nothing and served in time',
  async (t) => {
    const place = await hostedServer(t);
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
      for (const outcome of new Set(outcomes)) t.match(outcome, /^(400 invalid_payload|429 rate_limited)$/, name);
      servedInTime(t, idle, seen, `${name}, ${sent} bodies`);
    }
  },
);
