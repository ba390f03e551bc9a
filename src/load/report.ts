/** The report of a run, as JSON (the reference, Load tests, has every field), from the results of its processes. */
import type { Release } from '../terminal/output.js';
import { sumOf, type Audited } from './audit.js';
import { Histogram, type Latency } from './histogram.js';
import { nowUs } from './ledger.js';
import { Counts, ofSecond, SERIES, type Series, type Tick } from './meter.js';
import { byName, KINDS, sum, type Kind, type Plan } from './plan.js';
import type { ClientResult, PartResult, StormResult } from './worker.js';

/** p50, p99 and p99.9 of one second, ms; null: nothing was timed. */
type SecondLatency = Pick<Latency, 'p50' | 'p99' | 'p999'>;

/** One second of all processes. */
export interface Second extends Omit<Tick, 'timed'> {
  readonly connect: SecondLatency | null;
  readonly push: SecondLatency | null;
}

/** The report. Times in milliseconds unless a name says otherwise. */
export interface Report {
  readonly format: 'service-load-report';
  readonly version: 1;
  readonly name: string;
  readonly url: string;
  /** When the run began, ms since 1970. */
  readonly at: number;
  readonly load: Release;
  /** As reported by `GET /api/health` of the server; null: not reported. */
  readonly server: Release | null;
  readonly plan: Plan;
  /** The audit held, nothing was lost, and the client was not the bottleneck. Otherwise `doubts` has the reasons. */
  readonly trusted: boolean;
  readonly doubts: readonly string[];
  /** Parts of the run that were lost, and why. */
  readonly lostParts: readonly string[];
  readonly tenants: number;
  readonly sockets: number;
  readonly counts: {
    readonly opened: number;
    readonly lost: number;
    readonly pushed: number;
    readonly done: Readonly<Record<Kind, number>>;
  };
  /** Operations answered per second, in the measured time. */
  readonly perSecond: number;
  readonly latency: Readonly<Record<Series, Latency>>;
  readonly answers: Readonly<Record<Kind, Latency>>;
  readonly errors: Readonly<Record<string, number>>;
  readonly storms: readonly StormResult[];
  readonly client: readonly (ClientResult & { readonly part: number })[];
  readonly audit: Audited;
  /** What could not be removed. */
  readonly left: readonly string[];
  readonly seconds: readonly Second[];
}

/** Beyond these the client is the bottleneck. */
const LAG_P99_MS = 5;
const LOOP_P99_MS = 20;
const CPU_SHARE = 0.9;
/** A run that offers a smaller share of its planned rate is not the run that was requested. */
const RATE_SHARE = 0.999;
/** Seconds that are kept; a longer run keeps the first of them. */
const SECONDS_MAX = 86_400;
/** Seconds by which an agent's clock may run ahead of this one. */
const AHEAD_MAX = 60;

/** Seconds within which the processes that go on have reported one. */
const RECENT = 5;

/** Sums the processes' ticks, second by second. */
export class Timeline {
  private readonly sums: { readonly counts: Counts; readonly sockets: Map<number, number> }[] = [];
  private readonly madeAt = nowUs();

  add(part: number, tick: Tick): void {
    // Of seconds that have not been yet an agent could report more than fits into memory.
    const most = Math.min(SECONDS_MAX, (nowUs() - this.madeAt) / 1e6 + AHEAD_MAX);
    if (!Number.isSafeInteger(tick.second) || tick.second < 0 || tick.second >= most) return;
    while (this.sums.length <= tick.second) this.sums.push({ counts: ofSecond(), sockets: new Map() });
    const slot = this.sums[tick.second];
    slot?.sockets.set(part, tick.sockets);
    slot?.counts.merge(tick);
  }

  get seconds(): Second[] {
    return this.sums.flatMap((_, second) => this.at(second) ?? []);
  }

  /** For the live line, the last second that every process has reported; a recent one where a process is lost. */
  latest(parts: number): Second | undefined {
    const whole = this.sums.findLastIndex(({ sockets }) => sockets.size >= parts);
    return this.at(Math.max(0, whole, this.sums.length - RECENT));
  }

  private at(second: number): Second | undefined {
    const slot = this.sums[second];
    if (slot === undefined) return undefined;
    const { connect, push } = slot.counts.timed;
    const sockets = sum([...slot.sockets.values()], (count) => count);
    return { second, sockets, ...slot.counts.counted, connect: percentilesOf(connect), push: percentilesOf(push) };
  }
}

function percentilesOf(histogram: Histogram): SecondLatency | null {
  if (histogram.count === 0) return null;
  const { p50, p99, p999 } = histogram.latency;
  return { p50, p99, p999 };
}

