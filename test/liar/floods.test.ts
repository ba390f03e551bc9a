/** Lies without end: each has a bound, and what was held is none the worse for it. */
import t from 'tap';
import { FLOODS } from './lies/floods.js';
import { play } from './play.js';
import { Stage } from './stage.js';

t.setTimeout(900_000);

t.test('LIAR-114 LIAR-115 LIAR-116 LIAR-117: lies without end', async (t) => {
  const stage = await Stage.set(t);
  for (const lie of FLOODS) t.test(`${lie.id}: the server ${lie.does}`, async (t) => play(t, stage, lie));
});
