/**
 * Promotions under load, by a list of hosts and through HAProxy, with PostgreSQL 15 and 18. FAILOVER_PROMOTIONS is the
 * number of each kind (default 3); their moments follow from FAILOVER_SEED, which is printed.
 */
import { randomInt } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import t from 'tap';
import { claim, type TestDevice } from './support/devices.js';
import { until } from './support/events.js';
import { FailoverPair, Load, withoutFailover, type FailoverNode, type Major, type Mode } from './support/failover.js';
import { note, next, world } from './support/client-world.js';
import type { WithTeardown } from './support/postgres.js';
import { runServer, spawnServer } from './support/server.js';
import { range } from './support/stream.js';
import type { Wire } from './support/wire.js';

const PROMOTIONS = Number(process.env['FAILOVER_PROMOTIONS'] ?? '3');
const SEED = Number(process.env['FAILOVER_SEED'] ?? String(randomInt(1, 1_000_000)));
/** Only the runs whose name contains this; all by default. */
const ONLY = process.env['FAILOVER_ONLY'] ?? '';

t.setTimeout(600_000 + PROMOTIONS * 4 * 60_000);
t.comment(`FAILOVER_SEED=${SEED} FAILOVER_PROMOTIONS=${PROMOTIONS}`);

/** Numbers from 0 to 1, the same for the same seed (mulberry32). */
function seeded(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

/** How the primary fails. */
const ENDS = ['crash', 'stop', 'freeze'] as const;

interface Stage {
  readonly pair: FailoverPair;
  readonly wires: readonly Wire[];
  readonly device: TestDevice;
  readonly random: () => number;
  readonly way: Way;
}

async function stage(t: WithTeardown, mode: Mode, way: Way): Promise<Stage> {
  const { major, by } = way;
  const pair = await FailoverPair.start(t, { mode, major });
  const url = by === 'list' ? pair.url : await pair.behindProxy();
  const wires: Wire[] = [];
  for (const _ of [1, 2]) wires.push((await spawnServer(t, { database: { url } })).wire);
  const device = await claim(wires[0] as Wire);
  return { pair, wires, device, random: seeded(SEED + major), way };
}

/** A socket on each instance: every instance must close its own. */
async function sockets({ wires, device }: Stage) {
  return Promise.all(
    wires.map(async (wire) => {
      const socket = await wire.connect({ token: device.token });
      await socket.hello();
      return socket;
    }),
  );
}

const epochs = async ({ wires }: Stage): Promise<string[]> =>
  Promise.all(wires.map(async (wire) => (await wire.get('/service/status')).text('epoch')));

/** The primary fails, the standby is promoted, and the former primary returns as the new standby. */
async function promotion(stage: Stage, load: Load, [from, to]: readonly [FailoverNode, FailoverNode]): Promise<string> {
  const { pair, random, way } = stage;
  const open = await sockets(stage);
  await load.more(10);
  await sleep(random() * 1_000); // a random moment; the result must not depend on it
  const end = ENDS[Math.floor(random() * ENDS.length)] ?? 'crash';
  await from[end]();
  await sleep(random() * 500);
  await to.command('promote');
  if (end === 'freeze') {
    // It resumes as a primary that does not know of the promotion, and is stopped only later.
    await sleep(random() * 1_000);
    from.thaw();
    // Servers that know both hosts find the right one themselves. A proxy may not have noticed this one's freeze.
    if (way.by === 'HAProxy') await from.stepsDown();
  }
  await load.more(10);
  for (const socket of open) await socket.closed;
  await from.stop();
  if (way.major === 18) await from.cloneAgain(); // its package has no pg_rewind
  await from.start();
  await pair.attach(to);
  return end;
}

interface Way {
  readonly major: Major;
  readonly by: 'list' | 'HAProxy';
}

const skip = withoutFailover();
const WAYS: readonly Way[] = [15, 18].flatMap((major): Way[] => [
  { major: major as Major, by: 'list' },
  { major: major as Major, by: 'HAProxy' },
]);

for (const way of WAYS) {
  const name = `PostgreSQL ${way.major} by ${way.by}`;
  if (!name.includes(ONLY)) continue;
  t.test(`FAIL-01 FAIL-02: ${name}: ${PROMOTIONS} promotions of the synchronous standby`, { skip }, async (t) => {
    const made = await stage(t, 'synchronous', way);
    const { pair, wires, device } = made;
    const load = new Load(wires, device, 4);
    const seen = new Set(await epochs(made));
    let nodes = [pair.a, pair.b] as const;
    for (const turn of range(1, PROMOTIONS)) {
      const end = await promotion(made, load, nodes);
      const now = await epochs(made);
      const [one = ''] = now;
      t.ok(
        now.every((epoch) => epoch === one) && !seen.has(one),
        `${turn} (${end}): all instances report the same new epoch`,
      );
      seen.add(one);
      nodes = [nodes[1], nodes[0]];
    }
    await load.stop();
    t.strictSame(
      await load.lost(wires[0] as Wire, device),
      [],
      `none of ${load.acked.size} acknowledged writes is lost`,
    );
    t.comment(`${name}: ${PROMOTIONS} promotions, ${load.acked.size} acknowledged, ${load.refused} tries refused`);
  });

  t.test(`FAIL-05: ${name}: ${PROMOTIONS} promotions of a standby that is behind`, { skip }, async (t) => {
    const pair = await FailoverPair.start(t, { mode: 'asynchronous', major: way.major });
    const url = way.by === 'list' ? pair.url : await pair.behindProxy();
    const { first, server } = await world(t, { database: { url } });
    const other = await runServer(t, { database: { url } });
    const { device } = first;
    await device.connect();
    let nodes = [pair.a, pair.b] as const;
    for (const turn of range(1, PROMOTIONS)) {
      const [from, to] = nodes;
      const kept = await device.put(note(`kept ${turn}`));
      await until('the standby has it', async () => (await to.asSuperuser(has(kept.id))) === '1');
      const before = (await other.wire.get('/service/status')).text('epoch');
      // Frozen and disconnected: on an open connection the kernel would keep what is sent to a frozen process.
      await to.freeze();
      await from.asSuperuser('SELECT pg_terminate_backend(pid) FROM pg_stat_replication');
      const lost = await device.put(note(`only on the primary ${turn}`));
      await from.crash();
      to.thaw();
      const orphaned = next(first, 'orphaned', ({ ids }) => ids.includes(lost.id));
      await to.command('promote');
      await orphaned;
      t.equal(await to.asSuperuser(has(lost.id)), '0', `${turn}: the standby lacks the last write`);
      t.equal(await to.asSuperuser(has(kept.id)), '1');
      await device.republish(lost.id);
      t.equal(await to.asSuperuser(has(lost.id)), '1', 'what the device sends again is stored');
      for (const { wire } of [server, other])
        await until('another history', async () => (await wire.get('/service/status')).status === 200);
      const epoch = (await other.wire.get('/service/status')).text('epoch');
      t.not(epoch, before, 'the other instance reports a new epoch');
      t.equal((await server.wire.get('/service/status')).text('epoch'), epoch);
      await from.startByHand();
      const after = await device.put(note(`beside the former primary ${turn}`));
      t.equal(await from.asSuperuser(has(after.id)), '0', 'a former primary that returns receives no write');
      t.equal(await to.asSuperuser(has(after.id)), '1');
      await from.stop();
      if (way.major === 18) await from.cloneAgain();
      await from.start();
      await pair.attach(to);
      nodes = [to, from];
    }
    device.disconnect();
    t.strictSame(first.problems.map(String), []);
  });
}

const has = (id: string): string => `SELECT count(*) FROM items WHERE id = '${id}'`;
