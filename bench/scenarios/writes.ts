/** S1 to S4: writes, writes with pushes, latency, and all three on a slow disk. Their legs alternate in each round. */
import { join } from 'node:path';
import { auditText } from '../audit.js';
import { Garbage, Load, Turns } from '../attribution.js';
import type { Child } from '../child.js';
import { startBare, type Context, type ScenarioId } from '../context.js';
import type { Cluster } from '../database.js';
import { Receivers, startWriters, writerResult } from '../drivers.js';
import { openFastify } from '../fastify-world.js';
import { crashLeg, leg, rawWrites, SLACK_MS, WARM_UP_S, type LegResult } from '../leg.js';
import { imagine, writePlan, writeSockets, type PopulationSize } from '../population.js';
import { Book, median, type Outcome } from '../stats.js';
import { rawFlushes, STALL_MS } from '../reference/raw-flush.js';
import { World, type Listening, type Target } from '../world.js';
import {
  described,
  FEW_TENANTS,
  FEW_TENANTS_RATE,
  FEW_WRITERS,
  MANY_WRITERS,
  S3_RATE,
  type WriteBooks,
  type WriteId,
} from './write-targets.js';

const S1_DEVICES = 2;
const S2_DEVICES = 5;
const CRASH_SECONDS = 5;
/** One for each device of the few tenants. */
const FEW_CONNECTIONS = FEW_TENANTS * S2_DEVICES;

const sizeOf = (context: Context, tenants: number, perTenant: number): PopulationSize => ({
  tenants: context.scaled(tenants),
  perTenant,
});

/** A server with writers only, and one all of whose devices also have a socket, on the same disk. */
interface Side {
  readonly cluster: Cluster;
  readonly writes: World | undefined;
  readonly pushes: Listening | undefined;
}

interface Bare {
  readonly child: Child;
  readonly port: number;
  readonly plan: string;
  readonly receivers: Receivers;
}

interface Parties {
  readonly fast: Side;
  readonly slow: Side | undefined;
  /** With few tenants, whose writes wait for each other's locks. */
  readonly few: Listening | undefined;
  readonly bare: Bare | undefined;
  readonly reference: Listening<Target> | undefined;
}

/** What a scenario needs was set up: `what` says what is missing otherwise. */
function present<T>(party: T | undefined, what: string): T {
  if (party === undefined) throw new Error(`no ${what}`);
  return party;
}

export class WriteScenarios {
  private readonly books: WriteBooks = { S1: new Book(), S2: new Book(), S3: new Book(), S4: new Book() };
  private readonly audits = new Map<ScenarioId, string[]>();
  private counts = { acked: 0, received: 0 };

  private readonly notes: Record<WriteId, readonly string[]> = { S1: [], S2: [], S3: [], S4: [] };

  private constructor(
    private readonly context: Context,
    private readonly wanted: ReadonlySet<ScenarioId>,
    private readonly parties: Parties,
  ) {}

  /** Runs the named ones of S1 to S4. S4 also runs the scenarios that it is compared with. */
  static async run(context: Context): Promise<Outcome[]> {
    const asked = context.options.scenarios;
    const wanted = new Set<ScenarioId>(asked);
    if (asked.has('S4')) for (const id of ['S1', 'S2', 'S3'] as const) wanted.add(id);
    context.tell('setting up the write scenarios');
    const [S2, S3] = [wanted.has('S2'), wanted.has('S3')];
    const size = { tenants: FEW_TENANTS, perTenant: S2_DEVICES };
    const { instances, placed } = context.options;
    const few = { name: 'few_tenants', size, instances, placed };
    const scenarios = new WriteScenarios(context, wanted, {
      fast: await openSide(context, 'fast', wanted),
      slow: wanted.has('S4') ? await openSide(context, 'slow', wanted) : undefined,
      few: S2 || S3 ? await World.listening(context, few) : undefined,
      bare: wanted.has('S1') || S2 ? await openBare(context) : undefined,
      reference: S2 ? await openFastify(context, sizeOf(context, 1_000, S2_DEVICES)) : undefined,
    });
    for (let round = 1; round <= context.options.rounds; round++) {
      context.tell(`writes: round ${round} of ${context.options.rounds}`);
      await scenarios.round();
    }
    if (S3) await scenarios.profiled();
    await scenarios.crashes();
    await scenarios.close();
    return (['S1', 'S2', 'S3', 'S4'] as const).filter((id) => wanted.has(id)).map((id) => scenarios.outcome(id));
  }

