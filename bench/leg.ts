/** One leg: a measured period of load on one server, with its audit. */
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Audited } from './audit.js';
import { Child, nodeScript, numberIn } from './child.js';
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
import { arrived, audit, cpuFrom, ofEach, type CpuSeconds, type Target, type World } from './world.js';

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
interface LegOptions {
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

/** Seconds of a leg that are not measured. */
export const WARM_UP_S = 1;

function writerOptions(options: LegOptions): WriterOptions {
  const { target, connections, seconds, rate } = options;
  const out = logFile(target, 'acked');
  return { port: target.port, plan: target.plan, out, connections, seconds, warmup: WARM_UP_S, rate };
}

/** Number of the other devices of a tenant, each of which is sent every write. */
const others = (target: Target): number => target.population.perTenant - 1;

/** Audits a leg by the drivers' logs, and removes these, since they are large. */
async function auditLogs(
  { target, receivers }: LegOptions,
  { acked, crashed }: { readonly acked: string; readonly crashed: boolean },
): Promise<Audited> {
  const received = receivers && [await receivers.dump(logFile(target, 'received'))];
  const found = await audit(target, { acked: [acked], received, crashed });
  for (const file of [acked, ...(received ?? [])]) rmSync(file);
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
  const used = cpuFrom(target, clients);
  await probe?.begin();
  await writers.next('end', options.seconds * 1_000 + SLACK_MS);
  const cpu = used();
  await probe?.end();
  const result = await writerResult(writers);
  requireNoRefusal(target, result);
  let push: Latency | undefined;
  let parts: Latency[] = [];
  if (receivers) {
    await arrived(receivers, result.acked * others(target));
    push = (await receivers.report(result.from, result.to)).latency;
    parts = await partsOf(receivers, result, options.parts ?? 0);
  }
  const audited = await auditLogs(options, { acked: asked.out, crashed: false });
  return {
    perSecond: result.perSecond,
    writes: result.inWindow,
    perCpuSecond: ofEach((party) => result.inWindow / cpu[party]),
    load: ofEach((party) => cpu[party] / options.seconds),
    answer: result.latency,
    push,
    parts,
    audited,
  };
}

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
  if (receivers) await settled(receivers, target.population.devices.length);
  return await auditLogs(options, { acked: asked.out, crashed: true });
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

/** Rows per second that PostgreSQL alone accepts. */
export async function rawWrites(options: {
  readonly cluster: Cluster;
  readonly database: string;
  readonly connections: number;
  readonly seconds: number;
  /** Devices that an item is sealed for, which determine the row's size. */
  readonly devices: number;
  readonly tenants: number;
}): Promise<number> {
  const { cluster, database, ...rest } = options;
  const given = { url: cluster.url(database), warmup: WARM_UP_S, ...rest };
  return numberIn(await new Child('raw writes', nodeScript('reference/raw-writes', given)).result(), 'perSecond');
}
