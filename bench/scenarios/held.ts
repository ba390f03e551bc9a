/**
 * S9, run only if named: a quarter of a million sockets or more. They connect as devices do, are held with heartbeats,
 * then under writes; then one instance is lost, and then the database.
 */
import { readFileSync } from 'node:fs';
import { freemem } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { AuditError, latencies, type Audited } from '../audit.js';
import type { Context } from '../context.js';
import { Crowd, processesFor, spreadFor } from '../crowd.js';
import { Cluster, CONNECTIONS_EACH } from '../database.js';
import { startWriters, writerResult } from '../drivers.js';
import { cpuOf, ownBytes } from '../machine.js';
import { writePlan } from '../population.js';
import { Book, type Outcome, type Target } from '../stats.js';
import { audit, World } from '../world.js';

const PER_TENANT = 5;
/** The default of WS_PING_INTERVAL_MS, s. */
const PING_S = 30;
/** More than a driver's sockets, so in effect no limit: devices connect independently of each other. */
const OPENING = 20_000;
/** Writes per second; `WRITERS` connections write for the devices of the plan in turn. */
const RATE = 100;
const WRITERS = 50;
const WRITING_DEVICES = 20_000;
/** How long an instance is down, and how long the database. */
const INSTANCE_AWAY_MS = 1_000;
const DATABASE_AWAY_MS = 20_000;
/** Bound on the time until all sockets are back after either loss, s. Over twice this the run fails at once. */
const BACK_S = 180;
/** Longest period without writes, s. */
const REST_S = 120;
const FLOOR = 250_000;
const GOAL = 1_000_000;
const GIB = 2 ** 30;

const cpuOfAll = (pids: readonly number[]): number => pids.reduce((sum, pid) => sum + cpuOf(pid), 0);

/** Memory of the kernel, bytes: mostly sockets, both ends, since the clients run on this machine. */
function kernelBytes(): number {
  const text = readFileSync('/proc/meminfo', 'utf8');
  const of = (name: string): number => Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(text)?.[1] ?? NaN);
  // No line has the pages of socket buffers, so subtract all memory that is free, cached or of processes.
  const named = ['MemFree', 'Buffers', 'Cached', 'SwapCached', 'AnonPages'];
  return (of('MemTotal') - named.reduce((sum, name) => sum + of(name), 0)) * 1024;
}

class Held {
  private readonly book = new Book();
  private readonly found: string[] = [];

  constructor(
    private readonly context: Context,
    private readonly world: World,
    private readonly crowd: Crowd,
    private readonly count: number,
  ) {}

  async run(): Promise<Outcome> {
    const { crowd, world, book, context } = this;
    const own = (): number => world.servers.reduce((sum, { pid }) => sum + ownBytes(pid), 0);
    const [free, kernel, before] = [freemem(), kernelBytes(), own()];
    context.tell(`held sockets: opening within ${spreadFor(this.count).toFixed(0)} s`);
    const how = { port: world.port, reconnect: true, spread: spreadFor(this.count), opening: OPENING };
    book.add('until all had caught up', 's', await crowd.come(how));
    context.tell(`  ${JSON.stringify((await crowd.count()).codes)}`);
    await this.rest();
    book.add('memory of the servers, a socket', 'bytes', (own() - before) / this.count);
    book.add('memory of the servers', 'GiB', own() / GIB);
    book.add('memory of the kernel, both ends of all sockets', 'GiB', (kernelBytes() - kernel) / GIB);
    book.add('memory of the machine, with clients and database', 'GiB', (free - freemem()) / GIB);
    await this.underWrites();
    return this.outcome();
  }

  /** Holds the sockets with heartbeats only. */
  private async rest(): Promise<void> {
    const { crowd, world, book, context } = this;
    const rest = Math.min(REST_S, context.options.hold);
    context.tell(`held sockets: holding for ${rest} s`);
    const servers = world.servers.map(({ pid }) => pid);
    const [begun, cpu, clients] = [performance.now(), cpuOfAll(servers), cpuOfAll(crowd.pids)];
    const atFirst = await crowd.count();
    await sleep(rest * 1_000);
    const atLast = await crowd.count();
    const seconds = (performance.now() - begun) / 1_000;
    const pings = atLast.pings - atFirst.pings;
    // One round of heartbeats may be cut off at either end.
    const expected = this.count * Math.max(0, Math.floor(seconds / PING_S) - 1);
    if (atLast.live !== this.count || pings < expected) {
      throw new AuditError(`${atLast.live} of ${this.count} sockets held, ${pings} of at least ${expected} heartbeats`);
    }
    if (JSON.stringify(atLast.codes) !== JSON.stringify(atFirst.codes)) {
      throw new AuditError(`sockets were closed while nothing happened: ${JSON.stringify(atLast.codes)}`);
    }
    const used = cpuOfAll(servers) - cpu;
    context.tell(`  servers: ${(used / seconds).toFixed(3)} cores`);
    book.add('servers for a heartbeat', 'us', (used / pings) * 1e6);
    book.add('servers', 'cores', used / seconds);
    book.add('clients', 'cores', (cpuOfAll(crowd.pids) - clients) / seconds);
    book.add('heartbeats', 'count/s', pings / seconds);
    this.found.push(`every socket was open all the time and had answered its heartbeats: ${pings} in all`);
  }

