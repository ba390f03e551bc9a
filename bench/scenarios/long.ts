/** LONG, run only if named: the load of S3 for minutes, with autovacuum running. */
import { auditText } from '../audit.js';
import type { Context } from '../context.js';
import { leg, type Probe } from '../leg.js';
import { ownBytesOfAll } from '../machine.js';
import { atMost, Book, type Outcome, type Target } from '../stats.js';
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
    this.minutes.push(ownBytesOfAll(this.world.servers.map(({ pid }) => pid)) / MIB);
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
  const { drivers, options } = context;
  const { minutes, instances, placed } = options;
  const size = { tenants: context.scaled(TENANTS), perTenant: PER_TENANT };
  const seconds = (minutes * MINUTE_MS) / 1_000;
  context.tell(`long: ${S3_RATE} writes/s for ${minutes} minutes`);
  const listening = await World.listening(context, { name: 'long', size, instances, placed });
  const world = listening.target;
  const probe = new Memory(world, minutes);
  const load = { drivers, ...listening, connections: MANY_WRITERS, seconds, rate: S3_RATE };
  const { parts, perSecond, answer, audited } = await leg({ ...load, probe, parts: minutes });
  const tables = await vacuumed(world);
  await listening.receivers.stop();
  await world.stop();
  const book = new Book();
  book.add('rate', 'writes/s', perSecond);
  book.addLatency('all minutes: send to answer', answer);
  for (const [n, push] of parts.entries()) {
    book.addLatency(`minute ${n + 1}: send to push`, push);
    book.add(`minute ${n + 1}: memory of the server at its end`, 'MiB', probe.minutes[n] ?? NaN);
  }
  for (const { name, vacuums, analyzes, dead } of tables) {
    book.add(`autovacuum of ${name}`, 'count', vacuums);
    book.add(`autoanalyze of ${name}`, 'count', analyzes);
    book.add(`dead rows of ${name} at the end`, 'count', dead);
  }
  const comparable = (us: number): number => (us < LATENCY_MOST ? us : NaN);
  const lastOverFirst = (of: string, values: readonly number[]): Target => {
    const ratio = (values.at(-1) ?? NaN) / (values[0] ?? NaN);
    return atMost({ name: `${of}, last minute / first`, unit: 'ratio', values: [ratio] }, FLOOR);
  };
  const pushes = (of: 'p50' | 'p99'): Target =>
    lastOverFirst(
      `send to push, ${of}`,
      parts.map((part) => comparable(part[of])),
    );
  return {
    id: 'LONG',
    title: `${S3_RATE} writes/s for ${minutes} minutes, each pushed to 4 other devices, arrivals by schedule`,
    targets: [pushes('p50'), pushes('p99'), lastOverFirst('memory of the server', probe.minutes)],
    figures: book.without([]),
    audits: [auditText(audited)],
  };
}