/** What is kept of a result with so many storms: an agent sends it, and may send anything else along with it. */
export function keptOf(result: PartResult, storms: number): PartResult {
  const { part, tenants, sockets, totals, client, audit } = result;
  const { rate, cpu, loopDelayP99Ms, starved } = client;
  const counts = new Counts(SERIES);
  counts.merge({ ...totals, done: 0 });
  return {
    ...{ part, tenants, sockets, audit: sumOf([audit]) },
    totals: {
      ...counts.counted,
      timed: counts.buckets,
      done: byName(KINDS, (kind) => totals.done[kind]),
      answers: byName(KINDS, (kind) => Histogram.of(totals.answers[kind]).buckets),
    },
    storms: result.storms.slice(0, storms).map(({ at, cut, back, seconds }) => ({ at, cut, back, seconds })),
    client: { rate, cpu, loopDelayP99Ms, starved },
  };
}

/** What a report is made of. */
interface Sources extends Pick<Report, 'plan' | 'at' | 'load' | 'server' | 'lostParts' | 'left'> {
  readonly results: readonly PartResult[];
  readonly timeline: Timeline;
}

/** Reasons why the figures may not be those of the server. */
function doubtsOf({ plan, results, lostParts }: Sources, audit: Audited, lag: Latency): string[] {
  const doubts = lostParts.map((text) => `A part of the run was lost: ${text}.`);
  if (results.length === 0) doubts.push('Nothing was audited.');
  if (audit.faults > 0) doubts.push(`The audit failed: ${audit.faults} differences.`);
  const rate = sum(results, ({ client }) => client.rate);
  if (plan.seconds > 0 && rate < plan.rate * RATE_SHARE)
    doubts.push(`Of ${plan.rate} operations/s only ${rate.toFixed(1)} were assigned to processes that have tenants.`);
  const starved = sum(results, ({ client }) => client.starved);
  const slow = results.filter(({ client }) => client.loopDelayP99Ms > LOOP_P99_MS).length;
  const busy = results.filter(({ client }) => client.cpu > CPU_SHARE).length;
  const failed = sum(results, ({ totals }) => totals.errors['client_fault'] ?? 0);
  if (failed > 0) doubts.push(`${failed} operations failed in this program, or by an answer that it cannot read.`);
  const limit = 'The client was the limit:';
  if (starved > 0)
    doubts.push(`${limit} ${starved} times an item was due and not sealed yet. Add processes or machines.`);
  if (lag.p99 > LAG_P99_MS) doubts.push(`${limit} it began one operation in a hundred more than ${lag.p99} ms late.`);
  if (slow > 0)
    doubts.push(`${limit} the event loop of ${slow} processes was blocked for more than ${LOOP_P99_MS} ms.`);
  if (busy > 0) doubts.push(`${limit} ${busy} processes used up their core. Add processes or machines.`);
  return doubts;
}

/** The report. */
export function reportOf(of: Sources): Report {
  const { plan, at, load, server, results, timeline, lostParts, left } = of;
  const total = (count: (result: PartResult) => number): number => sum(results, count);
  const counts = new Counts(SERIES);
  for (const { totals } of results) counts.merge({ ...totals, done: 0 });
  const { opened, lost, pushed, errors } = counts.counted;
  const latency = byName(SERIES, (name) => counts.timed[name].latency);
  const audit = sumOf(results.map((result) => result.audit));
  const doubts = doubtsOf(of, audit, latency.lag);
  return {
    ...{ format: 'service-load-report', version: 1, name: plan.name, url: plan.url, at, load, server, plan },
    ...{ trusted: doubts.length === 0, doubts, lostParts },
    ...{ tenants: total((part) => part.tenants), sockets: total((part) => part.sockets) },
    counts: { opened, lost, pushed, done: byName(KINDS, (kind) => total(({ totals }) => totals.done[kind])) },
    perSecond: plan.seconds === 0 ? 0 : latency.answer.count / plan.seconds,
    latency,
    answers: byName(KINDS, (kind) => Histogram.of(...results.map(({ totals }) => totals.answers[kind])).latency),
    errors: Object.fromEntries(Object.entries(errors).sort(([, one], [, other]) => other - one)),
    storms: plan.storms.map((storm, place) =>
      stormOf(
        storm.at,
        results.flatMap(({ storms }) => storms[place] ?? []),
      ),
    ),
    client: results.map(({ part, client }) => ({ part, ...client })).sort((one, other) => one.part - other.part),
    ...{ audit, left, seconds: timeline.seconds },
  };
}

const stormOf = (at: number, parts: readonly StormResult[]): StormResult => ({
  at,
  cut: sum(parts, ({ cut }) => cut),
  back: sum(parts, ({ back }) => back),
  seconds: Math.max(0, ...parts.map(({ seconds }) => seconds)),
});
