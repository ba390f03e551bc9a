/** How long a device waits while another tenant's device, or an unauthenticated client, takes all that it can get. */
import t from 'tap';
import { Stage } from './support/attacks.js';
import { servedInTime } from './support/judge.js';

t.setTimeout(600_000);

const ROUNDS = 20;

const ATTACKS: readonly (readonly [name: string, attack: (stage: Stage) => Promise<void>])[] = [
  ['page after page that nobody reads', (stage) => stage.pages(ROUNDS)],
  ['a burst of page reads', (stage) => stage.burst(400)],
  ['pages of the reference that nobody reads', (stage) => stage.docs(ROUNDS)],
  ['requests that wait for no answer', (stage) => stage.unwaited(ROUNDS)],
  ['half-sent bodies', (stage) => stage.halves(540)],
];

for (const [name, attack] of ATTACKS) {
  t.test(`FAIR-15: another tenant is served in time despite ${name}`, async (t) => {
    const stage = await Stage.start(t);
    const { judge } = stage;
    judge.begin();
    await judge.after(ROUNDS);
    const idle = await judge.end();
    judge.begin();
    await attack(stage);
    await judge.after(ROUNDS);
    servedInTime(t, idle, await judge.end(), name);
    await stage.released();
  });
}
