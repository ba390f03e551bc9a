/** Things that happened, in order, and a wait for more of them. */
export class Events<T> {
  readonly all: T[] = [];
  private waiting: { readonly enough: (all: readonly T[]) => boolean; readonly resolve: () => void }[] = [];

  readonly add = (value: T): void => {
    this.all.push(value);
    const ready = this.waiting.filter(({ enough }) => enough(this.all));
    this.waiting = this.waiting.filter((waiter) => !ready.includes(waiter));
    for (const { resolve } of ready) resolve();
  };

  until(enough: number | ((all: readonly T[]) => boolean)): Promise<void> {
    const test = typeof enough === 'number' ? (all: readonly T[]): boolean => all.length >= enough : enough;
    if (test(this.all)) return Promise.resolve();
    return new Promise((resolve) => this.waiting.push({ enough: test, resolve }));
  }
}
