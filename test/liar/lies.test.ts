/** Every lie of the catalogue, played to a device that reaches its server through the liar. Each kind has a server. */
import t, { type Test } from 'tap';
import type { Lie } from './lie.js';
import { BLOB_LIES } from './lies/blobs.js';
import { CHALLENGE_LIES } from './lies/challenge.js';
import { BIN_LIES, DEVICE_LIES, MISPLACED } from './lies/devices.js';
import { DROPPED_LIES } from './lies/dropped.js';
import { FLOODS } from './lies/floods.js';
import { ITEM_LIES, listed } from './lies/items.js';
import { GONE_LIES, LOST_LIE, STREAM_LIES } from './lies/stream.js';
import { TRANSPORT_LIES } from './lies/transport.js';
import { BASE_LIE, WRITE_LIES } from './lies/writes.js';
import { play } from './play.js';
import { Stage } from './stage.js';

t.setTimeout(900_000);

/** Resolves when all are over: whatever else is done on the stage must not run beside a lie. */
async function playAll(t: Test, stage: Stage, lies: readonly Lie[]): Promise<void> {
  for (const lie of lies) await t.test(`${lie.id}: the server ${lie.does}`, async (t) => play(t, stage, lie));
}

const TITLES: readonly (readonly [title: string, lies: readonly Lie[]])[] = [
  [
    'LIAR-114 LIAR-115 LIAR-116 LIAR-117 LIAR-131 LIAR-132: a device ends an endless lie at a limit and loses nothing',
    FLOODS,
  ],
  [
    'CLIENT-30 LIAR-20 LIAR-21 LIAR-22 LIAR-23 LIAR-24 LIAR-25 LIAR-26 LIAR-27 LIAR-28 LIAR-29 LIAR-30 LIAR-31 LIAR-32 LIAR-33 LIAR-34 LIAR-35 LIAR-36 LIAR-37 LIAR-38 LIAR-39 LIAR-40 LIAR-41 LIAR-42 LIAR-43 LIAR-119 LIAR-120 LIAR-130: lies about deletes, ages, order and numbers of changes',
    [...STREAM_LIES, ...GONE_LIES, LOST_LIE],
  ],
  [
    'LIAR-44 LIAR-45 LIAR-46 LIAR-47 LIAR-48 LIAR-49 LIAR-50 LIAR-51 LIAR-52 LIAR-53 LIAR-54 LIAR-55 LIAR-121 LIAR-122 LIAR-123 LIAR-124 LIAR-125 LIAR-126 LIAR-127 LIAR-128: lies about what was written',
    [...WRITE_LIES, BASE_LIE, ...DROPPED_LIES],
  ],
  [
    'CLIENT-05 CLIENT-06 LIAR-56 LIAR-57 LIAR-58 LIAR-59 LIAR-60 LIAR-61 LIAR-62: devices that the server slipped in',
    DEVICE_LIES,
  ],
  ['LIAR-63 LIAR-64 LIAR-65 LIAR-129: lies about bins', [...BIN_LIES, MISPLACED]],
  [
    'CLIENT-32 CLIENT-46 LIAR-89 LIAR-90 LIAR-91 LIAR-92 LIAR-93 LIAR-94 LIAR-95 LIAR-96 LIAR-97 LIAR-98 LIAR-99: lies below the contract: redirects, floods, times, shapes',
    TRANSPORT_LIES,
  ],
  [
    'CBLOB-07 CBLOB-08 LIAR-100 LIAR-101 LIAR-102 LIAR-103 LIAR-104 LIAR-105 LIAR-106 LIAR-107 LIAR-108 LIAR-109 LIAR-110 LIAR-111 LIAR-112 LIAR-113: lies about a blob, its addresses and its bytes',
    BLOB_LIES,
  ],
];

for (const [title, lies] of TITLES) t.test(title, async (t) => playAll(t, await Stage.set(t), lies));

const ITEMS =
  'CLIENT-02 CLIENT-03 CLIENT-04 LIAR-01 LIAR-02 LIAR-03 LIAR-04 LIAR-05 LIAR-06 LIAR-07 LIAR-08 LIAR-09 LIAR-10 LIAR-11 LIAR-12 LIAR-13 LIAR-14 LIAR-15 LIAR-16 LIAR-17 LIAR-18 LIAR-19: lies about an item, in frames and in listings';

t.test(ITEMS, async (t) => {
  const stage = await Stage.set(t);
  for (const lie of ITEM_LIES) {
    await playAll(t, stage, [lie]);
    await t.test(`${lie.id} in a listing: the server ${lie.does}`, async (t) =>
      play(t, stage, { ...lie, play: (on) => listed(on, lie) }, { connected: false }),
    );
  }
});

t.test('CLIENT-19 LIAR-85 LIAR-86 LIAR-87 LIAR-88: a device answers only genuine challenges', async (t) => {
  const stage = await Stage.set(t);
  await playAll(t, stage, CHALLENGE_LIES);
  const honest = await stage.device({ ...stage.identity, token: { text: 'worthless', expiresAt: null } });
  t.match(await honest.me(), { device: { id: stage.identity.deviceId } }, 'a genuine challenge is answered');
});
