/** What the nightly jobs are made of. */

/** One job. A batch is one transaction of a bounded size, so that a night that is cut off goes on where it stopped. */
export interface Job {
  readonly name: string;
  /**
   * Does the next batch; resolves with the rows it changed: fewer than `full` means that nothing is left. One that takes
   * long ends early when `stopped` is aborted.
   */
  batch(stopped: AbortSignal): Promise<number>;
  /** Rows of a full batch. */
  readonly full: number;
}

/** One instance at a time runs the jobs. */
export interface JobTurn {
  /**
   * Runs `work` while this instance alone holds the turn; resolves with false, and does nothing, where another one has
   * it. `lost` is aborted when the turn is lost while `work` runs.
   */
  take(work: (lost: AbortSignal) => Promise<void>): Promise<boolean>;
  /** When all jobs were last through, ms since 1970; null: never. */
  lastRun(): Promise<number | null>;
  /** Notes that all jobs are through. */
  ran(at: number): Promise<void>;
}
