/** Endless lies: each ends at a limit, and the data that the device held is unharmed. */
import t from 'tap';
import { FLOODS } from './lies/floods.js';
import { play } from './play.js';
import { Stage } from './stage.js';

t.setTimeout(900_000);

t.test('LIAR-114 LIAR-115 LIAR-116 LIAR-117: a device ends an endless lie at a limit and loses nothing', async (t) => {
  const stage = await Stage.set(t);
  for (const lie of FLOODS) t.test(`${lie.id}: the server ${lie.does}`, async (t) => play(t, stage, lie));
});
