/** Lies about items, in frames and in listings. */
import t from 'tap';
import { ITEM_LIES, listed } from './lies/items.js';
import { play } from './play.js';
import { Stage } from './stage.js';

t.setTimeout(300_000);

const TITLE =
  'CLIENT-02 CLIENT-03 CLIENT-04 LIAR-01 LIAR-02 LIAR-03 LIAR-04 LIAR-05 LIAR-06 LIAR-07 LIAR-08 LIAR-09 LIAR-10 LIAR-11 LIAR-12 LIAR-13 LIAR-14 LIAR-15 LIAR-16 LIAR-17 LIAR-18 LIAR-19: lies about an item';

t.test(TITLE, async (t) => {
  const stage = await Stage.set(t);
  for (const lie of ITEM_LIES) {
    t.test(`${lie.id}: the server ${lie.does}`, async (t) => play(t, stage, lie));
    t.test(`${lie.id} in a listing: the server ${lie.does}`, async (t) =>
      play(t, stage, { ...lie, play: (on) => listed(on, lie) }, { connected: false }),
    );
  }
});
