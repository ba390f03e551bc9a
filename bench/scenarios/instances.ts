/** S8: writes to one instance that are received on another, relative to a single instance. */
import type { Context } from '../context.js';
import type { Receivers } from '../drivers.js';
import { leg, type LegResult } from '../leg.js';
import { Book, ratio, type Outcome } from '../stats.js';
import { World } from '../world.js';

const TENANTS = 1_000;
const PER_TENANT = 5;
const WRITERS = 256;

interface Party {
  readonly world: World;
  readonly receivers: Receivers;
}

async function party(context: Context, name: string, instances: number): Promise<Party> {
  const { drivers, folder, options } = context;
  const size = { tenants: options.quick ? TENANTS / 5 : TENANTS, perTenant: PER_TENANT };
  const cluster = await context.fast();
  const world = await World.open({ name, folder, cluster, drivers, size, instances, ownPorts: true });
  // Writers are always given the first port.
  const receivers = world.receivers({ port: world.ports.at(-1) ?? world.port });
  await receivers.ready();
  return { world, receivers };
}

export async function twoInstances(context: Context): Promise<Outcome> {
  const { drivers, options } = context;
  context.tell('two instances: setting up');
  const one = await party(context, 'one_instance', 1);
  const two = await party(context, 'two_instances', 2);
  const book = new Book();
  let received = 0;
  const measured = async ({ world, receivers }: Party, what: string, rate?: number): Promise<LegResult> => {
    const { seconds } = options;
    const result = await leg({ drivers, seconds, target: world, connections: WRITERS, receivers, rate });
    context.tell(`  ${world.database} ${what}: ${Math.round(result.perSecond)} writes/s, audited`);
    received += result.audited.received;
    return result;
  };
  for (let round = 1; round <= options.rounds; round++) {
    context.tell(`two instances: round ${round} of ${options.rounds}`);
    for (const [name, each] of [
      ['one instance', one],
      ['two instances', two],
    ] as const) {
      const { perSecond, perCpuSecond } = await measured(each, 'writes');
      book.add(name, 'writes/s', perSecond);
      book.add(`${name}: per CPU-second of the servers`, 'writes', perCpuSecond.server);
      book.add(`${name}: per CPU-second of the database`, 'writes', perCpuSecond.database);
      const { push } = await measured(each, 'half of it', perSecond / 2);
      if (!push) throw new Error('nothing was received');
      book.add(`${name}: send to push at half of it, p50`, 'ms', push.p50 / 1_000);
      book.add(`${name}: send to push at half of it, p99`, 'ms', push.p99 / 1_000);
    }
  }
  for (const { world, receivers } of [one, two]) {
    await receivers.stop();
    await world.stop();
  }
  const p50 = 'two instances: send to push at half of it, p50';
  const p99 = 'two instances: send to push at half of it, p99';
  return {
    id: 'S8',
    title: 'writes to one instance, each pushed to 4 other devices on another',
    targets: [
      { name: p50, unit: 'ms', values: book.values(p50), atLeast: false, floor: 10, goal: 8 },
      { name: p99, unit: 'ms', values: book.values(p99), atLeast: false, floor: 50, goal: 20 },
      {
        name: 'writes / writes of one instance alone',
        unit: 'ratio',
        values: ratio(book.values('two instances'), book.values('one instance')),
        atLeast: true,
        floor: 0.8,
        goal: 0.9,
      },
    ],
    figures: book.series().filter(({ name }) => name !== p50 && name !== p99),
    audits: [
      `every leg: acknowledged writes all stored, versions without a gap, ${received} frames received: none lost, repeated or out of order`,
    ],
  };
}
