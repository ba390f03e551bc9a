/**
 * Measurements that the server under test makes of itself on command (see server.ts), and their reports. Without a
 * running measurement the only cost is a check before each statement.
 */
import { readFileSync } from 'node:fs';
import { Session, type HeapProfiler, type Profiler } from 'node:inspector';
import { constants, PerformanceObserver, type PerformanceEntry } from 'node:perf_hooks';

/** `load`: collections, the main thread's waiting, calls of the commit functions. The others distort timings. */
export type Measured = 'load' | 'garbage' | 'turns';

const isMeasured = (what: string): what is Measured => what === 'load' || what === 'garbage' || what === 'turns';

/** Durations are ms. */
export interface LoadReport {
  readonly seconds: number;
  readonly minor: readonly number[];
  readonly major: readonly number[];
  /** Steps of a major collection between its beginning and its end, and callbacks after it. */
  readonly steps: readonly number[];
  /** Time that the main thread ran, and time that it was ready to run but had no core. */
  readonly ran: number;
  readonly waited: number;
  /** By statement: time from the call of the driver to its callback. */
  readonly calls: Readonly<Record<string, readonly number[]>>;
}

/** A period of the main thread without an idle sample, and the functions with most of its time. */
export interface Turn {
  readonly ms: number;
  readonly functions: readonly { readonly name: string; readonly ms: number }[];
}

const TURNS_MOST = 5;
const FUNCTIONS_MOST = 6;
const PROFILE_INTERVAL_US = 250;
/** Time beyond this between two samples counts for no function: the profiler, or the whole process, had no core. */
const GAP_MOST_MS = 2;
const GAP = '(no sample)';
const HEAP_INTERVAL_BYTES = 32 * 1024;
/** Statements whose calls are timed. */
const TIMED: readonly string[] = ['insert', 'commit'];

/** CPU time of the main thread, and its time waiting for a core, ms. */
function schedule(): { readonly ran: number; readonly waited: number } {
  const [ran = NaN, waited = NaN] = readFileSync(`/proc/self/task/${process.pid}/schedstat`, 'utf8')
    .split(' ')
    .map(Number);
  return { ran: ran / 1e6, waited: waited / 1e6 };
}

class Load {
  private readonly begun = performance.now();
  private readonly atFirst = schedule();
  private readonly collections: Record<'minor' | 'major' | 'steps', number[]> = { minor: [], major: [], steps: [] };
  private readonly calls: Record<string, number[]> = {};
  private readonly observer = new PerformanceObserver((list) => this.collected(list.getEntries()));

  constructor() {
    this.observer.observe({ entryTypes: ['gc'] });
  }

  called(statement: string, ms: number): void {
    (this.calls[statement] ??= []).push(rounded(ms));
  }

  end(): LoadReport {
    this.collected(this.observer.takeRecords());
    this.observer.disconnect();
    const { ran, waited } = schedule();
    return {
      seconds: (performance.now() - this.begun) / 1_000,
      ...this.collections,
      ran: ran - this.atFirst.ran,
      waited: waited - this.atFirst.waited,
      calls: this.calls,
    };
  }

  private collected(entries: readonly PerformanceEntry[]): void {
    for (const entry of entries) {
      const { detail, duration } = entry as PerformanceEntry & { readonly detail: { readonly kind: number } };
      const { kind } = detail;
      const { NODE_PERFORMANCE_GC_MINOR: minor, NODE_PERFORMANCE_GC_MAJOR: major } = constants;
      this.collections[kind === minor ? 'minor' : kind === major ? 'major' : 'steps'].push(rounded(duration));
    }
  }
}

const rounded = (ms: number): number => Math.round(ms * 1_000) / 1_000;

/** Bytes that a function allocated. */
export interface Allocated {
  readonly name: string;
  readonly bytes: number;
}

/** Bytes of all samples by function, which the profiler scales to the total allocation; most first. */
function allocated(head: HeapProfiler.SamplingHeapProfileNode): Allocated[] {
  const all = new Map<string, number>();
  const nodes = [head];
  for (let node = nodes.pop(); node !== undefined; node = nodes.pop()) {
    const name = nameOf(node.callFrame);
    all.set(name, (all.get(name) ?? 0) + node.selfSize);
    nodes.push(...node.children);
  }
  return [...all].map(([name, bytes]) => ({ name, bytes })).sort((one, other) => other.bytes - one.bytes);
}

