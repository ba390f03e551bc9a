/** LONG, run only if named: the load of S3 for minutes, with autovacuum running. */
import type { Context } from '../context.js';
import { leg, type Probe } from '../leg.js';
import { ownBytes } from '../machine.js';
import { Book, type Outcome, type Target } from '../stats.js';
import { World } from '../world.js';
import { MANY_WRITERS, S3_RATE } from './write-targets.js';

const TENANTS = 1_000;
const PER_TENANT = 5;
const MINUTE_MS = 60_000;
const MIB = 2 ** 20;
/** Floor of the ratio of the last minute to the first. */
const FLOOR = 1.25;
/** Largest latency of the drivers' records, us: longer ones cannot be compared. */
const LATENCY_MOST = 4_294_967;

/** The server's memory at the end of each minute. */
class Memory implements Probe {
  readonly minutes: number[] = [];
  private timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly world: World,
    private readonly most: number,
  ) {}

  async begin(): Promise<void> {
    this.timer = setInterval(() => this.look(), MINUTE_MS);
    return Promise.resolve();
  }

  async end(): Promise<void> {
    clearInterval(this.timer);
    // The driver may end just before the timer of the last minute.
    if (this.minutes.length < this.most) this.look();
    return Promise.resolve();
  }

  private look(): void {
    const { servers } = this.world;
    this.minutes.push(servers.reduce((sum, { pid }) => sum + ownBytes(pid), 0) / MIB);
  }
}

interface Vacuumed {
  readonly name: string;
  readonly vacuums: number;
  readonly analyzes: number;
  readonly dead: number;
}

/** Runs of autovacuum on each table since the database was created. */
async function vacuumed(world: World): Promise<readonly Vacuumed[]> {
  return await world.cluster.with(world.database, async (client) => {
    const { rows } = await client.query<Vacuumed>(
      `SELECT relname AS name, autovacuum_count::int AS vacuums, autoanalyze_count::int AS analyzes, n_dead_tup::int AS dead
       FROM pg_stat_user_tables WHERE autovacuum_count + autoanalyze_count > 0 ORDER BY relname`,
    );
    return rows;
  });
}

export async function longRun(context: Context): Promise<Outcome> {
  const { options, drivers, folder } = context;
  const { minutes } = options;
  const size = { tenants: options.quick ? TENANTS / 5 : TENANTS, perTenant: PER_TENANT };
  const seconds = (minutes * MINUTE_MS) / 1_000;
  context.tell(`long: ${S3_RATE} writes/s for ${minutes} minutes`);
  const { instances } = options;
  const world = await World.open({ name: 'long', folder, cluster: await context.fast(), drivers, size, instances });
  const receivers = world.receivers();
  await receivers.ready();
  const probe = new Memory(world, minutes);
  const load = { drivers, target: world, connections: MANY_WRITERS, seconds, rate: S3_RATE };
  const { parts, perSecond, answer, audited } = await leg({ ...load, receivers, probe, parts: minutes });
  const tables = await vacuumed(world);
  await receivers.stop();
  await world.stop();
  const book = new Book();
  book.add('rate', 'writes/s', perSecond);
  book.add('all minutes: send to answer, p50', 'ms', answer.p50 / 1_000);
  book.add('all minutes: send to answer, p99', 'ms', answer.p99 / 1_000);
  for (const [n, { p50, p99 }] of parts.entries()) {
    book.add(`minute ${n + 1}: send to push, p50`, 'ms', p50 / 1_000);
    book.add(`minute ${n + 1}: send to push, p99`, 'ms', p99 / 1_000);
    book.add(`minute ${n + 1}: memory of the server at its end`, 'MiB', probe.minutes[n] ?? NaN);
  }
  for (const { name, vacuums, analyzes, dead } of tables) {
    book.add(`autovacuum of ${name}`, 'count', vacuums);
    book.add(`autoanalyze of ${name}`, 'count', analyzes);
    book.add(`dead rows of ${name} at the end`, 'count', dead);
  }
  const comparable = (us: number): number => (us < LATENCY_MOST ? us : NaN);
  const lastOverFirst = (name: string, values: readonly number[]): Target => ({
    name: `${name}, last minute / first`,
    unit: 'ratio',
    values: [(values.at(-1) ?? NaN) / (values[0] ?? NaN)],
    atLeast: false,
    floor: FLOOR,
    goal: null,
  });
  return {
    id: 'LONG',
    title: `${S3_RATE} writes/s for ${minutes} minutes, each pushed to 4 other devices, arrivals by schedule`,
    targets: [
      lastOverFirst(
        'send to push, p50',
        parts.map(({ p50 }) => comparable(p50)),
      ),
      lastOverFirst(
        'send to push, p99',
        parts.map(({ p99 }) => comparable(p99)),
      ),
      lastOverFirst('memory of the server', probe.minutes),
    ],
    figures: book.series(),
    audits: [
      `${audited.acked} acknowledged writes all stored, versions 1 to head without a gap, ${audited.received} frames received: none lost, repeated or out of order`,
    ],
  };
}
