/**
 * Runs the jobs once a day at PURGE_AT, on one instance. A run that was missed is made up for soon after the start. A job
 * that fails is reported, does not keep the others from running, and is tried again in the next run.
 */
import { type Clock, DAY_MS, HOUR_MS, MINUTE_MS, type Timer } from '../../protocol/clock.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import type { Job, PostgresJobTurn } from './store.js';

/**
 * A missed run begins this long after the server's start, so that it does not add to the load of the start; and one for
 * which the database was out of reach this long after that.
 */
const MAKE_UP_AFTER_MS = 5 * MINUTE_MS;
/** Instances' clocks differ a little: within this time after a run, another instance does not run the jobs again. */
const JUST_RUN_MS = HOUR_MS;
/** Most batches of one job in a run; the rest waits for the next run. */
const BATCHES_MAX = 10_000;

/** What a job did in one run. */
export interface JobReport {
  readonly name: string;
  readonly rows: number;
  readonly ms: number;
}

/** The right of one instance to run the jobs; a test may grant it without a database. */
export type JobTurn = Pick<PostgresJobTurn, 'take' | 'lastRun' | 'ran'>;

interface NightlyOptions {
  readonly jobs: readonly Job[];
  readonly turn: JobTurn;
  readonly clock: Clock;
  /** Minutes after midnight, by the machine's local time. */
  readonly at: number;
  readonly onReport: (report: JobReport) => void;
  readonly onFault: (error: unknown) => void;
}

/** The next time after `now` (ms since 1970) at which the local time is `minutes` after midnight. */
export function nextAt(now: number, minutes: number): number {
  const day = new Date(now);
  // By calendar, not by adding 24 hours: with daylight saving time a day may have 23 or 25.
  for (let ahead = 0; ; ahead++) {
    const at = new Date(day.getFullYear(), day.getMonth(), day.getDate() + ahead, 0, minutes).getTime();
    if (at > now) return at;
  }
}

/**
 * Runs every job until it has nothing left, `stopped` is aborted, or it has done BATCHES_MAX batches. A failure goes to
 * `onFault`, and the other jobs run all the same. Resolves with true when all have ended without a failure.
 */
export async function runJobs(
  options: Pick<NightlyOptions, 'jobs' | 'clock' | 'onReport' | 'onFault'>,
  stopped: AbortSignal,
): Promise<boolean> {
  const { jobs, clock, onReport, onFault } = options;
  let complete = true;
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
      complete = false;
      onFault(error);
    }
    onReport({ name: job.name, rows, ms: clock.now() - begun });
  }
  return complete && !stopped.aborted;
}

/** Schedules the runs. */
export class Nightly {
  private timer: Timer | undefined;
  private readonly running = new SingleFlight(() => this.run().catch((error: unknown) => this.makeUp(error)));
  private readonly stopping = new AbortController();

  constructor(private readonly options: NightlyOptions) {}

  /** Schedules the next run, or, if one was missed, a run soon after now. Rejects while the database is down. */
  async start(): Promise<void> {
    const { turn, clock } = this.options;
    const last = await turn.lastRun();
    const missed = last !== null && clock.now() - last > DAY_MS + JUST_RUN_MS;
    this.schedule(missed ? clock.now() + MAKE_UP_AFTER_MS : undefined);
  }

  /** Resolves when the batch under way has ended; no other begins. */
  async close(): Promise<void> {
    this.stopping.abort();
    this.timer?.cancel();
    await this.running.idle();
  }

  /** `at`: ms since 1970; default: the next PURGE_AT. */
  private schedule(at = nextAt(this.options.clock.now(), this.options.at)): void {
    const { clock } = this.options;
    this.timer = clock.setTimer(at - clock.now(), () => {
      this.schedule();
      void this.running.join();
    });
  }

  /** The database was out of reach: at the same time of the next night it may be so again. */
  private makeUp(error: unknown): void {
    this.options.onFault(error);
    if (this.stopping.signal.aborted) return;
    this.timer?.cancel();
    this.schedule(this.options.clock.now() + MAKE_UP_AFTER_MS);
  }

  private async run(): Promise<void> {
    const { turn, clock } = this.options;
    await turn.take(async (lost) => {
      const last = await turn.lastRun();
      // A time far ahead is from before the clock was set back: no run would begin until the clock has caught up.
      if (last !== null && Math.abs(clock.now() - last) < JUST_RUN_MS) return;
      if (await runJobs(this.options, AbortSignal.any([this.stopping.signal, lost]))) await turn.ran(clock.now());
    });
  }
}
