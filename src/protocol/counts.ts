/** How many of something each key has under way. */

/** Counts by key. A key whose count is 0 takes no memory. */
export class Counts {
  private readonly counts = new Map<string, number>();

  of(key: string): number {
    return this.counts.get(key) ?? 0;
  }

  add(key: string, by: 1 | -1): void {
    const count = this.of(key) + by;
    if (count === 0) this.counts.delete(key);
    else this.counts.set(key, count);
  }
}
