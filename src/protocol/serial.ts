/** A queue of tasks that run one after the other. */

const nothing = (): void => undefined;

/**
 * Runs tasks in the order of the calls. A failure, even a synchronous one, rejects only its own call, and the next task
 * runs. No task begins before its call has returned. A task that awaits another task of the same `Serial` deadlocks.
 */
export class Serial {
  private last: Promise<unknown> = Promise.resolve();
  /** Queued and running tasks. */
  private count = 0;

  /** @param bound limits the queue and creates the error of a refused call; needed if clients can fill the queue. */
  constructor(private readonly bound?: { readonly maxWaiting: number; readonly refuse: () => Error }) {}

  /** The result of `task`. Rejects with the bound's error if the queue is full; the task is not run then. */
  run<T>(task: () => T | PromiseLike<T>): Promise<T> {
    // The running task does not count as waiting.
    if (this.bound !== undefined && this.count > this.bound.maxWaiting) return Promise.reject(this.bound.refuse());
    this.count++;
    const end = this.last.then(task).finally(() => {
      this.count--;
    });
    this.last = end.then(nothing, nothing);
    return end;
  }

  /** Resolves when every task queued so far has ended. */
  idle(): Promise<void> {
    return this.last.then(nothing);
  }
}
