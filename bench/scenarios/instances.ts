/** S8: writes to one instance that are received on another, relative to a single instance. */
import type { Context } from '../context.js';
import { leg, type LegResult } from '../leg.js';
import { atLeast, atMost, Book, type Outcome } from '../stats.js';
import { World, type Listening } from '../world.js';

const TENANTS = 1_000;
const PER_TENANT = 5;
const WRITERS = 256;

async function open(context: Context, name: string, instances: number): Promise<Listening> {
  const size = { tenants: context.scaled(TENANTS), perTenant: PER_TENANT };
  const target = await World.open(context, { name, size, instances, placed: 'apart' });
  // Writers are always given the first port.
  return { target, receivers: await target.receivers({ port: target.ports.at(-1) ?? target.port }) };
}

export async function twoInstances(context: Context): Promise<Outcome> {
  const { drivers, options } = context;
  context.tell('two instances: setting up');
  const one = await open(context, 'one_instance', 1);
  const two = await open(context, 'two_instances', 2);
  const book = new Book();
  let received = 0;
  const measured = async (of: Listening, what: string, rate?: number): Promise<LegResult> => {
    const result = await leg({ drivers, seconds: options.seconds, connections: WRITERS, rate, ...of });
    context.tell(`  ${of.target.database} ${what}: ${Math.round(result.perSecond)} writes/s, audited`);
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
      book.addLatency(`${name}: send to push at half of it`, push);
    }
  }
  for (const { target, receivers } of [one, two]) {
    await receivers.stop();
    await target.stop();
  }
  const targets = [
    atMost(book.one('two instances: send to push at half of it, p50'), 10, 8),
    atMost(book.one('two instances: send to push at half of it, p99'), 50, 20),
    atLeast(book.ratio('two instances', 'one instance', 'writes / writes of one instance alone'), 0.8, 0.9),
  ];
  return {
    id: 'S8',
    title: 'writes to one instance, each pushed to 4 other devices on another',
    targets,
    figures: book.without(targets),
    audits: [
      `every leg: acknowledged writes all stored, versions without a gap, ${received} frames received: none lost, repeated or out of order`,
    ],
  };
}
