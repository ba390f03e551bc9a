/** Lies about devices and bins. */
import t from 'tap';
import { BIN_LIES, DEVICE_LIES } from './lies/devices.js';
import { play } from './play.js';
import { Stage } from './stage.js';

t.setTimeout(300_000);

const DEVICES =
  'CLIENT-05 CLIENT-06 LIAR-56 LIAR-57 LIAR-58 LIAR-59 LIAR-60 LIAR-61 LIAR-62: devices that the server slipped in';
const BINS = 'LIAR-63 LIAR-64 LIAR-65: lies about bins';

t.test(DEVICES, async (t) => {
  const stage = await Stage.set(t);
  for (const lie of DEVICE_LIES) t.test(`${lie.id}: the server ${lie.does}`, async (t) => play(t, stage, lie));
});

t.test(BINS, async (t) => {
  const stage = await Stage.set(t);
  for (const lie of BIN_LIES) t.test(`${lie.id}: the server ${lie.does}`, async (t) => play(t, stage, lie));
});