function nameOf({ functionName, url, lineNumber }: Profiler.ProfileNode['callFrame']): string {
  const name = functionName === '' ? '(anonymous)' : functionName;
  return url === '' ? name : `${name} ${url.slice(url.lastIndexOf('/') + 1)}:${lineNumber + 1}`;
}

/** The longest periods without an idle sample, longest first. */
function turnsOf({ nodes, samples = [], timeDeltas = [] }: Profiler.Profile): Turn[] {
  const names = new Map(nodes.map(({ id, callFrame }) => [id, nameOf(callFrame)]));
  const turns: { ms: number; in: Map<string, number> }[] = [];
  let turn: (typeof turns)[number] | undefined;
  for (const [i, sample] of samples.entries()) {
    const name = names.get(sample) ?? '(unknown)';
    if (name === '(idle)') {
      turn = undefined;
      continue;
    }
    if (turn === undefined) turns.push((turn = { ms: 0, in: new Map() }));
    // A delta is the time since the previous sample: this sample lasts until the next one.
    const ms = (timeDeltas[i + 1] ?? 0) / 1_000;
    turn.ms += ms;
    const known = Math.min(ms, GAP_MOST_MS);
    turn.in.set(name, (turn.in.get(name) ?? 0) + known);
    if (ms > known) turn.in.set(GAP, (turn.in.get(GAP) ?? 0) + ms - known);
  }
  const longest = turns.sort((one, other) => other.ms - one.ms).slice(0, TURNS_MOST);
  return longest.map(({ ms, in: functions }) => ({
    ms: rounded(ms),
    functions: [...functions]
      .map(([name, own]) => ({ name, ms: rounded(own) }))
      .sort((one, other) => other.ms - one.ms)
      .slice(0, FUNCTIONS_MOST),
  }));
}

/** At most one measurement of each kind at a time. */
export class Measure {
  private readonly session = new Session();
  private load: Load | undefined;

  constructor() {
    this.session.connect();
  }

  /** Called before a query is sent: measures the time until its callback if `load` is being measured. */
  sent(kind: string, query: unknown): void {
    const { load } = this;
    if (load === undefined || !TIMED.includes(kind)) return;
    const timed = query as { callback?: (...answer: unknown[]) => unknown };
    const { callback } = timed;
    if (callback === undefined) return;
    const begun = performance.now();
    timed.callback = (...answer) => {
      load.called(kind, performance.now() - begun);
      return callback.apply(query, answer);
    };
  }

  begin(what: string): void {
    if (!isMeasured(what)) throw new Error(`cannot measure ${what}`);
    if (what === 'load') {
      this.load = new Load();
    } else if (what === 'garbage') {
      this.post('HeapProfiler.startSampling', {
        samplingInterval: HEAP_INTERVAL_BYTES,
        includeObjectsCollectedByMajorGC: true,
        includeObjectsCollectedByMinorGC: true,
      });
    } else {
      this.post('Profiler.enable');
      this.post('Profiler.setSamplingInterval', { interval: PROFILE_INTERVAL_US });
      this.post('Profiler.start');
    }
  }

  /** Ends a measurement and returns its report. Throws if `load` was not begun. */
  end(what: string): Readonly<Record<string, unknown>> {
    if (what === 'garbage') {
      const { profile } = this.post('HeapProfiler.stopSampling') as HeapProfiler.StopSamplingReturnType;
      return { functions: allocated(profile.head) };
    }
    if (what === 'turns') {
      const { profile } = this.post('Profiler.stop') as Profiler.StopReturnType;
      return { turns: turnsOf(profile) };
    }
    const { load } = this;
    if (load === undefined) throw new Error(`${what} was not begun`);
    this.load = undefined;
    return { ...load.end() };
  }

  /** Synchronous: a session with its own process answers before `post` returns. */
  private post(method: string, params?: object): unknown {
    let answer: { readonly error: Error | null; readonly result: unknown } | undefined;
    this.session.post(method, params, (error, result) => (answer = { error, result }));
    if (answer === undefined) throw new Error(`${method} was not answered`);
    if (answer.error !== null) throw answer.error;
    return answer.result;
  }
}
