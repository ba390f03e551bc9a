/** How long a device waits while sockets of another tenant take all that they can get. */
import t from 'tap';
import type { Findings, Judge } from './support/judge.js';
import { fill, Flood, released, stage, unread, type Stage } from './support/socket-attacks.js';

t.setTimeout(900_000);

/** The median wait may be this many times that on an idle server, or `LEAST_MS` where that is more. */
const TIMES_MAX = 3;
const LEAST_MS = 10;
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
    const { refusals, medianMs, peakMib } = await judged(scene.judge);
    await end();
    const most = Math.max(LEAST_MS, TIMES_MAX * idle.medianMs);
    t.ok(medianMs <= most, `${medianMs.toFixed(1)} ms, idle ${idle.medianMs.toFixed(1)} ms`);
    t.same(refusals, []);
    t.ok(peakMib - idle.peakMib < 160, `${Math.round(peakMib - idle.peakMib)} MiB more`);
    await released(scene.place);
  });
}
