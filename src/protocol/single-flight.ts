/** Shared runs: concurrent callers share one run of the same work. */
import { type Clock, every } from './clock.js';

const nothing = (): void => undefined;

/**
 * One run at a time. A run begins after the call that requested it has returned, and ends in the step in which its
 * promise settles: no caller can join a finished run, and a failure, including a synchronous one, leaves no state
 * behind. Work that requests another run from within gets the next one, and must not await it.
 */
export class SingleFlight<T = void, A extends unknown[] = []> {
  private current: Promise<T> | undefined;
  /** The current run has called `work`: it may have read state older than a call made now. */
  private begun = false;
  /** The run queued behind the current one; `beginDue` begins it. */
  private due: Promise<T> | undefined;
  private beginDue = nothing;

  constructor(private readonly work: (...args: A) => T | PromiseLike<T>) {}

  /** True while a run is current or queued. */
  get busy(): boolean {
    return this.current !== undefined;
  }

  /** Joins the current run, which may have begun before this call; begins one if there is none. */
  join(...args: A): Promise<T> {
    return this.current ?? this.begin(args);
  }

  /**
   * A run that begins after this call, and so sees everything before it. If a run has already begun, all callers share
   * the next one, which gets the arguments of the first caller.
   */
  fresh(...args: A): Promise<T> {
    if (this.current === undefined || !this.begun) return this.join(...args);
    this.due ??= new Promise((resolve) => {
      this.beginDue = () => resolve(this.begin(args));
    });
    return this.due;
  }

  /** Resolves when no run is current or queued, whatever their results. */
  async idle(): Promise<void> {
    while (this.current !== undefined) await this.current.then(nothing, nothing);
  }

  private begin(args: A): Promise<T> {
    this.begun = false;
    // `current` is set before `work` is called: it may throw synchronously, or call `fresh`.
    const run = Promise.resolve()
      .then(() => {
        this.begun = true;
        return this.work(...args);
      })
      .finally(() => this.ended());
    this.current = run;
    return run;
  }

  private ended(): void {
    const begin = this.beginDue;
    this.current = this.due = undefined;
    this.beginDue = nothing;
    begin();
  }
}

/** One run at a time for each key. The state of a key is dropped when its run ends. */
export class KeyedFlight<K, T> {
  private readonly runs = new Map<K, Promise<T>>();

  constructor(private readonly work: (key: K) => T | PromiseLike<T>) {}

  /** The current run of `key`, if any. */
  underWay(key: K): Promise<T> | undefined {
    return this.runs.get(key);
  }

  /** Joins the current run of `key`, which may have begun before this call; begins one if there is none. */
  join(key: K): Promise<T> {
    const before = this.runs.get(key);
    if (before !== undefined) return before;
    const run = Promise.resolve(key)
      .then(this.work)
      .finally(() => this.runs.delete(key));
    this.runs.set(key, run);
    return run;
  }
}

/**
 * Calls `work`, which must not reject, every `ms` milliseconds, unless the previous call is still running. Returns its
 * stop, which waits for that call.
 */
export function repeated(clock: Clock, ms: number, work: () => Promise<void>): () => Promise<void> {
  const working = new SingleFlight(work);
  const timer = every(clock, ms, () => void working.join());
  return () => {
    timer.cancel();
    return working.idle();
  };
}
