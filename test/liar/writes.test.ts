/** Lies about the outcome of the device's own writes. */
import t from 'tap';
import { WRITE_LIES } from './lies/writes.js';
import { play } from './play.js';
import { Stage } from './stage.js';

t.setTimeout(300_000);

const TITLE =
  'LIAR-44 LIAR-45 LIAR-46 LIAR-47 LIAR-48 LIAR-49 LIAR-50 LIAR-51 LIAR-52 LIAR-53 LIAR-54 LIAR-55: lies about what was written';

t.test(TITLE, async (t) => {
  const stage = await Stage.set(t);
  for (const lie of WRITE_LIES) t.test(`${lie.id}: the server ${lie.does}`, async (t) => play(t, stage, lie));
});
