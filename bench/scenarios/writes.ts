/** S1 to S4: writes, writes with pushes, latency, and all three on a slow disk. Their legs take turns in each round. */
import { join } from 'node:path';
import type { Context, ScenarioId } from '../context.js';
import type { Cluster } from '../database.js';
import { Receivers } from '../drivers.js';
import { FastifyWorld } from '../fastify-world.js';
import { bareLeg, crashLeg, leg, rawWrites, type LegResult } from '../leg.js';
import { imagine, writePlan, writeSockets, type PopulationSize } from '../population.js';
import { Book, ratio, type Outcome, type Target } from '../stats.js';
import { World } from '../world.js';

const S1_DEVICES = 2;
const S2_DEVICES = 5;
const FEW_WRITERS = 64;
const MANY_WRITERS = 256;
const CRASH_SECONDS = 5;

const sizeOf = (context: Context, tenants: number, perTenant: number): PopulationSize => ({
  tenants: context.options.quick ? tenants / 5 : tenants,
  perTenant,
});

/** A server with writers only, and one whose every device also listens, on one disk. */
interface Side {
  readonly cluster: Cluster;
  readonly writes: World | undefined;
  readonly pushes: { readonly world: World; readonly receivers: Receivers } | undefined;
}

interface Bare {
  readonly port: number;
  readonly plan: string;
  readonly receivers: Receivers;
}

interface Reference {
  readonly world: FastifyWorld;
  readonly receivers: Receivers;
}

interface Parties {
  readonly fast: Side;
  readonly slow: Side | undefined;
  readonly bare: Bare;
  readonly reference: Reference | undefined;
}

export class WriteScenarios {
  private readonly books: Record<'S1' | 'S2' | 'S3' | 'S4', Book> = {
    S1: new Book(),
    S2: new Book(),
    S3: new Book(),
    S4: new Book(),
  };
  private readonly audits = new Map<ScenarioId, string[]>();
  private counts = { acked: 0, received: 0 };

  private readonly fast: Side;
  private readonly slow: Side | undefined;
  private readonly bare: Bare;
  private readonly reference: Reference | undefined;

  private constructor(
    private readonly context: Context,
    private readonly wanted: ReadonlySet<ScenarioId>,
    parties: Parties,
  ) {
    this.fast = parties.fast;
    this.slow = parties.slow;
    this.bare = parties.bare;
    this.reference = parties.reference;
  }

  /** Runs those of S1 to S4 that are asked for. S4 and S3 need what they are compared with, so that runs too. */
  static async run(context: Context): Promise<Outcome[]> {
    const asked = context.options.scenarios;
    const wanted = new Set<ScenarioId>(asked);
    if (asked.has('S4')) for (const id of ['S1', 'S2', 'S3'] as const) wanted.add(id);
    if (asked.has('S3')) wanted.add('S2');
    context.tell('setting up the write scenarios');
    const scenarios = new WriteScenarios(context, wanted, {
      fast: await openSide(context, 'fast', wanted),
      slow: wanted.has('S4') ? await openSide(context, 'slow', wanted) : undefined,
      bare: await openBare(context),
      reference: wanted.has('S2') ? await openReference(context) : undefined,
    });
    for (let round = 1; round <= context.options.rounds; round++) {
      context.tell(`writes: round ${round} of ${context.options.rounds}`);
      await scenarios.round();
    }
    await scenarios.crashes();
    await scenarios.close();
    return (['S1', 'S2', 'S3', 'S4'] as const).filter((id) => wanted.has(id)).map((id) => scenarios.outcome(id));
  }

