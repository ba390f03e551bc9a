/** A watched value: a watcher gets the current value at once, and each later one. */
export class Cell<T> {
  private readonly watchers = new Set<(value: T) => void>();

  constructor(private current: T) {}

  get value(): T {
    return this.current;
  }

  set(value: T): void {
    this.current = value;
    for (const watcher of [...this.watchers]) watcher(value);
  }

  /** Has the form of a topic: the result ends the watch. */
  readonly watch = (_: null, push: (value: T) => void): (() => void) => {
    this.watchers.add(push);
    push(this.current);
    return () => this.watchers.delete(push);
  };
}
