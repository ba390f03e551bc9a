/** How long a device waits while sockets of another tenant take all that they can get. */
import t from 'tap';
import { servedInTime, type Findings, type Judge } from './support/judge.js';
import { fill, Flood, released, stage, unread, type Stage } from './support/socket-attacks.js';

t.setTimeout(900_000);

const ROUNDS = 40;

async function judged(judge: Judge): Promise<Findings> {
  judge.begin();
  await judge.after(ROUNDS);
  return judge.end();
}

const flood =
  (frame: string) =>
  (scene: Stage): (() => Promise<void>) => {
    const attack = new Flood(scene, frame);
    return () => attack.end();
  };

type Attack = (scene: Stage) => (() => unknown) | Promise<() => unknown>;
const ATTACKS: readonly (readonly [name: string, devices: number, attack: Attack])[] = [
  ['eight sockets with nested junk', 1, flood('['.repeat(14_000))],
  ['eight sockets with many small frames', 1, flood('{"type":"pong"}')],
  [
    '192 sockets that do not read',
    12,
    async (scene) => {
      await fill(scene.greedy, scene.devices);
      const sockets = await unread(scene);
      return () => sockets.forEach((socket) => socket.close());
    },
  ],
];

for (const [name, devices, attack] of ATTACKS) {
  t.test(`FAIR-15 FAIR-26 FAIR-27: another tenant is served in time despite ${name}`, async (t) => {
    const scene = await stage(t, devices);
    const idle = await judged(scene.judge);
    const end = await attack(scene);
    const seen = await judged(scene.judge);
    await end();
    servedInTime(t, idle, seen, name);
    const more = seen.peakMib - idle.peakMib;
    t.ok(more < 160, `${Math.round(more)} MiB more`);
    await released(scene.place);
  });
}
