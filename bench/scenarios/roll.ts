/** ROLL, run only if named: drains and restarts every instance in turn, under sockets and writes. */
import { setTimeout as sleep } from 'node:timers/promises';
import { AuditError, latencies, auditText } from '../audit.js';
import type { Child } from '../child.js';
import type { Context } from '../context.js';
import { Crowd, DESCRIPTORS_AT_REST, descriptors, PER_TENANT, spreadFor } from '../crowd.js';
import { writerResult } from '../drivers.js';
import { atMost, Book, median, percentile, type Outcome } from '../stats.js';
import { audit, type World } from '../world.js';

const SOCKETS = 100_000;
const OPENING = 20_000;
/** Writes per second. */
const RATE = 200;
/** Seconds before the first drain that define the usual second. */
const USUAL_S = 60;
/** Time over which an instance closes its sockets, s. */
const DRAIN_S = 30;
/** Time allowed for its last sockets, its stop and its start, s. */
const RESTART_S = 20;
/** Windows of which a p99 is taken, ns: with fewer pushes it would be their maximum. */
const WINDOW_NS = 10_000_000_000n;

type Kinds = Readonly<Record<string, number>>;

const sumOf = (kinds: Kinds): number => Object.values(kinds).reduce((sum, each) => sum + each, 0);
const most = (kinds: Kinds): string =>
  Object.entries(kinds)
    .sort(([, a], [, b]) => b - a)
    .slice(0, 8)
    .map(([kind, count]) => `${count} ${kind}`)
    .join(', ');

/** SQL statements that the instances send, by kind and second, including those of an instance's start. */
class Statements {
  readonly seconds: Kinds[] = [];
  private readonly sent = new Map<Child, Kinds>();
  private stopped = false;
  private counting: Promise<void> | undefined;

  constructor(private readonly world: World) {}

  start(): void {
    this.counting = this.count();
  }

  async stop(): Promise<void> {
    this.stopped = true;
    await this.counting;
  }

  private async count(): Promise<void> {
    await this.second();
    for (let due = performance.now() + 1_000; !this.stopped; due += 1_000) {
      await sleep(Math.max(0, due - performance.now()));
      this.seconds.push(await this.second());
    }
  }

  private async second(): Promise<Kinds> {
    const sum: Record<string, number> = {};
    for (const kinds of await Promise.all(this.world.servers.map(async (server) => this.ofOne(server))))
      for (const [kind, count] of Object.entries(kinds)) sum[kind] = (sum[kind] ?? 0) + count;
    return sum;
  }

  private async ofOne(server: Child): Promise<Kinds> {
    const before = this.sent.get(server) ?? {};
    // An instance that is stopping or starting does not answer; its statements count in the next second.
    const line = await Promise.race([server.ask('statements', 'statements'), sleep(500)]).catch(() => undefined);
    if (line === undefined) return {};
    const now = line['kinds'] as Kinds;
    this.sent.set(server, now);
    return Object.fromEntries(Object.entries(now).map(([kind, count]) => [kind, count - (before[kind] ?? 0)]));
  }
}

async function roll(context: Context, crowd: Crowd): Promise<void> {
  const { world } = crowd;
  for (const [n, server] of world.servers.entries()) {
    await server.ask(`drain ${DRAIN_S * 1_000}`, 'draining');
    const until = performance.now() + (DRAIN_S + RESTART_S) * 1_000;
    while (descriptors(server.pid) > DESCRIPTORS_AT_REST) {
      if (performance.now() > until) throw new AuditError(`instance ${n + 1} still has sockets`);
      await sleep(200);
    }
    await world.restartOne(n);
    const { live, codes } = await crowd.count();
    context.tell(`rolling: instance ${n + 1} of ${world.servers.length}; ${live} live, ended ${JSON.stringify(codes)}`);
  }
}

export async function rollingRestart(context: Context): Promise<Outcome> {
  const devices = context.options.sockets ?? SOCKETS;
  // The others must take over the sockets of the one that restarts.
  const crowd = await Crowd.open(context, { name: 'roll', text: 'rolling restart', devices, spare: 1 });
  const { world, size: count } = crowd;
  const processes = world.servers.length;
  await crowd.connect({ port: world.port, reconnect: true, spread: spreadFor(count), opening: OPENING });
  const seconds = USUAL_S + processes * (DRAIN_S + RESTART_S);
  context.tell(`rolling restart: ${RATE} writes/s for ${seconds} s`);
  const { writers, acked } = await crowd.write({ rate: RATE, seconds });
  const begun = process.hrtime.bigint();
  const statements = new Statements(world);
  statements.start();
  await sleep(USUAL_S * 1_000);
  await roll(context, crowd);
  const ended = process.hrtime.bigint();
  await statements.stop();
  const result = await writerResult(writers);
  const wanted = result.acked * (PER_TENANT - 1);
  const until = performance.now() + 60_000;
  let now = await crowd.count();
  while ((now.live < count || now.recorded < wanted) && performance.now() < until) {
    await sleep(1_000);
    now = await crowd.count();
  }
  if (now.live < count) throw new AuditError(`${now.live} of ${count} sockets are back`);
  const received = await crowd.dump();
  const audited = await audit(world, { acked: [acked], received });
  const windows: number[] = [];
  for (let at = begun; at < ended; at += WINDOW_NS) {
    windows.push(percentile(latencies(received, at, at + WINDOW_NS), 0.99) / 1_000);
  }
  await crowd.close();
  const counts = statements.seconds.map(sumOf);
  const usual = median(counts.slice(0, USUAL_S));
  const moving = counts.slice(USUAL_S);
  const worst = Math.max(...moving);
  context.tell(`  in a usual second: ${most(statements.seconds[USUAL_S - 1] ?? {})}`);
  context.tell(`  in the worst: ${most(statements.seconds[counts.lastIndexOf(worst)] ?? {})}`);
  const book = new Book();
  book.add('statements in a usual second', 'count', usual);
  book.add('statements in a second while instances are drained, median', 'count', median(moving));
  book.add('send to push, p50 of the whole', 'ms', percentile(latencies(received, begun, ended), 0.5) / 1_000);
  book.add('a rolling restart', 's', Number(ended - begun) / 1e9 - USUAL_S);
  return {
    id: 'ROLL',
    title: `${processes} instances drained over ${DRAIN_S} s and started anew, one after the other, under ${count} sockets and ${RATE} writes/s`,
    targets: [
      atMost({ name: 'most statements of a second / usual', unit: 'ratio', values: [worst / usual] }, 2),
      atMost({ name: 'send to push, p99 of the worst 10 s', unit: 'ms', values: [Math.max(...windows)] }, 1_000),
    ],
    figures: book.without([]),
    audits: [`${auditText(audited)}; every socket came back`],
  };
}
