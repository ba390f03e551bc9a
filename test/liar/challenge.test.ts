/** Lies about a challenge for re-authentication. */
import t from 'tap';
import { CHALLENGE_LIES } from './lies/challenge.js';
import { play } from './play.js';
import { Stage } from './stage.js';

t.setTimeout(300_000);

t.test('CLIENT-19 LIAR-85 LIAR-86 LIAR-87 LIAR-88: a device answers only genuine challenges', async (t) => {
  const stage = await Stage.set(t);
  for (const lie of CHALLENGE_LIES) t.test(`${lie.id}: the server ${lie.does}`, async (t) => play(t, stage, lie));
  const honest = await stage.device({ ...stage.identity, token: { text: 'worthless', expiresAt: null } });
  t.match(await honest.me(), { device: { id: stage.identity.deviceId } }, 'a genuine challenge is answered');
});
