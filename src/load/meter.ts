/** Figures of one process: by the second for charts and the live line, and in total for the report. */
import { Histogram, type Buckets } from './histogram.js';
import { byName, KINDS, type Kind } from './plan.js';

/** What is timed: from the scheduled time, `reconnect` from the loss of the connection. */
export const SERIES = ['connect', 'caughtUp', 'reconnect', 'push', 'answer', 'lag'] as const;
export type Series = (typeof SERIES)[number];

/** What is timed second by second too, for the charts. */
const CHARTED = ['connect', 'push'] as const;
type Charted = (typeof CHARTED)[number];

/** What is counted, in a second or in all. */
interface Counted {
  readonly opened: number;
  readonly lost: number;
  /** Operations that were answered with success. */
  readonly done: number;
  readonly pushed: number;
  /** By code. */
  readonly errors: Readonly<Record<string, number>>;
}

/** One second of a process. */
export interface Tick extends Counted {
  /** Seconds since the first socket was to be opened. */
  readonly second: number;
  /** Sockets that are open and caught up at its end. */
  readonly sockets: number;
  readonly timed: Readonly<Record<Charted, Buckets>>;
}

/** A process's sums. */
export interface Totals extends Omit<Counted, 'done'> {
  readonly done: Readonly<Record<Kind, number>>;
  /** Within the measured time; those of sockets over the whole run. */
  readonly timed: Readonly<Record<Series, Buckets>>;
  /** Answers of each kind, of the measured time. */
  readonly answers: Readonly<Record<Kind, Buckets>>;
}

/** Codes that are counted separately; further ones count as `other`. Servers and agents choose them. */
const CODES_MAX = 100;
const CODE_CHARS = 100;

const histograms = <K extends string>(names: readonly K[]): Record<K, Histogram> =>
  byName(names, () => new Histogram());

const COUNTED = ['opened', 'lost', 'done', 'pushed'] as const;

/** Counts and times of one process, or of several. */
export class Counts<S extends Series = Charted> {
  opened = 0;
  lost = 0;
  done = 0;
  pushed = 0;
  readonly errors = new Map<string, number>();
  readonly timed: Readonly<Record<S, Histogram>>;

  constructor(private readonly series: readonly S[]) {
    this.timed = histograms(series);
  }

  error(given: string, times = 1): void {
    const code = given.slice(0, CODE_CHARS);
    const name = this.errors.has(code) || this.errors.size < CODES_MAX ? code : 'other';
    this.errors.set(name, (this.errors.get(name) ?? 0) + times);
  }

  /** Its counts, as they are sent. */
  get counted(): Counted {
    const { opened, lost, done, pushed, errors } = this;
    return { opened, lost, done, pushed, errors: Object.fromEntries(errors) };
  }

  /** Its times, as they are sent. */
  get buckets(): Record<S, Buckets> {
    return byName(this.series, (name) => this.timed[name].buckets);
  }

  /** Adds other counts and times. */
  merge(more: Counted & { readonly timed: Readonly<Record<S, Buckets>> }): void {
    for (const what of COUNTED) this[what] += more[what];
    for (const [code, times] of Object.entries(more.errors)) this.error(code, times);
    for (const name of this.series) this.timed[name].merge(more.timed[name]);
  }
}

/** Counts of one second. */
export const ofSecond = (): Counts => new Counts(CHARTED);

/** Counts and times. */
export class Meter {
  /** Sockets that are open and caught up now. */
  sockets = 0;
  private readonly all = new Counts(SERIES);
  private second = ofSecond();
  private number = 0;
  private readonly done = byName(KINDS, () => 0);
  private readonly answers = histograms(KINDS);

  /** Records a time, us; `measured`: it also counts in the totals. */
  time(series: Series, us: number, measured = true): void {
    const charted: Readonly<Partial<Record<Series, Histogram>>> = this.second.timed;
    charted[series]?.record(us);
    if (measured) this.all.timed[series].record(us);
  }

  /** Records an answered operation. */
  answered(kind: Kind, us: number, measured: boolean): void {
    this.time('answer', us, measured);
    if (measured) this.answers[kind].record(us);
    this.done[kind]++;
    this.count('done');
  }

  count(what: (typeof COUNTED)[number]): void {
    this.second[what]++;
    this.all[what]++;
  }

  error(code: string): void {
    this.second.error(code);
    this.all.error(code);
  }

  /** Ends the current second, and returns it. */
  tick(): Tick {
    const { counted, buckets: timed } = this.second;
    this.second = ofSecond();
    return { second: this.number++, sockets: this.sockets, ...counted, timed };
  }

  get totals(): Totals {
    const { counted, buckets: timed } = this.all;
    return { ...counted, done: this.done, timed, answers: byName(KINDS, (kind) => this.answers[kind].buckets) };
  }
}