  /** Both losses under continuous writes. Figures count only once everything was pushed. */
  private async underWrites(): Promise<void> {
    const { context, world, crowd, book } = this;
    const { hold } = context.options;
    const plan = join(context.folder, 'held.writers');
    writePlan(plan, world.population, WRITING_DEVICES);
    const out = join(context.folder, 'held.acked');
    // Long enough for both losses.
    const seconds = hold + BACK_S;
    const load = { port: world.port, plan, out, connections: WRITERS, rate: RATE, seconds, retry: true };
    context.tell(`held sockets: ${RATE} writes/s for ${hold} s`);
    const writers = startWriters(context.drivers, load);
    await writers.next('window');
    const begun = process.hrtime.bigint();
    await sleep(hold * 1_000);
    const quiet = process.hrtime.bigint();
    context.tell('held sockets: one instance is killed');
    await this.lose('one instance', () => world.crashOne(0, INSTANCE_AWAY_MS));
    context.tell(`held sockets: the database is gone for ${DATABASE_AWAY_MS / 1_000} s`);
    await this.lose('the database', () => world.cluster.silence(DATABASE_AWAY_MS));
    const result = await writerResult(writers);
    const wanted = result.acked * (PER_TENANT - 1);
    const until = performance.now() + BACK_S * 1_000;
    while ((await crowd.count()).recorded < wanted && performance.now() < until) await sleep(1_000);
    const received = await crowd.dump();
    const audited: Audited = await audit(world, { acked: [out], received, crashed: true });
    const pushes = latencies(received, begun, quiet);
    const at = (share: number): number => (pushes[Math.floor(share * (pushes.length - 1))] ?? NaN) / 1_000;
    book.add('send to push while nothing was lost, p50', 'ms', at(0.5));
    book.add('send to push while nothing was lost, p99', 'ms', at(0.99));
    this.found.push(
      `${audited.acked} acknowledged writes all stored, versions 1 to head without a gap, ${audited.received} frames received: none lost, repeated or out of order`,
    );
  }

  /** Runs a loss; measures the time from its end until every socket is open and caught up. */
  private async lose(what: string, loss: () => Promise<void>): Promise<void> {
    const { crowd, book, context } = this;
    const before = (await crowd.count()).codes;
    await loss();
    const begun = performance.now();
    const seconds = (): number => (performance.now() - begun) / 1_000;
    let [back, least] = [0, this.count];
    // A device that waits for a heartbeat notices the loss up to `PING_S` later.
    while (seconds() < back + PING_S) {
      await sleep(1_000);
      const { live } = await crowd.count();
      least = Math.min(least, live);
      if (live < this.count) back = seconds();
      if (back > 2 * BACK_S) throw new AuditError(`${what} lost: ${live} of ${this.count} are back after ${back} s`);
    }
    book.add(`${what} lost: until all were back`, 's', back);
    const { codes } = await crowd.count();
    const ended = Object.entries(codes).map(([code, times]) => `${times - (before[code] ?? 0)} of ${code}`);
    context.tell(`  ${back.toFixed(0)} s; at least ${least} stayed; ended: ${ended.join(', ')}`);
  }

  private outcome(): Outcome {
    const { book, count, context, world } = this;
    const back = book.series().filter(({ name }) => name.endsWith('until all were back'));
    const most = (
      name: string,
      { unit, floor, goal }: { unit: string; floor: number; goal: number | null },
    ): Target => {
      return { name, unit, values: book.values(name), atLeast: false, floor, goal };
    };
    const targets: Target[] = [
      { name: 'sockets held', unit: 'count', values: [count], atLeast: true, floor: FLOOR, goal: GOAL },
      most('servers for a heartbeat', { unit: 'us', floor: 20, goal: 12 }),
      ...back.map(({ name }) => most(name, { unit: 's', floor: BACK_S, goal: null })),
    ];
    const shown = new Set(targets.map(({ name }) => name));
    return {
      id: 'S9',
      title: `sockets held with a heartbeat every ${PING_S} s by ${world.servers.length} instances on one port, then for ${context.options.hold} s under ${RATE} writes/s, one instance killed, the database silent for ${DATABASE_AWAY_MS / 1_000} s`,
      targets,
      figures: book.series().filter(({ name }) => !shown.has(name)),
      audits: this.found,
    };
  }
}

export async function heldSockets(context: Context): Promise<Outcome> {
  const { options, drivers, folder } = context;
  const count = Math.ceil((options.sockets ?? FLOOR) / PER_TENANT) * PER_TENANT;
  // One more than the sockets need: the others must take over those of the lost one.
  const processes = processesFor(count) + 1;
  context.tell(`held sockets: setting up ${count} devices, ${processes} instances`);
  const cluster = await Cluster.start('held', { connections: CONNECTIONS_EACH * (processes + 1) });
  const size = { tenants: count / PER_TENANT, perTenant: PER_TENANT };
  const world = await World.open({ name: 'held', folder, cluster, drivers, size, instances: processes });
  const crowd = new Crowd({ drivers, folder, devices: world.population.devices });
  const outcome = await new Held(context, world, crowd, count).run();
  await crowd.leave([]);
  await world.stop();
  await cluster.remove();
  return outcome;
}
