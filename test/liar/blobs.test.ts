/** Lies about blobs, their addresses and their bytes. */
import t from 'tap';
import { BLOB_LIES } from './lies/blobs.js';
import { play } from './play.js';
import { Stage } from './stage.js';

t.setTimeout(300_000);

const TITLE =
  'CBLOB-07 CBLOB-08 LIAR-100 LIAR-101 LIAR-102 LIAR-103 LIAR-104 LIAR-105 LIAR-106 LIAR-107 LIAR-108 LIAR-109 LIAR-110 LIAR-111 LIAR-112 LIAR-113: lies about a blob';

t.test(TITLE, async (t) => {
  const stage = await Stage.set(t);
  for (const lie of BLOB_LIES) t.test(`${lie.id}: the server ${lie.does}`, async (t) => play(t, stage, lie));
});
