/** Lies below the contract: redirects, floods, times, shapes. */
import t from 'tap';
import { TRANSPORT_LIES } from './lies/transport.js';
import { play } from './play.js';
import { Stage } from './stage.js';

t.setTimeout(300_000);

const TITLE =
  'CLIENT-32 CLIENT-46 LIAR-89 LIAR-90 LIAR-91 LIAR-92 LIAR-93 LIAR-94 LIAR-95 LIAR-96 LIAR-97 LIAR-98 LIAR-99: lies below the contract';

t.test(TITLE, async (t) => {
  const stage = await Stage.set(t);
  for (const lie of TRANSPORT_LIES) t.test(`${lie.id}: the server ${lie.does}`, async (t) => play(t, stage, lie));
});
