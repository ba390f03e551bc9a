/**
 * Runs the jobs once a day at PURGE_AT, on one instance. A night that was slept
 * through is made up for soon after the start. One that fails is told of, keeps no other from running, and is tried
 * again the next night.
 */
import type { Clock, Timer } from '../../protocol/clock.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import type { Job, JobTurn } from './ports.js';

const DAY_MS = 86_400_000;
/** A start is busy enough. */
const MAKE_UP_AFTER_MS = 5 * 60_000;
/** Instances' clocks differ a little: whoever comes late must not run everything a second time. */
const JUST_RUN_MS = 60 * 60_000;
/** Batches of one job in a night; what is left then waits for the next one. */
const BATCHES_MAX = 10_000;

/** What a job did. */
export interface JobReport {
  readonly name: string;
  readonly rows: number;
  readonly ms: number;
}

/** What the jobs run on. */
export interface NightlyOptions {
  readonly jobs: readonly Job[];
  readonly turn: JobTurn;
  readonly clock: Clock;
  /** Minutes after midnight, by the machine's local time. */
  readonly at: number;
  readonly onReport: (report: JobReport) => void;
  readonly onFault: (error: unknown) => void;
}

/** The next time after `now` (ms since 1970) that local clocks show so many minutes after midnight. */
export function nextAt(now: number, minutes: number): number {
  const day = new Date(now);
  // By calendar, not by adding 24 hours: twice a year a day has 23 or 25.
  for (let ahead = 0; ; ahead++) {
    const at = new Date(day.getFullYear(), day.getMonth(), day.getDate() + ahead, 0, minutes).getTime();
    if (at > now) return at;
  }
}

/**
 * Runs every job until it has nothing left, `stopped` is aborted, or it has had its share of the night. A job that
 * fails is told to `onFault`; the others run all the same. Resolves with true when all are through without a failure.
 */
export async function runJobs(
  options: Pick<NightlyOptions, 'jobs' | 'clock' | 'onReport' | 'onFault'>,
  stopped: AbortSignal,
): Promise<boolean> {
  const { jobs, clock, onReport, onFault } = options;
  let through = true;
  for (const job of jobs) {
    const begun = clock.now();
    let rows = 0;
    try {
      for (let batches = 0; batches < BATCHES_MAX && !stopped.aborted; batches++) {
        const done = await job.batch(stopped);
        rows += done;
        if (done < job.full) break;
      }
    } catch (error) {
      through = false;
      onFault(error);
    }
    onReport({ name: job.name, rows, ms: clock.now() - begun });
  }
  return through && !stopped.aborted;
}

/** Waits for the night; see above. */
export class Nightly {
  private timer: Timer | undefined;
  private readonly running = new SingleFlight(() => this.run().catch(this.options.onFault));
  private readonly stop = new AbortController();

  constructor(private readonly options: NightlyOptions) {}

  /** Sets the clock, and makes up for a night that was missed. Rejects while the database is down. */
  async start(): Promise<void> {
    const { turn, clock } = this.options;
    const last = await turn.lastRun();
    const missed = last !== null && clock.now() - last > DAY_MS + JUST_RUN_MS;
    this.wait(missed ? clock.now() + MAKE_UP_AFTER_MS : this.next());
  }

  /** Resolves when the batch under way is done; no other begins. */
  async close(): Promise<void> {
    this.stop.abort();
    this.timer?.cancel();
    await this.running.idle();
  }

  private next(): number {
    return nextAt(this.options.clock.now(), this.options.at);
  }

  private wait(until: number): void {
    const { clock } = this.options;
    this.timer = clock.setTimer(until - clock.now(), () => {
      this.wait(this.next());
      void this.running.join();
    });
  }

  private async run(): Promise<void> {
    const { turn, clock } = this.options;
    await turn.take(async (lost) => {
      const last = await turn.lastRun();
      if (last !== null && clock.now() - last < JUST_RUN_MS) return;
      if (await runJobs(this.options, AbortSignal.any([this.stop.signal, lost]))) await turn.ran(clock.now());
    });
  }
}
