/** S6: very many devices reconnect at head, to several instances on one port. */
import { AuditError } from '../audit.js';
import { startBare, type Context } from '../context.js';
import { Crowd, processesFor } from '../crowd.js';
import { Cluster, CONNECTIONS_EACH } from '../database.js';
import { Book, ratio, type Outcome } from '../stats.js';
import { cpuSeconds, quietPort, World, type CpuSeconds } from '../world.js';

const DEVICES = 100_000;
const PER_TENANT = 5;
/** Sockets of one client process that have not caught up yet: with 128 the client would be the bottleneck. */
const OPENING = 256;

/** Seconds that the same devices take with bare uWS. */
async function bareStorm(crowd: Crowd, processes: number): Promise<number> {
  // A port that the system assigns cannot be shared.
  const port = await quietPort();
  const started = Array.from({ length: processes }, async () => startBare(port));
  const servers = (await Promise.all(started)).map(({ child }) => child);
  const seconds = await crowd.come({ port, path: '/device', opening: OPENING });
  await crowd.leave(servers);
  await Promise.all(servers.map(async (server) => server.stop()));
  return seconds;
}

interface Storm {
  readonly seconds: number;
  /** Of all instances, and of the database. */
  readonly cpu: CpuSeconds;
  readonly statements: number;
  /** The most frequent of them. */
  readonly kinds: string;
}

async function storm(crowd: Crowd, world: World, expected: number): Promise<Storm> {
  const before = await world.statements();
  const spent = cpuSeconds(world, []);
  const seconds = await crowd.come({ port: world.port, opening: OPENING });
  const now = cpuSeconds(world, []);
  const cpu = { ...now, server: now.server - spent.server, database: now.database - spent.database };
  const sent = [...(await world.statements())].map(([kind, times]) => [kind, times - (before.get(kind) ?? 0)] as const);
  const statements = sent.reduce((sum, [, times]) => sum + times, 0);
  const frequent = sent.sort(([, one], [, other]) => other - one).slice(0, 3);
  const kinds = frequent.map(([kind, times]) => `${times} ${kind}`).join(', ');
  const { live } = await crowd.count();
  if (live !== expected) throw new AuditError(`${live} of ${expected} devices have caught up`);
  return { seconds, cpu, statements, kinds };
}

export async function reconnects(context: Context): Promise<Outcome> {
  const { options, drivers, folder } = context;
  const count = options.quick ? DEVICES / 5 : DEVICES;
  const processes = processesFor(count);
  context.tell(`reconnects: setting up ${count} devices, ${processes} instances`);
  const cluster = await Cluster.start('storm', { connections: CONNECTIONS_EACH * (processes + 1) });
  const size = { tenants: count / PER_TENANT, perTenant: PER_TENANT };
  const world = await World.open({ name: 'storm', folder, cluster, drivers, size, instances: processes });
  const crowd = new Crowd({ drivers, folder, devices: world.population.devices });
  const book = new Book();
  for (let round = 1; round <= options.rounds; round++) {
    context.tell(`reconnects: round ${round} of ${options.rounds}`);
    book.add('bare uWS', 's', await bareStorm(crowd, processes));
    await world.stop();
    await world.start();
    const first = await storm(crowd, world, count);
    book.add('after a restart of the servers', 's', first.seconds);
    book.add('after a restart of the servers: statements of SQL', 'count', first.statements);
    await crowd.leave(world.servers);
    const again = await storm(crowd, world, count);
    book.add('reconnects', 's', again.seconds);
    book.add('reconnects: statements of SQL', 'count', again.statements);
    book.add("reconnects: the servers' CPU for a device", 'us', (again.cpu.server * 1e6) / count);
    book.add("reconnects: the database's CPU for a device", 'us', (again.cpu.database * 1e6) / count);
    await crowd.leave(world.servers);
    context.tell(`  ${again.seconds.toFixed(1)} s, all caught up; ${again.statements} statements: ${again.kinds}`);
  }
  await world.stop();
  await cluster.remove();
  const bare = book.values('bare uWS');
  const target = { atLeast: false, unit: 'ratio' } as const;
  const statements = book.values('reconnects: statements of SQL');
  return {
    id: 'S6',
    title: `${count} devices reconnect at head, ${PER_TENANT} a tenant, ${processes} instances on one port, over bare uWS in as many processes`,
    targets: [
      {
        ...target,
        name: 'reconnects / bare uWS',
        values: ratio(book.values('reconnects'), bare),
        floor: 2,
        goal: 1.5,
      },
      { ...target, name: 'reconnects: statements', unit: 'count', values: statements, floor: 1_000, goal: 500 },
    ],
    figures: book.series().filter(({ name }) => name !== 'reconnects: statements of SQL'),
    audits: ['every device was let in by its own token and got caught_up each time; no socket was closed'],
  };
}
