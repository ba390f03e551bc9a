/** Lies about deletes, ages, order and numbers of changes. */
import t from 'tap';
import { GONE_LIES, STREAM_LIES } from './lies/stream.js';
import { play } from './play.js';
import { Stage } from './stage.js';

t.setTimeout(300_000);

const TITLE =
  'CLIENT-30 LIAR-20 LIAR-21 LIAR-22 LIAR-23 LIAR-24 LIAR-25 LIAR-26 LIAR-27 LIAR-28 LIAR-29 LIAR-30 LIAR-31 LIAR-32 LIAR-33 LIAR-34 LIAR-35 LIAR-36 LIAR-37 LIAR-38 LIAR-39 LIAR-40 LIAR-41 LIAR-42 LIAR-43 LIAR-119 LIAR-120: lies about the stream';

t.test(TITLE, async (t) => {
  const stage = await Stage.set(t);
  for (const lie of [...STREAM_LIES, ...GONE_LIES])
    t.test(`${lie.id}: the server ${lie.does}`, async (t) => play(t, stage, lie));
});