  /** What is compared stands side by side in time: the same leg on either disk, and the raw limit just before. */
  private async round(): Promise<void> {
    const { S1, S2, S3, S4 } = this.books;
    const sides = [{ side: this.fast, books: { S1, S2, S3 } }];
    if (this.slow) sides.push({ side: this.slow, books: { S1: S4, S2: S4, S3: S4 } });
    if (this.wanted.has('S1')) {
      await this.raw(S1, this.fast, S1_DEVICES);
      for (const writers of [FEW_WRITERS, MANY_WRITERS]) {
        for (const { side, books } of sides) await this.writes(books.S1, side, writers);
      }
      S1.add('bare uWS POST', 'writes/s', await this.bareAlone('/api/items'));
    }
    if (this.wanted.has('S2')) {
      await this.raw(S2, this.fast, S2_DEVICES);
      const rates: number[] = [];
      for (const { side, books } of sides) rates.push(await this.pushes(books.S2, side));
      await this.fastify(S2);
      S2.add('bare uWS POST and push to 4', 'writes/s', await this.bareAlone('/push/items'));
      if (this.wanted.has('S3')) {
        for (const [i, { side, books }] of sides.entries()) await this.latency(books.S3, side, (rates[i] ?? 0) / 2);
      }
    }
    if (this.slow) await this.raw(S4, this.slow, S2_DEVICES);
  }

  /** The best that one or two connections do. */
  private async raw(book: Book, side: Side, devices: number): Promise<void> {
    const { seconds, quick } = this.context.options;
    const tenants = quick ? 400 : 2_000;
    const each: number[] = [];
    for (const connections of [1, 2]) {
      const rate = await rawWrites({ cluster: side.cluster, database: 'raw', connections, seconds, devices, tenants });
      book.add(`raw PostgreSQL, ${connections} connection${connections === 1 ? '' : 's'}`, 'rows/s', rate);
      each.push(rate);
    }
    book.add('raw PostgreSQL, the better', 'rows/s', Math.max(...each));
  }

  private async writes(book: Book, side: Side, connections: number): Promise<void> {
    if (!side.writes) throw new Error('no world without sockets');
    const name = `${connections} writers`;
    this.note(book, name, await this.measured(name, { target: side.writes, connections }));
  }

  /** Writes a second, each pushed to the four other devices. */
  private async pushes(book: Book, side: Side): Promise<number> {
    if (!side.pushes) throw new Error('no sockets');
    const { world, receivers } = side.pushes;
    const result = await this.measured('S2', { target: world, connections: MANY_WRITERS, receivers });
    this.note(book, 'writes with pushes', result);
    return result.perSecond;
  }

  private async latency(book: Book, side: Side, rate: number): Promise<void> {
    if (!side.pushes) throw new Error('no sockets');
    const { world, receivers } = side.pushes;
    const result = await this.measured('S3', { target: world, connections: MANY_WRITERS, receivers, rate });
    book.add('rate', 'writes/s', result.perSecond);
    const { push, answer } = result;
    if (!push) throw new Error('nothing was received');
    for (const [name, latency] of Object.entries({ 'send to push': push, 'send to answer': answer })) {
      book.add(`${name}, p50`, 'ms', latency.p50 / 1000);
      book.add(`${name}, p99`, 'ms', latency.p99 / 1000);
      book.add(`${name}, p99.9`, 'ms', latency.p999 / 1000);
    }
  }

  private async fastify(book: Book): Promise<void> {
    if (!this.reference) return;
    const { world, receivers } = this.reference;
    const result = await this.measured('fastify', { target: world, connections: FEW_WRITERS, receivers });
    this.note(book, 'fastify + pg + socket.io', result);
  }

  private async measured(
    what: string,
    own: Omit<Parameters<typeof leg>[0], 'drivers' | 'seconds'>,
  ): Promise<LegResult> {
    const { drivers, options } = this.context;
    const result = await leg({ drivers, seconds: options.seconds, ...own });
    this.context.tell(`  ${own.target.database} ${what}: ${Math.round(result.perSecond)} writes/s, audited`);
    this.counts.acked += result.audited.acked;
    this.counts.received += result.audited.received;
    return result;
  }