  /** Legs that are compared run back to back: the same leg on either disk, and the raw limit just before. */
  private async round(): Promise<void> {
    const { S1, S2, S3, S4 } = this.books;
    const { fast, slow } = this.parties;
    const sides = [{ side: fast, books: { S1, S2, S3 } }];
    if (slow) sides.push({ side: slow, books: { S1: S4, S2: S4, S3: S4 } });
    if (this.wanted.has('S1')) {
      await this.raw(S1, fast, S1_DEVICES);
      for (const writers of [FEW_WRITERS, MANY_WRITERS]) {
        for (const { side, books } of sides) await this.writes(books.S1, side, writers);
      }
      S1.add('bare uWS POST', 'writes/s', await this.bareAlone('/api/items'));
    }
    if (this.wanted.has('S2')) {
      await this.raw(S2, fast, S2_DEVICES);
      for (const { side, books } of sides) await this.pushes(books.S2, side);
      await this.fastify(S2);
      S2.add('bare uWS POST and push to 4', 'writes/s', await this.bareAlone('/push/items'));
      await this.fewTenants(S2);
      await this.garbage(S2);
    }
    if (this.wanted.has('S3')) {
      for (const { side, books } of sides) {
        const of = `${S3_RATE}/s`;
        await this.latency(books.S3, of, { to: side.pushes, connections: MANY_WRITERS, rate: S3_RATE });
      }
      const of = `${FEW_TENANTS_RATE}/s over ${FEW_TENANTS} tenants`;
      await this.latency(S3, of, { to: this.parties.few, connections: FEW_CONNECTIONS, rate: FEW_TENANTS_RATE });
      await this.flushes(S3);
    }
    if (slow) await this.raw(S4, slow, S2_DEVICES);
  }

  /** The raw limit: the better of one and two connections. */
  private async raw(book: Book, side: Side, devices: number): Promise<void> {
    const { seconds } = this.context.options;
    const tenants = this.context.scaled(2_000);
    const each: number[] = [];
    for (const connections of [1, 2]) {
      const rate = await rawWrites({ cluster: side.cluster, database: 'raw', connections, seconds, devices, tenants });
      book.add(`raw PostgreSQL, ${connections} connection${connections === 1 ? '' : 's'}`, 'rows/s', rate);
      each.push(rate);
    }
    book.add('raw PostgreSQL, the better', 'rows/s', Math.max(...each));
  }

  /** What the disk itself adds to a latency: where more than 1 % of the time is in stalls, so is the p99. */
  private async flushes(book: Book): Promise<void> {
    const { folder, options } = this.context;
    const times = await rawFlushes(folder, options.seconds);
    const stalled = times.filter((ms) => ms >= STALL_MS).reduce((sum, ms) => sum + ms, 0);
    book.add('disk alone: flush, median', 'ms', median(times));
    book.add(
      'disk alone: flush, longest',
      'ms',
      times.reduce((one, other) => Math.max(one, other), 0),
    );
    book.add(`disk alone: in flushes of ${STALL_MS} ms and more`, '% of the time', stalled / options.seconds / 10);
  }

  private async writes(book: Book, side: Side, connections: number): Promise<void> {
    const name = `${connections} writers`;
    const target = present(side.writes, 'world without sockets');
    this.note(book, name, await this.measured(name, { target, connections }));
  }

  /** Writes per second, each pushed to the four other devices. */
  private async pushes(book: Book, { pushes }: Side): Promise<void> {
    const result = await this.measured('S2', { ...present(pushes, 'sockets'), connections: MANY_WRITERS });
    this.note(book, 'writes with pushes', result);
  }

  /** Every device of a few tenants writes again as soon as it is answered. */
  private async fewTenants(book: Book): Promise<void> {
    const few = present(this.parties.few, 'sockets');
    const result = await this.measured('few tenants', { ...few, connections: FEW_CONNECTIONS });
    const name = `${FEW_TENANTS} tenants, closed loop`;
    this.note(book, name, result);
    const both = result.load.server + result.load.database;
    book.add(`${name}: per CPU-second of server and database`, 'writes', result.perSecond / both);
  }

  private async garbage(book: Book): Promise<void> {
    const pushes = present(this.parties.fast.pushes, 'sockets');
    const probe = new Garbage(pushes.target);
    const result = await this.measured('garbage', { ...pushes, connections: MANY_WRITERS, probe });
    book.add('writes with pushes: garbage of a write', 'bytes', probe.bytes / result.writes);
    this.notes.S2 = [probe.ofEach(result.writes)];
  }

  /** Latency from send to push and to answer with scheduled arrivals, and where the time is spent. */
  private async latency(
    book: Book,
    of: string,
    own: { readonly to: Listening | undefined; readonly connections: number; readonly rate: number },
  ): Promise<void> {
    const { to, ...load } = own;
    const { target, receivers } = present(to, 'sockets');
    const probe = new Load(target);
    const result = await this.measured('S3', { target, receivers, probe, ...load });
    const { answer, writes } = result;
    const push = present(result.push, 'pushes');
    book.add(`${of}: rate`, 'writes/s', result.perSecond);
    for (const [name, latency] of Object.entries({ 'send to push': push, 'send to answer': answer })) {
      book.addLatency(`${of}: ${name}`, latency);
      book.add(`${of}: ${name}, p99.9`, 'ms', latency.p999 / 1_000);
    }
    probe.note(book, of, writes);
  }

  /** A leg of S3 under a profiler, whose timings are discarded: finds the longest turns of the event loop. */
  private async profiled(): Promise<void> {
    const pushes = present(this.parties.fast.pushes, 'sockets');
    const probe = new Turns(pushes.target);
    await this.measured('S3, profiled', { ...pushes, connections: MANY_WRITERS, rate: S3_RATE, probe });
    this.notes.S3 = probe.longest;
  }

