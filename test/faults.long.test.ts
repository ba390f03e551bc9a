/** Many rounds of faults at random on two instances under load. FAULT_SEED repeats a run. */
import t from 'tap';
import { Cluster, type Node } from './support/cluster.js';
import {
  bothKilled,
  databaseCrashed,
  databaseStill,
  databaseStopped,
  instanceKilled,
  killedWhileStill,
  listenEnded,
  listenSwallowed,
  more,
} from './support/faults.js';
import { range } from './support/stream.js';

t.setTimeout(840_000);

const ROUNDS = 20;
/** Writes before a fault, at most. */
const BEFORE_MAX = 400;
/** Seconds that the database stays away, at most. */
const HOLD_MAX_S = 8;

/** Numbers from 0 to below 1, the same for the same seed. */
function numbers(seed: number): () => number {
  let state = seed >>> 0;
  return () => (state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0) / 2 ** 32;
}

t.test('INST-23 INST-24 DUR-07 DUR-08 DUR-09: random faults lose no write and no change on any socket', async (t) => {
  const seed = Number(process.env['FAULT_SEED'] ?? Date.now() % 1_000_000);
  t.comment(`FAULT_SEED=${seed}`);
  const next = numbers(seed);
  const cluster = await Cluster.start(t, { tenants: 6, paceMs: 10, env: { WS_PING_INTERVAL_MS: '2000' } });
  const faults: Readonly<Record<string, (node: Node, holdMs: number) => Promise<void>>> = {
    'an instance is killed': async (node) => instanceKilled(cluster, node),
    'LISTEN dies': async () => listenEnded(t, cluster),
    'LISTEN is half-open': async (node) => listenSwallowed(cluster, node),
    'PostgreSQL stands still': async (_, holdMs) => databaseStill(t, cluster, holdMs),
    'PostgreSQL is stopped': async (_, holdMs) => databaseStopped(t, cluster, holdMs),
    'PostgreSQL is killed': async (_, holdMs) => databaseCrashed(t, cluster, holdMs),
    'both are killed': async (node) => bothKilled(cluster, node),
    'an instance is killed while PostgreSQL stands still': async (node) => killedWhileStill(cluster, node),
  };
  const names = Object.keys(faults);
  for (const round of range(1, ROUNDS)) {
    await more(cluster, Math.floor(next() * BEFORE_MAX));
    const name = names[Math.floor(next() * names.length)] ?? '';
    const node = cluster.nodes[next() < 0.5 ? 0 : 1];
    const holdMs = Math.floor(next() * HOLD_MAX_S * 1_000);
    t.comment(`round ${round}: ${name}, ${cluster.acked} acknowledged`);
    await faults[name]?.(node, holdMs);
  }
  await cluster.tally();
  t.comment(`${cluster.acked} acknowledged in all`);
});