  private note(book: Book, name: string, result: LegResult): void {
    book.add(name, 'writes/s', result.perSecond);
    for (const party of ['server', 'database', 'client'] as const) {
      book.add(`${name}: per CPU-second of the ${party}`, 'writes', result.perCpuSecond[party]);
    }
    const { server, database, client } = result.load;
    book.add(`${name}: cores used by all`, 'cores', server + database + client);
    book.add(`${name}: answer p50`, 'ms', result.answer.p50 / 1000);
    book.add(`${name}: answer p99`, 'ms', result.answer.p99 / 1000);
  }

  private async bareAlone(path: string): Promise<number> {
    const { drivers, folder, options } = this.context;
    const { port, plan, receivers } = this.bare;
    const { perSecond } = await bareLeg({
      drivers,
      folder,
      port,
      plan,
      connections: FEW_WRITERS,
      seconds: options.seconds,
      path,
    });
    // Its frames were counted by arrival only to keep the client at the same work; there is nothing to audit.
    await receivers.dump('/dev/null');
    return perSecond;
  }

  /** kill -9 in the middle, once for writes and once for writes with pushes. */
  private async crashes(): Promise<void> {
    const { drivers } = this.context;
    const { writes, pushes } = this.fast;
    // These sockets do not come back by themselves.
    await pushes?.receivers.stop();
    const one = { drivers, connections: FEW_WRITERS, seconds: CRASH_SECONDS };
    if (writes) {
      this.context.tell('writes: kill -9 in the middle');
      const { acked, stored } = await crashLeg({ ...one, target: writes });
      this.found(
        'S1',
        `kill -9 of server and PostgreSQL in the middle: ${acked} acknowledged, all stored; ${stored} stored, no gap`,
      );
    }
    if (pushes) {
      this.context.tell('pushes: kill -9 in the middle');
      const receivers = await returning(this.context, pushes.world);
      const { acked, received } = await crashLeg({ ...one, target: pushes.world, receivers });
      await receivers.stop();
      this.found(
        'S2',
        `kill -9 of server and PostgreSQL in the middle: ${acked} acknowledged, all stored; ${received} frames, none lost, repeated or out of order`,
      );
    }
  }

  private found(id: ScenarioId, text: string): void {
    this.audits.set(id, [...(this.audits.get(id) ?? []), text]);
  }

  private async close(): Promise<void> {
    await this.bare.receivers.stop();
    await this.reference?.receivers.stop();
    await this.reference?.world.servers[0].stop();
    for (const side of [this.fast, this.slow]) {
      if (side === this.slow) await side?.pushes?.receivers.stop();
      await side?.pushes?.world.stop();
      await side?.writes?.stop();
    }
  }

  private outcome(id: 'S1' | 'S2' | 'S3' | 'S4'): Outcome {
    const whole = `every leg of this run: ${this.counts.acked} acknowledged writes all stored, versions 1 to head without a gap, ${this.counts.received} frames received: none lost, repeated or out of order`;
    const audits = [whole, ...(this.audits.get(id) ?? [])];
    const figures = this.books[id].series();
    const { title, targets } = this.described(id);
    const { instances } = this.context.options;
    const served = instances === 1 ? '' : `, ${instances} instances on one port`;
    return { id, title: title + served, targets, figures, audits };
  }

