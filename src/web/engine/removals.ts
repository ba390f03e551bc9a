/**
 * Deletions that can still be taken back. Nothing is sent before their time has come. They are kept, so that they are
 * carried out also where the tab is closed meanwhile: at the next start.
 */
import type { Clock, Timer } from '../../protocol/clock.js';
import type { KeyValue } from './key-value.js';

/** How long a deletion can be taken back, ms. */
export const UNDO_MS = 8_000;
/** Deletions that wait at once; more are carried out at once. */
const WAITING_MAX = 10_000;
const PREFIX = 'removal:';

/** The deletions of an open device that wait. At most `WAITING_MAX`. */
export class Removals {
  private readonly due = new Map<string, { readonly at: number; readonly timer: Timer }>();

  /** `remove` deletes an item, resolves when that is kept, and reports what fails itself; `changed`: what `at` gives is another now. */
  constructor(
    private readonly records: Pick<KeyValue, 'all' | 'put' | 'remove'>,
    private readonly clock: Clock,
    private readonly ports: { readonly remove: (id: string) => Promise<void>; readonly changed: () => void },
  ) {}

  /** Carries on with what an earlier run left. */
  async load(): Promise<void> {
    for (const [key, at] of await this.records.all(PREFIX))
      this.plan(key.slice(PREFIX.length), typeof at === 'number' ? at : 0);
    this.ports.changed();
  }

  /** When the item will be deleted; null: not at all. */
  at(id: string): number | null {
    return this.due.get(id)?.at ?? null;
  }

  async add(ids: readonly string[]): Promise<void> {
    const at = this.clock.now() + UNDO_MS;
    for (const id of ids) {
      if (this.due.has(id)) continue;
      if (this.due.size >= WAITING_MAX) await this.ports.remove(id);
      else {
        await this.records.put(PREFIX + id, at);
        this.plan(id, at);
      }
    }
    this.ports.changed();
  }

  async keep(ids: readonly string[]): Promise<void> {
    for (const id of ids) await this.forget(id);
    this.ports.changed();
  }

  /** Stops the timers; what waits is kept for the next start. */
  close(): void {
    for (const { timer } of this.due.values()) timer.cancel();
    this.due.clear();
  }

  private plan(id: string, at: number): void {
    // A clock that was set back must not keep an item for long.
    const wait = Math.min(UNDO_MS, Math.max(0, at - this.clock.now()));
    const timer = this.clock.setTimer(wait, () => {
      // Forgotten only when the deletion is kept: a tab that is closed in between carries it out at its next start.
      const removed = this.ports.remove(id).then(() => this.forget(id));
      removed.then(this.ports.changed, this.ports.changed);
    });
    this.due.set(id, { at, timer });
  }

  private async forget(id: string): Promise<void> {
    const known = this.due.get(id);
    if (known === undefined) return;
    known.timer.cancel();
    this.due.delete(id);
    await this.records.remove(PREFIX + id);
  }
}
