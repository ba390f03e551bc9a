/** Plays a lie and checks its promises: it is reported, nothing wrong is shown, nothing is lost, no secret leaks. */
import { isDeepStrictEqual } from 'node:util';
import { next } from '../support/client-world.js';
import { SOON_MS } from '../support/events.js';
import type { Lie } from './lie.js';
import type { Stage } from './stage.js';

interface Tap {
  test(title: string, body: (t: Tap) => Promise<void>): unknown;
  same(found: unknown, wanted: unknown, message: string): unknown;
}

interface PlayOptions {
  /** False: the victim is not connected when the lie begins. */
  readonly connected?: boolean;
}

/** Plays a lie against a new victim. */
export async function play(t: Tap, stage: Stage, lie: Lie, options: PlayOptions = {}): Promise<void> {
  const { connected = true } = options;
  const victim = await stage.enter(connected);
  const before = (await victim.list()).map(({ id }) => id);
  await lie.play(stage);
  await stage.hears(lie.named);
  if (lie.named.length === 0) t.same([...new Set(stage.told)], [], 'nothing is reported');
  t.same(await stage.forged(), [], 'the victim shows only what its user wrote and did not delete');
  t.same(await stage.lost(before), [], 'the victim lost no item that it held');
  t.same(stage.leaks(), [], 'no secret was sent');
  t.same(stage.strangers(), [], "no key was sealed for a device that is not the user's");
  await recovers(t, stage);
}

/** Once the server is honest again, the victim shows what the owner has. */
async function recovers(t: Tap, stage: Stage): Promise<void> {
  const { liar, victim, owner } = stage;
  liar.honest();
  liar.cut();
  victim.disconnect();
  await victim.connect();
  const settled = next({ device: victim }, 'caught_up', ({ complete }) => complete === true);
  await victim.resync();
  await settled;
  const of = async (device: typeof owner): Promise<unknown> =>
    (await device.list()).map(({ id, payload }) => `${id} ${String(payload?.['text'])}`).sort();
  // The victim's writes may still be under way: before each comparison both devices read again.
  for (const end = Date.now() + SOON_MS; Date.now() < end && !isDeepStrictEqual(await of(victim), await of(owner));) {
    await Promise.all([victim.pull(), owner.pull()]);
  }
  t.same(await of(victim), await of(owner), 'with an honest server, victim and owner show the same items');
}
