/** Work that many ask for and that is done once at a time. */

const nothing = (): void => undefined;

/** A run that is due after the one under way. */
interface Due<T, A extends unknown[]> {
  readonly promise: Promise<T>;
  readonly args: A;
  readonly begin: (run: Promise<T>) => void;
}

/**
 * One run at a time. A run begins after the call that asked for it has returned, and it is over in the very step in which
 * its promise settles: nobody can join one that has nothing more to do, and one that fails, also by throwing at once,
 * leaves nothing behind. Work that asks for itself gets the next run, and must not wait for it.
 */
export class SingleFlight<T = void, A extends unknown[] = []> {
  private current: Promise<T> | undefined;
  /** The one under way has called `work`: what it sees may be older than a call that comes now. */
  private begun = false;
  private due: Due<T, A> | undefined;

  constructor(private readonly work: (...args: A) => T | PromiseLike<T>) {}

  /** True from the call that asks for a run until none is under way or due. */
  get busy(): boolean {
    return this.current !== undefined;
  }

  /** Shares the run that is under way, which may have begun before this call; where there is none, begins one. */
  join(...args: A): Promise<T> {
    return this.current ?? this.begin(args);
  }

  /**
   * A run that begins after this call: what was true at the call is seen by it. Of a run that is under way that cannot be
   * said, so it is the one after it, which everybody shares who asks meanwhile; it gets the first one's arguments.
   */
  fresh(...args: A): Promise<T> {
    if (this.current === undefined || !this.begun) return this.join(...args);
    this.due ??= dueWith(args);
    return this.due.promise;
  }

  /** Resolves when nothing is under way or due, whatever became of it. */
  async idle(): Promise<void> {
    while (this.current !== undefined) await this.current.then(nothing, nothing);
  }

  private begin(args: A): Promise<T> {
    this.begun = false;
    // The promise stands before `work` is called: it may throw, or come back here.
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
    this.current = undefined;
    const { due } = this;
    this.due = undefined;
    due?.begin(this.begin(due.args));
  }
}

function dueWith<T, A extends unknown[]>(args: A): Due<T, A> {
  let begin: (run: Promise<T>) => void = nothing;
  const promise = new Promise<T>((resolve) => {
    begin = resolve;
  });
  return { promise, args, begin };
}

/** The same for many keys, each of which is for itself. What is kept of a key goes with the end of its run. */
export class KeyedFlight<K, T> {
  private readonly runs = new Map<K, Promise<T>>();

  constructor(private readonly work: (key: K) => T | PromiseLike<T>) {}

  /** The run under way for `key`, if there is one. */
  underWay(key: K): Promise<T> | undefined {
    return this.runs.get(key);
  }

  /** Shares the run that is under way for `key`, which may have begun before this call; else begins one. */
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
