/** Junk as JSON against a real server, with a device of another tenant as the judge. */
import t from 'tap';
import { Judge, hostedServer } from './support/judge.js';
import { JUNK, sendJunk } from './support/junk.js';

t.test('FAIR-42: junk bodies are refused, and a device of another tenant is served', async (t) => {
  const place = await hostedServer(t);
  const [attacker, neighbour] = [await place.tenant('attacker'), await place.tenant('neighbour')];
  const judge = new Judge(place, neighbour);
  judge.begin();
  await judge.after(1);
  for (const [name, body] of Object.entries(JUNK)) t.equal(await sendJunk(attacker, body), '400 invalid_payload', name);
  await judge.after(3);
  const { refusals, calls } = await judge.end();
  t.same(refusals, []);
  t.ok(calls > 10);
});
