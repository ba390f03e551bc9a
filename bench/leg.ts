/** One leg: a measured period of load on one server, with its audit. */
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { Audited } from './audit.js';
import { Child, numberIn } from './child.js';
import type { Cluster } from './database.js';
import {
  startWriters,
  writerResult,
  type Drivers,
  type Latency,
  type Receivers,
  type WriterOptions,
  type WriterResult,
} from './drivers.js';
import { cpuOf } from './machine.js';
import { arrived, audit, cpuSeconds, type CpuSeconds, type Target, type World } from './world.js';

/** The results of a leg. */
export interface LegResult {
  readonly perSecond: number;
  /** Writes answered in the measured time. */
  readonly writes: number;
  /** Writes per CPU second of each party. */
  readonly perCpuSecond: CpuSeconds;
  /** CPU seconds per second of each party: their sum is at most the number of cores. */
  readonly load: CpuSeconds;
  readonly answer: Latency;
  /** From the send to the frame at another device; undefined without receivers. */
  readonly push: Latency | undefined;
  /** The same for each of `LegOptions.parts`. */
  readonly parts: readonly Latency[];
  readonly audited: Audited;
}

/** A measurement during the measured time of a leg. */
export interface Probe {
  begin(): Promise<void>;
  end(): Promise<void>;
}

/** How a leg loads its target. */
export interface LegOptions {
  readonly drivers: Drivers;
  readonly target: Target;
  readonly connections: number;
  readonly seconds: number;
  readonly rate?: number;
  readonly receivers?: Receivers;
  readonly probe?: Probe;
  /** Number of equal parts of the measured time whose pushes are also reported separately. */
  readonly parts?: number;
}

let number = 0;
const logFile = (target: Target, what: string): string => join(target.folder, `${target.database}-${++number}.${what}`);

const WARM_UP_S = 1;

function writerOptions(options: LegOptions): WriterOptions {
  const { target, connections, seconds, rate } = options;
  const out = logFile(target, 'acked');
  return { port: target.port, plan: target.plan, out, connections, seconds, warmup: WARM_UP_S, rate };
}

/** Number of the other devices of a tenant, each of which is sent every write. */
const others = (target: Target): number => target.population.perTenant - 1;

/** Audits a leg by the drivers' logs, and removes these, since they are large. */
async function auditLogs(
  target: Target,
  logs: { readonly acked: string; readonly received: string | undefined; readonly crashed?: boolean },
): Promise<Audited> {
  const { acked, received, crashed = false } = logs;
  const found = await audit(target, {
    acked: [acked],
    received: received === undefined ? undefined : [received],
    crashed,
  });
  for (const file of [logs.acked, logs.received]) if (file !== undefined) rmSync(file);
  return found;
}

/** Time allowed beyond the measured time, for the warm-up and for an overloaded machine. */
export const SLACK_MS = 180_000;

/** Latency from send to push in each part of the measured time. */
async function partsOf(receivers: Receivers, { from, to }: WriterResult, parts: number): Promise<Latency[]> {
  const begin = BigInt(from);
  const length = (BigInt(to) - begin) / BigInt(Math.max(1, parts));
  const found: Latency[] = [];
  for (let part = 0; part < parts; part++) {
    const at = begin + length * BigInt(part);
    found.push((await receivers.report(String(at), String(at + length))).latency);
  }
  return found;
}

/** Writes for the measured time, waits until every push has arrived, and audits. Resolves only if the audit held. */
export async function leg(options: LegOptions): Promise<LegResult> {
  const { target, receivers, drivers, probe } = options;
  await target.cluster.checkpoint();
  const asked = writerOptions(options);
  const writers = startWriters(drivers, asked);
  const clients = [writers.pid, ...(receivers ? [receivers.child.pid] : [])];
  await writers.next('window');
  const before = cpuSeconds(target, clients);
  await probe?.begin();
  await writers.next('end', options.seconds * 1_000 + SLACK_MS);
  const after = cpuSeconds(target, clients);
  await probe?.end();
  const result = await writerResult(writers);
  requireNoRefusal(target, result);
  let received: string | undefined;
  let push: Latency | undefined;
  let parts: Latency[] = [];
  if (receivers) {
    await arrived(receivers, result.acked * others(target));
    push = (await receivers.report(result.from, result.to)).latency;
    parts = await partsOf(receivers, result, options.parts ?? 0);
    received = logFile(target, 'received');
    await receivers.dump(received);
  }
  const audited = await auditLogs(target, { acked: asked.out, received });
  const used = {
    server: after.server - before.server,
    database: after.database - before.database,
    client: after.client - before.client,
  };
  return {
    perSecond: result.perSecond,
    writes: result.inWindow,
    perCpuSecond: each(used, (cpu) => result.inWindow / cpu),
    load: each(used, (cpu) => cpu / options.seconds),
    answer: result.latency,
    push,
    parts,
    audited,
  };
}