  private described(id: 'S1' | 'S2' | 'S3' | 'S4'): { title: string; targets: Target[] } {
    const { S1, S2, S3, S4 } = this.books;
    const over = (book: Book, name: string): number[] =>
      ratio(book.values(name), book.values('raw PostgreSQL, the better'));
    const atLeast = (name: string, values: number[], floor: number | null, goal: number): Target => ({
      name,
      unit: 'ratio',
      values,
      atLeast: true,
      floor,
      goal,
    });
    switch (id) {
      case 'S1':
        return {
          title: 'writes over raw batched PostgreSQL',
          targets: [FEW_WRITERS, MANY_WRITERS].map((n) =>
            atLeast(`${n} writers / raw PostgreSQL`, over(S1, `${n} writers`), 0.25, 0.5),
          ),
        };
      case 'S2': {
        const reference = ratio(S2.values('writes with pushes'), S2.values('fastify + pg + socket.io'));
        return {
          title: 'writes, each pushed to 4 other devices, over raw batched PostgreSQL',
          targets: [
            atLeast('writes / raw PostgreSQL', over(S2, 'writes with pushes'), 0.15, 0.27),
            atLeast('writes / fastify reference', reference, null, 4.5),
          ],
        };
      }
      case 'S3': {
        const atMost = (name: string, floor: number | null, goal: number): Target => ({
          name: `${name} at half of S2`,
          unit: 'ms',
          values: S3.values(name),
          atLeast: false,
          floor,
          goal,
        });
        return {
          title: 'latency from send to push at half of S2, arrivals by schedule',
          targets: [atMost('send to push, p50', null, 1.5), atMost('send to push, p99', 15, 5)],
        };
      }
      case 'S4': {
        const kept = (name: string, book: Book): Target =>
          atLeast(`${name}: slow disk / fast disk`, ratio(S4.values(name), book.values(name)), 0.8, 0.95);
        return {
          title: 'S1 to S3 with 1 ms added to each flush',
          targets: [
            kept(`${FEW_WRITERS} writers`, S1),
            kept(`${MANY_WRITERS} writers`, S1),
            kept('writes with pushes', S2),
          ],
        };
      }
    }
  }
}

async function openSide(context: Context, name: 'fast' | 'slow', wanted: ReadonlySet<ScenarioId>): Promise<Side> {
  const cluster = await context[name]();
  await cluster.create('raw');
  const { instances } = context.options;
  const one = { folder: context.folder, cluster, drivers: context.drivers, instances };
  const writes = wanted.has('S1')
    ? await World.open({ ...one, name: `${name}_writes`, size: sizeOf(context, 2_000, S1_DEVICES) })
    : undefined;
  if (!wanted.has('S2')) return { cluster, writes, pushes: undefined };
  const world = await World.open({ ...one, name: `${name}_pushes`, size: sizeOf(context, 1_000, S2_DEVICES) });
  const receivers = world.receivers();
  await receivers.ready();
  return { cluster, writes, pushes: { world, receivers } };
}

/** The drivers with the population of S2 against bare uWS. */
async function openBare(context: Context): Promise<Bare> {
  const { port } = await context.bare();
  const size = sizeOf(context, 1_000, S2_DEVICES);
  const population = imagine(size, (tenant, device) => `${tenant}.${device}`);
  const plan = join(context.folder, 'bare.plan');
  const sockets = join(context.folder, 'bare.sockets');
  writePlan(plan, population);
  writeSockets(sockets, population.devices);
  const receivers = new Receivers(context.drivers, { port, sockets, kind: 'bare' });
  await receivers.ready();
  return { port, plan, receivers };
}

async function openReference(context: Context): Promise<Reference> {
  const world = await FastifyWorld.open(context, sizeOf(context, 1_000, S2_DEVICES));
  const receivers = world.receivers();
  await receivers.ready();
  return { world, receivers };
}

/** Sockets that come back by themselves, from where their tenants are now. */
async function returning(context: Context, world: World): Promise<Receivers> {
  const heads = await world.cluster.with(world.database, async (client) => {
    const { rows } = await client.query<{ id: string; head: number }>('SELECT id, head::int FROM tenants');
    return new Map(rows.map(({ id, head }) => [id, head]));
  });
  const sockets = join(context.folder, 'returning.sockets');
  writeSockets(sockets, world.population.devices, (tenant) => heads.get(tenant) ?? 0);
  const receivers = world.receivers({ sockets, reconnect: true });
  await receivers.ready();
  return receivers;
}
