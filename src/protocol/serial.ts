/** Tasks one after the other, each begun when the one before it has ended. */

/** How many may wait, and what the next one is told. */
export interface SerialBound {
  readonly maxWaiting: number;
  readonly refuse: () => Error;
}

const nothing = (): void => undefined;

/**
 * Runs tasks in the order of the calls. A task that fails, also by throwing at once, is its own caller's affair: the next
 * one runs all the same. None begins before the call that gave it has returned. A task must not wait for another one
 * that it gave to the same `Serial`: that one would wait for it.
 */
export class Serial {
  private last: Promise<unknown> = Promise.resolve();
  private count = 0;

  /** @param bound wanted where callers come from outside: what waits is memory. */
  constructor(private readonly bound?: SerialBound) {}

  /** Tasks that were given and have not ended. */
  get size(): number {
    return this.count;
  }

  /** What becomes of `task`. Rejects with the bound's error where too many wait; the task is not run then. */
  run<T>(task: () => T | PromiseLike<T>): Promise<T> {
    // One that is under way does not wait.
    if (this.bound !== undefined && this.count > this.bound.maxWaiting) return Promise.reject(this.bound.refuse());
    this.count++;
    const end = this.last.then(task).finally(() => {
      this.count--;
    });
    this.last = end.then(nothing, nothing);
    return end;
  }

  /** Resolves when every task that was given so far has ended. */
  idle(): Promise<void> {
    return this.last.then(nothing);
  }
}
