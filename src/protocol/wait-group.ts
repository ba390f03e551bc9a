/** Waiting for work under way, as a stop does. */

/** Counts promises until they settle. A rejection is for those who await the promise itself. */
export class WaitGroup {
  private pending = 0;
  private whenIdle: (() => void)[] = [];

  /** Promises that have not settled. */
  get size(): number {
    return this.pending;
  }

  /** Counts a promise, and returns it. Who awaits it may add another one in the turn in which it settles. */
  add<T>(promise: Promise<T>): Promise<T> {
    this.pending++;
    const over = (): void => {
      this.pending--;
      if (this.pending === 0) for (const wake of this.whenIdle.splice(0)) wake();
    };
    promise.then(over, over);
    return promise;
  }

  /** Resolves when no promise is pending, including those added when the last one settled. */
  async idle(): Promise<void> {
    while (this.pending > 0) await new Promise<void>((resolve) => void this.whenIdle.push(resolve));
  }
}