const each = (cpu: CpuSeconds, to: (seconds: number) => number): CpuSeconds => ({
  server: to(cpu.server),
  database: to(cpu.database),
  client: to(cpu.client),
});

function requireNoRefusal(target: Target, { refused, failed }: WriterResult): void {
  if (refused + failed > 0) throw new Error(`${target.database}: ${refused} writes refused, ${failed} failed`);
}

const CRASH_AFTER_MS = 1_500;

/**
 * A leg with kill -9 of server and PostgreSQL in the middle of the writes, then the audit. Writers resend unanswered
 * writes unchanged; sockets reconnect with the last version they saw.
 */
export async function crashLeg(options: LegOptions & { readonly target: World }): Promise<Audited> {
  const { target, receivers, drivers } = options;
  const asked = { ...writerOptions(options), retry: true };
  const writers = startWriters(drivers, asked);
  await writers.next('window');
  await sleep(CRASH_AFTER_MS);
  await target.crash();
  await writerResult(writers);
  let received: string | undefined;
  if (receivers) {
    await settled(receivers, target.population.devices.length);
    received = logFile(target, 'received');
    await receivers.dump(received);
  }
  return await auditLogs(target, { acked: asked.out, received, crashed: true });
}

const SETTLE_MS = 60_000;

const QUIET_MS = 500;

/**
 * Waits until all sockets are live again after a crash and nothing more arrives. The number of frames is not known
 * beforehand: unanswered writes may be both sent before the crash and replayed after it.
 */
async function settled(receivers: Receivers, sockets: number): Promise<void> {
  const until = performance.now() + SETTLE_MS;
  for (let before = -1; ; await sleep(QUIET_MS)) {
    const { live, recorded } = await receivers.report();
    if (live === sockets && recorded === before) return;
    if (performance.now() > until) throw new Error(`${live} of ${sockets} sockets came back after the crash`);
    before = recorded;
  }
}

/** Options of raw batched inserts for the duration of a leg. */
export interface RawOptions {
  readonly cluster: Cluster;
  readonly database: string;
  readonly connections: number;
  readonly seconds: number;
  /** Devices that an item is sealed for, which determine the row's size. */
  readonly devices: number;
  readonly tenants: number;
}

/** Rows per second that PostgreSQL alone accepts. */
export async function rawWrites(options: RawOptions): Promise<number> {
  const { cluster, database, ...rest } = options;
  const script = fileURLToPath(new URL('./reference/raw-writes.js', import.meta.url));
  const args = Object.entries({ url: cluster.url(database), warmup: WARM_UP_S, ...rest }).map(([k, v]) => `${k}=${v}`);
  const raw = new Child('raw writes', [process.execPath, script, ...args]);
  const result = await raw.next('result');
  await raw.ended;
  return numberIn(result, 'perSecond');
}

/** Options of the drivers against bare uWS: the limit of the clients without a service. */
export interface BareOptions {
  readonly drivers: Drivers;
  readonly port: number;
  readonly plan: string;
  readonly folder: string;
  readonly connections: number;
  readonly seconds: number;
  readonly path: string;
}

export async function bareLeg(options: BareOptions): Promise<{ perSecond: number; clientLoad: number }> {
  const { drivers, folder, ...rest } = options;
  const writers = startWriters(drivers, { ...rest, out: join(folder, 'bare.acked'), warmup: WARM_UP_S });
  await writers.next('window');
  const before = cpuOf(writers.pid);
  await writers.next('end');
  const used = cpuOf(writers.pid) - before;
  const { perSecond } = await writerResult(writers);
  return { perSecond, clientLoad: used / options.seconds };
}
