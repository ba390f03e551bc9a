/**
 * S9, run only if named: a quarter of a million sockets or more. They connect as devices do, are held with heartbeats,
 * then under writes; then one instance is lost, and then the database.
 */
import { readFileSync } from 'node:fs';
import { freemem } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { AuditError, latencies, auditText } from '../audit.js';
import type { Child } from '../child.js';
import type { Context } from '../context.js';
import { Crowd, PER_TENANT, spreadFor } from '../crowd.js';
import { writerResult } from '../drivers.js';
import { cpuOfAll, ownBytesOfAll } from '../machine.js';
import { PING_S } from '../reference/heartbeat.js';
import { atLeast, atMost, Book, percentile, type Outcome } from '../stats.js';
import { audit } from '../world.js';

/** More than a driver's sockets, so in effect no limit: devices connect independently of each other. */
const OPENING = 20_000;
/** The same with bare uWS, which would let connections wait in the kernel for longer than a client does. */
const BARE_OPENING = 256;
/** Writes per second. */
const RATE = 100;
/** How long an instance is down, and how long the database. */
const INSTANCE_AWAY_MS = 1_000;
const DATABASE_AWAY_MS = 20_000;
/** Bound on the time until all sockets are back after either loss, s. Over twice this the run fails at once. */
const BACK_S = 180;
/** Longest period without writes, s. */
const HOLD_MAX_S = 120;
/** Sockets: the lower bound, which is also the default, and the goal. */
const FLOOR = 250_000;
const GOAL = 1_000_000;
const GIB = 2 ** 30;

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
  private readonly audits: string[] = [];

  constructor(
    private readonly context: Context,
    private readonly crowd: Crowd,
  ) {}

  private get count(): number {
    return this.crowd.size;
  }

  async run(): Promise<Outcome> {
    const { crowd, book, context } = this;
    context.tell('held sockets: bare uWS');
    await crowd.onBare(BARE_OPENING, async (servers) => this.heartbeats(servers, 'bare uWS for a heartbeat'));
    const own = (): number => ownBytesOfAll(crowd.world.servers.map(({ pid }) => pid));
    const [free, kernel, before] = [freemem(), kernelBytes(), own()];
    context.tell(`held sockets: opening within ${spreadFor(this.count).toFixed(0)} s`);
    const options = { port: crowd.world.port, reconnect: true, spread: spreadFor(this.count), opening: OPENING };
    book.add('until all had caught up', 's', await crowd.connect(options));
    context.tell(`  ${JSON.stringify((await crowd.count()).codes)}`);
    await this.hold();
    book.add('memory of the servers, a socket', 'bytes', (own() - before) / this.count);
    book.add('memory of the servers', 'GiB', own() / GIB);
    book.add('memory of the kernel, both ends of all sockets', 'GiB', (kernelBytes() - kernel) / GIB);
    book.add('memory of the machine, with clients and database', 'GiB', (free - freemem()) / GIB);
    await this.underWrites();
    return this.outcome();
  }

  /** Holds the sockets with heartbeats only. */
  private async hold(): Promise<void> {
    const { crowd, book, context } = this;
    const clients = cpuOfAll(crowd.pids);
    const atFirst = await crowd.count();
    const { used, pings, seconds } = await this.heartbeats(crowd.world.servers, 'servers for a heartbeat');
    // One round of heartbeats may be cut off at either end.
    const expected = this.count * Math.max(0, Math.floor(seconds / PING_S) - 1);
    const { live, codes } = await crowd.count();
    if (live !== this.count || pings < expected) {
      throw new AuditError(`${live} of ${this.count} sockets held, ${pings} of at least ${expected} heartbeats`);
    }
    if (JSON.stringify(codes) !== JSON.stringify(atFirst.codes)) {
      throw new AuditError(`sockets were closed while nothing happened: ${JSON.stringify(codes)}`);
    }
    context.tell(`  servers: ${(used / seconds).toFixed(3)} cores`);
    book.add('servers, mean of a heartbeat', 'us', (used / pings) * 1e6);
    book.add('servers', 'cores', used / seconds);
    book.add('clients', 'cores', (cpuOfAll(crowd.pids) - clients) / seconds);
    book.add('heartbeats', 'count/s', pings / seconds);
    this.audits.push(`every socket was open all the time and had answered its heartbeats: ${pings} in all`);
  }

  /**
   * The CPU time of the servers, s, and the heartbeats while the sockets are held. Each interval of heartbeats has a
   * figure of its own: in the first, V8 still collects what the opening has left.
   */
  private async heartbeats(servers: readonly Child[], name: string) {
    const { crowd, book, context } = this;
    const holdS = Math.min(HOLD_MAX_S, context.options.hold);
    context.tell(`held sockets: holding for ${holdS} s`);
    const intervals = Math.max(1, Math.floor(holdS / PING_S));
    const pids = servers.map(({ pid }) => pid);
    const [begun, before] = [performance.now(), cpuOfAll(pids)];
    const { pings: first } = await crowd.count();
    let [used, pings] = [0, 0];
    for (let n = 1; n <= intervals; n++) {
      await sleep(Math.max(0, begun + (n * holdS * 1_000) / intervals - performance.now()));
      const now = [cpuOfAll(pids) - before, (await crowd.count()).pings - first] as const;
      book.add(name, 'us', ((now[0] - used) / (now[1] - pings)) * 1e6);
      [used, pings] = now;
    }
    return { used, pings, seconds: (performance.now() - begun) / 1_000 };
  }

  /** Both losses under continuous writes. Figures count only once everything was pushed. */
  private async underWrites(): Promise<void> {
    const { context, crowd, book } = this;
    const { hold } = context.options;
    context.tell(`held sockets: ${RATE} writes/s for ${hold} s`);
    // Long enough for both losses.
    const { writers, acked } = await crowd.write({ rate: RATE, seconds: hold + BACK_S });
    const begun = process.hrtime.bigint();
    await sleep(hold * 1_000);
    const quiet = process.hrtime.bigint();
    context.tell('held sockets: one instance is killed');
    await this.lose('one instance', () => crowd.world.crashOne(0, INSTANCE_AWAY_MS));
    context.tell(`held sockets: the database is gone for ${DATABASE_AWAY_MS / 1_000} s`);
    await this.lose('the database', () => crowd.world.cluster.silence(DATABASE_AWAY_MS));
    const result = await writerResult(writers);
    const wanted = result.acked * (PER_TENANT - 1);
    const until = performance.now() + BACK_S * 1_000;
    while ((await crowd.count()).recorded < wanted && performance.now() < until) await sleep(1_000);
    const received = await crowd.dump();
    const audited = await audit(crowd.world, { acked: [acked], received, crashed: true });
    const pushes = latencies(received, begun, quiet);
    for (const share of [50, 99])
      book.add(`send to push while nothing was lost, p${share}`, 'ms', percentile(pushes, share / 100) / 1_000);
    this.audits.push(auditText(audited));
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
    const { book, count, context, crowd } = this;
    const back = book.without([]).filter(({ name }) => name.endsWith('until all were back'));
    const targets = [
      atLeast({ name: 'sockets held', unit: 'count', values: [count] }, FLOOR, GOAL),
      atMost(book.one('servers for a heartbeat'), 20, 12),
      ...back.map((series) => atMost(series, BACK_S)),
    ];
    return {
      id: 'S9',
      title: `sockets held with a heartbeat every ${PING_S} s by ${crowd.world.servers.length} instances on one port, then for ${context.options.hold} s under ${RATE} writes/s, one instance killed, the database silent for ${DATABASE_AWAY_MS / 1_000} s`,
      targets,
      figures: [book.ratio('servers for a heartbeat', 'bare uWS for a heartbeat'), ...book.without(targets)],
      audits: this.audits,
    };
  }
}

/** Runs S9; rejects with `AuditError` where a socket or a write is lost. */
export async function heldSockets(context: Context): Promise<Outcome> {
  const devices = context.options.sockets ?? FLOOR;
  // The others must take over the sockets of the one that is killed. The kernel fills instances unevenly, so they need
  // the same share of free room whatever their number is.
  const spare = Math.ceil(devices / FLOOR);
  const crowd = await Crowd.open(context, { name: 'held', text: 'held sockets', devices, spare });
  const outcome = await new Held(context, crowd).run();
  await crowd.close();
  return outcome;
}