  private async fastify(book: Book): Promise<void> {
    const reference = present(this.parties.reference, 'sockets');
    const result = await this.measured('fastify', { ...reference, connections: FEW_WRITERS });
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
      book.add(`${name}: ${party} for a write`, 'us', 1e6 / result.perCpuSecond[party]);
    }
    const { server, database, client } = result.load;
    book.add(`${name}: cores used by all`, 'cores', server + database + client);
    book.add(`${name}: answer p50`, 'ms', result.answer.p50 / 1_000);
    book.add(`${name}: answer p99`, 'ms', result.answer.p99 / 1_000);
  }

  /** Writes per second of bare uWS: the limit of the clients without a service. */
  private async bareAlone(path: string): Promise<number> {
    const { drivers, folder, options } = this.context;
    const { port, plan, receivers } = present(this.parties.bare, 'bare server');
    const { seconds } = options;
    const out = join(folder, 'bare.acked');
    const load = { port, plan, out, path, connections: FEW_WRITERS, seconds, warmup: WARM_UP_S };
    const writers = startWriters(drivers, load);
    await writers.next('end', seconds * 1_000 + SLACK_MS);
    const { perSecond } = await writerResult(writers);
    // Frames were recorded only so that the client does the same work; there is nothing to audit.
    await receivers.dump('/dev/null');
    return perSecond;
  }

  /** kill -9 in the middle, once for writes and once for writes with pushes. */
  private async crashes(): Promise<void> {
    const { drivers } = this.context;
    const { fast, few } = this.parties;
    const { writes, pushes } = fast;
    // These sockets do not reconnect.
    await pushes?.receivers.stop();
    await few?.receivers.stop();
    await few?.target.stop();
    const one = { drivers, connections: FEW_WRITERS, seconds: CRASH_SECONDS };
    if (writes) {
      this.context.tell('writes: kill -9 in the middle');
      const { acked, stored } = await crashLeg({ ...one, target: writes });
      this.found(
        'S1',
        `kill -9 of server and PostgreSQL in the middle: ${acked} acknowledged, all stored; ${stored} stored, no gap`,
      );
    }
    if (pushes && this.wanted.has('S2')) {
      this.context.tell('pushes: kill -9 in the middle');
      const receivers = await returning(this.context, pushes.target);
      const { acked, received } = await crashLeg({ ...one, target: pushes.target, receivers });
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
    const { fast, slow, bare, reference } = this.parties;
    await bare?.receivers.stop();
    await bare?.child.stop();
    await reference?.receivers.stop();
    for (const server of reference?.target.servers ?? []) await server.stop();
    for (const side of [fast, slow]) {
      if (side === slow) await side?.pushes?.receivers.stop();
      await side?.pushes?.target.stop();
      await side?.writes?.stop();
    }
  }

  private outcome(id: WriteId): Outcome {
    const audits = [`every leg of this run: ${auditText(this.counts)}`, ...(this.audits.get(id) ?? [])];
    const { title, targets } = described(id, this.books);
    const figures = this.books[id].without(targets);
    const { instances, placed } = this.context.options;
    const how = placed === undefined ? 'on one port' : 'that have a port and their tenants each';
    const served = instances === 1 ? '' : `, ${instances} instances ${how}`;
    return { id, title: title + served, targets, figures, audits, notes: this.notes[id] };
  }
}

async function openSide(context: Context, name: 'fast' | 'slow', wanted: ReadonlySet<ScenarioId>): Promise<Side> {
  const cluster = await context[name]();
  await cluster.create('raw');
  const { instances, placed } = context.options;
  const one = { cluster, instances, placed };
  const writes = wanted.has('S1')
    ? await World.open(context, { ...one, name: `${name}_writes`, size: sizeOf(context, 2_000, S1_DEVICES) })
    : undefined;
  if (!wanted.has('S2') && !wanted.has('S3')) return { cluster, writes, pushes: undefined };
  const size = sizeOf(context, 1_000, S2_DEVICES);
  return { cluster, writes, pushes: await World.listening(context, { ...one, name: `${name}_pushes`, size }) };
}

/** The drivers, with the population of S2, on bare uWS. */
async function openBare(context: Context): Promise<Bare> {
  const { child, port } = await startBare();
  const size = sizeOf(context, 1_000, S2_DEVICES);
  const population = imagine(size, (tenant, device) => `${tenant}.${device}`);
  const plan = join(context.folder, 'bare.plan');
  const sockets = join(context.folder, 'bare.sockets');
  writePlan(plan, population);
  writeSockets(sockets, population.devices);
  const receivers = await Receivers.ready(context.drivers, { port, sockets, kind: 'bare' });
  return { child, port, plan, receivers };
}

/** Receivers that reconnect, starting at the current heads of their tenants. */
async function returning(context: Context, world: World): Promise<Receivers> {
  const heads = await world.heads();
  const sockets = join(context.folder, 'returning.sockets');
  writeSockets(sockets, world.population.devices, (tenant) => heads.get(tenant) ?? 0);
  return await world.receivers({ sockets, reconnect: true });
}
