/**
 * Which items may look different now. An item's look is the stream's entry with this device's own changes on top, so
 * whoever changes either of them says so here, after the change can be read; live queries look again.
 */

/** More ids than this, and everything is looked at again instead. */
const IDS_MAX = 10_000;

/** What was touched since somebody last asked. `all`: every item may be another. */
export interface TouchedItems {
  readonly all: boolean;
  readonly ids: readonly string[];
}

/** Gathers ids for one listener; without one it keeps nothing. */
export class Touched {
  private ids = new Set<string>();
  private everything = false;
  private wake: (() => void) | undefined;

  /** Calls `wake` at each mark; the result ends that. There is one listener at a time. */
  listen(wake: () => void): () => void {
    this.wake = wake;
    return () => {
      this.wake = undefined;
      this.ids = new Set();
      this.everything = false;
    };
  }

  /** These items were changed, all in one step. */
  mark(ids: Iterable<string>): void {
    if (this.wake === undefined) return;
    for (const id of ids) this.ids.add(id);
    if (this.ids.size > IDS_MAX) {
      this.markAll();
      return;
    }
    if (this.ids.size > 0) this.wake();
  }

  /** Any item may be another: a reset, for one. */
  markAll(): void {
    if (this.wake === undefined) return;
    this.everything = true;
    this.ids = new Set();
    this.wake();
  }

  /** What was touched, and forgets it. */
  take(): TouchedItems {
    const taken = { all: this.everything, ids: this.everything ? [] : [...this.ids] };
    this.ids = new Set();
    this.everything = false;
    return taken;
  }
}
